package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"xragent/dataset"
	"xragent/dataset/columnar"
	"xragent/rollout"
	"xragent/trainer"
	"xragent/trainer/advantage"
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
	if err := s.scoreGroups(in, d, func(group []columnar.Scored) error { return w.Write(group...) }); err != nil {
		return err
	}
	return w.Close()
}

// scoreGroups reads canonical lines, in which a group's trajectories are
// neighbours, and hands each group on with scores and advantages.
func (s *session) scoreGroups(r io.Reader, d *samples, each func([]columnar.Scored) error) error {
	byID := map[string]dataset.Sample{}
	for _, sample := range d.all {
		byID[sample.ID] = sample
	}
	var group []columnar.Scored
	flush := func() error {
		if len(group) == 0 {
			return nil
		}
		if err := s.setAdvantages(group); err != nil {
			return err
		}
		err := each(group)
		group = group[:0]
		return err
	}
	dec := json.NewDecoder(bufio.NewReader(r))
	for {
		var t rollout.Trajectory
		err := dec.Decode(&t)
		if errors.Is(err, io.EOF) {
			return flush()
		}
		if err != nil {
			return err
		}
		if len(group) > 0 && group[0].Trajectory.Task.Group != t.Task.Group {
			if err := flush(); err != nil {
				return err
			}
		}
		score, err := s.cfg.Reward.Score(t, byID[t.Sample])
		if err != nil {
			return err
		}
		group = append(group, columnar.Scored{Trajectory: t, Score: score})
	}
}

func (s *session) setAdvantages(group []columnar.Scored) error {
	ids, rewards := make([]int, len(group)), make([]float64, len(group))
	for i := range group {
		ids[i], rewards[i] = group[i].Trajectory.Task.Group, group[i].Score.Total
	}
	values, err := advantage.Compute(s.cfg.GRPO.Loss.Advantage, ids, rewards)
	for i := range values {
		group[i].Advantage = values[i]
	}
	return err
}
