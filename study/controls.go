package study

import (
	"slices"

	"xragent/eval"
)

// A ControlLine is one control of an arm, over the seeds that were put under
// it, on one group of questions.
type ControlLine struct {
	Arm       string         `json:"arm"`
	Condition eval.Condition `json:"condition"`
	Group     string         `json:"group"`
	Accuracy  eval.Interval  `json:"accuracy"`         // under the control, of all seeds' questions together
	Each      []float64      `json:"each"`             // accuracy of each seed
	Pair      eval.Pair      `json:"pair"`             // from the arm's plain result, all seeds' questions together: given these training runs
	Pooled    *eval.Pooled   `json:"pooled,omitempty"` // over training runs; nil for one seed
}

// A PriorLine is what an arm has without reading the film, held against
// constant answers per template, where pixels decide: the one that turned out to
// be the strongest on these questions, which nobody can know before, and the
// most frequent one of the training split.
type PriorLine struct {
	Arm      string        `json:"arm"`
	Prior    string        `json:"prior"`
	All      eval.Interval `json:"all"`
	Pixels   eval.Interval `json:"pixels"`
	Majority eval.Interval `json:"majority"` // where pixels decide
	Learned  eval.Interval `json:"learned"`  // the same, of the training split; of no question where it is not known
}

// A RoutingLine says for whom an arm calls tools: questions that the baseline
// gets wrong with tools off, against those that it gets right, by template and
// seed.
type RoutingLine struct {
	Arm   string        `json:"arm"`
	Seeds int           `json:"seeds"`
	Wrong eval.Interval `json:"wrong"` // share called, of those the baseline gets wrong
	Right eval.Interval `json:"right"`
	Rates eval.Ratio    `json:"rates"` // Mantel and Haenszel's, over templates and seeds
	Odds  eval.Ratio    `json:"odds"`
}

// Controls are what the arms that were put under controls came to.
type Controls struct {
	Lines   []ControlLine `json:"lines,omitempty"`
	Priors  []PriorLine   `json:"priors,omitempty"`
	Routing []RoutingLine `json:"routing,omitempty"`
}

// everything is the group of all questions.
const everything = "all"

// controls judges an arm at a time by the same analysis as an evaluation's
// report, and puts the seeds together.
func (j judge) controls() (Controls, error) {
	var out Controls
	for _, a := range j.spec.Arms {
		var reports []eval.Report
		var learned eval.Interval
		for _, o := range j.of(a.Name) {
			if len(o.Controls) == 0 {
				continue
			}
			rep, err := eval.Analyse(o.results(), nil, o.Seed)
			if err != nil {
				return out, err
			}
			reports = append(reports, rep)
			if o.Learned != nil {
				learned = sum(learned, o.Learned.Pixels)
			}
		}
		if len(reports) > 0 {
			lines, err := j.controlLines(a.Name, reports)
			if err != nil {
				return out, err
			}
			out.Lines, out.Priors = append(out.Lines, lines...), append(out.Priors, priorLines(a.Name, reports, learned)...)
		}
		if line, ok := j.routing(a.Name); ok {
			out.Routing = append(out.Routing, line)
		}
	}
	return out, nil
}

// results are the plain one and the controls, by one name.
func (o Outcome) results() eval.Results {
	out := append(eval.Results{o.Result}, o.Controls...)
	for i := range out {
		out[i].Name = o.Arm
	}
	return out
}

// controlLines lists every contrast of the reports once, and what the gate's
// controls do by group of questions.
func (j judge) controlLines(arm string, reports []eval.Report) ([]ControlLine, error) {
	lines := &controlLines{arm: arm}
	for _, rep := range reports {
		for _, c := range rep.Contrasts {
			lines.add(c.Condition, everything, c.Accuracy, c.Pair)
		}
		for _, g := range rep.GateGroups {
			if g.Condition == eval.Plain {
				continue
			}
			lines.add(g.Condition, g.Group, g.Accuracy, g.Pair)
		}
	}
	return lines.close(j.sameQuestions())
}

// controlLines grow by one seed after another.
type controlLines struct {
	arm   string
	lines []ControlLine
	pairs [][]eval.Pair // of each line
}

func (l *controlLines) add(c eval.Condition, group string, accuracy eval.Interval, p eval.Pair) {
	i := slices.IndexFunc(l.lines, func(x ControlLine) bool { return x.Condition == c && x.Group == group })
	if i < 0 {
		i = len(l.lines)
		l.lines, l.pairs = append(l.lines, ControlLine{Arm: l.arm, Condition: c, Group: group}), append(l.pairs, nil)
	}
	x := &l.lines[i]
	x.Accuracy = eval.Wilson(x.Accuracy.Right+accuracy.Right, x.Accuracy.N+accuracy.N)
	x.Each = append(x.Each, accuracy.Value)
	x.Pair = eval.NewPair(x.Pair.Fixed+p.Fixed, x.Pair.Broken+p.Broken, x.Pair.N+p.N)
	l.pairs[i] = append(l.pairs[i], p)
}

func (l *controlLines) close(sameQuestions bool) ([]ControlLine, error) {
	for i, pairs := range l.pairs {
		if len(pairs) < 2 {
			continue
		}
		pooled, err := eval.Pool(pairs, sameQuestions)
		if err != nil {
			return nil, err
		}
		l.lines[i].Pooled = &pooled
	}
	return l.lines, nil
}

// priorLines hold what needs no film against the majorities on the same
// questions.
func priorLines(arm string, reports []eval.Report, learned eval.Interval) []PriorLine {
	var out []PriorLine
	for _, rep := range reports {
		majority := rep.Priors[0]
		for _, p := range rep.Priors[1:] {
			i := slices.IndexFunc(out, func(x PriorLine) bool { return x.Prior == p.Name })
			if i < 0 {
				i = len(out)
				out = append(out, PriorLine{Arm: arm, Prior: p.Name, Learned: learned})
			}
			x := &out[i]
			x.All, x.Pixels, x.Majority = sum(x.All, p.All), sum(x.Pixels, p.Pixels), sum(x.Majority, majority.Pixels)
		}
	}
	return out
}

func sum(a, b eval.Interval) eval.Interval { return eval.Wilson(a.Right+b.Right, a.N+b.N) }

// routing is known for seeds at which the baseline was asked with tools off.
func (j judge) routing(arm string) (RoutingLine, bool) {
	line := RoutingLine{Arm: arm}
	var strata []eval.Stratum
	for _, o := range j.of(arm) {
		base, _ := j.cell(j.spec.Baseline, o.Seed)
		off, ok := base.Controls.Find(base.Result.Name, eval.ToolsOff, base.Result.Split)
		if !ok {
			continue
		}
		c := eval.Choose(arm, j.spec.Baseline, o.Result.Rows[:len(off.Rows)], off.Rows)
		line.Seeds++
		line.Wrong, line.Right = sum(line.Wrong, c.Wrong), sum(line.Right, c.Right)
		strata = append(strata, c.Strata...)
	}
	line.Rates, line.Odds = eval.RateRatio(strata), eval.OddsRatio(strata)
	return line, line.Seeds > 0
}
