package eval

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
)

// rows are n questions of two templates, right where right says so.
func rows(n int, right func(i int) bool) []Row {
	out := make([]Row, n)
	for i := range out {
		key := []string{"left", "right"}[i%2]
		out[i] = Row{Sample: fmt.Sprint(i), Template: fmt.Sprint("t", i/2%2), Key: key, Cluster: fmt.Sprint(i), Kind: dataset.Closed,
			Strict: right(i), Given: "wrong", Seen: "plain", Admitted: i%4 < 2, Shown: i%4 < 2, Need: "bundle_valid"}
		if out[i].Strict {
			out[i].Given = key
		}
	}
	return out
}

func result(name string, c Condition, rs []Row) Result {
	return Result{Name: name, Condition: c, Split: dataset.Test, Questions: "same", Rows: rs}
}

func TestAnalyseFindsWhatWasPlanted(t *testing.T) {
	sft := rows(200, func(i int) bool { return i < 100 })
	off := rows(200, func(i int) bool { return i < 80 })
	grpo := rows(200, func(i int) bool { return i < 120 && i != 7 })
	swapped := rows(200, func(i int) bool { return i < 120 && i != 7 })
	for i := range grpo {
		grpo[i].Calls = one(i >= 80) // exactly where the base without tools is wrong
		if i%4 == 0 {
			swapped[i].Seen, swapped[i].Given, swapped[i].Strict = "other", "swapped", false
		}
	}
	grpo[10].Calls, grpo[90].Calls, grpo[11].Calls, grpo[93].Calls = 1, 0, 1, 0 // so that the ratios are finite in both templates
	grpo[12].Calls, grpo[14].Calls = 1, 1
	rep, err := Analyse(Results{
		result("sft", Plain, sft), result("sft", ToolsOff, off), result("grpo", Plain, grpo), result("grpo", BundleSwap, swapped),
		{Name: "grpo", Condition: Plain, Split: dataset.OOD, Questions: "others", Rows: rows(50, func(i int) bool { return i < 10 })},
	}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if p := rep.Pairs[0]; p.Fixed != 20 || p.Broken != 1 || p.Rescue.Right != 20 || p.Rescue.N != 100 || p.Damage.Right != 1 {
		t.Errorf("sft → grpo %+v", p)
	}
	calls := rep.Calls[slices.IndexFunc(rep.Calls, func(c CallChoice) bool { return c.Policy == "grpo" })]
	if calls.Wrong.Right != 118 || calls.Wrong.N != 120 || calls.Right.Right != 4 || !calls.Odds.Known || calls.Rates.Value < 10 {
		t.Errorf("calls %+v", calls)
	}
	swap := rep.Contrasts[slices.IndexFunc(rep.Contrasts, func(c Contrast) bool { return c.Condition == BundleSwap })]
	if swap.Touched != 50 || swap.On.N != 50 || swap.On.Fixed != 0 || swap.Broken != 30 || rep.Swap.Swapped != 50 || rep.Swap.Changed.Right != 50 {
		t.Errorf("swap %+v, %+v", swap, rep.Swap)
	}
	if s := rep.Shifts[0]; s.Out.Right != 10 || s.Gain > -0.3 || s.High >= 0 {
		t.Errorf("shift %+v", s)
	}
	if c := rep.Confusions[0]; c.N != 100 || len(c.Counts[0]) != 4 {
		t.Errorf("confusion %+v", c)
	}
	if !strings.Contains(rep.Marks[0], "3 seeds") {
		t.Errorf("marks %q do not say what one run supports", rep.Marks)
	}
}

// Answers that follow another film come to what the same answers come to dealt
// out at random; ones that know the right film's do not.
func TestAnalyseDealsOut(t *testing.T) {
	plain := rows(200, func(int) bool { return true })
	shuffled := rows(200, func(i int) bool { return i%4 != 2 }) // three in four right, the fourth "wrong"
	rep, err := Analyse(Results{result("p", Plain, plain), result("p", Shuffled, shuffled)}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(rep.Priors, func(p Prior) bool { return p.Name == "dealt_out" })
	if at < 1 || rep.Priors[at-1].Name != string(Shuffled) {
		t.Fatalf("priors %+v", rep.Priors)
	}
	// Templates t0 (i%4 of 0, 1) and t1 (2, 3), 100 each, half left, half right. t0
	// gives 50 left, 50 right: 50·50/100 twice; t1 gives 50 right: 50·50/100.
	if p := rep.Priors[at]; p.All.Right != 75 || p.All.N != 200 || p.Pixels != p.All || rep.Priors[at-1].All.Right != 150 {
		t.Errorf("dealt out %+v, shuffled %+v", p, rep.Priors[at-1])
	}
}

// What the gate admits says the answer: found, and found to exceed chance.
func TestAnalyseFindsATellingGate(t *testing.T) {
	plain := rows(200, func(i int) bool { return true })
	for i := range plain {
		plain[i].Admitted = plain[i].Key == "left"
	}
	rep, err := Analyse(Results{result("p", Plain, plain), result("p", GateOff, plain)}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if rep.GateTells == nil || rep.GateTells.Bits < 0.9 || !rep.GateTells.Exceeds {
		t.Errorf("I(gate; answer) = %+v, want about 1 bit", rep.GateTells)
	}
}

func TestAnalyseRefusesOtherQuestions(t *testing.T) {
	one, two := result("a", Plain, rows(10, func(int) bool { return true })), result("b", Plain, rows(10, func(int) bool { return true }))
	two.Questions = "other"
	if _, err := Analyse(Results{one, two}, nil, 1); err == nil || !strings.Contains(err.Error(), "different questions") {
		t.Errorf("error %v, want a refusal", err)
	}
	if _, err := Analyse(nil, nil, 1); err == nil {
		t.Error("a report of nothing was made")
	}
}

func TestControlsOfFewerQuestions(t *testing.T) {
	plain := result("p", Plain, rows(20, func(i int) bool { return i%2 == 0 }))
	off := result("p", ToolsOff, rows(8, func(i int) bool { return false }))
	off.Questions = "the first eight"
	rep, err := Analyse(Results{plain, off}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if c := rep.Contrasts[0]; c.N != 8 || c.Broken != 4 || rep.Asked != 8 || rep.Questions != 20 || rep.AsIs.All().Strict.N != 8 {
		t.Errorf("contrast %+v over %d of %d", c, rep.Asked, rep.Questions)
	}
}

func TestLeakIsMarked(t *testing.T) {
	plain := rows(100, func(i int) bool { return true })
	rep, err := Analyse(Results{result("p", Plain, plain), result("p", Shuffled, plain)}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(rep.Marks, func(m string) bool { return strings.Contains(m, "leaks") }) {
		t.Errorf("all right with other images, and no mark: %q", rep.Marks)
	}
}

func TestPlan(t *testing.T) {
	policies := []string{"untrained", "sft", "grpo"}
	full, skipped := Plan(Full, policies, Facts{Truth: true, Needs: true, OOD: true})
	if want := 3 + 3 + len(Controls) + 3; len(full) != want || len(skipped) != 0 { // plain, the base's, the last's, ood
		t.Errorf("full has %d jobs, want %d; skipped %q", len(full), want, skipped)
	}
	minimal, _ := Plan(Minimal, policies, Facts{OOD: true})
	if len(minimal) != 5 || minimal[4].Condition != ToolsOff {
		t.Errorf("minimal is %v", minimal)
	}
	if none, _ := Plan(NoControls, policies, Facts{}); len(none) != 3 {
		t.Errorf("none is %v", none)
	}
	real, skipped := Plan(Full, policies, Facts{})
	for _, j := range real {
		if c, _ := Find(j.Condition); c.Truth || c.Need {
			t.Errorf("%s was planned without truth and needs", j.Condition)
		}
	}
	if len(skipped) != 4 {
		t.Errorf("skipped %q, want three oracles and the split", skipped)
	}
}

func TestText(t *testing.T) {
	plain := rows(100, func(i int) bool { return i < 60 })
	rep, err := Analyse(Results{result("sft", Plain, plain), result("sft", ToolsOff, plain), result("sft", GateOff, plain),
		result("sft", Sampled1, plain), result("sft", Sampled2, plain)}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	var w bytes.Buffer
	if err := rep.WriteText(&w); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Priors", "Tools", "Gate by question", "bits after correction", "sampled again", "Mind", "no figure here is a clinical claim"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, w.String())
		}
	}
}

func TestDifferenceOfIndependent(t *testing.T) {
	// Newcombe 1998 (Statistics in Medicine 17:873), table II, method 10: 56/70 − 48/80.
	gain, low, high := Difference(Wilson(48, 80), Wilson(56, 70))
	if !near(gain, 0.2, 1e-12) || !near(low, 0.0524, 5e-5) || !near(high, 0.3339, 5e-5) {
		t.Errorf("difference %.4f [%.4f, %.4f], want 0.2000 [0.0524, 0.3339]", gain, low, high)
	}
}

func TestAgainst(t *testing.T) {
	base := result("a", Plain, rows(100, func(i int) bool { return i < 50 }))
	better := result("b", Plain, rows(100, func(i int) bool { return i < 70 }))
	c, err := Against(base, []Result{better, base})
	if err != nil || c.Pairs[0].Fixed != 20 || c.Holm[0] != 2*c.Pairs[0].P || c.Holm[1] != 1 {
		t.Errorf("comparison %+v (%v)", c, err)
	}
	var w bytes.Buffer
	if err := WriteComparison(&w, c); err != nil || !strings.Contains(w.String(), "3 seeds") {
		t.Errorf("text %q (%v) does not say what one run supports", w.String(), err)
	}
	better.Questions = "other"
	if _, err := Against(base, []Result{better}); err == nil {
		t.Error("results of different questions were compared")
	}
}

// Of a question about the view, or to which nothing can be measured, the gate
// tells by right: only others count.
func TestGateTellsOfOthersOnly(t *testing.T) {
	var rows []Row
	for i := range 400 {
		row := Row{Sample: fmt.Sprint(i), Kind: dataset.Binary, Template: "less-air", Key: []string{"left", "right"}[i/2%2], Admitted: i%2 == 0}
		switch i % 8 {
		case 3:
			row.Template, row.Key = viewTemplate, "lateral"
		case 5:
			row.Key = cannotTell
		}
		rows = append(rows, row)
	}
	rep, err := Analyse(Results{{Name: "p", Condition: Plain, Split: dataset.Test, Rows: rows}}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if g := rep.GateTells; g == nil || g.N != 300 || g.Exceeds {
		t.Errorf("%+v", g)
	}
}
