package radcot

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"xragent/rollout"
)

func TestDirect(t *testing.T) {
	dark := []string{"pa view", "heart size unclear", "no large finding"}
	for _, c := range []struct {
		question string
		coarse   []string
		want     string
	}{
		{"Which projection is this film?", dark, ""},
		{"Protocol P-0123: when is follow-up due?", dark, "evidence_lookup P-0123"},
		{"Where is the tube tip?", dark, "roi_crop trachea"},
		{"What is the heart size?", dark, ""},
		{"Which lung has lost volume?", dark, ""},
		{"How abnormal is the texture of the left upper zone?", dark, "region_parse left upper zone"},
		{"Is the left middle zone abnormal?", dark, "region_parse left middle zone"},
		{"Is the left middle zone abnormal?", []string{"left middle zone opaque"}, ""},
		{"How many nodules are in the right lung?", dark, "region_parse right lung"},
		{"What margin has the nodule in the right upper zone?", dark, "roi_crop right upper zone"},
		{"Is the nodule in the left lung?", dark, "roi_crop left upper zone, roi_crop left middle zone, roi_crop left lower zone"},
		{"Where is the nodule?", dark, "roi_crop right upper zone, roi_crop right middle zone, roi_crop right lower zone, roi_crop left upper zone, roi_crop left middle zone"},
		{"Where is the nodule?", []string{"pa view", "nodule left upper zone"}, ""},
		{"On which side is the pneumothorax?", dark, "roi_crop right apex, roi_crop left apex"},
		{"Is the effusion on the right?", dark, "roi_crop right costophrenic angle"},
		{"Where is the tube tip?", []string{"pa view", "tube ends low"}, ""},
		{"Is the heart over the limit of protocol P-0123?", dark, "evidence_lookup P-0123"},
		{"Is the heart over the limit of protocol P-0123?", []string{"pa view", "heart small"}, ""},
		{"Which lung has less air?", dark, "region_parse right lung, region_parse left lung"},
		{"Which lung has less air?", []string{"right base opaque"}, ""},
		{"Which lung is abnormal?", dark, "region_parse right lung, region_parse left lung, roi_crop right apex, roi_crop left apex"},
		{"What is the main finding?", dark, "region_parse right lung, region_parse left lung, roi_crop right apex, roi_crop left apex, roi_crop right costophrenic angle"},
		{"List the findings.", dark, "region_parse right lung, region_parse left lung, roi_crop right apex, roi_crop left apex"},
		{"Is there evidence of pneumonia in the right lower lobe?", nil, "region_parse right lower zone"},
		{"Was a biopsy taken?", nil, ""},
	} {
		var got []string
		for _, a := range direct(c.question, c.coarse) {
			got = append(got, a.tool+" "+a.arg)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%q with %q asks %q, want %q", c.question, c.coarse, strings.Join(got, ", "), c.want)
		}
	}
}

// Worsened routing is never the right routing.
func TestWorsened(t *testing.T) {
	cfg := config()
	cfg.Suboptimal = 0.999999
	for _, s := range phantoms(studies).Samples {
		for i := range 3 {
			s.ID = fmt.Sprint(s.ID, i)
			if l := plan(s, []string{"pa view"}, cfg); slices.Equal(l.asks, l.right) {
				t.Fatalf("%q: worsened to the right calls %v", s.Prompt.Question, l.asks)
			}
		}
	}
}

// Reasoning does not draw "so" from a measurement that says otherwise.
func TestContradicted(t *testing.T) {
	observed := []rollout.Call{{Tool: parseTool, Status: rollout.CallOK, Observation: "opacity 34 other side 31 pattern weak spots 2"}}
	shown := rollout.Bundle{Shown: rollout.Measurements, Measurements: []rollout.Measurement{
		{Name: rollout.CTR, Value: 0.5, Category: "borderline"}, {Name: rollout.Asymmetry, Value: -0.2, Category: "right smaller"}, {Name: rollout.Shift, Value: 0.01}}}
	for _, c := range []struct {
		question, relevant, answer string
		want                       bool
	}{
		{"How many nodules are in the right lung?", "", "2", false}, {"How many nodules are in the right lung?", "", "1", true},
		{"How abnormal is the texture of the left upper zone?", "", "slight", false}, {"How abnormal is the texture of the left upper zone?", "", "clear", true},
		{"Is the left upper zone abnormal?", "", "no", false},
		{"What is the heart size?", rollout.CTR, "borderline", false}, {"What is the heart size?", rollout.CTR, "enlarged", true},
		{"Is the heart enlarged?", rollout.CTR, "no", false},
		{"Which lung has lost volume?", rollout.Asymmetry, "right", false}, {"Which lung has lost volume?", rollout.Asymmetry, "left", true},
		{"To which side is the mediastinum shifted?", rollout.Shift, "left", false},
	} {
		var l lesson
		l.sample.Prompt.Question, l.sample.Answer, l.sample.Relevant = c.question, c.answer, []string{c.relevant}
		if got := l.contradicted(observed, shown); got != c.want {
			t.Errorf("%q answered %q: contradicted is %v", c.question, c.answer, got)
		}
	}
}

func TestClause(t *testing.T) {
	text := "Site protocol P-9913: follow-up after 6 months; CTR limit 0.52; film reviewed by the nurse."
	for answer, want := range map[string]string{
		"nurse": "film reviewed by the nurse", "6 months": "Site protocol P-9913: follow-up after 6 months", "0.52": "CTR limit 0.52",
		"12 months": "Site protocol P-9913: follow-up after 6 months; CTR limit 0.52; film reviewed",
	} {
		var l lesson
		l.sample.Answer = answer
		if got := first(l.clause(text), 12); got != want {
			t.Errorf("the clause for %q is %q, want %q", answer, got, want)
		}
	}
}
