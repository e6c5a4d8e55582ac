package chat

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc returns text in normalisation form C as Hugging Face tokenizers has it:
// by Unicode 9, and with runs of marks of any length left whole, into which
// package norm puts joiners. Source of the algorithm: Unicode, chapter 3.11.
func nfc(text string) string {
	if norm.NFC.IsNormalString(text) {
		return text
	}
	return string(compose(reorder(decompose(text))))
}

// A mark is a rune with its canonical combining class, 0 for what starts anew.
type mark struct {
	r     rune
	class uint8
}

func decompose(text string) []mark {
	out := make([]mark, 0, len(text))
	for _, r := range text {
		if r < utf8.RuneSelf || unicode.Is(later, r) {
			out = append(out, mark{r, 0})
			continue
		}
		for _, d := range norm.NFD.String(string(r)) {
			out = append(out, mark{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	return out
}

// reorder sorts each run of marks by class.
func reorder(text []mark) []mark {
	for i := 0; i < len(text); i++ {
		start := i
		for i < len(text) && text[i].class > 0 {
			i++
		}
		slices.SortStableFunc(text[start:i], func(a, b mark) int { return int(a.class) - int(b.class) })
	}
	return text
}

// compose joins what stands unblocked behind a starter to it.
func compose(text []mark) []rune {
	out := make([]rune, 0, len(text))
	starter, blocking := -1, -1 // index in out; class of what stands between, -1 for nothing
	for _, m := range text {
		if starter >= 0 && blocking < int(m.class) {
			if both, ok := composed(out[starter], m.r); ok {
				out[starter] = both
				continue
			}
		}
		blocking = int(m.class)
		if m.class == 0 {
			starter, blocking = len(out), -1
		}
		out = append(out, m.r)
	}
	return out
}

func composed(a, b rune) (rune, bool) {
	if b < utf8.RuneSelf || unicode.Is(later, b) {
		return 0, false
	}
	both := norm.NFC.String(string(a) + string(b))
	r, size := utf8.DecodeRuneInString(both)
	return r, size == len(both) && !unicode.Is(later, r)
}
