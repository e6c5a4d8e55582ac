package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"xragent/rollout"
)

// Kernels is the kernel set that a server on GPUs claims. Its sums depend on
// what shares a batch, so a run on one is not byte-exact.
const Kernels = "gpu"

// Load brings the server to the version of m and proves it: the files have m's
// digests, and the server's log-probs on the canary match the learner's within
// the tolerance. Until it has returned without error, turns of that version
// fail. The proof lacks the worker's name.
func (c *Client) Load(ctx context.Context, m rollout.WeightsManifest) (rollout.Proof, error) {
	c.loading.Lock()
	defer c.loading.Unlock()
	c.mu.Lock()
	if c.cfg.Weights == WeightsReload { // adapters go by name: turns of other ones stay what they were
		c.loaded = loaded{}
		c.reloads++
	}
	c.mu.Unlock()
	proof, next, err := c.load(ctx, m)
	if err != nil {
		return rollout.Proof{}, fmt.Errorf("load version %d: %w", m.Version, err)
	}
	c.mu.Lock()
	c.loaded = next
	c.mu.Unlock()
	return proof, nil
}

func (c *Client) load(ctx context.Context, m rollout.WeightsManifest) (rollout.Proof, loaded, error) {
	next := loaded{proved: true, version: m.Version, digest: m.Digest, model: c.cfg.Model}
	proof := rollout.Proof{Version: m.Version, Digest: m.Digest, Kernels: Kernels}
	var err error
	switch c.cfg.Weights {
	case WeightsLoRA:
		next.model, err = c.loadAdapter(ctx, m)
	case WeightsReload:
		err = c.reload(ctx, m)
	}
	if err != nil {
		return proof, next, err
	}
	if proof.Logprobs, err = c.score(ctx, next, m.Canary.IDs); err != nil {
		return proof, next, fmt.Errorf("canary: %w", err)
	}
	return proof, next, checkCanary(m.Canary, proof.Logprobs)
}

func checkCanary(c rollout.Canary, got []float32) error {
	if len(got) != len(c.Logprobs) {
		return fmt.Errorf("canary: %d log-probs, want %d", len(got), len(c.Logprobs))
	}
	for i, want := range c.Logprobs {
		if d := math.Abs(float64(got[i]) - float64(want)); !(d <= c.Tolerance) { // NaN fails, too
			return fmt.Errorf("canary: log-prob %d is %v, want %v within %v: the server holds other weights", i, got[i], want, c.Tolerance)
		}
	}
	return nil
}

// loadAdapter registers the manifest's files as a LoRA adapter under a name of
// its own and returns the name.
func (c *Client) loadAdapter(ctx context.Context, m rollout.WeightsManifest) (string, error) {
	dir, err := c.fetch(ctx, m)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s-v%d", c.cfg.Model, m.Version)
	return name, c.post(ctx, "/v1/load_lora_adapter", map[string]any{"lora_name": name, "lora_path": dir, "load_inplace": true}, nil)
}

// reload makes the server read all weights from disk while no request runs.
func (c *Client) reload(ctx context.Context, m rollout.WeightsManifest) error {
	dir, err := c.fetch(ctx, m)
	if err != nil {
		return err
	}
	if err := c.post(ctx, "/pause?mode=wait&clear_cache=true", struct{}{}, nil); err != nil {
		return err
	}
	err = c.post(ctx, "/collective_rpc", map[string]any{"method": "reload_weights", "kwargs": map[string]any{"weights_path": dir}}, nil)
	if resumed := c.post(ctx, "/resume", struct{}{}, nil); err == nil {
		err = resumed
	}
	return err
}

// fetch writes the manifest's files into a folder of their version and returns
// its absolute path. Each file's digest is checked.
func (c *Client) fetch(ctx context.Context, m rollout.WeightsManifest) (string, error) {
	dir, err := filepath.Abs(filepath.Join(c.cfg.Dir, fmt.Sprintf("v%d-%.12s", m.Version, m.Digest)))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(f.Name) || f.Name != filepath.Base(f.Name) {
			return "", fmt.Errorf("file %q of the manifest is no plain file name", f.Name)
		}
		data, err := c.opts.Files(ctx, f.SHA256)
		if err != nil {
			return "", fmt.Errorf("file %s: %w", f.Name, err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != f.SHA256 {
			return "", fmt.Errorf("file %s: its digest is %x, the manifest says %s", f.Name, sum, f.SHA256)
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name), data, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}
