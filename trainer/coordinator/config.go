package coordinator

import (
	"fmt"

	"xragent/rollout"
)

// A Rule says what becomes of a group whose trajectory was given up.
type Rule string

// The group rules.
const (
	Fill   Rule = "fill"   // the group is dropped and another one takes its place
	Shrink Rule = "shrink" // the group goes on with the rest, down to MinGroup
	Drop   Rule = "drop"   // the group is dropped and the batch is smaller
)

// Config says what a run consists of and what it survives.
type Config struct {
	Run            string
	Steps          int // optimizer steps to take
	GroupsPerBatch int
	GroupSize      int
	MaxStaleness   int // 0: each batch is sampled from the weights that it updates

	MaxAttempts     int  // at one trajectory; after that it is given up
	Rule            Rule // for a group with a trajectory given up
	MinGroup        int  // smallest group under Shrink, at least 2
	Dynamic         bool // a group without variance is left out, and replaced while MaxReplacements allows
	MaxReplacements int  // further groups that one step may dispatch
	ErrorBudget     int  // rejected and lost attempts that one step survives

	CheckpointEvery int // steps; 0: only at the end
}

// Validate reports the first setting that no run can have.
func (c Config) Validate() error {
	for _, least := range []struct {
		key         string
		value, want int
	}{
		{"steps", c.Steps, 1},
		{"groups_per_batch", c.GroupsPerBatch, 1},
		{"group_size", c.GroupSize, 2},
		{"max_staleness", c.MaxStaleness, 0},
		{"max_attempts", c.MaxAttempts, 1},
		{"max_replacements", c.MaxReplacements, 0},
		{"error_budget", c.ErrorBudget, 0},
		{"checkpoint_every", c.CheckpointEvery, 0},
	} {
		if least.value < least.want {
			return fmt.Errorf("%s = %d: must be at least %d%s", least.key, least.value, least.want, why[least.key])
		}
	}
	return c.validateRule()
}

var why = map[string]string{
	"group_size": " (a group of one has no relative advantage)",
}

func (c Config) validateRule() error {
	switch c.Rule {
	case Fill, Drop:
		return nil
	case Shrink:
		if c.MinGroup < 2 || c.MinGroup > c.GroupSize {
			return fmt.Errorf("min_group = %d: must lie between 2 and group_size = %d", c.MinGroup, c.GroupSize)
		}
		return nil
	}
	return fmt.Errorf("group_rule = %q: must be fill, shrink or drop", c.Rule)
}

// Place returns the step that a group number belongs to and its place there.
// Places from GroupsPerBatch on are replacements. Numbers are fixed a step, so
// that they do not depend on which group of which step fell out first.
func (c Config) Place(group int) (step, place int) {
	width := c.GroupsPerBatch + c.MaxReplacements
	return group/width + 1, group % width
}

func (c Config) number(step, place int) int {
	return (step-1)*(c.GroupsPerBatch+c.MaxReplacements) + place
}

// Version returns the policy version that samples every group of a step: the
// newest one that there is when the step opens, which is a fixed lag behind.
func (c Config) Version(step int) rollout.PolicyVersion {
	return rollout.PolicyVersion(max(0, step-1-c.MaxStaleness))
}
