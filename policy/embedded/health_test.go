package embedded

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xragent/rollout"
	"xragent/trainer/batch"
)

// breakages make a step break: what they do to a learner, and what its error says.
var breakages = map[string]struct {
	spoil func(*Learner, *batch.Batch, *batch.Objective)
	want  []string
}{
	"weights": {func(l *Learner, _ *batch.Batch, _ *batch.Objective) {
		l.weights.Get(textPrefix + "layers.1.mlp.down_proj.weight")[3] = float32(math.Inf(-1))
	}, []string{"weights", textPrefix + "layers.1.mlp.down_proj.weight", "row0", "row4"}},
	"loss": {func(l *Learner, _ *batch.Batch, _ *batch.Objective) {
		fill(l.weights.Get(textPrefix+"embed_tokens.weight"), 1e30)
		fill(l.weights.Get(textPrefix+"norm.weight"), 1e30)
	}, []string{"loss is", "row"}},
	"gradient": {func(l *Learner, b *batch.Batch, _ *batch.Objective) { // the model stays the same, but for a large activation
		scale(l.weights.Get(textPrefix+"layers.0.mlp.up_proj.weight"), 1e20)
		scale(l.weights.Get(textPrefix+"layers.0.mlp.down_proj.weight"), 1e-20)
		for i := range b.Rows {
			b.Rows[i].Advantage = 1e38
		}
	}, []string{"gradient of " + textPrefix + "layers.0.mlp.down_proj.weight is not finite", "row0"}},
	"overflow": {func(l *Learner, _ *batch.Batch, o *batch.Objective) {
		fill(l.weights.Get(textPrefix+"norm.weight"), 1e16)
		o.Kind, o.MaxNorm = "sft", 0
	}, []string{"gradient norm", "max_norm", "row4"}},
}

func scale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// A step that breaks names its rows, changes nothing, and can be repeated from
// the file that is kept of it.
func TestBrokenStep(t *testing.T) {
	for name, c := range breakages {
		t.Run(name, func(t *testing.T) {
			l := newTestLearner(t, tiny(), 1, 80)
			l.opts.Repro = filepath.Join(t.TempDir(), "repro")
			b, o := mixedBatch(tiny()), objective("grpo", 1e-3)
			step(t, l, b, o)
			c.spoil(l, &b, &o)
			before, moment := slices.Clone(l.weights.slab), slices.Clone(l.adam.moment[1])
			_, err := l.Step(t.Context(), b, o)
			if err == nil {
				t.Fatal("the step was taken")
			}
			path := filepath.Join(l.opts.Repro, "repro-2.json")
			for _, part := range append(c.want, path) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
			if !sameFloats(l.weights.slab, before) || !slices.Equal(l.adam.moment[1], moment) || l.adam.steps != 1 {
				t.Error("weights or optimizer changed")
			}
			repeated(t, path, err)
		})
	}
}

// repeated holds that the file at path breaks as it did.
func repeated(t *testing.T, path string, broke error) {
	t.Helper()
	r, err := ReadRepro(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = r.Run(t.Context()); err == nil || !strings.HasPrefix(broke.Error(), err.Error()) || r.Reason != err.Error() {
		t.Errorf("repeated, the step says %v; it said %v", err, broke)
	}
}

func sameFloats(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// A step that does not break is the same from a file, too, with its optimizer
// and reference.
func TestReproIsTheStep(t *testing.T) {
	cfg := tiny()
	l, err := NewLearner(cfg, Init(cfg, 1), LearnerOptions{Threads: 2, MicroTokens: 80, Images: numberedImage, Reference: true,
		Processor: seedProcessor{cfg.Vision.PatchDim(), [3]int{1, 4, 6}}})
	if err != nil {
		t.Fatal(err)
	}
	b, o := mixedBatch(cfg), objective("grpo", 1e-3)
	o.Loss.KL.Coef = 0.1
	step(t, l, b, o)
	path := filepath.Join(t.TempDir(), "repro.json")
	if err := l.writeRepro(t.Context(), path, context.Canceled, b, o); err != nil {
		t.Fatal(err)
	}
	want := step(t, l, b, o)
	r, err := ReadRepro(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Run(t.Context()); err != nil || got != want {
		t.Errorf("repeated: %+v (%v), want %+v", got, err, want)
	}
}

// Nothing is kept of a step that was refused for another reason.
func TestNoReproOfRefusals(t *testing.T) {
	l := newTestLearner(t, tiny(), 1, 80)
	l.opts.Repro = t.TempDir()
	b := mixedBatch(tiny())
	b.Rows[0].Images = []rollout.ImageUse{{SHA256: "none"}}
	if _, err := l.Step(t.Context(), b, objective("sft", 1e-3)); err == nil || strings.Contains(err.Error(), "repeats") {
		t.Errorf("error %v", err)
	}
	if files, err := os.ReadDir(l.opts.Repro); err != nil || len(files) > 0 {
		t.Errorf("%d files (%v)", len(files), err)
	}
}

// TestRepro repeats the step in the file that XRAGENT_REPRO names.
func TestRepro(t *testing.T) {
	path := os.Getenv("XRAGENT_REPRO")
	if path == "" {
		t.Skip("XRAGENT_REPRO is not set: no step of a run was repeated")
	}
	r, err := ReadRepro(path)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := r.Run(t.Context())
	t.Logf("kept: %s (kernels %s)\nnow: %+v, %v", r.Reason, r.Kernels, stats, err)
}
