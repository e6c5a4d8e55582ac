package reward

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/rollout"
)

func TestTotal(t *testing.T) {
	gated := Default()
	additive := Default()
	additive.Variant = Additive
	bare := Default()
	bare.Format, bare.CXR, bare.Tool = false, false, false
	for _, c := range []struct {
		cfg              Config
		format, acc, cxr float64
		calls            int
		want             float64
	}{
		{gated, 1, 0, 1, 0, 1}, {gated, 1, 1, 0, 0, 2}, {gated, 1, 1, 1, 0, 2.5}, {gated, 1, 1, 0, 5, 1.75},
		{gated, 0, 1, 0, 5, 0.75}, {gated, 0, 0, 1, 5, 0}, {gated, 1, 1, 0.5, 2, 2.15}, {gated, 1, 1, 0, 9, 1.75},
		{additive, 1, 0, 1, 0, 1.5}, {additive, 0, 0, 0, 5, -0.25}, {additive, 1, 1, 1, 0, 2.5},
		{bare, 1, 0, 1, 5, 0}, {bare, 1, 1, 1, 5, 1},
	} {
		if got := c.cfg.Total(c.format, c.acc, c.cxr, c.calls); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: format %v accuracy %v cxr %v calls %d = %v, want %v", c.cfg.Variant, c.format, c.acc, c.cxr, c.calls, got, c.want)
		}
	}
}

func TestTotalCases(t *testing.T) {
	f, err := os.Open("../../shared/cases/reward.jsonl")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("not checked: the shared reward cases are absent")
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c struct {
			Format, Accuracy, CXR, Want float64
			Calls                       int
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if got := Default().Total(c.Format, c.Accuracy, c.CXR, c.Calls); math.Abs(got-c.Want) > 1e-12 {
			t.Errorf("%+v gives %v", c, got)
		}
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for want, edit := range map[string]func(*Config){
		"0.2·5 + 0 = 1":           func(c *Config) { c.LambdaT = 0.2 },
		"0.05·5 + 0.8 = 1.05":     func(c *Config) { c.LambdaL, c.LengthTo = 0.8, 100 },
		"lambda_l is -1":          func(c *Config) { c.LambdaL = -1 },
		"no effect with lambda_l": func(c *Config) { c.LengthTo = 100 },
		"length_from < length_to": func(c *Config) { c.LambdaL, c.LengthFrom, c.LengthTo = 0.1, 100, 100 },
		"lambda_m is NaN":         func(c *Config) { c.LambdaM = math.NaN() },
		"lambda_t is -1":          func(c *Config) { c.LambdaT = -1 },
		"k_max is -1":             func(c *Config) { c.KMax = -1 },
		"tolerance is 0":          func(c *Config) { c.Tolerance = 0 },
		`variant is "subtracts"`:  func(c *Config) { c.Variant = "subtracts" },
	} {
		c := Default()
		edit(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// A well-formed right trajectory outranks every wrong one under every
// configuration that Validate accepts; fewer calls and more evidence never cost.
func TestOrdering(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Default()
		c.KMax = rapid.IntRange(0, 12).Draw(t, "k_max")
		c.LambdaM = rapid.Float64Range(0, 4).Draw(t, "lambda_m")
		c.LambdaT = rapid.Float64Range(0, 0.5).Draw(t, "lambda_t")
		if c.Validate() != nil {
			t.Skip()
		}
		unit, calls := rapid.Float64Range(0, 1), rapid.IntRange(0, 2*c.KMax)
		bit := rapid.SampledFrom([]float64{0, 1})
		x, k := unit.Draw(t, "cxr"), calls.Draw(t, "calls")
		right := c.Total(1, 1, x, k)
		wrong := c.Total(bit.Draw(t, "format"), 0, unit.Draw(t, "cxr'"), calls.Draw(t, "calls'"))
		if !(right > wrong) || math.IsInf(right, 0) {
			t.Fatalf("right %v, wrong %v", right, wrong)
		}
		if c.Total(1, 1, x, k+1) > right || c.Total(1, 1, math.Min(1, x+0.1), k) < right || c.Total(0, 1, x, k) > right {
			t.Fatal("the total is not monotone in its terms")
		}
	})
}

// script is a trajectory to score: both turns' texts and what the loop recorded.
type script struct {
	turn1, turn2 string
	statuses     []rollout.CallStatus
	shown        []string
}

const (
	assess = "<assess>pa view, heart large</assess>"
	call   = `<tool_call>{"name": "roi_crop", "arguments": {"region": "left base"}}</tool_call>`
	right  = "<think>seen</think><answer>B</answer>"
)

func (s script) trajectory() rollout.Trajectory {
	t := rollout.Trajectory{Sample: "s", Stop: rollout.Answered, Turns: []rollout.Turn{{Text: s.turn1}}}
	if s.turn2 != "" {
		t.Turns = append(t.Turns, rollout.Turn{Text: s.turn2})
	}
	for _, status := range s.statuses {
		t.Calls = append(t.Calls, rollout.Call{Tool: "roi_crop", Status: status})
	}
	t.Bundle = rollout.Bundle{Shown: s.shown, Measurements: []rollout.Measurement{
		{Name: rollout.CTR, Value: 0.5124, Category: "borderline", Computed: true},
		{Name: rollout.Asymmetry, Value: -0.25, Category: "left larger", Computed: true},
		{Name: rollout.Shift, Value: 0.1, Computed: true},
	}}
	return t
}

func sample() dataset.Sample {
	return dataset.Sample{ID: "s", Prompt: choice(6), Answer: "B", Relevant: []string{rollout.CTR, rollout.Shift}}
}

func TestScore(t *testing.T) {
	all := rollout.Measurements
	cite := func(line string) string {
		return "<think>seen</think><evidence>" + line + "</evidence><answer>B</answer>"
	}
	ok, failed := rollout.CallOK, rollout.CallError
	for _, c := range []struct {
		name string
		script
		want Score // Problem is compared by being empty or not
	}{
		{"right, no calls, nothing shown", script{turn1: assess, turn2: right}, Score{Total: 2.5, Format: 1, Accuracy: 1, CXR: 1, Answer: "B"}},
		{"right, evidence not cited", script{turn1: assess, turn2: right, shown: all}, Score{Total: 2, Format: 1, Accuracy: 1, Answer: "B"}},
		{"all cited", script{turn1: assess, turn2: cite("ctr=0.512 borderline; shift=0.100"), shown: all}, Score{Total: 2.5, Format: 1, Accuracy: 1, CXR: 1, Answer: "B"}},
		{"half cited", script{turn1: assess, turn2: cite("ctr=0.512 borderline"), shown: all}, Score{Total: 2.25, Format: 1, Accuracy: 1, CXR: 0.5, Answer: "B"}},
		{"neighbour of borderline", script{turn1: assess, turn2: cite("ctr=0.512 enlarged"), shown: all}, Score{Total: 2.25, Format: 1, Accuracy: 1, CXR: 0.5, Answer: "B"}},
		{"unknown category", script{turn1: assess, turn2: cite("ctr=0.512 huge"), shown: all}, Score{Total: 2, Format: 1, Accuracy: 1, Answer: "B"}},
		{"at the tolerance", script{turn1: assess, turn2: cite("shift=0.105"), shown: all}, Score{Total: 2.25, Format: 1, Accuracy: 1, CXR: 0.5, Answer: "B"}},
		{"beyond the tolerance", script{turn1: assess, turn2: cite("shift=0.106"), shown: all}, Score{Total: 2, Format: 1, Accuracy: 1, Answer: "B"}},
		{"two values for one", script{turn1: assess, turn2: cite("shift=0.1; shift=0.2"), shown: all}, Score{Total: 2, Format: 1, Accuracy: 1, Answer: "B"}},
		{"irrelevant claim counts nothing", script{turn1: assess, turn2: cite("asymmetry=9 odd; ctr=0.512 borderline; shift=0.1"), shown: all}, Score{Total: 2.5, Format: 1, Accuracy: 1, CXR: 1, Answer: "B"}},
		{"fabricated", script{turn1: assess, turn2: cite("ctr=0.512 borderline; shift=0.1")}, Score{Total: 2, Format: 1, Accuracy: 1, Answer: "B", Fabricated: 2}},
		{"only the shown one is due", script{turn1: assess, turn2: cite("ctr=0.512 borderline"), shown: []string{rollout.CTR}}, Score{Total: 2.5, Format: 1, Accuracy: 1, CXR: 1, Answer: "B"}},
		{"calls cost, failed ones too", script{turn1: assess + call + call, turn2: right, statuses: []rollout.CallStatus{ok, failed}}, Score{Total: 2.4, Format: 1, Accuracy: 1, CXR: 1, Calls: 2, Answer: "B"}},
		{"invalid call", script{turn1: assess + call, turn2: right, statuses: []rollout.CallStatus{rollout.CallInvalid}}, Score{Total: 1.45, Accuracy: 1, CXR: 1, Calls: 1, Answer: "B", Problem: "x"}},
		{"too many calls", script{turn1: assess + strings.Repeat(call, 6), turn2: right, statuses: []rollout.CallStatus{ok, ok, ok, ok, ok, rollout.CallOverLimit}},
			Score{Total: 1.25, Accuracy: 1, CXR: 1, Calls: 5, Answer: "B", Problem: "x"}},
		{"call where none is allowed", script{turn1: assess + call, turn2: right, statuses: []rollout.CallStatus{rollout.CallOverLimit}}, Score{Total: 1.5, Accuracy: 1, CXR: 1, Answer: "B", Problem: "x"}},
		{"no assessment", script{turn1: "hm", turn2: right}, Score{Total: 1.5, Accuracy: 1, CXR: 1, Answer: "B", Problem: "x"}},
		{"wrong", script{turn1: assess, turn2: "<think>.</think><answer>C</answer>"}, Score{Total: 1, Format: 1, CXR: 1, Answer: "C"}},
		{"right without form", script{turn1: assess, turn2: "The answer is B"}, Score{Total: 1.5, Accuracy: 1, CXR: 1, Answer: "B", Problem: "x"}},
		{"not an option", script{turn1: assess, turn2: "<think>.</think><answer>Z</answer>"}, Score{CXR: 1, Problem: "x"}},
		{"turn 2 missing", script{turn1: assess}, Score{CXR: 1, Problem: "x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Default().Score(c.trajectory(), sample())
			if err != nil {
				t.Fatal(err)
			}
			if (got.Problem == "") != (c.want.Problem == "") {
				t.Errorf("problem %q", got.Problem)
			}
			if math.Abs(got.Total-c.want.Total) > 1e-12 {
				t.Errorf("total %v, want %v", got.Total, c.want.Total)
			}
			got.Problem, got.Total = c.want.Problem, c.want.Total
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestScoreErrors(t *testing.T) {
	good := script{turn1: assess, turn2: right}.trajectory()
	for want, edit := range map[string]func(*rollout.Trajectory){
		`of sample "other"`:    func(t *rollout.Trajectory) { t.Sample = "other" },
		"stopped by tool_down": func(t *rollout.Trajectory) { t.Stop = rollout.ToolDown },
		"0 turns":              func(t *rollout.Trajectory) { t.Turns = nil },
		"turn 1 has 0 calls":   func(t *rollout.Trajectory) { t.Calls = make([]rollout.Call, 1) },
	} {
		traj := good
		edit(&traj)
		if _, err := Default().Score(traj, sample()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestReport(t *testing.T) {
	s := func(positive, masked, critical string) dataset.Sample {
		split := func(x string) []string { return strings.FieldsFunc(x, func(r rune) bool { return r == ',' }) }
		return dataset.Sample{Prompt: dataset.Prompt{Kind: dataset.Report}, Positive: split(positive), Masked: split(masked), Critical: split(critical)}
	}
	for _, c := range []struct {
		sample dataset.Sample
		answer string
		want   bool
	}{
		{s("effusion,nodule", "", ""), "effusion, nodule", true},
		{s("effusion,nodule", "", ""), "effusion", true},                          // F1 2/3
		{s("effusion,nodule,oedema", "", ""), "effusion", false},                  // F1 1/2
		{s("a1,a2,a3,a4,a5", "", ""), "a1, a2, a3, b1, b2", true},                 // F1 exactly 0.6
		{s("a1,a2,a3,a4,a5", "", ""), "a1, a2, a3, b1, b2, b3", false},            // 6/11
		{s("effusion,pneumothorax", "", "pneumothorax"), "effusion", false},       // critical missed
		{s("effusion,pneumothorax", "", "pneumothorax"), "pneumothorax", true},    // F1 2/3, critical found
		{s("effusion", "nodule", ""), "effusion, nodule", true},                   // masked counts neither way
		{s("effusion", "nodule,oedema,mass", ""), "effusion, mass, nodule", true}, //
		{s("", "", ""), "normal", true},                                           // a normal film
		{s("", "", ""), "nodule", false},                                          //
		{s("", "nodule", ""), "nodule", true},                                     // nothing but a masked one
		{s("effusion", "", ""), "normal", false},                                  //
		{s("Tube Malposition", "", "tube_malposition"), "tube malposition", true}, // wording is normalised
		{s("pneumothorax", "pneumothorax", "pneumothorax"), "normal", true},       // masked wins
	} {
		if got := Right(c.answer, c.sample); got != c.want {
			t.Errorf("positive %v masked %v critical %v: %q is %v, want %v", c.sample.Positive, c.sample.Masked, c.sample.Critical, c.answer, got, c.want)
		}
	}
	if Right("", s("", "", "")) {
		t.Error("no answer is right on a normal film")
	}
}

// Whatever the texts, a score is finite, its terms lie in their ranges, and the
// same trajectory gives the same bits.
func FuzzScore(f *testing.F) {
	f.Add(assess+call, right)
	f.Add(assess, "<think>x</think><evidence>ctr=NaN; shift=1e999</evidence><answer>B</answer>")
	f.Fuzz(func(t *testing.T, turn1, turn2 string) {
		traj := script{turn1: turn1, turn2: turn2, shown: rollout.Measurements}.trajectory()
		for _, c := range rollout.ParseTriage(turn1).Calls {
			c.Status = rollout.CallOK
			traj.Calls = append(traj.Calls, c)
		}
		got, err := Default().Score(traj, sample())
		if err != nil {
			t.Fatal(err)
		}
		if !(got.Total >= 0 && got.Total <= 2.5 && got.CXR >= 0 && got.CXR <= 1 && got.Calls >= 0 && got.Calls <= 5) {
			t.Fatalf("score %+v", got)
		}
		if again, _ := Default().Score(traj, sample()); again != got {
			t.Fatalf("%+v, then %+v", got, again)
		}
	})
}

func BenchmarkScore(b *testing.B) {
	traj := script{turn1: assess + call, turn2: "<think>the crop shows a small nodule near the hilum</think><evidence>ctr=0.512 borderline; shift=0.100</evidence><answer>B</answer>",
		statuses: []rollout.CallStatus{rollout.CallOK}, shown: rollout.Measurements}.trajectory()
	s, c := sample(), Default()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Score(traj, s); err != nil {
			b.Fatal(err)
		}
	}
}

// Length control charges only what is right, and no more than its price.
func TestLength(t *testing.T) {
	c := Default()
	c.LambdaL, c.LengthFrom, c.LengthTo = 0.2, 10, 20
	for ids, want := range map[int]float64{0: 0, 10: 0, 15: 0.5, 20: 1, 99: 1} {
		tr := rollout.Trajectory{Turns: []rollout.Turn{{OutputIDs: make([]int32, ids/2)}, {OutputIDs: make([]int32, ids-ids/2)}}}
		if got := c.overlong(tr); math.Abs(got-want) > 1e-12 {
			t.Errorf("%d ids give %v, want %v", ids, got, want)
		}
	}
	if right, wrong := c.combine(1, 1, -c.LambdaL), c.combine(1, 0, -c.LambdaL); right != 1.8 || wrong != 1 {
		t.Errorf("overlong: right %v, wrong %v; want 1.8 and 1", right, wrong)
	}
}
