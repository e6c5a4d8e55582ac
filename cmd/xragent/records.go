package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"xragent/dataset"
	"xragent/dataset/columnar"
	"xragent/rollout"
	"xragent/trainer"
)

// records writes the canonical record of GRPO, and from it the trajectories as
// Parquet with their reward terms and advantages.
func (s *session) records(d *samples) error {
	path, err := trainer.Canonical(s.path("grpo"))
	if err != nil {
		return err
	}
	out := s.path("trajectories.parquet")
	if err := s.writeTrajectories(path, out+".partial", d); err != nil {
		return fmt.Errorf("trajectories: %w", err)
	}
	s.notice("grpo: canonical record %s, trajectories %s", path, out)
	return os.Rename(out+".partial", out)
}

func (s *session) writeTrajectories(canonical, out string, d *samples) error {
	in, err := os.Open(canonical)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := columnar.NewTrajectories(f)
	if err != nil {
		return err
	}
	steps, err := trainer.ReadSteps(s.path("grpo"))
	if err != nil {
		return err
	}
	err = s.scoreSteps(in, d, func(step []columnar.Scored) error {
		if at := step[0].Trajectory.Task.Step; at > len(steps) {
			return fmt.Errorf("step %d is not in the step log, which has %d", at, len(steps))
		} else if err := s.setAdvantages(step, steps[at-1]); err != nil {
			return err
		}
		return w.Write(step...)
	})
	if err != nil {
		return err
	}
	return w.Close()
}

// scoreSteps reads canonical lines, in which a step's trajectories are
// neighbours, and hands each step on with its scores.
func (s *session) scoreSteps(r io.Reader, d *samples, each func([]columnar.Scored) error) error {
	byID := map[string]dataset.Sample{}
	for _, sample := range d.all {
		byID[sample.ID] = sample
	}
	var step []columnar.Scored
	dec := json.NewDecoder(bufio.NewReader(r))
	for {
		var t rollout.Trajectory
		err := dec.Decode(&t)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(step) > 0 && (err != nil || step[0].Trajectory.Task.Step != t.Task.Step) {
			if err := each(step); err != nil {
				return err
			}
			step = step[:0]
		}
		if err != nil {
			return nil
		}
		score, err := s.cfg.Reward.Score(t, byID[t.Sample])
		if err != nil {
			return err
		}
		step = append(step, columnar.Scored{Trajectory: t, Score: score})
	}
}

// setAdvantages gives a step's trajectories the advantages that they were
// trained with. Where rewards were dealt out anew, groups that were left out
// have none.
func (s *session) setAdvantages(step []columnar.Scored, rec trainer.StepRecord) error {
	trained := make([]*columnar.Scored, 0, len(step))
	for i := range step {
		trained = append(trained, &step[i])
	}
	if p := rec.Permuted; p != nil {
		place := func(c *columnar.Scored) int { return slices.Index(p.Groups, c.Trajectory.Task.Group) }
		trained = slices.DeleteFunc(trained, func(c *columnar.Scored) bool { return place(c) < 0 })
		slices.SortStableFunc(trained, func(a, b *columnar.Scored) int { return place(a) - place(b) })
		if len(trained) != len(p.Order) {
			return fmt.Errorf("step %d trained on %d trajectories, the record has %d of its groups", rec.Step, len(p.Order), len(trained))
		}
	}
	groups, rewards := make([]int, len(trained)), make([]float64, len(trained))
	for i, c := range trained {
		groups[i], rewards[i] = c.Trajectory.Task.Group, c.Score.Total
	}
	positive := rec.PositiveWeight
	if positive == 0 { // no entropy control
		positive = 1
	}
	values, err := trainer.Advantages(s.cfg.GRPO.Loss.Advantage, groups, rewards, rec.Permuted, positive)
	for i := range values {
		trained[i].Advantage = values[i]
	}
	return err
}
