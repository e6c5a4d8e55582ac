package main

import (
	"fmt"
	"math"
	"path/filepath"

	"xragent/configs"
	"xragent/study"
	"xragent/trainer"
)

// Compute is counted in forward passes of one token id, from the step logs, so
// that it is the same on every machine. A backward pass costs two forward
// passes (Kaplan et al. 2020, section 2.1: 2N and 4N operations a token), so an
// id that is trained on costs three, one that is read or sampled one. Prompts
// are counted for every trajectory though a group reads its prompt once: SFT
// that goes on for as much is given rather more than less.
const (
	trainedCost = 3.0
	readCost    = 1.0
)

// grpoCompute is what a GRPO stage took.
func grpoCompute(steps []trainer.StepRecord) float64 {
	sum := 0.0
	for _, r := range steps {
		l := r.Lengths
		sum += readCost * float64(r.Trajectories) * (l.Prompt + l.Triage + l.Observation + l.Integration)
		sum += trainedCost * float64(r.Stats.AllTokens)
	}
	return sum
}

// sftCompute is what one step of an SFT stage takes on average.
func sftCompute(steps []trainer.StepRecord) float64 {
	sum := 0.0
	for _, r := range steps {
		sum += trainedCost * float64(r.Stats.AllTokens)
	}
	return sum / float64(max(1, len(steps)))
}

// matched is how many steps SFT goes on for to take what the arm's counterpart
// took.
func (l *lab) matched(c study.Cell) (int, error) {
	other, _ := l.spec.Arm(c.Arm.Compute)
	name := study.Cell{Arm: other, Seed: c.Seed}.Name()
	taken, err := trainer.ReadSteps(filepath.Join(l.dir, name, configs.StageGRPO))
	if err != nil {
		return 0, fmt.Errorf("compute of %s: %w", name, err)
	}
	shared, err := trainer.ReadSteps(filepath.Join(l.dir, study.Shared(c.Seed), configs.StageSFT))
	if err != nil {
		return 0, fmt.Errorf("compute of %s: %w", study.Shared(c.Seed), err)
	}
	one := sftCompute(shared)
	if one == 0 || len(taken) == 0 {
		return 0, fmt.Errorf("compute of %s: its step log is empty", name)
	}
	return int(math.Ceil(grpoCompute(taken) / one)), nil
}
