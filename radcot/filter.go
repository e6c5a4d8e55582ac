package radcot

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
)

// A Rule names what a record was rejected for.
type Rule string

// The rules, in the order in which they are tried; the first that applies counts.
const (
	Malformed  Rule = "malformed"  // a turn does not parse, breaks off, refuses, or lacks an observation
	WrongTruth Rule = "answer"     // the answer is missing or not the reference's
	Leakage    Rule = "leakage"    // it quotes or mentions the reference, or answers before reasoning
	Length     Rule = "length"     // report style: words of the reasoning outside the bounds
	Similarity Rule = "similarity" // report style: too close to the reference findings
)

// Rules lists every rule in order.
var Rules = []Rule{Malformed, WrongTruth, Leakage, Length, Similarity}

// Filters holds the thresholds of the rules. The bounds and the threshold are
// the published ones; which text they apply to is defined here: the reasoning,
// i.e. what stands in turn 2's <think> block.
type Filters struct {
	MinWords   int     `yaml:"min_words" json:"min_words"`   // fewest words of report-style reasoning, by blanks
	MaxWords   int     `yaml:"max_words" json:"max_words"`   // most
	Similarity float64 `yaml:"similarity" json:"similarity"` // largest [Ratio] to the reference findings
	SharedRun  int     `yaml:"shared_run" json:"shared_run"` // words in a row shared with the reference that count as a quotation
}

// DefaultFilters returns the published thresholds.
func DefaultFilters() Filters {
	return Filters{MinWords: 40, MaxWords: 900, Similarity: 0.82, SharedRun: 8}
}

// Validate reports every unusable field at once.
func (f Filters) Validate() error {
	var errs []error
	if f.MinWords < 0 || f.MaxWords < f.MinWords {
		errs = append(errs, fmt.Errorf("filters: min_words is %d and max_words %d, want 0 <= min_words <= max_words", f.MinWords, f.MaxWords))
	}
	if !(f.Similarity > 0 && f.Similarity <= 1) {
		errs = append(errs, fmt.Errorf("filters: similarity is %v, want more than 0 and at most 1", f.Similarity))
	}
	if f.SharedRun < 1 {
		errs = append(errs, fmt.Errorf("filters: shared_run is %d, want at least 1", f.SharedRun))
	}
	return errors.Join(errs...)
}

// A Rejection says why a record may not enter the corpus.
type Rejection struct {
	Rule   Rule
	Detail string
}

// Check returns the first rule that rejects r, or nil. s is its sample with the
// reference findings.
func (f Filters) Check(r Record, s dataset.Sample) *Rejection {
	triage, integration := rollout.ParseTriage(r.Turn1), rollout.ParseIntegration(r.Turn2)
	if d := malformed(r, triage, integration); d != "" {
		return &Rejection{Malformed, d}
	}
	if answer, ok := reward.Extract(r.Turn2, s.Prompt); !ok || !reward.Right(answer, s) {
		return &Rejection{WrongTruth, "the answer is not the reference's"}
	}
	if d := f.leaks(triage.Assessment, integration.Think, s); d != "" {
		return &Rejection{Leakage, d}
	}
	if s.Prompt.Kind != dataset.Report {
		return nil
	}
	if n := len(strings.Fields(integration.Think)); n < f.MinWords || n > f.MaxWords {
		return &Rejection{Length, fmt.Sprintf("%d words, want %d to %d", n, f.MinWords, f.MaxWords)}
	}
	if ratio := Ratio(integration.Think, s.Reference); s.Reference != "" && ratio > f.Similarity {
		return &Rejection{Similarity, fmt.Sprintf("ratio %.3f, limit %.3f", ratio, f.Similarity)}
	}
	return nil
}

var refusal = regexp.MustCompile(`(?i)\b(?:i (?:cannot|can't|am unable|am not able)|as an ai|i'm sorry|i apologi[sz]e)\b`)

// malformed says why the record does not follow the protocol, or "".
func malformed(r Record, t rollout.Triage, in rollout.Integration) string {
	switch {
	case t.Problem != "":
		return t.Problem
	case in.Problem != "":
		return in.Problem
	case t.Assessment == "" || in.Think == "" || in.Answer == "":
		return "an empty block"
	case len(t.Calls) != len(r.Calls):
		return fmt.Sprintf("%d calls in turn 1, %d executed", len(t.Calls), len(r.Calls))
	case !strings.ContainsAny(in.Think[len(in.Think)-1:], ".!?"):
		return "the reasoning breaks off"
	case refusal.MatchString(in.Think):
		return "a refusal"
	case !printable(r.Turn1) || !printable(r.Turn2):
		return "characters outside printable ASCII"
	}
	for i, c := range r.Calls {
		if c.Status == "" || c.Status == rollout.CallOverLimit || (c.Observation == "" && c.Image == "") {
			return fmt.Sprintf("call %d has no observation", i+1)
		}
	}
	return ""
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') })
}

// mentions of the reference: what no reader of the film alone could write.
var mentions = regexp.MustCompile(`(?i)\b(?:the|this|original|reference|radiology) report (?:states|says|notes|describes|mentions)|` +
	`\baccording to the (?:report|findings|reference|ground truth|label)|\bground[ -]truth\b|\breference (?:answer|findings|report)\b|` +
	`\b(?:as|the) (?:given|provided) (?:answer|findings|label)|\bcorrect answer is given\b|___`)

// early is an answer given before any reasoning.
var early = regexp.MustCompile(`(?i)^\s*(?:the |final |correct )*answer\b|\banswer(?:\s+is|:)`)

func (f Filters) leaks(assessment, think string, s dataset.Sample) string {
	both := assessment + "\n" + think
	if m := mentions.FindString(both); m != "" {
		return fmt.Sprintf("it mentions the reference: %q", m)
	}
	for _, id := range []string{s.ID, s.Study, s.Patient} {
		if len(id) >= 4 && strings.Contains(both, id) {
			return "it names the study"
		}
	}
	if early.MatchString(assessment) || early.MatchString(firstSentence(think)) {
		return "it answers before it reasons"
	}
	for _, text := range []string{assessment, think} {
		if sharesRun(text, s.Reference, f.SharedRun) {
			return fmt.Sprintf("it shares %d words in a row with the reference", f.SharedRun)
		}
	}
	return ""
}

func firstSentence(text string) string {
	before, _, _ := strings.Cut(text, ". ")
	return before
}
