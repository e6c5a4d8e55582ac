package eval

import (
	"cmp"
	"fmt"
	"math"
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
	Test      string    `json:"test"` // digest of the test questions
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

// A Prior is what can be had without reading this film.
type Prior struct {
	Name   string   `json:"name"`
	What   string   `json:"what"`
	All    Interval `json:"all"`
	Pixels Interval `json:"pixels"` // questions that pixels decide
}

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

// A Confusion counts answers of one template: by reference (rows) and given
// (columns; the last is no usable answer).
type Confusion struct {
	Template string   `json:"template"`
	N        int      `json:"n"`
	Right    int      `json:"right"`
	Keys     []string `json:"keys"`
	Given    []string `json:"given"`
	Counts   [][]int  `json:"counts"`
}

// A Frequency says how often an answer is right and how often it is given.
type Frequency struct {
	Condition Condition `json:"condition"`
	Template  string    `json:"template"`
	Answer    string    `json:"answer"`
	N         int       `json:"n"` // questions of the template
	Key       float64   `json:"key"`
	Given     float64   `json:"given"`
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
	plain = plain.first(len(r.Rows))
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

// first is the result of the first n questions, in the order in which every
// selection begins.
func (r Result) first(n int) Result {
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

// lookup is the need that no pixel serves.
const lookup = "evidence_lookup"

// pixels reports whether the film decides a question, as far as is known.
func (r Row) pixels() bool { return r.Need != lookup }

func (a *analysis) priors(train []dataset.Sample) {
	plain, _ := a.find(a.last(), Plain)
	if a.rep.Asked > 0 { // the questions that the controls were asked, so that all lines are of the same
		plain = plain.first(a.rep.Asked)
	}
	add := func(name, what string, rows []Row, right func(i int) bool) {
		p := Prior{Name: name, What: what}
		var all, pixels [2]int
		for i, row := range rows {
			all[0], all[1] = all[0]+one(right(i)), all[1]+1
			if row.pixels() {
				pixels[0], pixels[1] = pixels[0]+one(right(i)), pixels[1]+1
			}
		}
		p.All, p.Pixels = Wilson(all[0], all[1]), Wilson(pixels[0], pixels[1])
		a.rep.Priors = append(a.rep.Priors, p)
	}
	hits := majorityHits(plain.Rows)
	add("majority", "the strongest constant answer per template on these very questions", plain.Rows, func(i int) bool { return hits[i] })
	if learned := trainMajority(train); len(learned) > 0 {
		add("majority_of_train", "the most frequent answer per template of the training split", plain.Rows,
			func(i int) bool { return plain.Rows[i].Key == learned[plain.Rows[i].Template] })
	}
	for _, c := range Controls {
		if r, ok := a.find(a.last(), c.Condition); ok && c.Section == Priors {
			add(string(c.Condition), c.What, r.Rows, func(i int) bool { return r.Rows[i].Strict })
			if c.Condition == Shuffled {
				a.rep.Priors = append(a.rep.Priors, dealt(r.Rows))
			}
		}
	}
	add(string(Plain), "the policy, for comparison", plain.Rows, func(i int) bool { return plain.Rows[i].Strict })
}

// dealt is what shuffled images must come to if nothing leaks: the same answers,
// dealt out among the questions of their template at random, are right so often
// in the mean, to the nearest answer. A policy that follows the film it sees
// falls to this, below the majority.
func dealt(rows []Row) Prior {
	expect := func(in func(Row) bool) Interval {
		sum, n := 0.0, 0
		for _, template := range distinct(rows, func(r Row) string { return r.Template }) {
			keys, given, of := map[string]int{}, map[string]int{}, 0
			for _, r := range rows {
				if r.Template == template && in(r) {
					keys[r.Key]++
					given[r.answered()]++
					of++
				}
			}
			for key, times := range keys { // the order moves only last bits, which rounding takes off
				sum += float64(times*given[key]) / float64(max(1, of))
			}
			n += of
		}
		return Wilson(int(math.Round(sum)), n)
	}
	return Prior{Name: "dealt_out", What: "the answers to shuffled images, dealt out at random within each template",
		All: expect(func(Row) bool { return true }), Pixels: expect(Row.pixels)}
}

// answered is what the answer comes to: the reference where it is right, however
// it was worded, else what was given.
func (r Row) answered() string {
	if r.Strict {
		return r.Key
	}
	return r.Given
}

func trainMajority(train []dataset.Sample) map[string]string {
	counts := map[string]map[string]int{}
	for _, s := range train {
		if counts[s.Template] == nil {
			counts[s.Template] = map[string]int{}
		}
		counts[s.Template][AnswerText(s)]++
	}
	out := map[string]string{}
	for t, c := range counts {
		out[t] = mostFrequent(c)
	}
	return out
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
		gate, answer, template = append(gate, fmt.Sprint(row.Admitted)), append(answer, row.Key), append(template, row.Template)
	}
	tells := MutualInformation(gate, answer, template, a.seed)
	a.rep.GateTells = &tells
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

// mostKeys is how many answers a confusion may have rows for.
const mostKeys = 12

func (a *analysis) confusions() {
	plain, _ := a.find(a.last(), Plain)
	for _, template := range distinct(plain.Rows, func(r Row) string { return r.Template }) {
		var rows []Row
		for _, r := range plain.Rows {
			if r.Template == template && r.Kind != dataset.Report {
				rows = append(rows, r)
			}
		}
		if keys := distinct(rows, func(r Row) string { return r.Key }); len(rows) > 0 && len(keys) <= mostKeys {
			a.rep.Confusions = append(a.rep.Confusions, confuse(template, keys, rows))
		}
	}
	for _, c := range []Condition{Plain, TextOnly} {
		if r, ok := a.find(a.last(), c); ok {
			a.rep.Calibration = append(a.rep.Calibration, frequencies(c, r.Rows)...)
		}
	}
}

// The columns of a confusion beside the reference answers.
const (
	otherAnswer = "other"
	noAnswer    = "none"
)

func confuse(template string, keys []string, rows []Row) Confusion {
	c := Confusion{Template: template, N: len(rows), Keys: keys, Given: append(slices.Clone(keys), otherAnswer, noAnswer)}
	for range keys {
		c.Counts = append(c.Counts, make([]int, len(c.Given)))
	}
	for _, r := range rows {
		column := len(keys)
		if i := slices.Index(keys, r.answered()); i >= 0 {
			column = i
		}
		if r.Invalid {
			column = len(keys) + 1
		}
		c.Counts[slices.Index(keys, r.Key)][column]++
		c.Right += one(r.Strict)
	}
	return c
}

// frequencies compares how often each answer of a template is given and right.
func frequencies(c Condition, rows []Row) []Frequency {
	var out []Frequency
	for _, template := range distinct(rows, func(r Row) string { return r.Template }) {
		key, given, n := map[string]int{}, map[string]int{}, 0
		var answers []string
		for _, r := range rows {
			if r.Template == template && r.Kind != dataset.Report {
				answers = append(answers, r.Key, r.Given)
				key[r.Key]++
				given[r.Given]++
				n++
			}
		}
		slices.Sort(answers)
		for _, answer := range slices.Compact(answers) {
			if answer != "" {
				out = append(out, Frequency{c, template, answer, n, float64(key[answer]) / float64(n), float64(given[answer]) / float64(n)})
			}
		}
	}
	return out
}

// withinPoints is how near the majority a policy must fall without its film.
const withinPoints = 0.03

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
		if above := p.Pixels.Value - majority.Pixels.Value; p.Name == string(Shuffled) && above > withinPoints {
			mark("with another study's images %.1f points above the majority on questions that pixels decide: more than %.0f; something leaks", 100*above, 100*withinPoints)
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
