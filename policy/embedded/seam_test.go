package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"testing"

	"xragent/rollout/loop"
	"xragent/trainer/batch"
)

// asRow turns a sampled turn into a training row of advantage 1.
func asRow(r loop.SampleResult) batch.Row {
	turn := r.Turn
	return batch.Row{
		ID: "turn", IDs: slices.Concat(turn.PromptIDs, turn.OutputIDs), Images: r.Images, Advantage: 1,
		LossMask: append(make([]uint8, len(turn.PromptIDs)), slices.Repeat([]uint8{1}, len(turn.OutputIDs))...),
		Logprobs: append(make([]float32, len(turn.PromptIDs)), turn.Logprobs...),
	}
}

// TestSamplerMatchesLearner holds the seam of training: what the sampler
// records of a turn, images included, is what the learner computes for it, at
// the temperature of the sampling; and the learner's canary holds for a sampler
// with its weights, and for no other.
func TestSamplerMatchesLearner(t *testing.T) {
	for _, temperature := range []float64{1, 0.6} {
		t.Run(fmt.Sprint("temperature=", temperature), func(t *testing.T) { checkSeam(t, temperature) })
	}
}

func checkSeam(t *testing.T, temperature float64) {
	w := testWeights(t)
	engine := newTestEngine(t, w, EngineOptions{})
	images := map[string][]byte{}
	var rows []batch.Row
	for i := range 12 {
		req := firstTurn(w.cfg, i/4, i%4)
		req.Sampling.Temperature = temperature
		got, err := engine.Sample(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range req.Images {
			sum := sha256.Sum256(image)
			images[hex.EncodeToString(sum[:])] = image
		}
		rows = append(rows, asRow(got))
	}
	l, err := NewLearner(w.cfg, w.Clone(), LearnerOptions{
		MicroTokens: 200, Processor: engine.opts.Processor, Put: storeNothing,
		Images: func(_ context.Context, digest string) ([]byte, error) { return images[digest], nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	o := objective("grpo", 1e-2)
	o.Temperature = temperature
	st := step(t, l, batchOf(rows...), o)
	if st.LogpDiff > 1e-5 || math.Abs(st.ApproxKL) > 1e-8 || st.ClipHigh != 0 {
		t.Errorf("before the first update learner and sampler differ: %+v", st)
	}
	if d := canaryDistance(t, l, engine); d < 1e-3 {
		t.Errorf("the canary holds for the weights before the step, %.2g away", d)
	}
	if err := engine.Load(l.Weights(), 4); err != nil {
		t.Fatal(err)
	}
	if d := canaryDistance(t, l, engine); d > 1e-5 {
		t.Errorf("the canary is %.2g away with the same weights", d)
	}
}

// canaryDistance returns how far the engine is from the learner's canary.
func canaryDistance(t *testing.T, l *Learner, e *Engine) float64 {
	t.Helper()
	m, err := l.Publish(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	lp, err := e.Score(t.Context(), m.Canary.IDs)
	if err != nil {
		t.Fatal(err)
	}
	return worstDifference(lp, m.Canary.Logprobs)
}
