package main

import (
	"testing"

	"xragent/configs"
	"xragent/dataset/columnar"
	"xragent/reward"
	"xragent/rollout"
	"xragent/trainer"
)

// Parquet's advantages are those that were trained with: dealt out in the order
// of the groups on record, weighed where positive, none for groups left out.
func TestAdvantagesOfAPermutedStep(t *testing.T) {
	totals := map[int][]float64{4: {1, 2}, 5: {2, 2}, 6: {1, 1}}
	var step []columnar.Scored
	for _, group := range []int{4, 5, 6} {
		for i, total := range totals[group] {
			step = append(step, columnar.Scored{Trajectory: rollout.Trajectory{Task: rollout.TaskID{Step: 1, Group: group, Index: i}}, Score: reward.Score{Total: total}})
		}
	}
	s := &session{cfg: configs.Default()}
	rec := trainer.StepRecord{Step: 1, PositiveWeight: 0.5, Permuted: &trainer.Permutation{Groups: []int{6, 4}, Order: []int{3, 2, 0, 1}}}
	if err := s.setAdvantages(step, rec); err != nil {
		t.Fatal(err)
	}
	// Group 6 is dealt 2 and 1, group 4 gets 1 and 1.
	for i, positive := range []int{0, 0, 0, 0, 1, -1} {
		if a := step[i].Advantage; a > 0 != (positive > 0) || a < 0 != (positive < 0) {
			t.Errorf("trajectory %d has advantage %v", i, a)
		}
	}
	if up, down := step[4].Advantage, step[5].Advantage; up != -down/2 {
		t.Errorf("advantages %v and %v, want the positive one halved", up, down)
	}
	rec.Permuted.Order = []int{0}
	if s.setAdvantages(step, rec) == nil {
		t.Error("a record of another number of trajectories was taken")
	}
}
