package chat

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// By package norm, but for what it knows of newer versions of Unicode and for
// long runs of marks.
func TestNFCEqualsNorm(t *testing.T) {
	runes := rapid.SampledFrom([]rune("aeE o\u0301\u0323\u0334\u0345\u0308é\u1e69ㄱ가\u1100\u1161\u11a8\uac01Å\u212b\u0958\u0344\u2126\u0bc6\u0bbe日"))
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(runes, 0, 25).Draw(t, "text"))
		if got, want := nfc(text), norm.NFC.String(text); got != want {
			t.Fatalf("nfc(%+q) = %+q, want %+q", text, got, want)
		}
	})
}

// Values of Hugging Face tokenizers 0.23.3.
func TestNFCAsTokenizers(t *testing.T) {
	for text, want := range map[string]string{
		"1\u1df6\u0301":                    "1\u1df6\u0301",
		"1\u0345\U0001e4ec":                "1\u0345\U0001e4ec",
		"\U00011935\U00011930":             "\U00011935\U00011930",
		"\U00011938":                       "\U00011938",
		"e\u1abf\u0301":                    "e\u1abf\u0301",
		"e\u0323\u0301":                    "\u1eb9\u0301",
		"e\u1df6\u0345\u0301":              "e\u1df6\u0301\u0345",
		"e" + strings.Repeat("\u0301", 40): "é" + strings.Repeat("\u0301", 39),
	} {
		if got := nfc(text); got != want {
			t.Errorf("nfc(%+q) = %+q, want %+q", text, got, want)
		}
	}
}
