// Package learnertest holds what every [trainer.Learner] must do, as tests that
// each implementation runs on itself.
package learnertest

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"xragent/rollout"
	"xragent/trainer"
	"xragent/trainer/batch"
	"xragent/trainer/loss"
)

// A Setup is a kind of learner under test and what it can be trained on.
type Setup struct {
	// New returns a learner with the same initial weights each time.
	New func(t *testing.T) trainer.Learner
	// Batch has rows with behaviour log-probs and advantages of both signs; it
	// serves as an SFT batch, too.
	Batch batch.Batch
	LR    float64 // at which ten steps on Batch lower its loss
}

func (s Setup) objective(kind string) batch.Objective {
	return batch.Objective{Kind: kind, Loss: loss.Default(), LR: s.LR, MaxNorm: 1,
		Weight: batch.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Decay: 0.01}}
}

// changed returns a copy of the batch whose first row was changed.
func (s Setup) changed(change func(*batch.Row)) batch.Batch {
	b := batch.Batch{Rows: slices.Clone(s.Batch.Rows), Tokens: s.Batch.Tokens}
	r := &b.Rows[0]
	r.IDs, r.LossMask, r.Logprobs = slices.Clone(r.IDs), slices.Clone(r.LossMask), slices.Clone(r.Logprobs)
	change(r)
	return b
}

func step(t *testing.T, l trainer.Learner, b batch.Batch, o batch.Objective) batch.Stats {
	t.Helper()
	st, err := l.Step(context.Background(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func lossOf(t *testing.T, l trainer.Learner, b batch.Batch) float64 {
	t.Helper()
	v, err := l.Evaluate(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestLearner runs all tests.
func TestLearner(t *testing.T, s Setup) {
	t.Run("learns", s.testLearns)
	t.Run("objective", s.testObjective)
	t.Run("no advantage", s.testNoAdvantage)
	t.Run("equal calls", s.testEqualCalls)
	t.Run("refuses", s.testRefuses)
	t.Run("save and load", s.testSaveLoad)
	t.Run("publish", s.testPublish)
}

func (s Setup) testLearns(t *testing.T) {
	l := s.New(t)
	before := lossOf(t, l, s.Batch)
	first := step(t, l, s.Batch, s.objective("sft"))
	if math.Abs(first.Loss-before) > 1e-4*before {
		t.Errorf("the first step's loss is %v, evaluated before it %v", first.Loss, before)
	}
	for range 9 {
		step(t, l, s.Batch, s.objective("sft"))
	}
	after := lossOf(t, l, s.Batch)
	if after >= before {
		t.Errorf("loss %v before, %v after ten steps", before, after)
	}
	if again := lossOf(t, l, s.Batch); again != after {
		t.Errorf("evaluating changed the loss from %v to %v", after, again)
	}
}

// The statistics of a GRPO step, against what the batch says by itself.
func (s Setup) testObjective(t *testing.T) {
	l := s.New(t)
	st := step(t, l, s.Batch, s.objective("grpo"))
	if st.Tokens != s.Batch.Tokens || st.AllTokens < st.Tokens {
		t.Errorf("%d loss tokens of %d, want %d", st.Tokens, st.AllTokens, s.Batch.Tokens)
	}
	for name, v := range map[string]float64{"loss": st.Loss, "grad norm": st.GradNorm, "entropy": st.Entropy,
		"kl": st.ApproxKL, "log-prob difference": st.LogpDiff, "clip low": st.ClipLow, "clip high": st.ClipHigh} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 && name != "loss" {
			t.Errorf("%s is %v", name, v)
		}
	}
	if st.GradNorm == 0 || st.Entropy == 0 || st.ClipLow > 1 || st.ClipHigh > 1 {
		t.Errorf("statistics %+v", st)
	}
}

// Rows of advantage 0 teach nothing.
func (s Setup) testNoAdvantage(t *testing.T) {
	l := s.New(t)
	b := batch.Batch{Rows: slices.Clone(s.Batch.Rows), Tokens: s.Batch.Tokens}
	for i := range b.Rows {
		b.Rows[i].Advantage = 0
	}
	o := s.objective("grpo")
	o.Weight.Decay = 0
	before := lossOf(t, l, s.Batch)
	if st := step(t, l, b, o); st.GradNorm != 0 || st.Loss != 0 {
		t.Errorf("gradient norm %v, loss %v, want 0", st.GradNorm, st.Loss)
	}
	if after := lossOf(t, l, s.Batch); after != before {
		t.Errorf("loss %v before, %v after a step without advantage", before, after)
	}
}

func (s Setup) testEqualCalls(t *testing.T) {
	a, b := s.New(t), s.New(t)
	for _, kind := range []string{"sft", "grpo", "grpo"} {
		if x, y := step(t, a, s.Batch, s.objective(kind)), step(t, b, s.Batch, s.objective(kind)); x != y {
			t.Errorf("equal %s steps gave %+v and %+v", kind, x, y)
		}
	}
}

func (s Setup) testRefuses(t *testing.T) {
	l := s.New(t)
	step(t, l, s.Batch, s.objective("sft"))
	before := lossOf(t, l, s.Batch)
	bad := s.objective("grpo")
	bad.LR = math.NaN()
	tests := []struct {
		name string
		b    batch.Batch
		o    batch.Objective
	}{
		{"unknown objective", s.Batch, s.objective("dpo")},
		{"rate not a number", s.Batch, bad},
		{"advantage not a number", s.changed(func(r *batch.Row) { r.Advantage = math.NaN() }), s.objective("grpo")},
		{"no log-probs", s.changed(func(r *batch.Row) { r.Logprobs = nil }), s.objective("grpo")},
		{"id outside the vocabulary", s.changed(func(r *batch.Row) { r.IDs[len(r.IDs)-1] = 1 << 30 }), s.objective("sft")},
		{"first id scored", s.changed(func(r *batch.Row) { r.LossMask[0], r.LossMask[len(r.LossMask)-1] = 1, 0 }), s.objective("sft")},
		{"wrong denominator", batch.Batch{Rows: s.Batch.Rows, Tokens: s.Batch.Tokens + 1}, s.objective("sft")},
		{"nothing to learn", batch.Batch{}, s.objective("sft")},
	}
	for _, test := range tests {
		if st, err := l.Step(context.Background(), test.b, test.o); err == nil {
			t.Errorf("%s: accepted, %+v", test.name, st)
		}
		if after := lossOf(t, l, s.Batch); after != before {
			t.Errorf("%s: a refused step changed the loss from %v to %v", test.name, before, after)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Step(ctx, s.Batch, s.objective("sft")); err == nil {
		t.Error("a cancelled step was taken")
	}
}

// Training goes on from a saved state as if it had not stopped.
func (s Setup) testSaveLoad(t *testing.T) {
	l, dir := s.New(t), t.TempDir()
	step(t, l, s.Batch, s.objective("sft"))
	if err := l.Save(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	want := [2]batch.Stats{step(t, l, s.Batch, s.objective("grpo")), step(t, l, s.Batch, s.objective("sft"))}
	other := s.New(t)
	step(t, other, s.Batch, s.objective("grpo"))
	if err := other.Load(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	got := [2]batch.Stats{step(t, other, s.Batch, s.objective("grpo")), step(t, other, s.Batch, s.objective("sft"))}
	if got != want {
		t.Errorf("after loading %+v, without %+v", got, want)
	}
	if err := other.Load(context.Background(), t.TempDir()); err == nil {
		t.Error("an empty folder was loaded")
	}
	if after, untouched := lossOf(t, other, s.Batch), lossOf(t, l, s.Batch); after != untouched {
		t.Errorf("a failed load changed the loss to %v from %v", after, untouched)
	}
}

func (s Setup) testPublish(t *testing.T) {
	l := s.New(t)
	first := publish(t, l, 0)
	if again := publish(t, l, 0); again.Digest != first.Digest {
		t.Errorf("the same weights have digests %s and %s", first.Digest, again.Digest)
	}
	step(t, l, s.Batch, s.objective("sft"))
	if second := publish(t, l, 1); second.Digest == first.Digest {
		t.Error("a step did not change the digest")
	}
}

func publish(t *testing.T, l trainer.Learner, v rollout.PolicyVersion) rollout.WeightsManifest {
	t.Helper()
	m, err := l.Publish(context.Background(), v)
	if err != nil {
		t.Fatal(err)
	}
	if m.Version != v || len(m.Files) == 0 || m.Digest != rollout.FilesDigest(m.Files) || m.Kernels == "" {
		t.Errorf("manifest %+v", m)
	}
	c := m.Canary
	if len(c.IDs) < 2 || len(c.Logprobs) != len(c.IDs)-1 || !(c.Tolerance > 0) {
		t.Errorf("canary of %d ids, %d log-probs, tolerance %v", len(c.IDs), len(c.Logprobs), c.Tolerance)
	}
	for _, f := range m.Files {
		if len(f.SHA256) != 64 || f.Size <= 0 || f.Name == "" || strings.ContainsAny(f.Name, `/\`) {
			t.Errorf("file %+v", f)
		}
	}
	return m
}
