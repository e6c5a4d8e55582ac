package reward

import (
	"regexp"
	"slices"
	"strings"

	"xragent/dataset"
)

var (
	openAnswer = regexp.MustCompile(`(?s)<answer>(.*)$`)
	anyTag     = regexp.MustCompile(`</?[a-z_]+>`)
	loneLetter = regexp.MustCompile(`(?:^|[\s("'*\[])([A-Z])(?:$|[\s)"'*\].,:;!])`)
)

// ExtractLenient tries [Extract], then guesses what the text meant: a lower-case
// letter, an answer block that was cut off, one option's wording, the only
// capital letter that is an option, the last yes or no. It is reported beside
// the strict result and never rewarded.
func ExtractLenient(text string, p dataset.Prompt) (answer string, ok bool) {
	if answer, ok = Extract(text, p); ok {
		return answer, true
	}
	text = spoken(text)
	if tags := answerTag.FindAllStringSubmatch(text, -1); tags != nil {
		text = tags[len(tags)-1][1]
	} else if m := openAnswer.FindStringSubmatch(text); m != nil {
		text = m[1]
	}
	text = trim(anyTag.ReplaceAllString(text, " "))
	switch p.Kind {
	case dataset.MultipleChoice:
		return guessLetter(text, p)
	case dataset.Binary:
		return guessYesNo(text)
	}
	return reader(p)(text)
}

func guessLetter(text string, p dataset.Prompt) (string, bool) {
	if a, ok := letter(strings.ToUpper(text), p); ok {
		return a, true
	}
	if a, ok := byWording(text, p); ok {
		return a, true
	}
	found := ""
	for _, m := range loneLetter.FindAllStringSubmatch(text, -1) {
		if m[1] == "A" || !slices.Contains(p.Letters(), m[1]) || m[1] == found {
			continue
		}
		if found != "" {
			return "", false
		}
		found = m[1]
	}
	return found, found != ""
}

// byWording returns the letter of the only option whose wording stands in text.
func byWording(text string, p dataset.Prompt) (string, bool) {
	text = " " + Normalise(text) + " "
	found := ""
	for i, o := range p.Options {
		o = Normalise(o)
		if o == "" || len(o) == 1 || !strings.Contains(text, " "+o+" ") {
			continue
		}
		if found != "" {
			return "", false
		}
		found = dataset.Letter(i)
	}
	return found, found != ""
}

func guessYesNo(text string) (string, bool) {
	m := eitherWord.FindAllString(text, -1)
	if m == nil {
		return "", false
	}
	first := strings.ToLower(m[0])
	for _, w := range m {
		if strings.ToLower(w) != first {
			return "", false
		}
	}
	return first, true
}
