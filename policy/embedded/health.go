package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"xragent/internal/simd"
	"xragent/trainer/batch"
)

// A brokenError is arithmetic that left the finite numbers. The step that it
// ends changes nothing, and can be repeated.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

func broken(format string, args ...any) error { return &brokenError{fmt.Sprintf(format, args...)} }

// The bounds within which an update of finite weights by a finite gradient
// stays finite, whatever the moments are: of the gradient's norm behind
// clipping, the learning rate, and Adam's eps.
const (
	maxGradient = 1e12
	maxRate     = 1e3
	minEps      = 1e-12
)

// checkWeights names the first tensor that is not finite.
func (l *Learner) checkWeights(rows []batch.Row) error {
	if simd.Finite(l.weights.slab) {
		return nil
	}
	for _, t := range l.weights.tensors {
		if !simd.Finite(t.Data) {
			return broken("weights: tensor %s is not finite before the step over %s; go back to a checkpoint", t.Name, rowIDs(rows))
		}
	}
	return nil
}

// checkGradient holds the gradient of the rows so far to be finite.
func (l *Learner) checkGradient(rows []batch.Row) error {
	if simd.Finite(l.gradient) {
		return nil
	}
	for _, p := range l.params {
		if g := p.grad.Data().([]float32); !simd.Finite(g) {
			return broken("gradient of %s is not finite after %s; the step was not taken", p.Name, rowIDs(rows))
		}
	}
	return nil
}

// clip scales the gradient down to the objective's norm and returns the norm
// that it had.
func (l *Learner) clip(b batch.Batch, o batch.Objective) (float64, error) {
	size := norm(l.opts.Threads, l.gradient)
	kept := size
	if o.MaxNorm > 0 {
		kept = min(size, o.MaxNorm)
	}
	if kept > maxGradient {
		return size, broken("gradient norm is %.3g over %s, above %.0e: the update could overflow, the step was not taken; set max_norm", size, rowIDs(b.Rows), maxGradient)
	}
	if kept < size {
		simd.Scale(float32(kept/size), l.gradient)
	}
	return size, nil
}

// A Repro is a step that broke, with all that it takes to repeat it.
type Repro struct {
	Reason   string `json:"reason"`
	Kernels  string `json:"kernels"` // whose bits broke
	Steps    int    `json:"steps"`   // optimizer steps taken before it
	Settings struct {
		Threads     int `json:"threads"`
		MicroTokens int `json:"micro_tokens"`
	} `json:"settings"`
	Config    json.RawMessage         `json:"config"` // config.json
	Objective batch.Objective         `json:"objective"`
	Batch     batch.Batch             `json:"batch"`
	Pictures  map[string]reproPicture `json:"pictures"`            // by digest, as the vision tower read them
	Tensors   []byte                  `json:"tensors"`             // weights and optimizer, as safetensors
	Reference []byte                  `json:"reference,omitempty"` // weights, as safetensors
}

// A reproPicture is a picture with its values bit by bit, whatever they are.
type reproPicture struct {
	Grid    [3]int `json:"grid"`
	Patches []byte `json:"patches"` // safetensors of one tensor
}

// reproName is the tensor of a picture.
const reproName = "patches"

// keep writes the step that broke for err into the directory that the options
// name, and adds to err where it lies.
func (l *Learner) keep(ctx context.Context, err error, b batch.Batch, o batch.Objective) error {
	if cause := new(brokenError); l.opts.Repro == "" || !errors.As(err, &cause) {
		return err
	}
	path := filepath.Join(l.opts.Repro, fmt.Sprintf("repro-%d.json", l.adam.steps+1))
	if werr := l.writeRepro(ctx, path, err, b, o); werr != nil {
		return fmt.Errorf("%w; it could not be kept for another look: %v", err, werr)
	}
	return fmt.Errorf("%w; %s repeats it", err, path)
}

func (l *Learner) writeRepro(ctx context.Context, path string, reason error, b batch.Batch, o batch.Objective) error {
	r := Repro{
		Reason: reason.Error(), Kernels: simd.Kernels(), Steps: l.adam.steps, Config: l.weights.cfg.JSON(),
		Objective: o, Batch: b, Pictures: map[string]reproPicture{},
		Tensors: encodeSafetensors(append(l.moments(), l.weights.tensors...)),
	}
	r.Settings.Threads, r.Settings.MicroTokens = l.opts.Threads, l.opts.MicroTokens
	if l.first != nil {
		r.Reference = l.first.Safetensors()
	}
	pictures, _, err := l.fetch(ctx, b.Rows)
	if err != nil {
		return err
	}
	for digest, p := range pictures {
		r.Pictures[digest] = reproPicture{p.grid, encodeSafetensors([]Tensor{{reproName, []int{len(p.patches)}, p.patches}})}
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	aside := path + ".partial" // a disk that is full leaves no half of a step
	if err := os.WriteFile(aside, data, 0o644); err != nil {
		_ = os.Remove(aside)
		return err
	}
	return os.Rename(aside, path)
}

// ReadRepro reads what a learner kept of a step that broke.
func ReadRepro(path string) (*Repro, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Repro
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// Run takes the step again, with a learner of its own, and returns what it
// reports. Under the kernels that it names, it breaks as it did.
func (r *Repro) Run(ctx context.Context) (batch.Stats, error) {
	l, err := r.learner()
	if err != nil {
		return batch.Stats{}, fmt.Errorf("repro: %w", err)
	}
	return l.Step(ctx, r.Batch, r.Objective)
}

func (r *Repro) learner() (*Learner, error) {
	cfg, err := ReadConfig(r.Config)
	if err != nil {
		return nil, err
	}
	l, err := NewLearner(cfg, NewWeights(cfg), LearnerOptions{Threads: r.Settings.Threads, MicroTokens: r.Settings.MicroTokens,
		Reference: r.Reference != nil, Processor: reproProcessor{}, Images: noImages})
	if err != nil {
		return nil, err
	}
	l.adam.steps = r.Steps
	if err := fillFrom(r.Tensors, append(l.moments(), l.weights.tensors...)); err != nil {
		return nil, err
	}
	if r.Reference != nil {
		if err := fillFrom(r.Reference, l.first.tensors); err != nil {
			return nil, err
		}
	}
	for digest, p := range r.Pictures {
		read, err := decodeSafetensors(p.Patches)
		if err != nil {
			return nil, fmt.Errorf("image %.12s: %w", digest, err)
		}
		l.pictures.put(digest, picture{read[reproName].Data, p.Grid})
	}
	for i := range r.Batch.Rows { // the pictures are already processed
		for k := range r.Batch.Rows[i].Images {
			r.Batch.Rows[i].Images[k].Processor = ""
		}
	}
	return l, nil
}

// fillFrom reads tensors from safetensors.
func fillFrom(data []byte, tensors []Tensor) error {
	read, err := decodeSafetensors(data)
	if err != nil {
		return err
	}
	return fillTensors(tensors, read)
}

// A reproProcessor is never asked: all pictures are at hand.
type reproProcessor struct{}

func (reproProcessor) Hash() string { return "" }

func (reproProcessor) Process([]byte) ([]float32, [3]int, error) {
	return nil, [3]int{}, errors.New("a repro holds its pictures")
}

func noImages(_ context.Context, digest string) ([]byte, error) {
	return nil, fmt.Errorf("the repro has no image %.12s", digest)
}
