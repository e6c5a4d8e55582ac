package eval

import (
	"fmt"

	"xragent/dataset"
)

// A GateGroup is one condition of the gate on one group of questions.
type GateGroup struct {
	Condition Condition `json:"condition"`
	Group     string    `json:"group"`
	Accuracy  Interval  `json:"accuracy"`
	Shown     float64   `json:"shown"` // share of questions with a measurement shown
	Pair      Pair      `json:"pair"`  // from plain
}

// A Swap says what became of answers whose measurements were another study's.
type Swap struct {
	Swapped  int      `json:"swapped"`
	Changed  Interval `json:"changed"`  // answers that differ from the plain ones
	Relevant Interval `json:"relevant"` // the same where a measurement bears on the question
}

// The needs that tell valid from misleading measurements.
const (
	validNeed      = "bundle_valid"
	misleadingNeed = "bundle_misleading"
)

// gateGroups sort questions for the gate's table.
var gateGroups = []struct {
	name string
	in   func(plain Row) bool
}{
	{"admitted by the gate", func(r Row) bool { return r.Admitted }},
	{"withheld by the gate", func(r Row) bool { return !r.Admitted }},
	{"measurements valid", func(r Row) bool { return r.Need == validNeed }},
	{"measurements misleading", func(r Row) bool { return r.Need == misleadingNeed }},
}

func (a *analysis) gate() {
	plain, _ := a.find(a.last(), Plain)
	for _, c := range append([]Control{{Condition: Plain, Section: Gate}}, Controls...) {
		r, ok := a.find(a.last(), c.Condition)
		if !ok || c.Section != Gate {
			continue
		}
		for _, g := range gateGroups {
			if group, ok := gateGroup(plain.Rows, r.Rows, g.in); ok {
				group.Condition, group.Group = c.Condition, g.name
				a.rep.GateGroups = append(a.rep.GateGroups, group)
			}
		}
		if c.Condition == BundleSwap {
			a.rep.Swap = swap(plain.Rows, r.Rows)
		}
	}
	if a.rep.GateGroups == nil {
		return
	}
	var gate, answer, template []string
	for _, row := range plain.Rows {
		if row.asksOfFilm() {
			continue
		}
		gate, answer, template = append(gate, fmt.Sprint(row.Admitted)), append(answer, row.key()), append(template, row.Template)
	}
	tells := MutualInformation(gate, answer, template, a.seed)
	a.rep.GateTells = &tells
}

// The questions whose answer is what the gate looks at: the view, or that nothing
// can be measured.
const (
	viewTemplate = "projection"
	cannotTell   = "cannot be determined"
)

// asksOfFilm reports whether the gate may tell of a question's answer: of these
// it does so by right. A report says all there is.
func (r Row) asksOfFilm() bool {
	return r.Template == viewTemplate || r.Key == cannotTell || r.Kind == dataset.Report
}

func gateGroup(plain, rows []Row, in func(Row) bool) (g GateGroup, ok bool) {
	var before, after []bool
	right, shown := 0, 0
	for i, row := range rows {
		if in(plain[i]) {
			before, after = append(before, plain[i].Strict), append(after, row.Strict)
			right, shown = right+one(row.Strict), shown+one(row.Shown)
		}
	}
	g.Accuracy, g.Pair = Wilson(right, len(after)), McNemar(before, after)
	g.Shown = float64(shown) / float64(max(1, len(after)))
	return g, len(after) > 0
}

func swap(plain, rows []Row) *Swap {
	s := &Swap{}
	var changed, relevant [2]int
	for i, row := range rows {
		if row.Seen == plain[i].Seen {
			continue
		}
		s.Swapped++
		differs := one(row.Given != plain[i].Given)
		changed[0], changed[1] = changed[0]+differs, changed[1]+1
		if row.Relevant {
			relevant[0], relevant[1] = relevant[0]+differs, relevant[1]+1
		}
	}
	s.Changed, s.Relevant = Wilson(changed[0], changed[1]), Wilson(relevant[0], relevant[1])
	return s
}
