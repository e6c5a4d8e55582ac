package reward

import (
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/rollout"
)

// Right reports whether answer, as [Extract] returned it, answers s. An empty
// answer is wrong.
func Right(answer string, s dataset.Sample) bool {
	switch {
	case answer == "":
		return false
	case s.Prompt.Kind == dataset.Report:
		return reportRight(Findings(answer), s)
	case s.Prompt.Kind == dataset.Closed:
		return Normalise(answer) == Normalise(s.Answer)
	}
	return answer == s.Answer
}

// LenientlyRight reports whether the last turn of t answers s by
// [ExtractLenient].
func LenientlyRight(t rollout.Trajectory, s dataset.Sample) bool {
	if len(t.Turns) < 2 {
		return false
	}
	answer, ok := ExtractLenient(t.Turns[1].Text, s.Prompt)
	return ok && Right(answer, s)
}

// Normal is the report-style answer for a film without findings.
const Normal = "normal"

// Findings splits a normalised report-style answer. Normal gives none.
func Findings(answer string) []string {
	if answer == Normal {
		return nil
	}
	return strings.Split(answer, ", ")
}

// reportRight compares claimed with the positive labelled findings, the masked
// ones left out on both sides: F1 of at least 0.6 and no critical finding
// missed. A film without positive findings is right only where none is claimed.
func reportRight(claimed []string, s dataset.Sample) bool {
	positive := unmasked(s.Positive, s.Masked)
	claimed = unmasked(claimed, s.Masked)
	if len(positive) == 0 {
		return len(claimed) == 0
	}
	for _, name := range unmasked(s.Critical, s.Masked) {
		if !slices.Contains(claimed, name) {
			return false
		}
	}
	hits := 0
	for _, name := range claimed {
		if slices.Contains(positive, name) {
			hits++
		}
	}
	// F1 = 2·hits / (claimed + positive) ≥ 3/5, in whole numbers.
	return 10*hits >= 3*(len(claimed)+len(positive))
}

// unmasked returns the normalised names without masked ones and duplicates.
func unmasked(names, masked []string) []string {
	hidden := map[string]bool{}
	for _, name := range masked {
		hidden[Normalise(name)] = true
	}
	var out []string
	for _, name := range names {
		name = Normalise(name)
		if !hidden[name] && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
