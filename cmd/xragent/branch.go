package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"xragent/configs"
	"xragent/eval"
	"xragent/internal/blobs"
	"xragent/rollout"
	"xragent/trainer"
)

// shares reports whether a folder of this run is that of the run it branches
// from: data and corpus always, what is trained where this run does not train it.
func (s *session) shares(folder string) bool {
	switch {
	case s.cfg.From.Run == "":
		return false
	case folder == configs.StageData, folder == configs.StageCorpus, strings.HasPrefix(folder, configs.StagePre+"-"):
		return true
	}
	return folder == configs.StageSFT && !s.cfg.Has(configs.StageSFT)
}

// checkFrom refuses to branch from what is no run, or from one of other data.
func (s *session) checkFrom() error {
	from := s.cfg.From.Run
	if from == "" {
		return nil
	}
	began, err := os.ReadFile(filepath.Join(from, "config.yaml"))
	if err != nil {
		return fmt.Errorf("from.run: no run in %s: make it first (%w)", from, err)
	}
	own, err := s.cfg.Marshal()
	if err != nil {
		return err
	}
	if err := configs.SameData(began, own); err != nil {
		return fmt.Errorf("from.run: %s: %w", from, err)
	}
	return nil
}

// borrow takes an image over from the run that this one branches from.
func (s *session) borrow(sha string) bool {
	if s.cfg.From.Run == "" {
		return false
	}
	from, err := blobs.Open(filepath.Join(s.cfg.From.Run, "blobs"), false)
	return err == nil && s.blobs.Link(from, sha)
}

// beforeSFT returns the checkpoint that SFT begins with: in a branch the best
// of the SFT it continues; else what pre-training gave, or nil.
func (s *session) beforeSFT() (*trainer.Checkpoint, error) {
	if s.cfg.From.Run == "" || s.cfg.From.Begin == configs.BeginNone {
		return s.pretrained()
	}
	c, err := trainer.BestCheckpoint(filepath.Join(s.cfg.From.Run, configs.StageSFT))
	if err != nil {
		return nil, usageError{fmt.Errorf("from.run: no SFT checkpoint to go on from: %w", err)}
	}
	return &c, nil
}

// branchContender is the one policy that a branch evaluates: its own. What it
// began with is evaluated where that was trained.
func (s *session) branchContender() ([]contender, error) {
	if !s.cfg.Has(configs.StageSFT) && !s.cfg.Has(configs.StageGRPO) {
		from, err := s.startPoint()
		if err != nil || from == nil {
			return []contender{{"untrained", ""}}, err
		}
		return []contender{{"sft", from.LearnerDir()}}, nil
	}
	stage, c, err := s.trained()
	return []contender{{stage, c.LearnerDir()}}, err
}

// asTrained puts plain questions as training put them: a run trained without
// tools, or under another gate, is evaluated so.
func (s *session) asTrained(roll eval.Rollout) eval.Rollout {
	return func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
		t.Tools, t.Gate = t.Tools && s.cfg.GRPO.Tools, s.cfg.GRPO.Gate
		return roll(ctx, t)
	}
}
