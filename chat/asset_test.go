package chat

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "retrain and rewrite assets/tokenizer.json")

const vocabulary = 2048

// The committed tokenizer is what its committed text gives: testdata/text.txt,
// radiology in general and the prompts' wording, and testdata/corpus.txt, which
// internal/corpustext made of a Rad-CoT corpus. After a change of wording,
// replace them and run
//
//	go test ./chat -run TestCommittedTokenizer -update
func TestCommittedTokenizer(t *testing.T) {
	var texts []string
	for _, name := range []string{"testdata/text.txt", "testdata/corpus.txt"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	got, err := TrainBPE(slices.Values(texts), vocabulary, AddedTokens)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("assets/tokenizer.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("assets/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("assets/tokenizer.json is not what the committed text gives; run this test with -update")
	}
}
