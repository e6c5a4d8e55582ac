// Package remote trains through a learner process on GPUs, as a
// [trainer.Learner].
//
// The process is learner/learner.py or any other that answers the same
// requests over HTTP, on this machine or behind a tunnel: it has no
// authentication of its own. A batch travels as an Arrow IPC file
// (dataset/columnar); images travel once each, by content; weights come back as
// a manifest with digests and its files. Folders given to Save and Load are
// read and written by the learner process and must be shared with it.
//
// A step whose answer got lost is asked for again under the same number, and
// the learner takes it once.
package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"sync"

	"xragent/dataset/columnar"
	"xragent/rollout"
	"xragent/trainer"
	"xragent/trainer/batch"
)

// Kernels is the kernel set that manifests of GPU learners name: their sums are
// not bound to one order, so a run on them is not byte-exact.
const Kernels = "gpu"

// Options is what a client needs beside the learner's address.
type Options struct {
	Run string // named in manifests
	// Processor is the hash of the image processor that rollouts used; the
	// learner must have the same. "" skips the comparison.
	Processor string
	Images    func(ctx context.Context, sha256 string) ([]byte, error)
	// Put stores published weights by content for the rollout workers; nil
	// leaves them with the learner, from whose folder the servers read.
	Put func(ctx context.Context, data []byte) (sha256 string, err error)
}

// Info is what a learner says of itself.
type Info struct {
	Format    string `json:"format"` // "xragent.learner/1"
	Model     string `json:"model"`
	Vocab     int    `json:"vocab"`
	Processor string `json:"processor"` // hash of the image processor
	Device    string `json:"device"`
	Precision string `json:"precision"`
	LoRARank  int    `json:"lora_rank"` // 0: all weights are trained
	Steps     int    `json:"steps"`     // optimizer steps behind its weights
}

// A Learner is a client. It is safe for concurrent use; calls run one after
// another.
type Learner struct {
	mu    sync.Mutex
	http  caller
	opts  Options
	info  Info
	steps int // that the learner has taken
}

var _ trainer.Learner = (*Learner)(nil)

const format = "xragent.learner/1"

// Dial asks the learner at cfg.URL who it is and returns its client.
func Dial(ctx context.Context, cfg Config, opts Options) (*Learner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Learner{http: newCaller(cfg), opts: opts}
	if err := l.http.get(ctx, "/v1/info", &l.info); err != nil {
		return nil, fmt.Errorf("learner: %w; start it with learner/learner.py", err)
	}
	switch {
	case l.info.Format != format:
		return nil, fmt.Errorf("learner %s speaks %q, want %s", cfg.URL, l.info.Format, format)
	case opts.Processor != "" && l.info.Processor != opts.Processor:
		return nil, fmt.Errorf("learner %s has image processor %s, rollouts use %s; give both the same preprocessor_config.json", cfg.URL, l.info.Processor, opts.Processor)
	}
	l.steps = l.info.Steps
	return l, nil
}

// Info returns what the learner said when it was dialled.
func (l *Learner) Info() Info { return l.info }

// Step takes one optimizer step. When the learner refuses the batch, and when
// it cannot be reached, its weights are as before; only when its answer is lost
// twice is that unknown, and the next call says so.
func (l *Learner) Step(ctx context.Context, b batch.Batch, o batch.Objective) (batch.Stats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var stats batch.Stats
	if err := checkFinite(b, o); err != nil {
		return stats, err
	}
	objective, err := json.Marshal(wireObjective(o))
	if err != nil {
		return stats, fmt.Errorf("objective: %w", err)
	}
	data, err := l.ship(ctx, b)
	if err != nil {
		return stats, err
	}
	call := request{method: "POST", path: fmt.Sprintf("/v1/step?steps=%d", l.steps), body: data,
		kind: "application/vnd.apache.arrow.file", header: map[string]string{"X-Objective": string(objective)}}
	if err := l.http.doTwice(ctx, call, &stats); err != nil {
		return stats, fmt.Errorf("learner: step %d: %w", l.steps+1, err)
	}
	l.steps++
	return stats, nil
}

// Evaluate returns the mean of −log p over the batch's loss tokens.
func (l *Learner) Evaluate(ctx context.Context, b batch.Batch) (float64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := l.ship(ctx, b)
	if err != nil {
		return 0, err
	}
	var answer struct{ Loss float64 }
	call := request{method: "POST", path: "/v1/evaluate", body: data, kind: "application/vnd.apache.arrow.file"}
	if err := l.http.doTwice(ctx, call, &answer); err != nil {
		return 0, fmt.Errorf("learner: evaluate: %w", err)
	}
	return answer.Loss, nil
}

// ship gives the learner the images that it lacks and encodes the batch.
func (l *Learner) ship(ctx context.Context, b batch.Batch) ([]byte, error) {
	data, err := columnar.EncodeBatch(b)
	if err != nil {
		return nil, err
	}
	var wanted []string
	for _, r := range b.Rows {
		for _, use := range r.Images {
			wanted = append(wanted, use.SHA256)
		}
	}
	if len(wanted) == 0 {
		return data, nil
	}
	var answer struct{ Missing []string }
	if err := l.http.post(ctx, "/v1/missing", map[string]any{"images": wanted}, &answer); err != nil {
		return nil, fmt.Errorf("learner: images: %w", err)
	}
	for _, sha := range answer.Missing {
		encoded, err := l.opts.Images(ctx, sha)
		if err == nil {
			err = l.http.do(ctx, request{method: "PUT", path: "/v1/images/" + sha, body: encoded, kind: "application/octet-stream"}, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("learner: image %.12s: %w", sha, err)
		}
	}
	return data, nil
}

// Start makes the learner hold the weights that Save wrote into dir, or for ""
// those that it was started with, under a new optimizer that has taken no step.
func (l *Learner) Start(ctx context.Context, dir string) error {
	return l.folder(ctx, "/v1/start", dir)
}

// Save writes weights and optimizer state into dir, as the learner sees it.
func (l *Learner) Save(ctx context.Context, dir string) error {
	return l.folder(ctx, "/v1/save", dir)
}

// Load reads what Save wrote.
func (l *Learner) Load(ctx context.Context, dir string) error {
	return l.folder(ctx, "/v1/load", dir)
}

func (l *Learner) folder(ctx context.Context, path, dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir, err := absolute(dir)
	if err != nil {
		return err
	}
	var answer struct{ Steps int }
	if err := l.http.post(ctx, path, map[string]any{"dir": dir}, &answer); err != nil {
		return fmt.Errorf("learner: %s %s: %w", path, dir, err)
	}
	l.steps = answer.Steps
	return nil
}

// absolute leaves "" as it is.
func absolute(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	return filepath.Abs(dir)
}

// An Export says what a written Hugging Face folder holds: log-probs of one
// prompt under the trained weights, under the folder's as loaded back, and
// under those that the learner was started with.
type Export struct {
	Trained, Loaded, First []float32
	Tolerance              float64
}

// Export makes the learner write its weights into dir as a Hugging Face folder,
// a LoRA adapter merged into its base, and load them back. The tokenizer's and
// the processor's files are not part of it.
func (l *Learner) Export(ctx context.Context, dir string) (Export, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e Export
	dir, err := filepath.Abs(dir)
	if err != nil {
		return e, err
	}
	if err := l.http.post(ctx, "/v1/export", map[string]any{"dir": dir}, &e); err != nil {
		return e, fmt.Errorf("learner: export %s: %w", dir, err)
	}
	if n := len(e.Trained); n == 0 || len(e.Loaded) != n || len(e.First) != n {
		return e, fmt.Errorf("learner: export %s: log-probs of %d, %d and %d ids, want as many each", dir, n, len(e.Loaded), len(e.First))
	}
	return e, nil
}

// Publish makes the current weights fetchable as version v. Each file is
// checked against its digest on the way into the blob store.
func (l *Learner) Publish(ctx context.Context, v rollout.PolicyVersion) (rollout.WeightsManifest, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var m rollout.WeightsManifest
	if err := l.http.post(ctx, "/v1/publish", map[string]any{"version": v}, &m); err != nil {
		return m, fmt.Errorf("learner: publish version %d: %w", v, err)
	}
	m.Run, m.Version, m.Kernels, m.Digest = l.opts.Run, v, Kernels, rollout.FilesDigest(m.Files)
	if len(m.Files) == 0 || len(m.Canary.IDs) < 2 || len(m.Canary.Logprobs) != len(m.Canary.IDs)-1 {
		return m, fmt.Errorf("learner: publish version %d: %d files, canary of %d ids and %d log-probs", v, len(m.Files), len(m.Canary.IDs), len(m.Canary.Logprobs))
	}
	if l.opts.Put == nil {
		return m, nil
	}
	for _, f := range m.Files {
		if err := l.bring(ctx, f); err != nil {
			return m, fmt.Errorf("learner: publish version %d: file %s: %w", v, f.Name, err)
		}
	}
	return m, nil
}

func (l *Learner) bring(ctx context.Context, f rollout.File) error {
	var data bytes.Buffer
	if err := l.http.get(ctx, "/v1/files/"+f.SHA256, &data); err != nil {
		return err
	}
	if sum := sha256.Sum256(data.Bytes()); hex.EncodeToString(sum[:]) != f.SHA256 {
		return fmt.Errorf("its digest is %x, the manifest says %s", sum, f.SHA256)
	}
	_, err := l.opts.Put(ctx, data.Bytes())
	return err
}

// checkFinite refuses what JSON cannot carry, what the learner does not train
// and what would spoil the weights unseen.
func checkFinite(b batch.Batch, o batch.Objective) error {
	if o.Kind == "grpo" {
		if err := o.Loss.Ready(); err != nil {
			return fmt.Errorf("objective: loss.%w", err)
		}
	}
	for name, v := range map[string]float64{"lr": o.LR, "max_norm": o.MaxNorm,
		"beta1": o.Weight.Beta1, "beta2": o.Weight.Beta2, "eps": o.Weight.Eps, "decay": o.Weight.Decay, "temperature": o.Temperature} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("objective: %s is %v", name, v)
		}
	}
	for _, r := range b.Rows {
		if math.IsNaN(r.Advantage) || math.IsInf(r.Advantage, 0) {
			return fmt.Errorf("row %s: advantage is %v", r.ID, r.Advantage)
		}
		if r.Targets != nil {
			return fmt.Errorf("row %s has targets of its own: only the embedded policy is trained on marks", r.ID)
		}
	}
	return nil
}

// wireObjective names the constants as the learner reads them.
func wireObjective(o batch.Objective) map[string]any {
	return map[string]any{"kind": o.Kind, "loss": o.Loss, "lr": o.LR, "max_norm": o.MaxNorm,
		"beta1": o.Weight.Beta1, "beta2": o.Weight.Beta2, "eps": o.Weight.Eps, "decay": o.Weight.Decay, "temperature": cmp.Or(o.Temperature, 1)}
}
