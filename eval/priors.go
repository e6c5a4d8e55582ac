package eval

import (
	"math"

	"xragent/dataset"
)

// A Prior is what can be had without reading this film.
type Prior struct {
	Name   string   `json:"name"`
	What   string   `json:"what"`
	All    Interval `json:"all"`
	Pixels Interval `json:"pixels"` // questions that pixels decide
	// Balanced is of those that pixels decide; of none for answers dealt out.
	Balanced Balanced `json:"balanced"`
}

// MajorityOfTrain names the prior that a constant answer per template has, chosen
// on the training split.
const MajorityOfTrain = "majority_of_train"

// DealtOut names the prior that answers to shuffled images come to when they are
// dealt out at random.
const DealtOut = "dealt_out"

// lookup is the need that no pixel serves.
const lookup = "evidence_lookup"

// pixels reports whether the film decides a question, as far as is known.
func (r Row) pixels() bool { return r.Need != lookup }

func (a *analysis) priors(train []dataset.Sample) {
	plain, _ := a.find(a.last(), Plain)
	if a.rep.Asked > 0 { // the questions that the controls were asked, so that all lines are of the same
		plain = plain.First(a.rep.Asked)
	}
	a.rep.AsIs = plain.Summarise()
	add := func(name, what string, rows []Row, right func(Row) bool) {
		var decided []Row
		all, pixels := 0, 0
		for _, row := range rows {
			all += one(right(row))
			if row.pixels() {
				decided = append(decided, row)
				pixels += one(right(row))
			}
		}
		a.rep.Priors = append(a.rep.Priors, Prior{name, what, Wilson(all, len(rows)), Wilson(pixels, len(decided)), Balance(decided, right)})
	}
	add("majority", "the strongest constant answer per template on these very questions", plain.Rows, strongest(plain.Rows))
	if learned := trainMajority(train); len(learned) > 0 {
		add(MajorityOfTrain, "the most frequent answer per template of the training split", plain.Rows,
			func(r Row) bool { return r.key() == learned[r.Template] })
	}
	strict := func(r Row) bool { return r.Strict }
	for _, c := range Controls {
		if r, ok := a.find(a.last(), c.Condition); ok && c.Section == Priors {
			add(string(c.Condition), c.What, r.Rows, strict)
			if c.Condition == Shuffled {
				a.rep.Priors = append(a.rep.Priors, dealt(r.Rows))
			}
		}
	}
	add(string(Plain), "the policy, for comparison", plain.Rows, strict)
}

// dealt is what shuffled images must come to if nothing leaks: the same answers,
// dealt out among the questions of their template at random, are right so often
// in the mean, to the nearest answer. A policy that follows the film it sees
// falls to this, below the majority.
func dealt(rows []Row) Prior {
	expect := func(in func(Row) bool) Interval {
		sum, n := 0.0, 0
		for _, template := range distinct(rows, func(r Row) string { return r.Template }) {
			keys, given, hits, of := map[string]int{}, map[string]int{}, 0, 0
			for _, r := range rows {
				if r.Template == template && in(r) {
					keys[r.key()]++
					given[r.answered()]++
					of++
				}
			}
			for key, times := range keys {
				hits += times * given[key]
			}
			sum += float64(hits) / float64(max(1, of))
			n += of
		}
		return Wilson(int(math.Round(sum)), n)
	}
	return Prior{Name: DealtOut, What: "the answers to shuffled images, dealt out at random within each template",
		All: expect(func(Row) bool { return true }), Pixels: expect(Row.pixels)}
}

func trainMajority(train []dataset.Sample) map[string]string {
	counts := map[string]map[string]int{}
	for _, s := range train {
		if counts[s.Template] == nil {
			counts[s.Template] = map[string]int{}
		}
		counts[s.Template][form(s.Prompt.Kind, AnswerText(s))]++
	}
	out := map[string]string{}
	for t, c := range counts {
		out[t] = mostFrequent(c)
	}
	return out
}
