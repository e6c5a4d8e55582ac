package radcot

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/reward"
	"xragent/rollout"
)

// A lesson is one record in the making.
type lesson struct {
	sample dataset.Sample
	coarse []string // what the coarse view shows; nil for a real image
	right  []ask    // the calls that would serve best
	asks   []ask    // the calls that are made
}

// plan draws the calls from the question and the coarse view. The draw depends
// on the seed and the sample's id, never on its answer.
func plan(s dataset.Sample, coarse []string, seed uint64, suboptimal float64) lesson {
	h := fnv.New64a()
	h.Write([]byte(s.ID))
	rng := rand.New(rand.NewPCG(seed, h.Sum64()))
	l := lesson{sample: s, coarse: coarse, right: direct(s.Prompt.Question, coarse)}
	l.asks = l.right
	if rng.Float64() < suboptimal {
		l.asks = worsen(l.right, rng)
	}
	return l
}

// turn1 writes the assessment and the calls.
func (l lesson) turn1() string {
	text := "<assess>" + assessment(l.coarse, l.sample.Prompt) + "</assess>"
	for _, a := range l.asks {
		text += "\n" + rollout.FormatCall(a.tool, a.arguments())
	}
	return text
}

// turn2 writes reasoning, evidence line and answer from what is at hand.
func (l lesson) turn2(calls []rollout.Call, b rollout.Bundle) string {
	think := l.brief(calls, b)
	if l.sample.Prompt.Kind == dataset.Report {
		think = l.rationale(calls, b)
	}
	text := "<think>" + think + "</think>\n"
	if claims := claims(b, l.sample.Relevant); len(claims) > 0 {
		text += rollout.FormatClaims(claims) + "\n"
	}
	return text + "<answer>" + l.answer() + "</answer>"
}

// claims copies the measurements that bear on the question, as they are shown.
func claims(b rollout.Bundle, relevant []string) []rollout.Claim {
	var out []rollout.Claim
	for _, name := range b.Shown {
		if m, ok := b.Find(name); ok && slices.Contains(relevant, name) {
			out = append(out, rollout.Claim{Name: name, Value: m.Value, Category: m.Category})
		}
	}
	return out
}

// answer is what stands in the answer block: a letter, a string, yes or no, or
// findings.
func (l lesson) answer() string {
	if l.sample.Prompt.Kind != dataset.Report {
		return l.sample.Answer
	}
	if len(l.sample.Positive) == 0 {
		return reward.Normal
	}
	return strings.Join(l.sample.Positive, ", ")
}

// answerWords is the answer in words, for the reasoning.
func (l lesson) answerWords() string {
	if l.sample.Prompt.Kind == dataset.MultipleChoice {
		return l.sample.Prompt.Options[l.sample.Answer[0]-'A']
	}
	return l.answer()
}

// brief is the reasoning of a short question: what was observed, then what
// follows. Where the evidence at hand does not suffice it says so.
func (l lesson) brief(calls []rollout.Call, b rollout.Bundle) string {
	var parts []string
	for i, c := range calls {
		if i < 2 {
			parts = append(parts, l.observed(i, c))
		}
	}
	parts = append(parts, l.measured(b)...)
	verdict := "Not shown clearly; most likely " + l.answerWords() + "."
	if l.suffices(calls, b) {
		verdict = "So " + l.answerWords() + "."
	}
	return strings.Join(append(parts, verdict), " ")
}

// observed tells what call i returned, shortened.
func (l lesson) observed(i int, c rollout.Call) string {
	a := l.asks[i]
	switch {
	case c.Status != rollout.CallOK:
		return fmt.Sprintf("No result for %s.", a.arg)
	case c.Image != "":
		return fmt.Sprintf("Crop of %s seen.", a.arg)
	}
	return first(c.Observation, 12) + "."
}

// first returns the first n words of text on one line, without a full stop at
// the end or what the protocol would misread.
func first(text string, n int) string {
	text = strings.NewReplacer("<", "", ">", "").Replace(text)
	words := strings.Fields(text)
	return strings.TrimRight(strings.Join(words[:min(n, len(words))], " "), ".,;: ")
}

// measured tells the measurements that bear on the question.
func (l lesson) measured(b rollout.Bundle) []string {
	if len(l.sample.Relevant) == 0 {
		return nil
	}
	var out []string
	for _, c := range claims(b, l.sample.Relevant) {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Name, rollout.FormatValue(c.Value), c.Category))+".")
	}
	if out == nil {
		return []string{"Measurements withheld."}
	}
	return out
}

// suffices reports whether the evidence at hand answers the question: a shown
// measurement that bears on it, all the calls that serve it, or else the coarse
// view, where the question needs no more than that. What is needed is known of
// phantoms only; of a real image the calls decide.
func (l lesson) suffices(calls []rollout.Call, b rollout.Bundle) bool {
	if l.sample.Need == string(phantom.NeedMisleading) {
		return false
	}
	if len(claims(b, l.sample.Relevant)) > 0 || l.sample.Need == string(phantom.NeedCoarse) {
		return true
	}
	for _, need := range l.right {
		got := false
		for i, a := range l.asks {
			got = got || a == need && calls[i].Status == rollout.CallOK
		}
		if !got {
			return false
		}
	}
	return len(l.right) > 0
}

// A sign is how a finding of the closed list shows.
type sign struct {
	finding string
	coarse  string // part of a coarse statement
}

var signs = []sign{
	{phantom.Cardiomegaly, "heart large"},
	{phantom.Effusion, "base opaque"},
	{phantom.Pneumothorax, "edge free"},
	{phantom.Consolidation, "zone opaque"},
	{phantom.Nodule, "nodule"},
	{phantom.VolumeLoss, "lung small"},
	{phantom.TubeMalposition, ""},
	{phantom.Edema, ""},
}

// rationale is the reasoning of a report: the view, the observations, the
// measurements, then each finding in turn.
func (l lesson) rationale(calls []rollout.Call, b rollout.Bundle) string {
	parts := []string{"The film shows: " + assessment(l.coarse, l.sample.Prompt) + "."}
	for i, c := range calls {
		parts = append(parts, l.observed(i, c))
	}
	if len(calls) == 0 {
		parts = append(parts, "Nothing further was asked for, so the view has to do.")
	}
	parts = append(parts, l.reportMeasured(b)...)
	parts = append(parts, "Each finding in turn:")
	var checked []string
	for _, s := range signs {
		checked = append(checked, s.finding+" "+l.verdict(s, calls))
	}
	parts = append(parts, strings.Join(checked, ", ")+".")
	return strings.Join(append(parts, "Together this makes "+l.answer()+"."), " ")
}

func (l lesson) reportMeasured(b rollout.Bundle) []string {
	if len(b.Shown) == 0 {
		return []string{"The measurements are withheld and cannot decide about heart and volume."}
	}
	var out []string
	for _, c := range claims(b, b.Shown) {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s is %s %s", c.Name, rollout.FormatValue(c.Value), c.Category))+".")
	}
	return out
}

// verdict says yes only of what the view or a tool could show.
func (l lesson) verdict(s sign, calls []rollout.Call) string {
	switch {
	case slices.Contains(l.sample.Masked, s.finding):
		return "unclear"
	case !slices.Contains(l.sample.Positive, s.finding):
		return "no"
	case s.coarse != "" && shows(l.coarse, []string{s.coarse}):
		return "yes"
	case slices.ContainsFunc(calls, func(c rollout.Call) bool { return c.Status == rollout.CallOK }):
		return "yes"
	}
	return "likely"
}
