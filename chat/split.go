package chat

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// qwenPattern splits text into words in every Qwen2 and Qwen3 tokenizer:
// contractions, letters with at most one leading non-letter, single digits,
// punctuation with its line breaks, white space.
const qwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// splitter returns the function that cuts text where pattern matches. The Qwen
// pattern has a scanner of its own, some thirty times as fast as the regular
// expression; any other pattern is compiled.
func splitter(pattern string) (func(string) []string, error) {
	if pattern == qwenPattern {
		return splitQwen, nil
	}
	re, err := regexp2.Compile(asOniguruma(pattern), regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	return func(text string) []string { return splitRegexp(re, text) }, nil
}

// asOniguruma writes out what the engine of Hugging Face tokenizers knows and
// regexp2 does not: letters and numbers of newer versions of Unicode, and that
// "ſ" is a form of "s".
func asOniguruma(pattern string) string {
	pattern = strings.ReplaceAll(pattern, "(?i:'s|", "(?i:'s|'ſ|")
	letters, numbers := "\\p{L}"+runeRanges(newLetters), "\\p{N}"+runeRanges(newNumbers)
	var w strings.Builder
	inClass := false
	for len(pattern) > 0 {
		n := 1
		switch class, found := map[string]string{"\\p{L}": letters, "\\p{N}": numbers}[pattern[:min(5, len(pattern))]]; {
		case found && inClass:
			w.WriteString(class)
			n = 5
		case found:
			w.WriteString("[" + class + "]")
			n = 5
		case pattern[0] == '\\' && len(pattern) > 1:
			w.WriteString(pattern[:2])
			n = 2
		default:
			inClass = pattern[0] == '[' || inClass && pattern[0] != ']'
			w.WriteByte(pattern[0])
		}
		pattern = pattern[n:]
	}
	return w.String()
}

// runeRanges writes a table as the inside of a character class.
func runeRanges(table *unicode.RangeTable) string {
	var w strings.Builder
	for _, r := range table.R16 {
		fmt.Fprintf(&w, "%c-%c", r.Lo, r.Hi)
	}
	for _, r := range table.R32 {
		fmt.Fprintf(&w, "%c-%c", r.Lo, r.Hi)
	}
	return w.String()
}

// splitRegexp returns the matches of re and what lies between them.
func splitRegexp(re *regexp2.Regexp, text string) []string {
	var words []string
	runes := []rune(text)
	end := 0
	for m, err := re.FindRunesMatch(runes); m != nil && err == nil; m, err = re.FindNextMatch(m) {
		if m.Index > end {
			words = append(words, string(runes[end:m.Index]))
		}
		if m.Length > 0 {
			words = append(words, m.String())
		}
		end = m.Index + m.Length
	}
	if end < len(runes) {
		words = append(words, string(runes[end:]))
	}
	return words
}

func splitQwen(text string) []string {
	words := make([]string, 0, len(text)/4+1)
	for len(text) > 0 {
		n := wordLength(text)
		words = append(words, text[:n])
		text = text[n:]
	}
	return words
}

// wordLength tries the alternatives of qwenPattern in their order.
func wordLength(s string) int {
	if n := contraction(s); n > 0 {
		return n
	}
	r, size := utf8.DecodeRuneInString(s)
	if n := letters(s); n > 0 {
		return n
	}
	if r != '\r' && r != '\n' && !isNumber(r) {
		if n := letters(s[size:]); n > 0 {
			return size + n
		}
	}
	if isNumber(r) {
		return size
	}
	if n := punctuation(s); n > 0 {
		return n
	}
	return space(s)
}

var contractions = []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}

// contraction matches without regard to case; "ſ" (U+017F) is a form of "s".
func contraction(s string) int {
	if s[0] != '\'' {
		return 0
	}
	if strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	for _, c := range contractions {
		if len(s) >= len(c) && strings.EqualFold(s[:len(c)], c) {
			return len(c)
		}
	}
	return 0
}

func letters(s string) int { return span(s, isLetter) }

// punctuation matches " ?[^\s\p{L}\p{N}]+[\r\n]*".
func punctuation(s string) int {
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	n := span(s[lead:], func(r rune) bool {
		return !unicode.IsSpace(r) && !isLetter(r) && !isNumber(r)
	})
	if n == 0 {
		return 0
	}
	n += lead
	return n + span(s[n:], lineBreak)
}

// space matches "\s*[\r\n]+|\s+(?!\S)|\s+": up to the last line break of a run
// of white space; else the run but for the last rune, which leads the next
// word; else the run.
func space(s string) int {
	run := span(s, unicode.IsSpace)
	if i := strings.LastIndexAny(s[:run], "\r\n"); i >= 0 {
		return i + 1
	}
	if run == len(s) {
		return run
	}
	_, last := utf8.DecodeLastRuneInString(s[:run])
	if run > last {
		return run - last
	}
	return run
}

func lineBreak(r rune) bool { return r == '\r' || r == '\n' }

// span returns the length of the longest prefix of s made of runes that ok accepts.
func span(s string, ok func(rune) bool) int {
	for i, r := range s {
		if !ok(r) {
			return i
		}
	}
	return len(s)
}
