package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"xragent/internal/simd"
	"xragent/rollout"
)

// The files of a saved learner.
const (
	weightsFile   = "model.safetensors"
	optimizerFile = "optimizer.safetensors"
	stateFile     = "state.json"
)

// momentPrefix names the optimizer's tensors as torch does.
var momentPrefix = [2]string{"exp_avg.", "exp_avg_sq."}

// state is what a saved learner has beside its tensors.
type state struct {
	Format  int    `json:"format"`
	Steps   int    `json:"steps"`   // optimizer steps taken
	Config  string `json:"config"`  // sha256 of config.json
	Kernels string `json:"kernels"` // kernel set that the run is bound to
}

// Save writes weights and optimizer state into dir, making it. It neither
// syncs nor renames: the caller owns the checkpoint's atomicity.
func (l *Learner) Save(ctx context.Context, dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	st, err := json.Marshal(state{1, l.adam.steps, l.weights.cfg.fingerprint(), simd.Kernels()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{weightsFile, l.weights.Safetensors()},
		{optimizerFile, encodeSafetensors(l.moments())},
		{stateFile, append(st, '\n')},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, f.name), f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// moments returns the optimizer's tensors; the data are views.
func (l *Learner) moments() []Tensor { return momentTensors(l.weights, l.adam.moment) }

func momentTensors(w *Weights, moment [2][]float32) []Tensor {
	var ts []Tensor
	for k, slab := range moment {
		lo := 0
		for _, t := range w.tensors {
			hi := lo + len(t.Data)
			ts = append(ts, Tensor{momentPrefix[k] + t.Name, t.Shape, slab[lo:hi:hi]})
			lo = hi
		}
	}
	return ts
}

// Load reads what Save wrote; training goes on as if it had not stopped. An
// error leaves the learner as it was.
func (l *Learner) Load(_ context.Context, dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	st, err := l.readState(filepath.Join(dir, stateFile))
	if err != nil {
		return err
	}
	w, err := ReadSafetensors(filepath.Join(dir, weightsFile), l.weights.cfg)
	if err != nil {
		return err
	}
	moment, err := readMoments(filepath.Join(dir, optimizerFile), w)
	if err != nil {
		return err
	}
	copy(l.weights.slab, w.slab) // in place: the graphs are bound to the slab
	l.adam.moment, l.adam.steps = moment, st.Steps
	return nil
}

func (l *Learner) readState(path string) (state, error) {
	var st state
	data, err := os.ReadFile(path)
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("%s: %w", path, err)
	}
	switch own := l.weights.cfg.fingerprint(); {
	case st.Format != 1:
		return st, fmt.Errorf("%s: format %d, this build reads 1", path, st.Format)
	case st.Config != own:
		return st, fmt.Errorf("%s: saved for the config.json %.12s, the learner has %.12s", path, st.Config, own)
	case st.Kernels != simd.Kernels():
		return st, l.otherKernels(path, st.Kernels)
	}
	return st, nil
}

// otherKernels warns, or refuses where nobody listens.
func (l *Learner) otherKernels(path, saved string) error {
	text := fmt.Sprintf("%s: saved with kernels %s, this machine runs %s: the run does not continue with the same bits (XRAGENT_KERNELS selects)", path, saved, simd.Kernels())
	if l.opts.Notice == nil {
		return errors.New(text)
	}
	l.opts.Notice(text)
	return nil
}

func readMoments(path string, w *Weights) ([2][]float32, error) {
	moment := [2][]float32{make([]float32, w.Len()), make([]float32, w.Len())}
	data, err := os.ReadFile(path)
	if err != nil {
		return moment, err
	}
	read, err := decodeSafetensors(data)
	if err == nil {
		err = fillTensors(momentTensors(w, moment), read)
	}
	for k, slab := range moment {
		if err == nil && !simd.Finite(slab) {
			err = fmt.Errorf("%s holds numbers that are not finite", strings.TrimSuffix(momentPrefix[k], "."))
		}
	}
	if err != nil {
		return moment, fmt.Errorf("%s: %w", path, err)
	}
	return moment, nil
}

// fingerprint tells configurations apart.
func (c Config) fingerprint() string {
	sum := sha256.Sum256(c.JSON())
	return hex.EncodeToString(sum[:])
}

// Publish stores the current weights and returns the manifest that announces
// them as version v, with a canary computed by the learner's own forward pass.
func (l *Learner) Publish(ctx context.Context, v rollout.PolicyVersion) (rollout.WeightsManifest, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opts.Put == nil {
		return rollout.WeightsManifest{}, errors.New("publish: the learner was made without a blob store")
	}
	data := l.weights.Safetensors()
	digest, err := l.opts.Put(ctx, data)
	if err != nil {
		return rollout.WeightsManifest{}, fmt.Errorf("publish version %d: %w", v, err)
	}
	if own := sha256.Sum256(data); hex.EncodeToString(own[:]) != digest {
		return rollout.WeightsManifest{}, fmt.Errorf("publish version %d: stored as %s, but the weights are %x", v, digest, own)
	}
	canary, err := l.canary(ctx)
	if err != nil {
		return rollout.WeightsManifest{}, fmt.Errorf("publish version %d: canary: %w", v, err)
	}
	files := []rollout.File{{Name: weightsFile, SHA256: digest, Size: int64(len(data))}}
	return rollout.WeightsManifest{
		Run: l.opts.Run, Version: v, Files: files, Digest: rollout.FilesDigest(files),
		Kernels: simd.Kernels(), Canary: canary,
	}, nil
}

// canaryTolerance is far above what two orders of summation differ by, and far
// below what one step changes.
const canaryTolerance = 1e-3

// canary scores ids spread over the vocabulary, without the vision tokens.
func (l *Learner) canary(ctx context.Context) (rollout.Canary, error) {
	const length = 32
	c := l.weights.cfg
	var ids []int32
	for i := 1; len(ids) < length; i++ {
		id := int32(mix64(uint64(i)) % uint64(c.Text.VocabSize))
		if id != c.ImageTokenID && id != c.VideoTokenID && id != c.VisionStartID && id != c.VisionEndID {
			ids = append(ids, id)
		}
	}
	lp, err := l.logprobs(ctx, ids)
	return rollout.Canary{IDs: ids, Logprobs: lp, Tolerance: canaryTolerance}, err
}
