package reward

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	"xragent/dataset"
)

var (
	// asides do not count as an answer: reasoning and what is addressed to a
	// tool. A block left open runs to the end of the text, an evidence line to
	// the next tag.
	asides = []*regexp.Regexp{aside("think"), aside("assess"), aside("tool_call"), aside("tool_response"),
		regexp.MustCompile(`<evidence>[^<]*(?:</evidence>)?`)}

	answerTag = regexp.MustCompile(`(?s)<answer>(.*?)</answer>`)
	boxed     = regexp.MustCompile(`\\boxed\{([^{}]*)\}`)
	// phrase introduces an explicit answer: "answer: X", "the correct option is X".
	phrase = regexp.MustCompile(`(?i)(\w+[\s*_]+)?\b(?:answer|(?:correct|right|best)\s+(?:option|choice))[*_]*\s*(?:is\b|:)[\s*_:]*(?:(?:option|choice)\s+)?`)
	wrong  = regexp.MustCompile(`(?i)^(?:wrong|incorrect|not)\b`)
)

// Extract returns the explicit answer in text, and whether there is one that p
// allows. The last <answer> block decides; without one, boxed and phrased
// answers ("the answer is B") must all agree; without those, the whole text
// must be an answer. Reasoning and tool blocks never count.
//
// Multiple choice gives an upper-case option letter: the article "a" and
// letters within words are none. Binary gives "yes" or "no", closed a
// normalised string, report-style normalised findings joined by ", " in
// alphabetical order, or [Normal].
func Extract(text string, p dataset.Prompt) (answer string, ok bool) {
	read := reader(p)
	text = spoken(text)
	if tags := answerTag.FindAllStringSubmatch(text, -1); tags != nil {
		return read(trim(tags[len(tags)-1][1]))
	}
	if explicit := phrased(text); len(explicit) > 0 {
		return agreed(explicit, read)
	}
	if strings.ContainsAny(text, "<>") {
		return "", false
	}
	return whole(text, p, read)
}

func aside(tag string) *regexp.Regexp {
	return regexp.MustCompile(`(?s)<` + tag + `>.*?(?:</` + tag + `>|$)`)
}

// spoken returns text without its asides. Reasoning whose opening tag stood in
// the prompt ends at the last closing one.
func spoken(text string) string {
	for _, a := range asides {
		text = a.ReplaceAllString(text, " ")
	}
	if i := strings.LastIndex(text, "</think>"); i >= 0 {
		text = text[i+len("</think>"):]
	}
	return strings.TrimSpace(text)
}

// agreed reads the explicit answers; those that can be read must say the same.
func agreed(explicit []string, read func(string) (string, bool)) (string, bool) {
	answer := ""
	for _, e := range explicit {
		a, ok := read(trim(e))
		switch {
		case !ok: // "the answer is unclear": not an answer
		case answer != "" && a != answer:
			return "", false
		default:
			answer = a
		}
	}
	return answer, answer != ""
}

// phrased returns what stands in a box or follows an answer phrase, up to the
// end of its sentence or line.
func phrased(text string) []string {
	var out []string
	for _, m := range boxed.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	for _, m := range phrase.FindAllStringSubmatchIndex(text, -1) {
		if m[2] >= 0 && wrong.MatchString(text[m[2]:m[3]]) {
			continue
		}
		rest := text[m[1]:]
		if strings.HasPrefix(strings.TrimLeft(rest, "$"), `\boxed`) {
			continue // counted above
		}
		out = append(out, sentence(rest))
	}
	return out
}

// sentence cuts text after its first line or its first full stop before a space.
func sentence(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	for i := range text {
		if (text[i] == '.' || text[i] == ';') && i+1 < len(text) && text[i+1] == ' ' && i > 1 {
			return text[:i]
		}
	}
	return text
}

// trim removes blanks and the markdown and punctuation around an answer, but
// not a bracket that closes an option letter.
func trim(s string) string {
	s = strings.Trim(s, " \t\r\n*_`\"'")
	s = strings.TrimRight(s, " \t.!,;*_`\"'")
	if strings.HasPrefix(s, "(") && strings.HasSuffix(s, ")") && strings.Count(s, "(") == 1 {
		s = s[1 : len(s)-1]
	}
	return strings.TrimSpace(s)
}

// maxWhole is how many words a text without tags may have to count as a
// closed or report-style answer as it stands.
const maxWhole = 8

// whole reads a text that has neither tag nor phrase.
func whole(text string, p dataset.Prompt, read func(string) (string, bool)) (string, bool) {
	if strings.Contains(text, "\n") || len(strings.Fields(text)) > maxWhole {
		return "", false
	}
	return read(trim(text))
}

// reader returns the function that reads one explicit answer for p.
func reader(p dataset.Prompt) func(string) (string, bool) {
	switch p.Kind {
	case dataset.MultipleChoice:
		return func(s string) (string, bool) { return letter(s, p) }
	case dataset.Binary:
		return yesNo
	case dataset.Report:
		return func(s string) (string, bool) { return findings(s, p) }
	}
	return func(s string) (string, bool) { return closed(s, p) }
}

var (
	// leading is an option letter, then nothing, a mark with the option's text, or text.
	leading = regexp.MustCompile(`^(?:(?i:option|choice)\s+)?[(\[]?([A-Z])(?:$|[)\].:,]+(?:\s+(.*))?$|\s+(.*)$)`)
	// another is a second letter offered as an answer.
	another = regexp.MustCompile(`(?:^|\s)(?:(?:or|and|/|&)\s*[(\[]?[A-Z](?:$|[)\].:,\s])|[(\[]?[A-Z][)\].:](?:\s|$))`)
	// reason may follow a letter in a phrase; anything else makes "A" an article.
	reason = regexp.MustCompile(`^(?:because|since|as|for|with|which|given|due|-|–|—)(?:\s|$)`)
	pair   = regexp.MustCompile(`^[A-Z]\s*[/,&+]\s*[A-Z]\b`)
)

// letter reads an option letter, alone or with its text.
func letter(s string, p dataset.Prompt) (string, bool) {
	s = strings.NewReplacer("**", "", "__", "").Replace(s)
	m := leading.FindStringSubmatch(s)
	if m == nil || pair.MatchString(s) || !slices.Contains(p.Letters(), m[1]) {
		return "", false
	}
	text, marked := m[3], m[3] == ""
	if marked {
		text = m[2]
	}
	text = strings.TrimSpace(text)
	switch {
	case text == "" || isOption(text, m[1], p):
		return m[1], true
	case another.MatchString(text):
		return "", false
	case !marked && !reason.MatchString(text):
		return "", false // "A nodule": an article, or prose
	}
	return m[1], true
}

func isOption(text, letter string, p dataset.Prompt) bool {
	return Normalise(text) == Normalise(p.Options[letter[0]-'A'])
}

var yesOrNo = regexp.MustCompile(`(?i)^(yes|no)(?:$|[,.:;!]\s*(.*)$)`)

// yesNo reads yes or no, alone or before a comma; "no effusion" is prose.
func yesNo(s string) (string, bool) {
	m := yesOrNo.FindStringSubmatch(s)
	if m == nil || eitherWord.MatchString(m[2]) {
		return "", false
	}
	return strings.ToLower(m[1]), true
}

var eitherWord = regexp.MustCompile(`(?i)\b(?:yes|no)\b`)

// closed reads a short string. Where the question has options it must be one.
func closed(s string, p dataset.Prompt) (string, bool) {
	s = Normalise(s)
	if s == "" || len(p.Options) > 0 && !slices.ContainsFunc(p.Options, func(o string) bool { return Normalise(o) == s }) {
		return "", false
	}
	return s, true
}

var normalWords = []string{Normal, "none", "no finding", "no findings", "normal film", "normal study"}

// maxFinding is how many words a finding's name may have: prose is no list.
const maxFinding = 6

// findings reads a list of findings or one of the words for none. Where the
// question has options, every finding must be one of them.
func findings(s string, p dataset.Prompt) (string, bool) {
	if slices.Contains(normalWords, Normalise(s)) {
		return Normal, true
	}
	var out []string
	for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' || r == ';' || r == '\n' }) {
		name, ok := closed(part, p)
		if !ok || strings.Count(name, " ") >= maxFinding || slices.Contains(normalWords, name) {
			return "", false
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", "), len(out) > 0
}

// Normalise lower-cases s, turns punctuation into blanks (a decimal point
// stays), and drops articles, so that short answers compare.
func Normalise(s string) string {
	runes := []rune(strings.ToLower(s))
	for i, r := range runes {
		decimal := r == '.' && i > 0 && i+1 < len(runes) && unicode.IsDigit(runes[i-1]) && unicode.IsDigit(runes[i+1])
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '%' && !decimal {
			runes[i] = ' '
		}
	}
	words := strings.Fields(string(runes))
	kept := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return slices.Contains(articles, w) })
	if len(kept) == 0 {
		kept = words // an answer that is nothing but "A" stays
	}
	return strings.Join(kept, " ")
}

var articles = []string{"a", "an", "the"}
