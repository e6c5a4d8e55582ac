// Command corpustext writes the text of a Rad-CoT corpus, as a policy sees and
// writes it, for training the tokenizer.
//
//	go run ./chat/internal/corpustext <runs/NAME/corpus/train.jsonl >chat/testdata/corpus.txt
//	go test ./chat -run TestCommittedTokenizer -update
//
// At most the given number of records is used, evenly over the file; whatever
// was asked before and is answered with the same words is written once.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"

	"xragent/chat"
	"xragent/radcot"
	"xragent/rollout"
)

func main() {
	records := flag.Int("records", 400, "records to use")
	flag.Parse()
	if err := run(*records); err != nil {
		fmt.Fprintln(os.Stderr, "corpustext:", err)
		os.Exit(1)
	}
}

func run(want int) error {
	var all []radcot.Record
	for r, err := range radcot.Read(os.Stdin) {
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	out := bufio.NewWriter(os.Stdout)
	seen := map[string]bool{}
	write := func(text string) {
		if !seen[text] {
			seen[text] = true
			fmt.Fprintf(out, "%s\n\n", text)
		}
	}
	for i := range min(want, len(all)) {
		r := all[i*len(all)/min(want, len(all))]
		write(chat.Question(r.Sample.Prompt))
		write(r.Turn1)
		for _, c := range r.Calls {
			write(rollout.FormatObservation(c, chat.ImageMark))
		}
		write(rollout.FormatBundle(r.Bundle))
		write(r.Turn2)
	}
	return out.Flush()
}
