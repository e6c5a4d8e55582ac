package embedded

import (
	"context"
	"testing"

	"xragent/rollout/loop/looptest"
	"xragent/trainer"
	"xragent/trainer/batch"
	"xragent/trainer/learnertest"
)

func TestSamplerConformance(t *testing.T) {
	w := testWeights(t)
	looptest.TestSampler(t, looptest.Setup{
		Sampler: newTestEngine(t, w, EngineOptions{}), Version: 3, Vocab: w.cfg.Text.VocabSize, Merge: w.cfg.Vision.SpatialMergeSize,
		Prompt: []int32{1, 2, 3}, Mark: []int32{w.cfg.VisionStartID, w.cfg.ImageTokenID, w.cfg.VisionEndID},
		ImagePad: w.cfg.ImageTokenID, Image: []byte("4x6:a"), Stop: []int32{stopID, 8, 9, 10, 11, 12}, MaxTokens: 12,
	})
}

func TestLearnerConformance(t *testing.T) {
	cfg := tiny()
	b := mixedBatch(cfg)
	// Behaviour log-probs near the policy's own, so that nothing is clipped at first.
	own := newTestLearner(t, cfg, 1, 200)
	for i, r := range b.Rows {
		if len(r.Images) > 0 {
			continue
		}
		lp, err := own.Logprobs(context.Background(), r.IDs)
		if err != nil {
			t.Fatal(err)
		}
		b.Rows[i].Logprobs = append([]float32{0}, lp...)
	}
	learnertest.TestLearner(t, learnertest.Setup{
		New:   func(t *testing.T) trainer.Learner { return newTestLearner(t, cfg, 2, 200) },
		Batch: batch.Batch{Rows: b.Rows, Tokens: b.Tokens}, LR: 1e-2,
	})
}
