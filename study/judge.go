package study

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"xragent/eval"
)

// An Outcome is what one cell came to.
type Outcome struct {
	Arm      string
	Seed     uint64
	Data     string       // digest of the data set
	Result   eval.Result  // of the arm's own policy, as it was trained
	Controls eval.Results // of the same policy; none where the arm has none
	Learned  *eval.Prior  // the training split's most frequent answer per template, on the questions of Controls; nil where there are none
	Start    string       // weights that an arm which begins with SFT began with, as the SFT arm's are named
	Program  string       // definitions and kernels that it was made with
	Stale    bool         // made with other settings than the study has now
	Manifest string       // hash over all that the result rests on
	Command  string       // that makes the cell again
	Alarms   []string     // of reward hacking, that were raised in training
}

// A Table is a study's result.
type Table struct {
	Study       string    `json:"study"`
	Generator   string    `json:"generator,omitempty"` // hash of the phantom generator
	Certificate string    `json:"certificate"`         // hash of the world's certificate, or "none"
	Seeds       []uint64  `json:"seeds"`
	Marks       []string  `json:"marks"` // what limits all that follows
	Arms        []ArmLine `json:"arms"`
	Pairs       []Pair    `json:"pairs"`
	Claim       *Verdict  `json:"claim,omitempty"`
	Controls    Controls  `json:"controls"`
	Cells       []Record  `json:"cells"`
}

// An ArmLine is an arm over its seeds.
type ArmLine struct {
	Arm      string        `json:"arm"`
	Accuracy eval.Interval `json:"accuracy"` // of all seeds' questions together
	Seeds    []float64     `json:"seeds"`    // accuracy of each
	Majority float64       `json:"majority"`
	Invalid  int           `json:"invalid"`
	Calls    float64       `json:"calls"`  // mean a question
	Alarms   []string      `json:"alarms"` // raised at any seed
}

// A Pair holds an arm against another on the same questions, seed by seed.
type Pair struct {
	Arm     string       `json:"arm"`
	Against string       `json:"against"`
	All     eval.Pair    `json:"all"`              // of all seeds' questions together, each counted once: given these training runs
	Pooled  *eval.Pooled `json:"pooled,omitempty"` // over training runs; nil for one seed
	Holm    float64      `json:"holm"`             // All.P, adjusted over the table
}

// A Verdict says whether the study's claim holds, and if not, why.
type Verdict struct {
	Claim
	Holds bool     `json:"holds"`
	Why   []string `json:"why"`
}

// A Record is a cell as the table keeps it.
type Record struct {
	Arm      string        `json:"arm"`
	Seed     uint64        `json:"seed"`
	Accuracy eval.Interval `json:"accuracy"`
	Manifest string        `json:"manifest"`
	Command  string        `json:"command"`
}

const (
	controlGain = 0.01 // training on permuted rewards may gain less
	collapse    = 0.05 // a control that loses more has fallen apart
)

// Judge makes the table of a study's outcomes. It refuses outcomes of one seed
// that rest on different data or questions; missing ones and too few seeds it
// marks, and then no claim holds.
func Judge(s Spec, outcomes []Outcome) (Table, error) {
	j := judge{s, outcomes}
	t := Table{Study: s.Name, Certificate: "none", Seeds: s.Seeds, Marks: j.marks()}
	if err := j.sameData(); err != nil {
		return t, err
	}
	for _, a := range s.Arms {
		if of := j.of(a.Name); len(of) > 0 {
			t.Arms = append(t.Arms, armLine(a.Name, of))
		}
	}
	var err error
	if t.Pairs, err = j.pairs(); err != nil {
		return t, err
	}
	if s.Claim != nil {
		if t.Claim, err = j.verdict(*s.Claim); err != nil {
			return t, err
		}
		for _, check := range []func(Claim) ([]string, error){j.fewRuns, j.cutShort, j.collapsed} {
			marks, err := check(*s.Claim)
			if err != nil {
				return t, err
			}
			t.Marks = append(t.Marks, marks...)
		}
	}
	if t.Controls, err = j.controls(); err != nil {
		return t, err
	}
	t.Marks = append(t.Marks, t.Controls.leaks()...)
	for _, c := range s.Cells() {
		if o, ok := j.cell(c.Arm.Name, c.Seed); ok {
			right, n := score(o.Result)
			t.Cells = append(t.Cells, Record{o.Arm, o.Seed, eval.Wilson(right, n), o.Manifest, o.Command})
		}
	}
	return t, nil
}

type judge struct {
	spec     Spec
	outcomes []Outcome
}

func (j judge) cell(arm string, seed uint64) (Outcome, bool) {
	i := slices.IndexFunc(j.outcomes, func(o Outcome) bool { return o.Arm == arm && o.Seed == seed })
	if i < 0 {
		return Outcome{}, false
	}
	return j.outcomes[i], true
}

// of lists an arm's outcomes in the order of the seeds.
func (j judge) of(arm string) []Outcome {
	var out []Outcome
	for _, seed := range j.spec.Seeds {
		if o, ok := j.cell(arm, seed); ok {
			out = append(out, o)
		}
	}
	return out
}

func (j judge) marks() []string {
	marks := []string{}
	mark := func(cells []string, format string) {
		if cells != nil {
			marks = append(marks, fmt.Sprintf(format, strings.Join(cells, ", ")))
		}
	}
	var missing, stale, lost []string
	seeds := 0
	for _, seed := range j.spec.Seeds {
		whole := true
		for _, a := range j.spec.Arms {
			c := Cell{a, seed}
			o, ok := j.cell(a.Name, seed)
			switch whole = whole && ok; {
			case !ok:
				missing = append(missing, c.Name())
			case o.Stale:
				stale = append(stale, c.Name())
			}
			if n := o.lost(); n > 0 {
				lost = append(lost, fmt.Sprintf("%s (%d)", c.Name(), n))
			}
		}
		if whole {
			seeds++
		}
	}
	mark(missing, "incomplete: without %s")
	mark(stale, "made with other settings than the study has now, or by a program that had others: %s: make them again with --resume")
	mark(lost, "rollouts were lost and count as wrong: %s: make these again with --resume")
	if j.sameQuestions() {
		marks = append(marks, "all seeds ask the same questions: the arms' intervals count answers, not questions, and are too narrow")
	}
	if programs := distinct(j.outcomes, func(o Outcome) string { return o.Program }); len(programs) > 1 {
		mark(programs, "made by programs of different definitions or kernels (%s): their last bits, or more, may differ")
	}
	switch {
	case len(j.spec.Seeds) < eval.SeedsToClaim:
		marks = append(marks, fmt.Sprintf("%d of the %d seeds that a claim needs: nothing here supports one", len(j.spec.Seeds), eval.SeedsToClaim))
	case seeds < eval.SeedsToAblate:
		marks = append(marks, fmt.Sprintf("%d seeds with every arm: a claim needs %d, differences between ablations %d", seeds, eval.SeedsToClaim, eval.SeedsToAblate))
	}
	return marks
}

// lost counts the rollouts that the world lost.
func (o Outcome) lost() int {
	n := 0
	for _, r := range append(eval.Results{o.Result}, o.Controls...) {
		for _, row := range r.Rows {
			if row.Error != "" {
				n++
			}
		}
	}
	return n
}

func distinct[T any](list []T, of func(T) string) []string {
	var out []string
	for _, x := range list {
		if v := of(x); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

// sameData refuses a seed whose arms were trained or asked on different data, or
// began with different weights, and two seeds of the same data among others.
func (j judge) sameData() error {
	for _, seed := range j.spec.Seeds {
		var first, began *Outcome
		for _, a := range j.spec.Arms {
			o, ok := j.cell(a.Name, seed)
			if !ok {
				continue
			}
			if first = cmp.Or(first, &o); o.Data != first.Data {
				return fmt.Errorf("study: seed %d: %s has data %.12s, %s has %.12s: arms are compared on one data set; make both again from the same shared run",
					seed, o.Arm, o.Data, first.Arm, first.Data)
			}
			if a.Begin != BeginSFT {
				continue
			}
			if began = cmp.Or(began, &o); o.Start != began.Start {
				return fmt.Errorf("study: seed %d: %s began with weights %.12s, %s with %.12s: arms are compared from one start; make both again from the same shared run",
					seed, o.Arm, o.Start, began.Arm, began.Start)
			}
		}
	}
	if j.sameQuestions() {
		return nil
	}
	for i, a := range j.outcomes {
		for _, b := range j.outcomes[:i] {
			if a.Seed != b.Seed && a.Data == b.Data {
				return fmt.Errorf("study: %s of seed %d and %s of seed %d have the same data %.12s, others do not: seeds share all questions or none; make one of them again",
					b.Arm, b.Seed, a.Arm, a.Seed, a.Data)
			}
		}
	}
	return nil
}

// sameQuestions reports whether the seeds that there are, more than one, ask the
// same questions.
func (j judge) sameQuestions() bool {
	other := func(differ func(a, b Outcome) bool) bool {
		return slices.ContainsFunc(j.outcomes, func(o Outcome) bool { return differ(o, j.outcomes[0]) })
	}
	return other(func(a, b Outcome) bool { return a.Seed != b.Seed }) && !other(func(a, b Outcome) bool { return a.Data != b.Data })
}

func (j judge) pairs() ([]Pair, error) {
	var out []Pair
	var ps []float64
	for _, a := range j.spec.Arms {
		if a.Against == "" {
			continue
		}
		p, ok, err := j.pair(a.Name, a.Against)
		if err != nil {
			return nil, err
		}
		if ok {
			out, ps = append(out, p), append(ps, p.All.P)
		}
	}
	for i, p := range eval.Holm(ps) {
		out[i].Holm = p
	}
	return out, nil
}

// pair compares two arms over the seeds that both have; ok is false where
// there is none.
func (j judge) pair(arm, against string) (p Pair, ok bool, err error) {
	var each []eval.Pair
	var all tally
	for _, seed := range j.spec.Seeds {
		after, ok := j.cell(arm, seed)
		before, too := j.cell(against, seed)
		if !ok || !too {
			continue
		}
		one, err := eval.Compare(named(before), named(after))
		if err != nil {
			return p, false, fmt.Errorf("study: seed %d: %w", seed, err)
		}
		each = append(each, one)
		all.add(seed, before.Result, after.Result, j.sameQuestions())
	}
	p = Pair{Arm: arm, Against: against, All: all.pair()}
	if len(each) > 1 {
		pooled, err := eval.Pool(each, j.sameQuestions())
		if err != nil {
			return p, false, err
		}
		p.Pooled = &pooled
	}
	return p, len(each) > 0, nil
}

// A tally counts questions by what an arm's change did to them. A question that
// several seeds ask is one question: it is fixed where more seeds fix than break
// it, since answers to it do not count as independent (the sign test over
// clusters).
type tally struct {
	at  map[string]int // place of a question
	net []int          // fixed less broken
}

func (t *tally) add(seed uint64, before, after eval.Result, same bool) {
	if t.at == nil {
		t.at = map[string]int{}
	}
	for i, row := range after.Rows {
		key := row.Sample
		if !same {
			key = fmt.Sprint(seed, " ", key)
		}
		at, ok := t.at[key]
		if !ok {
			at = len(t.net)
			t.at[key], t.net = at, append(t.net, 0)
		}
		switch was := before.Rows[i].Strict; {
		case row.Strict && !was:
			t.net[at]++
		case was && !row.Strict:
			t.net[at]--
		}
	}
}

func (t *tally) pair() eval.Pair {
	fixed, broken := 0, 0
	for _, n := range t.net {
		switch {
		case n > 0:
			fixed++
		case n < 0:
			broken++
		}
	}
	return eval.NewPair(fixed, broken, len(t.net))
}

// named gives a result its arm's name, by which errors speak of it.
func named(o Outcome) eval.Result {
	r := o.Result
	r.Name = o.Arm
	return r
}

// verdict holds the claim against the outcomes: the gain by itself, the gain
// beyond that of the same compute, and that of permuted rewards.
func (j judge) verdict(c Claim) (*Verdict, error) {
	v := &Verdict{Claim: c, Why: []string{}}
	for _, m := range []string{c.Arm, c.Over, c.Above, c.Control} {
		if n := len(j.of(m)); n < len(j.spec.Seeds) {
			v.Why = append(v.Why, fmt.Sprintf("%s has %d of %d seeds", m, n, len(j.spec.Seeds)))
		}
	}
	over, err := j.claimed(v, c.Arm, c.Over)
	if err != nil {
		return nil, err
	}
	above, err := j.claimed(v, c.Arm, c.Above)
	if err != nil {
		return nil, err
	}
	control, err := j.claimed(v, c.Control, c.Over)
	if err != nil {
		return nil, err
	}
	if over != nil && above != nil && control != nil {
		_, why := over.Pooled.Claim(c.Gain/100, over.All.Detectable)
		v.Why = append(v.Why, why...)
		if above.Pooled.Low <= 0 {
			v.Why = append(v.Why, fmt.Sprintf("gain over %s %.1f points, lower bound %.1f, want more than 0", c.Above, 100*above.Pooled.Gain, 100*above.Pooled.Low))
		}
		if g := control.Pooled.Gain; g >= controlGain {
			v.Why = append(v.Why, fmt.Sprintf("%s gains %.1f points, want less than %.0f", c.Control, 100*g, 100*controlGain))
		}
	}
	v.Holds = len(v.Why) == 0
	return v, nil
}

// fewRuns marks a claim that so few runs, which differ so much, would often miss.
func (j judge) fewRuns(c Claim) ([]string, error) {
	p, ok, err := j.pair(c.Arm, c.Over)
	if err != nil || !ok || p.Pooled == nil || p.Pooled.Gain >= p.Pooled.Detectable {
		return nil, err
	}
	return []string{fmt.Sprintf("%s gains %.1f points over %s, less than the %.1f that %d runs which differ so much find with 80 %% power: more seeds would tell",
		c.Arm, 100*p.Pooled.Gain, c.Over, 100*p.Pooled.Detectable, p.Pooled.Seeds)}, nil
}

// cutShort marks a claim whose base still gains by more of the same training:
// its validation curve ended flat because the rate had, not because it was done.
// A point is taken for a gain, as of permuted rewards.
func (j judge) cutShort(c Claim) ([]string, error) {
	p, ok, err := j.pair(c.Above, c.Over)
	if err != nil || !ok || p.Pooled == nil || p.Pooled.Gain < controlGain && p.Pooled.Low <= 0 {
		return nil, err
	}
	return []string{fmt.Sprintf("%s gains %.1f points over %s: %s was cut short, and of what %s gains over it so much may be training that was missing",
		c.Above, 100*p.Pooled.Gain, c.Over, c.Over, c.Arm)}, nil
}

// collapsed marks a claim whose control fell apart: that it gains nothing is
// then no evidence that the gain comes of the rewards.
func (j judge) collapsed(c Claim) ([]string, error) {
	p, ok, err := j.pair(c.Control, c.Over)
	if err != nil || !ok || p.All.Gain > -collapse {
		return nil, err
	}
	return []string{fmt.Sprintf("%s loses %.1f points to %s: rewards that belong to other trajectories undo what was learned; "+
		"that they gain less than a point says little", c.Control, -100*p.All.Gain, c.Over)}, nil
}

// claimed is the pair where it says something beyond one seed; else it writes
// down why not.
func (j judge) claimed(v *Verdict, arm, against string) (*Pair, error) {
	p, ok, err := j.pair(arm, against)
	if err != nil {
		return nil, err
	}
	if !ok || p.Pooled == nil {
		v.Why = append(v.Why, fmt.Sprintf("%s against %s: one seed or none supports no claim", arm, against))
		return nil, nil
	}
	return &p, nil
}

func armLine(name string, of []Outcome) ArmLine {
	line := ArmLine{Arm: name, Alarms: []string{}}
	right, n, calls := 0, 0, 0
	for _, o := range of {
		r, m := score(o.Result)
		right, n = right+r, n+m
		line.Seeds = append(line.Seeds, float64(r)/float64(max(1, m)))
		line.Majority += o.Result.Summarise().All().Majority / float64(len(of))
		for _, row := range o.Result.Rows {
			calls += row.Calls
			if row.Invalid {
				line.Invalid++
			}
		}
		line.Alarms = append(line.Alarms, o.Alarms...)
	}
	slices.Sort(line.Alarms)
	line.Alarms = slices.Compact(line.Alarms)
	line.Accuracy = eval.Wilson(right, n)
	line.Calls = float64(calls) / float64(max(1, n))
	return line
}

func score(r eval.Result) (right, n int) {
	for _, row := range r.Rows {
		if row.Strict {
			right++
		}
	}
	return right, len(r.Rows)
}
