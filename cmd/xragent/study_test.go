package main

import (
	"io"
	"testing"
)

// A study whose GRPO or questions are changed keeps the data and the SFT of its
// seeds; one whose SFT is changed does not.
func TestSharedRunDependsOnItsStages(t *testing.T) {
	digest := func(set ...string) string {
		t.Helper()
		l, err := newLab("../../configs/study/smoke.yaml", studyFlags{dir: t.TempDir(), set: set}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := l.sharedConfig(1)
		if err != nil {
			t.Fatal(err)
		}
		sum, err := settingsDigest(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	plain := digest()
	for _, set := range []string{"grpo.steps=3", "grpo.optimizer.lr=1e-3", "eval.questions=3"} {
		if digest(set) != plain {
			t.Errorf("%s makes the shared run another", set)
		}
	}
	for _, set := range []string{"sft.max_steps=3", "data.phantom.train=5", "reward.k_max=3", "run.seed=4"} {
		if same := digest(set) == plain; same != (set == "run.seed=4") { // the study's seeds stand
			t.Errorf("%s: the same shared run %t", set, same)
		}
	}
}
