package chat

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "retrain and rewrite assets/tokenizer.json from testdata/text.txt")

const vocabulary = 2048

// The committed tokenizer is what its committed text gives: after a change of
// wording, replace testdata/text.txt and run
//
//	go test ./chat -run TestCommittedTokenizer -update
func TestCommittedTokenizer(t *testing.T) {
	text, err := os.ReadFile("testdata/text.txt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := TrainBPE(slices.Values([]string{string(text)}), vocabulary, AddedTokens)
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
		t.Error("assets/tokenizer.json is not what testdata/text.txt gives; run this test with -update")
	}
}
