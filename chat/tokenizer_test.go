package chat

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestParseTokenizerRefuses(t *testing.T) {
	data, _ := goldenTokenizer(t)
	tests := []struct{ name, old, new, want string }{
		{"not JSON", "{", "", "tokenizer.json: "},
		{"other model", `"type":"BPE"`, `"type":"Unigram"`, "want BPE"},
		{"byte fallback", `"byte_fallback":false`, `"byte_fallback":true`, "byte_fallback"},
		{"unmerged words", `"ignore_merges":false`, `"ignore_merges":true`, "ignore_merges"},
		{"a template", `"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","special_tokens":{"<s>":{}}}`, "post_processor"},
		{"other decoder", `"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"WordPiece"`, "decoder"},
		{"other normalizer", `"type":"NFC"`, `"type":"NFKC"`, "want NFC"},
		{"other split", `"behavior":"Isolated"`, `"behavior":"Removed"`, "pre_tokenizer"},
		{"bad pattern", `(?i:'s`, `(?i:'s(`, "pattern"},
		{"stripping token", `"lstrip":false`, `"lstrip":true`, "lstrip"},
		{"missing byte", `"!":0,`, ``, "no token for byte 0x21"},
		{"id twice", `"!":0,`, `"!":1,`, "taken"},
		{"not a byte-level token", `"!":0,`, `"日":0,`, "no byte"},
		{"id out of range", `"!":0,`, `"!":99999,`, "out of range"},
	}
	compact := compacted(data)
	for _, test := range tests {
		changed := strings.Replace(compact, test.old, test.new, 1)
		if changed == compact {
			t.Errorf("%s: the file has no %s", test.name, test.old)
			continue
		}
		if _, err := ParseTokenizer([]byte(changed)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
	}
}

// transformers 5 saves an empty template behind the words; it adds nothing.
func TestParseTokenizerAsSavedAgain(t *testing.T) {
	data, _ := goldenTokenizer(t)
	saved := strings.Replace(compacted(data), `"post_processor":null`,
		`"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{}}`, 1)
	if _, err := ParseTokenizer([]byte(saved)); err != nil || saved == compacted(data) {
		t.Errorf("changed %v, error %v", saved != compacted(data), err)
	}
}

// compacted drops the white space that tokenizers' pretty printer adds.
func compacted(data []byte) string {
	var w strings.Builder
	for line := range strings.Lines(string(data)) {
		w.WriteString(strings.Replace(strings.TrimSpace(line), `": `, `":`, 1))
	}
	return w.String()
}

// Values of Rust's String::from_utf8_lossy, which tokenizers decodes by.
func TestLossy(t *testing.T) {
	for raw, want := range map[string]string{
		"a\xffb":                  "a\ufffdb",
		"\xe4\xb8":                "\ufffd",
		"\xe4\xb8x":               "\ufffdx",
		"\xe4\xb8\xe4\xb8\xad":    "\ufffd中",
		"\xf0\x9f\x98":            "\ufffd",
		"\xf0\x9f\x98\xf0\x9f":    "\ufffd\ufffd",
		"\xf5\x80\x80":            "\ufffd\ufffd\ufffd",
		"\xed\xa0\x80":            "\ufffd\ufffd\ufffd", // a surrogate
		"\xe0\x80":                "\ufffd\ufffd",       // overlong
		"\xf4\x90\x80\x80":        "\ufffd\ufffd\ufffd\ufffd",
		"\xc0\xaf":                "\ufffd\ufffd",
		"\x80\x80":                "\ufffd\ufffd",
		"\ufffd\xe4\xb8":          "\ufffd\ufffd",
		"Hello \xF0\x90\x80World": "Hello \ufffdWorld",
	} {
		if got := lossy([]byte(raw)); got != want {
			t.Errorf("%q becomes %q, want %q", raw, got, want)
		}
	}
}

func TestTrainBPE(t *testing.T) {
	text := []string{"low lower lowest low new newer<tag>x", "new low"}
	added := []Added{{"<tag>", false}}
	first, err := TrainBPE(slices.Values(text), 262, added)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := ParseTokenizer(first)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Vocab(); got != 262 {
		t.Errorf("vocabulary of %d ids, want 262", got)
	}
	if got := tok.Encode("<tag>"); len(got) != 1 || got[0] != 261 {
		t.Errorf("added token is %v, want the last id", got)
	}
	for range 5 {
		if again, err := TrainBPE(slices.Values(text), 262, added); err != nil || !bytes.Equal(first, again) {
			t.Fatalf("the same text gave another tokenizer (%v)", err)
		}
	}
	if _, err := TrainBPE(slices.Values(text), 2000, added); err == nil || !strings.Contains(err.Error(), "give more text") {
		t.Errorf("a text too short gave %v", err)
	}
	if _, err := TrainBPE(slices.Values(text), 200, added); err == nil {
		t.Error("a vocabulary below 256 gave no error")
	}
}

// The first merges of a text that can be counted by hand.
func TestTrainBPEOrder(t *testing.T) {
	data, err := TrainBPE(slices.Values([]string{"abab ab cd cd"}), 259, nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := ParseTokenizer(data)
	if err != nil {
		t.Fatal(err)
	}
	// "ab" stands 3 times; then "cd" and " c" twice each, and " " sorts before "c".
	for i, want := range []string{"ab", " c", " cd"} {
		if got := tok.Decode([]int32{int32(256 + i)}); got != want {
			t.Errorf("merge %d is %q, want %q", i, got, want)
		}
	}
}

// Both ways of merging a word give the same ids.
func TestLongWords(t *testing.T) {
	c := codec(t)
	letters := rapid.SampledFrom([]rune("aeinorstlABé中the "))
	rapid.Check(t, func(t *rapid.T) {
		word := string(rapid.SliceOfN(letters, 1, 400).Draw(t, "word"))
		if got, want := c.appendLong(nil, word), c.appendShort(nil, word); !slices.Equal(got, want) {
			t.Fatalf("%q: by the queue %v, in place %v", word, got, want)
		}
	})
	if n := len(c.Encode(strings.Repeat("opacity", 30_000))); n < 30_000 { // would take hours in place
		t.Errorf("a long word is %d ids", n)
	}
}

func FuzzParseTokenizer(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":-1},"merges":["a b",["a","b"]]}}`))
	f.Add([]byte(`{"added_tokens":[{"id":2147483647,"content":"x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if tok, err := ParseTokenizer(data); err == nil {
			tok.Decode(tok.Encode("a <|im_end|> b"))
		}
	})
}

// Decoding gives the normalised text back, whichever way it was encoded.
func FuzzEncode(f *testing.F) {
	f.Add("<answer>B</answer> don't 12.5\n\n e\u0301")
	f.Add("\xff<|im_end|>\x00")
	c := codec(f)
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			c.Tokenizer.Decode(c.Encode(text)) // must not panic
			return
		}
		want := nfc(text)
		if got := c.Tokenizer.Decode(c.EncodePlain(text)); got != want {
			t.Fatalf("Decode(EncodePlain(%q)) = %q, want %q", text, got, want)
		}
		if got := nfc(c.Tokenizer.Decode(c.Encode(text))); got != want {
			t.Fatalf("Decode(Encode(%q)) = %q, want %q", text, got, want)
		}
	})
}

func BenchmarkTriage(b *testing.B) {
	c := codec(b)
	for b.Loop() {
		c.Triage(talks[2].prompt, schemas)
	}
}

func BenchmarkEncode(b *testing.B) {
	c := codec(b)
	text := strings.Repeat("The crop shows a nodule with a smooth margin, 0.512. ", 20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		c.Encode(text)
	}
}

func ExampleTokenizer_Encode() {
	c, err := New(nil)
	if err != nil {
		panic(err)
	}
	for _, id := range c.Encode("<answer>B</answer>") {
		fmt.Printf("%q ", c.Tokenizer.Decode([]int32{id}))
	}
	// Output: "<answer>" "B" "</answer>"
}
