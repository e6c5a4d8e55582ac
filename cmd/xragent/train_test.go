package main

import (
	"fmt"
	"testing"

	"xragent/dataset"
)

func TestPromptsShare(t *testing.T) {
	made := func(short, reports int) (all []dataset.Sample) {
		for i := range short + reports {
			s := dataset.Sample{ID: fmt.Sprint("q", i), Prompt: dataset.Prompt{Kind: dataset.Binary}}
			if i < reports {
				s.Prompt.Kind = dataset.Report
			}
			all = append(all, s)
		}
		return all
	}
	for _, c := range []struct {
		short, reports int
		share          float64
		want           int // reports asked
	}{
		{100, 50, 0.1, 10}, {100, 50, 0.005, 1}, {100, 50, 0, 0}, {100, 5, 0.1, 5}, {0, 5, 0.1, 5}, {100, 0, 0.1, 0},
	} {
		short, reports := 0, 0
		for _, s := range prompts(made(c.short, c.reports), c.share) {
			if s.Prompt.Kind == dataset.Report {
				reports++
			} else {
				short++
			}
		}
		if short != c.short || reports != c.want {
			t.Errorf("%+v: %d short, %d reports", c, short, reports)
		}
	}
}
