package embedded

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"xragent/trainer/batch"
	"xragent/trainer/loss"
)

// objectives names every preset, alone and with a KL term of each estimator.
func objectives(t testing.TB, lr float64) map[string]batch.Objective {
	t.Helper()
	all := map[string]batch.Objective{}
	for i, name := range loss.Presets {
		o := objective("grpo", lr)
		c, err := loss.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		o.Loss = c.Resolved(64)
		all[name] = o
		o.Loss.KL = loss.KL{Coef: 0.2, Estimator: []string{loss.K1, loss.K2, loss.K3, loss.K3Clamped}[i%4]}
		all[name+" with KL "+o.Loss.KL.Estimator] = o
	}
	icepop := objective("grpo", lr)
	icepop.Loss.Old = loss.Learner
	icepop.Loss.Correction = loss.Correction{Level: loss.PerToken, Mode: loss.Mask, Low: 0.9, High: 1.2}
	all["IcePop"] = icepop
	return all
}

func newReferenceLearner(t testing.TB, threads, micro int) *Learner {
	t.Helper()
	l := newTestLearner(t, tiny(), threads, micro)
	l.first = Init(tiny(), 7) // far enough away for KL to have a gradient
	return l
}

// inFloat64 returns the rows as package loss reads them, from log-probs that the
// learner itself computed.
func inFloat64(t *testing.T, l *Learner, b batch.Batch, c loss.Config) []loss.Row {
	t.Helper()
	now := referenceLogprobs(t, l, b, l.weights)
	reference := referenceLogprobs(t, l, b, l.first)
	rows := make([]loss.Row, len(b.Rows))
	for i, r := range b.Rows {
		row := loss.Row{Logprobs: now[i], Reference: reference[i], Advantage: r.Advantage}
		for t, m := range r.LossMask {
			if m == 1 {
				row.Behaviour = append(row.Behaviour, float64(r.Logprobs[t]))
			}
		}
		if row.Old = row.Behaviour; c.Old == loss.Learner {
			row.Old = row.Logprobs
		}
		rows[i] = row
	}
	return rows
}

// referenceLogprobs returns the log-probs of each row's loss tokens, one row a
// pass.
func referenceLogprobs(t *testing.T, l *Learner, b batch.Batch, w *Weights) [][]float64 {
	t.Helper()
	var out [][]float64
	for _, r := range b.Rows {
		pictures, _, err := l.fetch(context.Background(), []batch.Row{r})
		if err != nil {
			t.Fatal(err)
		}
		g := graphFor(t, w, nil, 1, []batch.Row{r}, pictures)
		if err := g.run(); err != nil {
			t.Fatal(err)
		}
		var lps []float64
		for _, lp := range g.logprobs[:g.feed.targets] {
			lps = append(lps, float64(lp))
		}
		out = append(out, lps)
	}
	return out
}

// TestLossIsTheReference holds the learner's loss, however the batch is cut, to
// be that of package loss in float64 over the whole batch.
func TestLossIsTheReference(t *testing.T) {
	b := mixedBatch(tiny())
	l := newReferenceLearner(t, 2, 40) // with lr 0 the weights stay
	for name, o := range objectives(t, 0) {
		want, _ := o.Loss.Batch(inFloat64(t, l, b, o.Loss))
		if got := step(t, l, b, o).Loss; math.Abs(got-want) > 2e-6*max(1, math.Abs(want)) {
			t.Errorf("%s: loss %v, in float64 %v", name, got, want)
		}
	}
}

// TestSlopesAreTheReference holds the gradient that flows into the log-probs to
// be package loss's, rounded to float32.
func TestSlopesAreTheReference(t *testing.T) {
	b := mixedBatch(tiny())
	l := newReferenceLearner(t, 1, 1000)
	for name, o := range objectives(t, 0) {
		rows := inFloat64(t, l, b, o.Loss)
		_, want := o.Loss.Batch(rows)
		f := &feed{kind: clipped, loss: single(o.Loss), count: loss.Count{Tokens: b.Tokens, Rows: len(b.Rows)}}
		var lp []float32
		for _, r := range rows {
			f.scored = append(f.scored, scored{len(lp), len(lp) + len(r.Logprobs), float32(r.Advantage)})
			for i, v := range r.Logprobs {
				lp = append(lp, float32(v))
				f.target = append(f.target, target{behaviour: float32(r.Behaviour[i]), reference: float32(r.Reference[i])})
			}
		}
		f.terms = make([]loss.Token, len(lp))
		f.judge(lp)
		for i, s := range f.scored {
			for k, slope := range want[i] {
				if got := f.terms[s.lo+k].Slope / f.divisor(s); math.Abs(got-slope) > 1e-6*max(1e-3, math.Abs(slope)) {
					t.Fatalf("%s: slope %d of row %d is %v, in float64 %v", name, k, i, got, slope)
				}
			}
		}
	}
}

// TestEveryLossHasTheSameBits holds the promise of the thread count for losses
// over whole sequences, other denominators, KL and corrections.
func TestEveryLossHasTheSameBits(t *testing.T) {
	b := mixedBatch(tiny())
	all := objectives(t, 1e-3)
	for _, name := range []string{loss.GSPO + " with KL " + loss.K2, loss.DrGRPO, loss.TRL, "IcePop"} {
		o := all[name]
		one, three := newReferenceLearner(t, 1, 80), newReferenceLearner(t, 3, 80)
		if o.Kind == "" {
			t.Fatalf("no objective %q", name)
		}
		for range 2 {
			if a, b := step(t, one, b, o), step(t, three, b, o); a != b {
				t.Errorf("%s: statistics %+v with 1 thread, %+v with 3", name, a, b)
			}
		}
		if one.weights.Digest() != three.weights.Digest() {
			t.Errorf("%s: weights differ between 1 thread and 3", name)
		}
	}
}

// TestReference holds KL to be taken against the first weights, also behind a
// load, and rows without advantage to be pulled by it.
func TestReference(t *testing.T) {
	cfg := tiny()
	b, o := mixedBatch(cfg), objective("grpo", 1e-2)
	for i := range b.Rows {
		b.Rows[i].Advantage = float64(i%3) - 1
	}
	o.Loss.KL.Coef = 0.1
	l, err := NewLearner(cfg, Init(cfg, 1), LearnerOptions{Run: "test", Threads: 1, MicroTokens: 80, Images: numberedImage,
		Processor: seedProcessor{cfg.Vision.PatchDim(), [3]int{1, 4, 6}}, Put: storeNothing, Reference: true})
	if err != nil {
		t.Fatal(err)
	}
	if st := step(t, l, b, o); st.KL != 0 {
		t.Errorf("the weights are %v away from themselves", st.KL)
	}
	moved := step(t, l, b, o).KL
	if moved <= 0 {
		t.Errorf("after a step the weights are %v away", moved)
	}
	dir := t.TempDir()
	if err := l.Save(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Load(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	pull := batch.Batch{Rows: slices.Clone(b.Rows), Tokens: b.Tokens}
	for i := range pull.Rows {
		pull.Rows[i].Advantage = 0
	}
	st := step(t, l, pull, o)
	if st.KL <= moved/10 || st.GradNorm == 0 {
		t.Errorf("behind a load the weights are %v away, gradient norm %v", st.KL, st.GradNorm)
	}
	if after := step(t, l, pull, o).KL; after >= st.KL {
		t.Errorf("KL alone took the weights from %v to %v", st.KL, after)
	}
}

func TestLossRefused(t *testing.T) {
	for want, change := range map[string]func(*batch.Objective){
		"keeps no reference":       func(o *batch.Objective) { o.Loss.KL.Coef = 0.1 },
		"loss.length = 0":          func(o *batch.Objective) { o.Loss.Aggregate = loss.SeqMeanTokenSumNorm },
		"loss.clip_low = 2":        func(o *batch.Objective) { o.Loss.ClipLow = 2 },
		`loss.preset = ""`:         func(o *batch.Objective) { o.Loss = loss.Config{} },
		"loss.kl.coef = NaN":       func(o *batch.Objective) { o.Loss.KL.Coef = math.NaN() },
		`loss.surrogate = "ppo"`:   func(o *batch.Objective) { o.Loss.Surrogate = "ppo" },
		"loss.dual_clip = 1: must": func(o *batch.Objective) { o.Loss.DualClip = 1 },
	} {
		l := newTestLearner(t, tiny(), 1, 80)
		before := l.weights.Digest()
		o := objective("grpo", 1e-3)
		change(&o)
		if _, err := l.Step(t.Context(), mixedBatch(tiny()), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if l.weights.Digest() != before {
			t.Errorf("%s: the weights changed", want)
		}
	}
}
