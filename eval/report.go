package eval

import (
	"fmt"
	"slices"

	"xragent/dataset"
)

// Version names the conditions and their analysis. A change that alters any
// result is a new version, and results of the old one are not taken up again.
const Version = "v1"

// A Job is one condition of one policy to run.
type Job struct {
	Policy    string
	Condition Condition
	Split     dataset.Split
}

// Facts say what the data offers to controls.
type Facts struct {
	Truth bool // the generator's truth is known
	Needs bool // every question says what it needs
	OOD   bool // there is an out-of-distribution split
}

// Plan lists what a set of controls runs on policies, which stand in the order
// of their training: each plain, the last under every control, and the one
// before it as the base of comparisons. Controls that the data cannot have are
// named in skipped.
func Plan(set Set, policies []string, facts Facts) (jobs []Job, skipped []string) {
	for i, name := range policies {
		last := i == len(policies)-1
		jobs = append(jobs, Job{name, Plain, dataset.Test})
		for _, c := range conditions(set, last, i == len(policies)-2) {
			switch control, _ := Find(c); {
			case control.Truth && !facts.Truth:
				skipped = append(skipped, fmt.Sprintf("%s: the data has no truth", c))
			case control.Need && !facts.Needs:
				skipped = append(skipped, fmt.Sprintf("%s: the questions do not say what they need", c))
			default:
				jobs = append(jobs, Job{name, c, dataset.Test})
			}
		}
		if set == Full && facts.OOD {
			jobs = append(jobs, Job{name, Plain, dataset.OOD})
		}
	}
	if set == Full && !facts.OOD {
		skipped = append(skipped, "out of distribution: the data has no such split")
	}
	return jobs, skipped
}

func conditions(set Set, last, base bool) []Condition {
	switch {
	case set == Minimal && last:
		return []Condition{Shuffled, ToolsOff}
	case set == Full && last:
		var all []Condition
		for _, c := range Controls {
			all = append(all, c.Condition)
		}
		return all
	case set == Full && base:
		return []Condition{ToolsOff, Sampled1, Sampled2}
	}
	return nil
}

// A Report is all that an evaluation says.
type Report struct {
	Version   string    `json:"version"`
	Run       string    `json:"run"`
	Data      string    `json:"data"`                // digest of the data set
	Generator string    `json:"generator,omitempty"` // hash of the phantom generator
	Source    string    `json:"source"`
	Questions int       `json:"questions"`
	Asked     int       `json:"control_questions"`
	AsIs      Summary   `json:"as_is"` // the policy as it is, on the questions that the controls were asked
	Test      string    `json:"test"`  // digest of the test questions
	Summaries []Summary `json:"summaries"`

	Pairs       []NamedPair  `json:"pairs"` // neighbours in training
	Contrasts   []Contrast   `json:"contrasts"`
	Priors      []Prior      `json:"priors"`
	Calls       []CallChoice `json:"calls,omitempty"`
	GateGroups  []GateGroup  `json:"gate_groups,omitempty"`
	GateTells   *Information `json:"gate_tells,omitempty"` // I(gate; reference answer | template)
	Swap        *Swap        `json:"swap,omitempty"`
	Churns      []Floor      `json:"churns,omitempty"`
	Shifts      []Shift      `json:"shifts,omitempty"`
	Confusions  []Confusion  `json:"confusions,omitempty"`
	Calibration []Frequency  `json:"calibration,omitempty"`

	Skipped []string `json:"skipped,omitempty"`
	Marks   []string `json:"marks"` // what a reader must know before believing a figure
}

// A NamedPair compares two policies under the plain condition.
type NamedPair struct {
	Before string `json:"before"`
	After  string `json:"after"`
	Pair
	Rescue Interval `json:"rescue"` // right after, of those wrong before
	Damage Interval `json:"damage"` // wrong after, of those right before
}

// A Contrast compares a condition with the plain one of the same policy.
type Contrast struct {
	Policy    string    `json:"policy"`
	Section   Section   `json:"section"`
	Condition Condition `json:"condition"`
	What      string    `json:"what"`
	Pair                // from plain to the condition
	Holm      float64   `json:"holm"`    // p adjusted over all contrasts of the report
	Touched   int       `json:"touched"` // questions on which the policy was given anything else
	On        Pair      `json:"on"`      // the comparison on those
	Accuracy  Interval  `json:"accuracy"`
	Rescue    Interval  `json:"rescue"`
	Damage    Interval  `json:"damage"`
	Calls     float64   `json:"calls"`  // mean a question, under the condition
	Reward    float64   `json:"reward"` // mean
}

// A Floor is the churn between two samplings of one policy, below which rescue
// and damage mean nothing.
type Floor struct {
	Policy string   `json:"policy"`
	Tools  bool     `json:"tools"`
	Rescue Interval `json:"rescue"`
	Damage Interval `json:"damage"`
}

// A Shift compares test and out-of-distribution questions of one policy.
type Shift struct {
	Policy string   `json:"policy"`
	In     Interval `json:"in"`
	Out    Interval `json:"out"`
	Gain   float64  `json:"gain"` // out − in
	Low    float64  `json:"low"`
	High   float64  `json:"high"`
}

// Results are an evaluation's results, found by what they are of.
type Results []Result

// Find returns the result of a policy under a condition on a split.
func (rs Results) Find(policy string, c Condition, split dataset.Split) (Result, bool) {
	i := slices.IndexFunc(rs, func(r Result) bool { return r.Name == policy && r.Condition == c && r.Split == split })
	if i < 0 {
		return Result{}, false
	}
	return rs[i], true
}
