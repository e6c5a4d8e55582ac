package eval

import (
	"fmt"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/reward"
)

// AnswerText is the reference answer as text: the option's wording for multiple
// choice, where letters carry no meaning of their own.
func AnswerText(s dataset.Sample) string {
	if s.Prompt.Kind == dataset.Report {
		return fmt.Sprint(s.Positive)
	}
	return givenText(s.Answer, s)
}

func givenText(answer string, s dataset.Sample) string {
	if s.Prompt.Kind == dataset.MultipleChoice {
		if i := slices.Index(s.Prompt.Letters(), answer); i >= 0 {
			return s.Prompt.Options[i]
		}
	}
	return answer
}

// form is what an answer is compared by: an option's wording and a short
// answer's are the same without case and articles, and a report's findings in
// any order.
func form(kind dataset.Kind, answer string) string {
	text := reward.Normalise(answer)
	if kind != dataset.Report || answer == "" {
		return text
	}
	words := strings.Fields(text)
	if len(words) == 0 { // "[]": no finding
		return reward.Normal
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// key is the reference answer's form.
func (r Row) key() string { return form(r.Kind, r.Key) }

// answered is the given answer's form: the reference's where it is right,
// however it was worded.
func (r Row) answered() string {
	if r.Strict {
		return r.key()
	}
	return form(r.Kind, r.Given)
}

// wording names the forms of reference answers as the first question words them.
func wording(rows []Row) map[string]string {
	names := map[string]string{}
	for _, r := range rows {
		if _, known := names[r.key()]; !known {
			names[r.key()] = r.Key
		}
	}
	return names
}
