package eval

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
)

func TestWilson(t *testing.T) {
	for _, tc := range []struct {
		right, n  int
		low, high float64 // from the closed form, by hand
	}{
		{0, 0, 0, 1},
		{0, 10, 0, 0.27753},
		{5, 10, 0.23659, 0.76341},
		{10, 10, 0.72247, 1},
		{613, 2500, 0.22873, 0.26243},
	} {
		got := Wilson(tc.right, tc.n)
		if math.Abs(got.Low-tc.low) > 2e-5 || math.Abs(got.High-tc.high) > 2e-5 {
			t.Errorf("Wilson(%d, %d) = [%.5f, %.5f], want [%.5f, %.5f]", tc.right, tc.n, got.Low, got.High, tc.low, tc.high)
		}
	}
}

func TestWilsonContainsItsValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5000).Draw(t, "n")
		got := Wilson(rapid.IntRange(0, n).Draw(t, "right"), n)
		if got.Low > got.Value+1e-12 || got.High < got.Value-1e-12 || got.Low < 0 || got.High > 1 {
			t.Fatalf("interval %+v does not contain its value within [0, 1]", got)
		}
	})
}

// The gate of the paper fixes 9 questions and breaks 3: not significant.
func TestMcNemar(t *testing.T) {
	before, after := make([]bool, 20), make([]bool, 20)
	for i := range 12 {
		before[i], after[i] = i >= 9, i < 9
	}
	got := McNemar(before, after)
	if got.Fixed != 9 || got.Broken != 3 || math.Abs(got.P-0.14599609375) > 1e-12 || got.Gain != 6.0/20 {
		t.Errorf("McNemar = %+v, want 9 fixed, 3 broken, p = 0.146, gain 0.3", got)
	}
	if same := McNemar(before, before); same.P != 1 || same.Gain != 0 {
		t.Errorf("McNemar of equal lists = %+v, want p = 1", same)
	}
}

func TestMajorityIsPerTemplate(t *testing.T) {
	rows := []Row{
		{Template: "size", Key: "large"}, {Template: "size", Key: "large"}, {Template: "size", Key: "small"},
		{Template: "view", Key: "pa"}, {Template: "view", Key: "ap"},
	}
	hits := 0
	constant := strongest(rows)
	for _, r := range rows {
		hits += one(constant(r))
	}
	if hits != 3 { // large, large, and the tie of view to "ap"
		t.Errorf("majority gets %d of 5, want 3", hits)
	}
}

func TestSummariseCountsEveryQuestion(t *testing.T) {
	r := Result{Rows: []Row{
		{Kind: dataset.Binary, Template: "a", Key: "yes", Strict: true},
		{Kind: dataset.Binary, Template: "a", Key: "no", Invalid: true, Error: "lost"},
		{Kind: dataset.MultipleChoice, Template: "b", Key: "x", Strict: true},
	}}
	s := r.Summarise()
	if all := s.All(); all.Strict.N != 3 || all.Strict.Right != 2 || all.Invalid != 1 || s.Errors != 1 {
		t.Errorf("summary = %+v, want 2 of 3 right with 1 invalid and 1 error", s)
	}
	if s.Macro != 0.75 {
		t.Errorf("macro = %v, want the mean of 1/2 and 1", s.Macro)
	}
}

func TestCompareRefusesOtherQuestions(t *testing.T) {
	a := Result{Name: "sft", Rows: []Row{{Sample: "1"}}}
	b := Result{Name: "grpo", Rows: []Row{{Sample: "2"}}}
	if _, err := Compare(a, b); err == nil {
		t.Error("Compare accepted results of different questions")
	}
}

func TestShuffledImagesAreAnotherStudys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var samples []dataset.Sample
		for i := range rapid.IntRange(4, 30).Draw(t, "n") {
			study := fmt.Sprint("study ", i/2) // two questions a study
			n := rapid.IntRange(1, 2).Draw(t, "images")
			images := []dataset.Image{{SHA256: study}, {SHA256: study}}[:n]
			samples = append(samples, dataset.Sample{ID: fmt.Sprint(i), Study: study, Prompt: dataset.Prompt{Images: images}})
		}
		for i, s := range put(Shuffled, samples, rapid.Uint64().Draw(t, "seed")) {
			if s.Prompt.Images[0].SHA256 == samples[i].Study {
				t.Fatalf("sample %s kept its own study's image", s.ID)
			}
		}
	})
}

func TestConditionsChangeWhatTheySay(t *testing.T) {
	s := dataset.Sample{ID: "q", Prompt: dataset.Prompt{Images: []dataset.Image{{SHA256: "film", View: "PA"}}}}
	_, blank := BlankImage()
	for _, tc := range []struct {
		cond        Condition
		images      []string
		tools       bool
		gate        rollout.GateMode
		temperature float64
	}{
		{Plain, []string{"film"}, true, rollout.GateOn, 0},
		{TextOnly, nil, false, rollout.GateEmpty, 0},
		{Blank, []string{blank}, true, rollout.GateOn, 0},
		{ToolText, []string{blank}, true, rollout.GateOn, 0},
		{ToolsOff, []string{"film"}, false, rollout.GateOn, 0},
		{GateOff, []string{"film"}, true, rollout.GateOff, 0},
		{Sampled2, []string{"film"}, true, rollout.GateOn, 1},
		{OffSampled1, []string{"film"}, false, rollout.GateOn, 1},
	} {
		e := evaluator{cfg: Default, cond: tc.cond}
		task := e.task(put(tc.cond, []dataset.Sample{s}, 1)[0], 0)
		var images []string
		for _, img := range task.Prompt.Images {
			images = append(images, img.SHA256)
		}
		if !slices.Equal(images, tc.images) || task.Tools != tc.tools || task.Gate != tc.gate || task.Sampling.Temperature != tc.temperature {
			t.Errorf("%s: images %v tools %v gate %s temperature %v", tc.cond, images, task.Tools, task.Gate, task.Sampling.Temperature)
		}
	}
	if s.Prompt.Images[0].SHA256 != "film" {
		t.Error("a condition changed the sample itself")
	}
	one, two := (evaluator{cfg: Default, cond: Sampled1}).task(s, 0), (evaluator{cfg: Default, cond: Sampled2}).task(s, 0)
	if one.Seed == two.Seed {
		t.Error("two samplings share their seed")
	}
}

func TestSelectIsAFixedPart(t *testing.T) {
	samples := []dataset.Sample{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}}
	reversed := []dataset.Sample{{ID: "d"}, {ID: "c"}, {ID: "b"}, {ID: "a"}}
	two, three := Select(samples, 2), Select(reversed, 3)
	if two[0].ID != three[0].ID || two[1].ID != three[1].ID {
		t.Errorf("Select(2) = %v is not the start of Select(3) = %v", two, three)
	}
}

// What the world lost is asked again with the same seed, also when greedy; a
// policy without an answer is not.
func TestLostRolloutsAreMadeAgain(t *testing.T) {
	s := dataset.Sample{ID: "q", Answer: "yes", Prompt: dataset.Prompt{Kind: dataset.Binary}}
	for _, tc := range []struct {
		name      string
		lost      int // rollouts before one succeeds
		answer    string
		attempts  int
		right     bool
		hasFailed bool
	}{
		{"lost once", 1, "yes", 2, true, false},
		{"lost for good", 99, "yes", 4, false, true},
		{"no answer", 0, "", 1, false, false},
		{"lost, then no answer", 2, "", 3, false, false},
	} {
		var seeds []uint64
		roll := func(_ context.Context, task rollout.Task) (rollout.Trajectory, error) {
			seeds = append(seeds, task.Seed)
			tr := rollout.Trajectory{Sample: "q", Stop: rollout.ToolDown}
			if len(seeds) > tc.lost {
				tr.Stop = rollout.Answered
				tr.Turns = []rollout.Turn{{Text: "<assess>a</assess>"}, {Text: "<think>t</think><answer>" + tc.answer + "</answer>"}}
			}
			return tr, nil
		}
		res, err := Run(context.Background(), Default, "p", Plain, []dataset.Sample{s}, 0, roll, reward.Default(), nil)
		if err != nil {
			t.Fatal(err)
		}
		row := res.Rows[0]
		if row.Attempts != tc.attempts || row.Strict != tc.right || (row.Error != "") != tc.hasFailed || len(slices.Compact(seeds)) != 1 {
			t.Errorf("%s: %+v with seeds %v", tc.name, row, seeds)
		}
	}
}

func TestControlQuestions(t *testing.T) {
	for _, c := range []struct{ asked, of, want int }{{0, 500, 200}, {0, 106, 106}, {2000, 2000, 2000}, {2000, 50, 50}, {10, 500, 10}} {
		if got := (Config{Asked: c.asked}).ControlQuestions(c.of); got != c.want {
			t.Errorf("control_questions %d of %d questions: %d, want %d", c.asked, c.of, got, c.want)
		}
	}
}
