package dataset

import (
	"math"
	"strings"
	"testing"
)

func usable() Sample {
	return Sample{ID: "1", Answer: "B", Prompt: Prompt{Kind: MultipleChoice, Question: "Which?",
		Options: []string{"x", "y"}, Images: []Image{{View: "PA"}}}}
}

func TestValidateRefuses(t *testing.T) {
	if err := usable().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Sample)
		want   string
	}{
		{func(s *Sample) { s.ID = "" }, "without id"},
		{func(s *Sample) { s.ID = strings.Repeat("x", maxID+1) }, "field id has 257 bytes, at most 256"},
		{func(s *Sample) { s.ID = "a\nb" }, `sample "a\nb": field id has control characters`},
		{func(s *Sample) { s.Prompt.Question = " " }, "field question is empty"},
		{func(s *Sample) { s.Prompt.Images = nil }, "field images is empty"},
		{func(s *Sample) { s.Prompt.Images[0].View = "pa" }, `field images[0].view is "pa", want PA`},
		{func(s *Sample) { s.Prompt.Images[0].AgeYears = -1 }, "field images[0].age_years is -1"},
		{func(s *Sample) { s.Prompt.Images[0].SpacingMM = math.NaN() }, "field images[0].spacing_mm is NaN"},
		{func(s *Sample) { s.Prompt.Options = []string{"x"} }, "field options has 1, want 2 to 26"},
		{func(s *Sample) { s.Prompt.Options = make([]string, 27) }, "field options has 27"},
		{func(s *Sample) { s.Prompt.Options[1] = " " }, "field options B is empty"},
		{func(s *Sample) { s.Prompt.Options[1] = "x" }, `field options A and B are both "x"`},
		{func(s *Sample) { s.Answer = "" }, "field answer is empty"},
		{func(s *Sample) { s.Answer = "C" }, `field answer is "C", which is none of its 2 options`},
		{func(s *Sample) { s.Prompt.Kind, s.Answer = Closed, " " }, "field answer is empty"},
		{func(s *Sample) { s.Prompt.Kind = Binary }, `field answer is "B", want yes or no`},
		{func(s *Sample) { s.Prompt.Kind = "essay" }, `field kind is "essay"`},
	} {
		s := usable()
		c.change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestCompleted holds that what is stated of a film goes before its file, but for
// what speaks against measuring it.
func TestCompleted(t *testing.T) {
	file := Image{View: "PA", ViewFrom: "view_position", AgeYears: 60, SpacingMM: 0.2, SquarePx: true, Domain: "radiograph"}
	if got := (Image{}).Completed(file); got != file {
		t.Errorf("nothing stated: %+v", got)
	}
	own := Image{View: "AP", ViewFrom: "label", AgeYears: 50, SpacingMM: 0.1, Domain: "phantom"}
	want := own
	want.SquarePx = true
	if got := own.Completed(file); got != want {
		t.Errorf("all stated: %+v, want %+v", got, want)
	}
	for _, against := range []Image{{View: "LATERAL", ViewFrom: "view_position"}, {View: "OTHER", ViewFrom: "patient_orientation"}} {
		if got := own.Completed(against); got.View != against.View || got.ViewFrom != against.ViewFrom {
			t.Errorf("stated AP, the file is %s: %+v", against.View, got)
		}
	}
	if got := own.Completed(Image{AgeYears: 5}); got.AgeYears != 5 || got.View != "AP" {
		t.Errorf("stated 50 years, the file says 5: %+v", got)
	}
}
