package trainer

import "fmt"

// An EntropyControl keeps the policy's entropy near a target. While the mean
// entropy of the last steps is below Target, positive advantages weigh as much
// less as it is short of it, and at least Least: what raises the probability of
// samples that are likely already is what takes entropy, and lowering that of
// wrong samples is what gives it back (Zhu et al. 2025, "The Surprising
// Effectiveness of Negative Reinforcement in LLM Reasoning").
//
// A wider clip range, the usual remedy, does nothing here: a batch takes one
// step, at which every ratio is 1.
type EntropyControl struct {
	Target float64 `yaml:"target" json:"target"` // nats a loss token; 0: no control
	Least  float64 `yaml:"least" json:"least"`   // of positive advantages' weight
}

// IsZero reports whether there is no control; it is no part of a run's identity
// then.
func (c EntropyControl) IsZero() bool { return c.Target == 0 }

// Validate reports the first setting without a meaning.
func (c EntropyControl) Validate() error {
	if !(c.Target >= 0) || c.Target > 0 && !(c.Least > 0 && c.Least <= 1) {
		return fmt.Errorf("target = %v, least = %v: must be at least 0, and least in (0, 1]", c.Target, c.Least)
	}
	return nil
}

// weight is that of positive advantages after the steps of history; 1 without
// control and before the first step.
func (c EntropyControl) weight(history []StepRecord) float64 {
	if c.IsZero() {
		return 1
	}
	last := windowOf(recent(history))
	if !last.trained || last.entropy >= c.Target {
		return 1
	}
	return max(c.Least, last.entropy/c.Target)
}

// recorded is the weight for the step log, where there is control.
func (c EntropyControl) recorded(history []StepRecord) float64 {
	if c.IsZero() {
		return 0
	}
	return c.weight(history)
}
