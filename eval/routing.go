package eval

import (
	"cmp"
	"slices"
)

// A CallChoice says for whom a policy calls tools: for the questions that the
// base gets wrong without tools, against those that it gets right.
type CallChoice struct {
	Policy string    `json:"policy"`
	Base   string    `json:"base"` // its tools_off result sorts the questions
	Wrong  Interval  `json:"wrong"`
	Right  Interval  `json:"right"`
	Strata []Stratum `json:"strata"` // by template
	Odds   Ratio     `json:"odds"`
	Rates  Ratio     `json:"rates"`
}

// calls sorts the questions by the base without tools: the policy before the
// last, or the only one.
func (a *analysis) calls() {
	base := a.policies[max(0, len(a.policies)-2)]
	off, ok := a.find(base, ToolsOff)
	if !ok {
		base = a.last()
		off, ok = a.find(base, ToolsOff)
	}
	if !ok {
		return
	}
	for _, name := range slices.Compact([]string{base, a.last()}) {
		plain, _ := a.find(name, Plain)
		a.rep.Calls = append(a.rep.Calls, Choose(name, base, plain.Rows[:len(off.Rows)], off.Rows))
	}
}

// Choose compares how often a policy calls tools where the base is wrong without
// them and where it is right. plain are the policy's rows, off the base's under
// tools off, of the same questions.
func Choose(policy, base string, plain, off []Row) CallChoice {
	c := CallChoice{Policy: policy, Base: base}
	var wrong, right [2]int
	by := map[string]*Stratum{}
	for i, row := range plain {
		s := by[row.Template]
		if s == nil {
			s = &Stratum{Name: row.Template}
			by[row.Template] = s
		}
		if off[i].Strict {
			s.OthersYes, s.OthersN = s.OthersYes+one(row.Called()), s.OthersN+1
			right[0], right[1] = right[0]+one(row.Called()), right[1]+1
		} else {
			s.Yes, s.N = s.Yes+one(row.Called()), s.N+1
			wrong[0], wrong[1] = wrong[0]+one(row.Called()), wrong[1]+1
		}
	}
	for _, s := range by { // sorted below
		c.Strata = append(c.Strata, *s)
	}
	slices.SortFunc(c.Strata, func(x, y Stratum) int { return cmp.Compare(x.Name, y.Name) })
	c.Wrong, c.Right = Wilson(wrong[0], wrong[1]), Wilson(right[0], right[1])
	c.Odds, c.Rates = OddsRatio(c.Strata), RateRatio(c.Strata)
	return c
}
