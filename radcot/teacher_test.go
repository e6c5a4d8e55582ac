package radcot

import (
	"regexp"
	"testing"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
)

// Reasoning leads to the answer step by step: what the view shows, what a tool
// returned held against what it is compared with, the side against the side
// that is asked about.
func TestReasoning(t *testing.T) {
	lookup := rollout.Call{Tool: lookupTool, Status: rollout.CallOK, Observation: "Site protocol P-0001: follow-up after 3 months; CTR limit 0.50; film reviewed by the nurse."}
	parse := func(obs string) rollout.Call {
		return rollout.Call{Tool: parseTool, Status: rollout.CallOK, Observation: obs}
	}
	ctr := rollout.Bundle{Measurements: []rollout.Measurement{{Name: rollout.CTR, Value: 0.5126, Category: "borderline"}}, Shown: []string{rollout.CTR}}
	for _, c := range []struct {
		question, answer string
		need             phantom.Need
		coarse           []string
		asks             []ask
		calls            []rollout.Call
		bundle           rollout.Bundle
		want             string
	}{
		{"Is the effusion on the left?", "no", phantom.NeedCoarse, []string{"pa view", "right base opaque"}, nil, nil, rollout.Bundle{},
			"right base opaque. So right against left: no."},
		{"Are the nodule and the effusion on the same side?", "yes", phantom.NeedCoarse, []string{"pa view", "nodule left upper zone", "left base opaque"}, nil, nil, rollout.Bundle{},
			"nodule left upper zone. left base opaque. So left against left: yes."},
		{"Is the left upper zone abnormal?", "yes", phantom.NeedCoarse, []string{"left upper zone opaque"}, nil, nil, rollout.Bundle{},
			"left upper zone opaque. So yes."}, // no would not mean the right
		{"Is the heart over the limit of protocol P-0001?", "yes", phantom.NeedLookup, []string{"heart size unclear"}, []ask{{lookupTool, "P-0001"}}, []rollout.Call{lookup}, ctr,
			"CTR limit 0.50. ctr 0.513 borderline. 0.513 against 0.50: over. So yes."},
		{"Is the heart over the limit of protocol P-0001?", "yes", phantom.NeedLookup, []string{"heart size unclear"}, nil, nil, ctr,
			"ctr 0.513 borderline. Not shown clearly; most likely yes."},
		{"Is the left lung the abnormal one?", "yes", phantom.NeedParse, []string{"pa view"}, []ask{{parseTool, "left lung"}},
			[]rollout.Call{parse("opacity 34 other side 31 pattern weak spots 0")}, rollout.Bundle{},
			"left lung: opacity 34 other side 31 pattern weak spots 0, higher. Not shown clearly; most likely yes."},
		{"Which lung has less air?", "left", phantom.NeedParse, []string{"pa view"}, []ask{{parseTool, "right lung"}, {parseTool, "left lung"}},
			[]rollout.Call{parse("opacity 31 other side 32 pattern none spots 2"), parse("opacity 32 other side 31 pattern weak spots 0")}, rollout.Bundle{},
			"right lung: opacity 31 other side 32 pattern none spots 2, even. left lung: opacity 32 other side 31 pattern weak spots 0, even. pattern none against weak: left. So left."},
	} {
		s := dataset.Sample{Prompt: dataset.Prompt{Kind: dataset.Binary, Question: c.question}, Answer: c.answer, Need: string(c.need)}
		if len(c.bundle.Shown) > 0 {
			s.Relevant = []string{rollout.CTR}
		}
		right, _ := direct(c.question, c.coarse)
		l := lesson{sample: s, coarse: c.coarse, right: right, asks: c.asks, seen: phantom.Truth{}.Seen}
		if got := l.brief(c.calls, c.bundle); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.question, got, c.want)
		}
		l.seen = nil // of a real film, no says nothing about the other side
		if got := l.brief(c.calls, c.bundle); sideStatement.MatchString(got) {
			t.Errorf("%s of a real film: %s", c.question, got)
		}
	}
}

var sideStatement = regexp.MustCompile(`(right|left) against (right|left)`)

func TestParseStatement(t *testing.T) {
	for returned, want := range map[string]string{
		"opacity 34 other side 31 pattern none spots 0": "right lung: opacity 34 other side 31 pattern none spots 0, higher.",
		"opacity 31 other side 33 pattern none spots 0": "right lung: opacity 31 other side 33 pattern none spots 0, lower.",
		"opacity 31 other side 32 pattern none spots 0": "right lung: opacity 31 other side 32 pattern none spots 0, even.",
		"opacity 31 pattern none spots 0":               "right lung: opacity 31 pattern none spots 0.",
	} {
		if got := ParseStatement("right lung", returned); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
