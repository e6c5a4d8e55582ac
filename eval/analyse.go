package eval

import (
	"fmt"
	"math"

	"xragent/dataset"
)

// Analyse makes the report's figures of results, whose policies stand in the
// order of training. train are the training split's samples, for the majority
// that a policy could have learned. It refuses results of different questions.
func Analyse(rs Results, train []dataset.Sample, seed uint64) (Report, error) {
	rep := Report{Version: Version}
	a := analysis{rs: rs, seed: seed, rep: &rep}
	for _, r := range rs {
		rep.Summaries = append(rep.Summaries, r.Summarise())
		if r.Condition == Plain && r.Split == dataset.Test {
			a.policies = append(a.policies, r.Name)
			rep.Questions, rep.Test = len(r.Rows), r.Questions
		}
	}
	if len(a.policies) == 0 {
		return rep, fmt.Errorf("eval: no plain result on test questions: evaluate at least one policy")
	}
	for _, do := range []func() error{a.pairs, a.contrasts, a.churns, a.shifts} {
		if err := do(); err != nil {
			return rep, err
		}
	}
	a.priors(train)
	a.calls()
	a.gate()
	a.confusions()
	a.mark()
	return rep, nil
}

type analysis struct {
	rs       Results
	policies []string
	seed     uint64
	rep      *Report
}

func (a *analysis) last() string { return a.policies[len(a.policies)-1] }

func (a *analysis) find(policy string, c Condition) (Result, bool) {
	return a.rs.Find(policy, c, dataset.Test)
}

func (a *analysis) pairs() error {
	for i := 1; i < len(a.policies); i++ {
		before, _ := a.find(a.policies[i-1], Plain)
		after, _ := a.find(a.policies[i], Plain)
		p, err := Compare(before, after)
		if err != nil {
			return err
		}
		rescue, damage := conditional(p, before.Rows)
		a.rep.Pairs = append(a.rep.Pairs, NamedPair{before.Name, after.Name, p, rescue, damage})
	}
	return nil
}

// conditional turns fixed and broken into rates of what could be.
func conditional(p Pair, before []Row) (rescue, damage Interval) {
	right := 0
	for _, r := range before {
		right += one(r.Strict)
	}
	return Wilson(p.Fixed, len(before)-right), Wilson(p.Broken, right)
}

// contrasts compares every control with its policy's plain result on the same
// questions; a control may have been put to the first of them only.
func (a *analysis) contrasts() error {
	var ps []float64
	for _, r := range a.rs {
		control, ok := Find(r.Condition)
		plain, found := a.find(r.Name, Plain)
		if !ok || !found || r.Split != dataset.Test || control.Section == Churn {
			continue
		}
		c, err := contrast(plain, r, control)
		if err != nil {
			return err
		}
		a.rep.Contrasts, ps = append(a.rep.Contrasts, c), append(ps, c.P)
		a.rep.Asked = len(r.Rows)
	}
	for i, p := range Holm(ps) {
		a.rep.Contrasts[i].Holm = p
	}
	return nil
}

func contrast(plain, r Result, control Control) (Contrast, error) {
	plain = plain.First(len(r.Rows))
	p, err := Compare(plain, r)
	if err != nil {
		return Contrast{}, err
	}
	c := Contrast{Policy: r.Name, Section: control.Section, Condition: r.Condition, What: control.What, Pair: p}
	c.Rescue, c.Damage = conditional(p, plain.Rows)
	var before, after []bool
	right, n := 0, float64(max(1, len(r.Rows)))
	for i, row := range r.Rows {
		right += one(row.Strict)
		c.Calls += float64(row.Calls) / n
		c.Reward += row.Reward / n
		if row.Seen != plain.Rows[i].Seen {
			before, after = append(before, plain.Rows[i].Strict), append(after, row.Strict)
		}
	}
	c.Accuracy, c.Touched, c.On = Wilson(right, len(r.Rows)), len(before), McNemar(before, after)
	return c, nil
}

// First is the result of the first n questions, in the order in which every
// selection begins.
func (r Result) First(n int) Result {
	if n < len(r.Rows) {
		r.Rows, r.Questions = r.Rows[:n], ""
	}
	return r
}

func (a *analysis) churns() error {
	for _, name := range a.policies {
		for _, pair := range [][2]Condition{{Sampled1, Sampled2}, {OffSampled1, OffSampled2}} {
			one, ok := a.find(name, pair[0])
			two, found := a.find(name, pair[1])
			if !ok || !found {
				continue
			}
			p, err := Compare(one, two)
			if err != nil {
				return err
			}
			f := Floor{Policy: name, Tools: pair[0] == Sampled1}
			f.Rescue, f.Damage = conditional(p, one.Rows)
			a.rep.Churns = append(a.rep.Churns, f)
		}
	}
	return nil
}

func (a *analysis) shifts() error {
	for _, name := range a.policies {
		in, _ := a.find(name, Plain)
		out, ok := a.rs.Find(name, Plain, dataset.OOD)
		if !ok {
			continue
		}
		s := Shift{Policy: name, In: in.Summarise().All().Strict, Out: out.Summarise().All().Strict}
		s.Gain, s.Low, s.High = Difference(s.In, s.Out)
		a.rep.Shifts = append(a.rep.Shifts, s)
	}
	return nil
}

// Difference is the difference of two independent proportions, after − before,
// with its 95 % interval from theirs (Newcombe 1998, Statistics in Medicine
// 17:873, method 10).
func Difference(before, after Interval) (gain, low, high float64) {
	gain = after.Value - before.Value
	low = gain - math.Hypot(after.Value-after.Low, before.High-before.Value)
	high = gain + math.Hypot(after.High-after.Value, before.Value-before.Low)
	return gain, low, high
}

// WithinPoints is how near the majority a policy must fall without its film.
const WithinPoints = 0.03

// mark says what limits the report.
func (a *analysis) mark() {
	mark := func(format string, args ...any) { a.rep.Marks = append(a.rep.Marks, fmt.Sprintf(format, args...)) }
	mark("one training run each: no difference here supports a claim; that takes %d seeds (xragent study)", SeedsToClaim)
	for _, p := range a.rep.Pairs {
		if math.Abs(p.Gain) < p.Detectable {
			mark("%s → %s: %+.1f points is less than the %.1f that %d questions detect with 80 %% power", p.Before, p.After, 100*p.Gain, 100*p.Detectable, p.N)
		}
	}
	majority := a.rep.Priors[0]
	for _, p := range a.rep.Priors {
		if p.Name != string(Shuffled) {
			continue
		}
		if above := p.Pixels.Value - majority.Pixels.Value; above > WithinPoints {
			mark("with another study's images %.1f points above the majority on questions that pixels decide: more than %.0f; something leaks", 100*above, 100*WithinPoints)
		}
		if p.Balanced.Leaks() {
			mark("with another study's images a balanced accuracy %.1f points above that of a constant answer on questions that pixels decide: more than %.0f; something leaks",
				100*p.Balanced.Over(), 100*WithinPoints)
		}
	}
	if i := a.rep.GateTells; i != nil && i.Exceeds {
		mark("the gate tells of the answer: %.3f bits observed, more than the %.3f of chance", i.Plain, i.Chance)
	}
	for _, s := range a.rep.Summaries {
		if s.Errors > 0 {
			mark("%s, %s, %s: %d rollouts were lost and count as wrong: evaluate again", s.Name, s.Condition, s.Split, s.Errors)
		}
	}
}
