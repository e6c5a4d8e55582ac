package study

import (
	"fmt"
	"math"
	"slices"

	"xragent/dataset"
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
	Holm      float64        `json:"holm"`             // Pair.P, adjusted over all lines
	Plain     Cost           `json:"plain"`            // as it is
	Under     Cost           `json:"under"`            // under the control
}

// A Cost is what answers cost and were worth, in the mean of n questions.
type Cost struct {
	N      int     `json:"n"`
	Calls  float64 `json:"calls"`
	Reward float64 `json:"reward"`
}

func (c Cost) add(rows []eval.Row) Cost {
	calls, worth := c.Calls*float64(c.N), c.Reward*float64(c.N)
	for _, r := range rows {
		calls, worth = calls+float64(r.Calls), worth+r.Reward
	}
	n := c.N + len(rows)
	return Cost{n, calls / float64(max(1, n)), worth / float64(max(1, n))}
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
	Balanced eval.Balanced `json:"balanced"` // where pixels decide, all seeds' questions together; of none for answers dealt out
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
	// Rescued is the share of the baseline's wrong answers without tools that the
	// arm has right, Damaged that of its right ones that the arm has wrong.
	Rescued eval.Interval `json:"rescued"`
	Damaged eval.Interval `json:"damaged"`
}

// A FarLine is an arm's accuracy on the split that is made unlike training.
type FarLine struct {
	Arm      string        `json:"arm"`
	Accuracy eval.Interval `json:"accuracy"`
	Each     []float64     `json:"each"`
	Test     float64       `json:"test"`     // on the test questions, same seeds
	Majority float64       `json:"majority"` // strongest constant answer per template
}

// Controls are what the arms that were put under controls came to.
type Controls struct {
	Lines   []ControlLine `json:"lines,omitempty"`
	Priors  []PriorLine   `json:"priors,omitempty"`
	Routing []RoutingLine `json:"routing,omitempty"`
	Far     []FarLine     `json:"far,omitempty"`
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
		if line, ok, err := j.routing(a.Name); err != nil {
			return out, err
		} else if ok {
			out.Routing = append(out.Routing, line)
		}
		if line, ok := farLine(a.Name, j.of(a.Name)); ok {
			out.Far = append(out.Far, line)
		}
	}
	ps := make([]float64, len(out.Lines))
	for i, l := range out.Lines {
		ps[i] = l.Pair.P
	}
	for i, p := range eval.Holm(ps) {
		out.Lines[i].Holm = p
	}
	return out, nil
}

// farLine puts together the seeds that were asked about the split out of
// distribution.
func farLine(arm string, of []Outcome) (FarLine, bool) {
	line := FarLine{Arm: arm}
	for _, o := range of {
		far, ok := o.Controls.Find(o.Result.Name, eval.Plain, dataset.OOD)
		if !ok {
			continue
		}
		right, n := score(far)
		test, asked := score(o.Result)
		line.Accuracy = sum(line.Accuracy, eval.Wilson(right, n))
		line.Each = append(line.Each, float64(right)/float64(max(1, n)))
		line.Test += float64(test) / float64(max(1, asked))
		line.Majority += far.Summarise().All().Majority
	}
	k := float64(max(1, len(line.Each)))
	line.Test, line.Majority = line.Test/k, line.Majority/k
	return line, len(line.Each) > 0
}

// leaks marks where images of another study leave a policy further from what
// needs no film than the points that chance allows.
func (c Controls) leaks() []string {
	var out []string
	for _, p := range c.Priors {
		if p.Prior != string(eval.Shuffled) {
			continue
		}
		if above := p.Pixels.Value - p.Majority.Value; above > eval.WithinPoints {
			out = append(out, fmt.Sprintf("%s with another study's images, where pixels decide: %.1f points above the strongest constant answer: something leaks", p.Arm, 100*above))
		}
		if off := p.Balanced.Over(); math.Abs(off) > eval.WithinPoints {
			what := "below that of a constant answer: it answers in words that are never right"
			if off > 0 {
				what = "above that of a constant answer: something leaks"
			}
			out = append(out, fmt.Sprintf("%s with another study's images, where pixels decide: a balanced accuracy %.1f points %s", p.Arm, 100*math.Abs(off), what))
		}
	}
	return out
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
	lines := &controlLines{arm: arm, of: j.of(arm)}
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
	of    []Outcome
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
		if x := &l.lines[i]; x.Group == everything {
			x.Plain, x.Under = costs(l.of, x.Condition)
		}
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

// costs are those of the seeds that were put under a control.
func costs(of []Outcome, c eval.Condition) (plain, under Cost) {
	for _, o := range of {
		if r, ok := o.Controls.Find(o.Result.Name, c, o.Result.Split); ok {
			plain, under = plain.add(o.Result.Rows[:min(len(o.Result.Rows), len(r.Rows))]), under.add(r.Rows)
		}
	}
	return plain, under
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
			x.Balanced = x.Balanced.With(p.Balanced)
		}
	}
	return out
}

func sum(a, b eval.Interval) eval.Interval { return eval.Wilson(a.Right+b.Right, a.N+b.N) }

// routing is known for seeds at which the baseline was asked with tools off.
func (j judge) routing(arm string) (RoutingLine, bool, error) {
	line := RoutingLine{Arm: arm}
	var strata []eval.Stratum
	for _, o := range j.of(arm) {
		base, _ := j.cell(j.spec.Baseline, o.Seed)
		off, ok := base.Controls.Find(base.Result.Name, eval.ToolsOff, base.Result.Split)
		if !ok {
			continue
		}
		plain := named(o).First(len(off.Rows))
		p, err := eval.Compare(off, plain)
		if err != nil {
			return line, false, fmt.Errorf("study: seed %d: %w", o.Seed, err)
		}
		c := eval.Choose(arm, j.spec.Baseline, plain.Rows, off.Rows)
		line.Seeds++
		line.Wrong, line.Right = sum(line.Wrong, c.Wrong), sum(line.Right, c.Right)
		line.Rescued = sum(line.Rescued, eval.Wilson(p.Fixed, c.Wrong.N))
		line.Damaged = sum(line.Damaged, eval.Wilson(p.Broken, c.Right.N))
		strata = append(strata, c.Strata...)
	}
	line.Rates, line.Odds = eval.RateRatio(strata), eval.OddsRatio(strata)
	return line, line.Seeds > 0, nil
}
