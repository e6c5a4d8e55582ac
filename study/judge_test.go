package study

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/eval"
)

// cell is an outcome of n questions, of which those in [from, to) are right.
func cell(arm string, seed uint64, n, from, to int) Outcome {
	o := Outcome{Arm: arm, Seed: seed, Data: fmt.Sprint("data ", seed), Manifest: fmt.Sprintf("%s %d", arm, seed), Command: "again"}
	for i := range n {
		o.Result.Rows = append(o.Result.Rows, eval.Row{Sample: fmt.Sprint(seed, "/", i), Strict: i >= from && i < to, Calls: 1})
	}
	return o
}

// believable are outcomes under which the sound study's claim holds.
func believable() []Outcome {
	var out []Outcome
	for seed := range uint64(3) {
		seed++
		shift := int(seed) // seeds differ a little
		out = append(out,
			cell("untrained", seed, 1000, 0, 100), cell("sft", seed, 1000, 0, 500+shift), cell("rl", seed, 1000, 0, 600+2*shift),
			cell("more", seed, 1000, 0, 510+shift), cell("permuted", seed, 1000, 0, 502+shift), cell("additive", seed, 1000, 0, 560))
	}
	return out
}

func without(outcomes []Outcome, arm string, seed uint64) []Outcome {
	var out []Outcome
	for _, o := range outcomes {
		if o.Arm != arm || o.Seed != seed {
			out = append(out, o)
		}
	}
	return out
}

func TestJudge(t *testing.T) {
	table, err := Judge(soundSpec(t), believable())
	if err != nil {
		t.Fatal(err)
	}
	if !table.Claim.Holds || len(table.Claim.Why) > 0 {
		t.Errorf("the claim: %v", table.Claim)
	}
	if len(table.Arms) != 6 || table.Arms[2].Accuracy.N != 3000 || table.Arms[2].Accuracy.Right != 1812 {
		t.Errorf("arms %+v", table.Arms)
	}
	if len(table.Pairs) != 5 || len(table.Cells) != 18 {
		t.Fatalf("%d pairs, %d cells", len(table.Pairs), len(table.Cells))
	}
	for _, p := range table.Pairs {
		if p.Arm == "rl" && (p.Against != "sft" || p.All.Fixed != 306 || math.Abs(p.Pooled.Gain-0.102) > 1e-12) {
			t.Errorf("rl against sft: %+v %+v", p, p.Pooled)
		}
		if p.Holm < p.All.P {
			t.Errorf("%s: corrected p %v is below %v", p.Arm, p.Holm, p.All.P)
		}
	}
	if len(table.Marks) != 2 || table.Marks[0] != "3 seeds with every arm: a claim needs 3, differences between ablations 5" ||
		table.Marks[1] != "more gains 1.0 points over sft: sft was cut short, and of what rl gains over it so much may be training that was missing" {
		t.Errorf("marks %q", table.Marks)
	}
}

// The claim falls with any one of its conditions, and says which.
func TestClaimFalls(t *testing.T) {
	replace := func(o Outcome) []Outcome { return append(without(believable(), o.Arm, o.Seed), o) }
	for _, tc := range []struct {
		name     string
		outcomes []Outcome
		want     string
	}{
		{"one seed loses", replace(cell("rl", 2, 1000, 0, 480)), "one seed gains -2.2 points"},
		{"as much by more SFT", append(replace(cell("more", 2, 1000, 0, 700)), cell("more", 9, 1, 0, 1)), "gain over more"},
		{"permuted rewards gain", replace(cell("permuted", 2, 1000, 0, 600)), "permuted gains 3.4 points, want less than 1"},
		{"a cell is missing", without(believable(), "permuted", 3), "permuted has 2 of 3 seeds"},
		{"an arm is missing", without(without(without(believable(), "more", 1), "more", 2), "more", 3), "rl against more: one seed or none"},
	} {
		table, err := Judge(soundSpec(t), tc.outcomes)
		if err != nil {
			t.Fatal(err)
		}
		if table.Claim.Holds || !strings.Contains(table.Claim.String(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, table.Claim, tc.want)
		}
	}
}

func TestOneSeedSupportsNoClaim(t *testing.T) {
	s := soundSpec(t)
	s.Seeds = s.Seeds[:1]
	table, err := Judge(s, believable())
	if err != nil {
		t.Fatal(err)
	}
	if table.Claim.Holds || len(table.Marks) != 1 || !strings.Contains(table.Marks[0], "1 of the 3 seeds that a claim needs") {
		t.Errorf("claim %v, marks %q", table.Claim, table.Marks)
	}
	if p := table.Pairs[0]; p.Pooled != nil {
		t.Errorf("one seed was pooled: %+v", p.Pooled)
	}
}

func TestJudgeRefuses(t *testing.T) {
	twice := believable()
	for i := range twice {
		if twice[i].Seed == 3 {
			twice[i].Data = "data 1"
		}
	}
	if _, err := Judge(soundSpec(t), twice); err == nil || !strings.Contains(err.Error(), "have the same data data 1, others do not") {
		t.Errorf("two seeds of one data set: %v", err)
	}
	other := cell("rl", 2, 1000, 0, 600)
	other.Data = "another"
	fewer := cell("rl", 2, 999, 0, 600)
	swapped := cell("rl", 2, 1000, 0, 600)
	swapped.Result.Rows[7].Sample = "of another set"
	start := cell("rl", 2, 1000, 0, 600)
	start.Start = "elsewhere"
	for want, o := range map[string]Outcome{
		"seed 2: rl has data another":     other,
		"rl began with weights elsewhere": start,
		"seed 2: eval:":                   fewer,
		"of another set":                  swapped,
	} {
		if _, err := Judge(soundSpec(t), append(without(believable(), "rl", 2), o)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What weakens a table without being refused is marked.
func TestMarks(t *testing.T) {
	change := func(arm string, seed uint64, f func(*Outcome)) []Outcome {
		out := believable()
		for i := range out {
			if out[i].Arm == arm && out[i].Seed == seed {
				f(&out[i])
			}
		}
		return out
	}
	permuted := func(right int) []Outcome {
		out := believable()
		for i, o := range out {
			if o.Arm == "permuted" {
				out[i] = cell(o.Arm, o.Seed, 1000, 0, right)
			}
		}
		return out
	}
	for _, c := range []struct {
		outcomes []Outcome
		want     string
	}{
		{change("rl", 2, func(o *Outcome) { o.Stale = true }), "had others: rl-2:"},
		{change("rl", 2, func(o *Outcome) { o.Result.Rows[3].Error = "gone" }), "lost and count as wrong: rl-2 (1)"},
		{change("rl", 2, func(o *Outcome) { o.Program = "neon" }), "different definitions or kernels (, neon)"},
		// gains of 10.1, 17.8 and 10.3: (4.303 + 1.061) · 4.39 / √3
		{change("rl", 2, func(o *Outcome) { *o = cell("rl", 2, 1000, 0, 680) }), "rl gains 12.7 points over sft, less than the 13.6 that 3 runs"},
		{permuted(300), "permuted loses 20.2 points to sft"},
		{without(believable(), "rl", 3), "2 seeds with every arm"},
	} {
		table, err := Judge(soundSpec(t), c.outcomes)
		if err != nil || !strings.Contains(strings.Join(table.Marks, "\n"), c.want) {
			t.Errorf("%v, marks %q, want %q", err, table.Marks, c.want)
		}
	}
}

// More of the same training that gains two points at every seed is no plateau,
// however wide the interval; half a point is.
func TestCutShort(t *testing.T) {
	for gains, want := range map[[3]int]bool{{20, 50, 90}: true, {5, -3, 8}: false} {
		var outcomes []Outcome
		for _, o := range believable() {
			if o.Arm == "more" {
				o = cell("more", o.Seed, 1000, 0, 500+int(o.Seed)+gains[o.Seed-1])
			}
			outcomes = append(outcomes, o)
		}
		table, err := Judge(soundSpec(t), outcomes)
		if err != nil || strings.Contains(strings.Join(table.Marks, " "), "cut short") != want {
			t.Errorf("%v: %v, marks %q", gains, err, table.Marks)
		}
	}
}

// Where all seeds ask the same questions, each counts once.
func TestSameQuestionsCountOnce(t *testing.T) {
	var outcomes []Outcome
	for seed := range uint64(3) {
		for arm, right := range map[string]int{"sft": 50, "rl": 60} {
			o := cell(arm, 1, 100, 0, right)
			o.Seed = seed + 1
			outcomes = append(outcomes, o)
		}
	}
	table, err := Judge(soundSpec(t), outcomes)
	if err != nil {
		t.Fatal(err)
	}
	p := table.Pairs[0]
	if want := eval.NewPair(10, 0, 100); p.All != want || math.Abs(p.Pooled.Gain-0.1) > 1e-12 {
		t.Errorf("%+v, pooled %+v; want %+v", p.All, p.Pooled, want)
	}
}

func TestMissingCellsAreMarked(t *testing.T) {
	table, err := Judge(soundSpec(t), without(without(believable(), "rl", 1), "additive", 3))
	if err != nil || !strings.Contains(table.Marks[0], "incomplete: without rl-1, additive-3") {
		t.Errorf("%v; marks %q", err, table.Marks)
	}
}

// The three forms of a table hold the same figures.
func TestForms(t *testing.T) {
	table, err := Judge(soundSpec(t), believable())
	if err != nil {
		t.Fatal(err)
	}
	table.Marks = append(table.Marks, "a mark")
	var text, markdown strings.Builder
	if err := table.Text(&text); err != nil {
		t.Fatal(err)
	}
	if err := table.Markdown(&markdown); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{text.String(), markdown.String()} {
		for _, want := range []string{"60.4", "+10.2", "MARKED: a mark", "claim: rl gains at least 5.0 points over sft", "holds", "rl-3", "is a clinical claim"} {
			if !strings.Contains(form, want) {
				t.Errorf("without %q:\n%s", want, form)
			}
		}
	}
	var back Table
	if err := json.Unmarshal(data, &back); err != nil || back.Pairs[1].All != table.Pairs[1].All {
		t.Errorf("read back: %v", err)
	}
}

// Controls may be asked fewer questions than the arms: those that these begin with.
func TestControlsOfFewerQuestions(t *testing.T) {
	var outcomes []Outcome
	for _, o := range believable() {
		o = asked(o)
		o.Result.Questions = fmt.Sprint("all of seed ", o.Seed)
		if o.Arm == "sft" {
			off := under(o, eval.ToolsOff, 6)
			off.Rows, off.Questions = off.Rows[:100], fmt.Sprint("100 of seed ", o.Seed)
			o.Controls = eval.Results{off}
		}
		outcomes = append(outcomes, o)
	}
	table, err := Judge(soundSpec(t), outcomes)
	if err != nil {
		t.Fatal(err)
	}
	if r := table.Controls.Routing; len(r) != 6 || r[1].Wrong.N+r[1].Right.N != 300 || r[1].Rescued.N != 120 {
		t.Errorf("routing %+v", r)
	}
	for i := range outcomes { // of others, they are refused
		if outcomes[i].Arm == "sft" && outcomes[i].Seed == 2 {
			outcomes[i].Controls[0].Rows[7].Sample = "another"
		}
	}
	if _, err := Judge(soundSpec(t), outcomes); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("a control of other questions: %v", err)
	}
}

// under is an outcome's result under a condition: of every ten questions the
// first few are right.
func under(o Outcome, c eval.Condition, right int) eval.Result {
	r := eval.Result{Name: o.Result.Name, Condition: c, Split: o.Result.Split, Rows: slices.Clone(o.Result.Rows)}
	for i := range r.Rows {
		r.Rows[i].Strict, r.Rows[i].Seen = i%10 < right, "other"
	}
	return r
}

// asked makes an outcome one of two templates, whose tools are called on the
// even questions, plain right on seven of ten.
func asked(o Outcome) Outcome {
	o.Result.Name, o.Result.Condition, o.Result.Split = o.Arm, eval.Plain, dataset.Test
	for i := range o.Result.Rows {
		row := &o.Result.Rows[i]
		row.Template, row.Key, row.Calls, row.Strict = fmt.Sprint("t", i%10/5), fmt.Sprint(i%2), 1-i%2, i%10 < 7
		row.Need = []string{"bundle_valid", "bundle_misleading"}[i%10/5]
	}
	return o
}

// TestControls holds the pooled tables against figures counted by hand.
func TestControls(t *testing.T) {
	var outcomes []Outcome
	for _, o := range believable() {
		o = asked(o)
		switch o.Arm {
		case "sft":
			o.Controls = eval.Results{under(o, eval.ToolsOff, 6)}
		case "rl":
			o.Controls = eval.Results{under(o, eval.Shuffled, 4), under(o, eval.GateOff, 6)}
			far := under(o, eval.Plain, 3)
			far.Split = dataset.OOD
			o.Controls = append(o.Controls, far)
			o.Learned = &eval.Prior{Pixels: eval.Wilson(450, 1000)}
		}
		outcomes = append(outcomes, o)
	}
	table, err := Judge(soundSpec(t), outcomes)
	if err != nil {
		t.Fatal(err)
	}
	at := func(arm string, c eval.Condition, group string) ControlLine {
		i := slices.IndexFunc(table.Controls.Lines, func(l ControlLine) bool { return l.Arm == arm && l.Condition == c && l.Group == group })
		if i < 0 {
			t.Fatalf("no line of %s, %s, %s in %+v", arm, c, group, table.Controls.Lines)
		}
		return table.Controls.Lines[i]
	}
	for _, want := range []struct {
		arm    string
		c      eval.Condition
		group  string
		n      int
		broken int
	}{
		{"sft", eval.ToolsOff, "all", 3000, 300},
		{"rl", eval.Shuffled, "all", 3000, 900},
		{"rl", eval.GateOff, "measurements valid", 1500, 0},
		{"rl", eval.GateOff, "measurements misleading", 1500, 300},
	} {
		l := at(want.arm, want.c, want.group)
		if l.Pair != eval.NewPair(0, want.broken, want.n) || l.Pooled == nil || math.Abs(l.Pooled.Gain-l.Pair.Gain) > 1e-12 || len(l.Each) != 3 {
			t.Errorf("%+v: got %+v, pooled %+v", want, l, l.Pooled)
		}
	}
	// Under shuffled images t0 has two of three zeros right and both ones, t1 nothing:
	// balanced (2/3 + 1)/2 and 0.
	if p := table.Controls.Priors[1]; p.Arm != "rl" || p.Prior != "images_shuffled" || p.Pixels.Right != 1200 || p.Majority.Right != 1800 || p.Pixels.N != 3000 ||
		p.Learned.Right != 1350 || p.Learned.N != 3000 || p.Balanced.N != 3000 || math.Abs(p.Balanced.Value-5./12) > 1e-12 || p.Balanced.Constant != 0.5 {
		t.Errorf("priors %+v", table.Controls.Priors)
	}
	// Of ten questions the baseline without tools has 0–5 right: t0 all five, t1
	// one of five. Tools are called on the even ones.
	r := table.Controls.Routing
	if len(r) != 6 || r[1].Arm != "sft" || r[1].Seeds != 3 || r[1].Wrong.Right != 600 || r[1].Wrong.N != 1200 || r[1].Right.Right != 900 || r[1].Right.N != 1800 {
		t.Errorf("routing %+v", r)
	}
	if r[1].Rescued.N != 1200 || r[1].Damaged.N != 1800 || r[1].Rescued.Right-r[1].Damaged.Right != 300 {
		t.Errorf("rescued %+v, damaged %+v", r[1].Rescued, r[1].Damaged)
	}
	if l := at("rl", eval.Shuffled, "all"); l.Plain.N != 3000 || l.Plain.Calls != 0.5 || l.Under.Calls != 0.5 || l.Holm < l.Pair.P {
		t.Errorf("what shuffled images cost: %+v", l)
	}
	if far := table.Controls.Far; len(far) != 1 || far[0].Arm != "rl" || far[0].Accuracy.Right != 900 || far[0].Accuracy.N != 3000 || math.Abs(far[0].Test-0.7) > 1e-12 {
		t.Errorf("out of distribution: %+v", far)
	}
	if !strings.Contains(strings.Join(table.Marks, " "), "rl with another study's images, where pixels decide: a balanced accuracy 8.3 points below") {
		t.Errorf("marks %q", table.Marks)
	}
	var text strings.Builder
	if err := table.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"images shuffled", "measurements misleading", "-20.0", "baseline wrong"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("without %q:\n%s", want, text.String())
		}
	}
}

// One seed done of three asks no questions twice.
func TestOneSeedDoneIsNotTheSameQuestions(t *testing.T) {
	table, err := Judge(soundSpec(t), []Outcome{cell("sft", 1, 10, 0, 5), cell("rl", 1, 10, 0, 6)})
	if err != nil || strings.Contains(strings.Join(table.Marks, "\n"), "same questions") {
		t.Errorf("%v; marks %q", err, table.Marks)
	}
}
