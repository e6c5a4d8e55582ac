package trainer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"xragent/dataset"
)

// A Curriculum chooses the prompts of groups by how often prompts of their
// template were answered right. Of Candidates prompts, which the epochs' order
// names, one is drawn with a chance proportional to that of a mixed group,
//
//	1 − p^G − (1 − p)^G
//
// at G rollouts and the template's pass rate p, and at least Floor, so that no
// template is ever given up. Groups that are all right or all wrong have no
// advantage, so this is the chance that the prompt teaches.
//
// What is drawn follows from the seed, the group's number and the records of
// the steps before it, so that a resumed run draws the same.
type Curriculum struct {
	Candidates int     `yaml:"candidates" json:"candidates"` // 0: no curriculum
	Floor      float64 `yaml:"floor" json:"floor"`           // least chance, above 0
}

// IsZero reports whether there is no curriculum; it is no part of a run's
// identity then.
func (c Curriculum) IsZero() bool { return c.Candidates == 0 }

// Validate reports the first setting without a meaning.
func (c Curriculum) Validate() error {
	switch {
	case c.Candidates < 0 || c.Candidates == 1 || c.Candidates > 64:
		return fmt.Errorf("candidates = %d: must be 0 (off) or 2 to 64", c.Candidates)
	case c.Candidates > 0 && !(c.Floor > 0 && c.Floor <= 1):
		return fmt.Errorf("floor = %v: must lie in (0, 1]", c.Floor)
	}
	return nil
}

// memory is how much of a template's record of one step still counts a step
// later: half of it is gone after 14.
const memory = 0.95

// A passRate is how often prompts of one template were answered right.
type passRate struct{ right, n float64 }

// mixed is the chance that a group of that many rollouts is mixed, at the rate
// under a uniform prior.
func (r passRate) mixed(size int) float64 {
	p := (r.right + 1) / (r.n + 2)
	return 1 - math.Pow(p, float64(size)) - math.Pow(1-p, float64(size))
}

// passRates sums up what was seen of every template, with fading memory.
func passRates(history []StepRecord) map[string]passRate {
	rates := map[string]passRate{}
	for _, r := range history {
		for name, rate := range rates {
			rates[name] = passRate{rate.right * memory, rate.n * memory}
		}
		for _, t := range r.Templates {
			rate := rates[t.Name]
			rates[t.Name] = passRate{rate.right + float64(t.Right), rate.n + float64(t.N)}
		}
	}
	return rates
}

// draw chooses one of the candidates. u is uniform on [0, 1).
func (c Curriculum) draw(candidates []dataset.Sample, rates map[string]passRate, size int, u float64) dataset.Sample {
	weights, sum := make([]float64, len(candidates)), 0.0
	for i, s := range candidates {
		weights[i] = max(c.Floor, rates[template(s)].mixed(size))
		sum += weights[i]
	}
	for i, w := range weights {
		if u -= w / sum; u < 0 {
			return candidates[i]
		}
	}
	return candidates[len(candidates)-1] // rounding
}

// template names what a sample is counted under.
func template(s dataset.Sample) string { return cmp.Or(s.Template, string(s.Prompt.Kind)) }

// A TemplateCount says how often prompts of a template were answered right in a
// step.
type TemplateCount struct {
	Name  string `json:"name"`
	Right int    `json:"right"`
	N     int    `json:"n"`
}

// countTemplates lists a step's templates in the order of their names.
func countTemplates(works []*groupWork) []TemplateCount {
	var counts []TemplateCount
	for _, w := range works {
		if w.dropped {
			continue
		}
		i := slices.IndexFunc(counts, func(c TemplateCount) bool { return c.Name == w.template })
		if i < 0 {
			counts, i = append(counts, TemplateCount{Name: w.template}), len(counts)
		}
		for _, s := range w.scores {
			if s != nil {
				counts[i].N++
				counts[i].Right += int(s.Accuracy)
			}
		}
	}
	slices.SortFunc(counts, func(a, b TemplateCount) int { return cmp.Compare(a.Name, b.Name) })
	return counts
}
