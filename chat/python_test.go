package chat

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTransformersReadsFiles holds that AutoTokenizer and AutoProcessor, given
// the exported files, encode 3,000 texts and every conversation as we do.
func TestTransformersReadsFiles(t *testing.T) {
	python := os.Getenv("XRAGENT_PYTHON")
	if python == "" {
		t.Skip("XRAGENT_PYTHON is not set: the export's tokenizer and processor were not loaded by transformers")
	}
	c, dir := codec(t), t.TempDir()
	files := append(c.Files(Small), File{"cases.json", exportCases(t, c)})
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(python, "../learner/check_export.py", dir).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func exportCases(t *testing.T, c *Codec) []byte {
	t.Helper()
	type text struct {
		Text    string  `json:"text"`
		IDs     []int32 `json:"ids"`
		Decoded string  `json:"decoded"`
	}
	type conversation struct {
		Messages []any             `json:"messages"`
		Tools    []json.RawMessage `json:"tools"`
		IDs      []int32           `json:"ids"`
	}
	var cases struct {
		Texts     []text         `json:"texts"`
		Talks     []conversation `json:"talks"`
		Vocab     int            `json:"vocab"`
		EndOfTurn int32          `json:"end_of_turn"`
	}
	cases.Vocab, cases.EndOfTurn = c.Vocab(), c.EndOfTurn()
	for _, s := range sampleTexts(t) {
		ids := c.Encode(s)
		cases.Texts = append(cases.Texts, text{s, ids, c.Tokenizer.Decode(ids)})
	}
	for _, k := range talks {
		ids := k.ids(c)
		_, pads := Compact(ids, c.ImagePad())
		for i := range pads {
			pads[i] = 16
		}
		ids, err := Expand(ids, pads, c.ImagePad())
		if err != nil {
			t.Fatal(err)
		}
		cases.Talks = append(cases.Talks, conversation{k.messages(), k.tools, ids})
	}
	data, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sampleTexts returns pieces of the corpus and strings of runes at which
// splits and normalisation go wrong.
func sampleTexts(t *testing.T) []string {
	t.Helper()
	corpus, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	runes := []rune("abcdefghijklmnopqrstuvwxyzABCDE 0123456789 .,;:!?'\"()[]{}<>|/\\-_=+\n\n\r\t  éüß中文日本語한국어ſ\u00a0\u2003\u0085\u3000e\u0301\u0301Å½²Ⅷ٣😀👩\u200d🔬\x00\x01\u200b")
	pieces := []string{"<|im_start|>", "<|im_end|>", "<|image_pad|>", "<think>", "<tool_call>", "<assess>", "'s", "'RE", "  ", "\n\n", " \n ", "don't", "'ſ", "<|im_"}
	r := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for range 1000 {
		at := r.IntN(len(corpus) - 300)
		texts = append(texts, strings.ToValidUTF8(string(corpus[at:at+r.IntN(300)]), ""))
	}
	for range 2000 {
		var w strings.Builder
		for range r.IntN(40) {
			if r.IntN(6) == 0 {
				w.WriteString(pieces[r.IntN(len(pieces))])
			} else {
				w.WriteRune(runes[r.IntN(len(runes))])
			}
		}
		texts = append(texts, w.String())
	}
	return texts
}
