package eval

import (
	"cmp"
	"slices"

	"xragent/dataset"
)

// A Confusion counts answers of one template: by reference (rows) and given
// (columns; the last is no usable answer).
type Confusion struct {
	Template string   `json:"template"`
	N        int      `json:"n"`
	Right    int      `json:"right"`
	Keys     []string `json:"keys"`
	Given    []string `json:"given"`
	Counts   [][]int  `json:"counts"`
}

// A Frequency says how often an answer is right and how often it is given.
type Frequency struct {
	Condition Condition `json:"condition"`
	Template  string    `json:"template"`
	Answer    string    `json:"answer"`
	N         int       `json:"n"` // questions of the template
	Key       float64   `json:"key"`
	Given     float64   `json:"given"`
}

// mostKeys is how many answers a confusion may have rows for.
const mostKeys = 12

func (a *analysis) confusions() {
	plain, _ := a.find(a.last(), Plain)
	for _, template := range distinct(plain.Rows, func(r Row) string { return r.Template }) {
		var rows []Row
		for _, r := range plain.Rows {
			if r.Template == template && r.Kind != dataset.Report {
				rows = append(rows, r)
			}
		}
		if keys := distinct(rows, Row.key); len(rows) > 0 && len(keys) <= mostKeys {
			a.rep.Confusions = append(a.rep.Confusions, confuse(template, keys, rows))
		}
	}
	for _, c := range []Condition{Plain, TextOnly} {
		if r, ok := a.find(a.last(), c); ok {
			a.rep.Calibration = append(a.rep.Calibration, frequencies(c, r.Rows)...)
		}
	}
}

// The columns of a confusion beside the reference answers.
const (
	otherAnswer = "other"
	noAnswer    = "none"
)

func confuse(template string, keys []string, rows []Row) Confusion {
	c := Confusion{Template: template, N: len(rows)}
	names := wording(rows)
	for _, k := range keys {
		c.Keys = append(c.Keys, names[k])
	}
	c.Given = append(slices.Clone(c.Keys), otherAnswer, noAnswer)
	for range keys {
		c.Counts = append(c.Counts, make([]int, len(c.Given)))
	}
	for _, r := range rows {
		column := len(keys)
		if i := slices.Index(keys, r.answered()); i >= 0 {
			column = i
		}
		if r.Invalid {
			column = len(keys) + 1
		}
		c.Counts[slices.Index(keys, r.key())][column]++
		c.Right += one(r.Strict)
	}
	return c
}

// frequencies compares how often each answer of a template is given and right.
func frequencies(c Condition, rows []Row) []Frequency {
	var out []Frequency
	names := wording(rows)
	for _, template := range distinct(rows, func(r Row) string { return r.Template }) {
		key, given, n := map[string]int{}, map[string]int{}, 0
		var answers []string
		for _, r := range rows {
			if r.Template == template && r.Kind != dataset.Report {
				answers = append(answers, r.key(), r.answered())
				key[r.key()]++
				given[r.answered()]++
				n++
			}
		}
		slices.Sort(answers)
		for _, answer := range slices.Compact(answers) {
			if answer != "" {
				out = append(out, Frequency{c, template, cmp.Or(names[answer], answer), n, float64(key[answer]) / float64(n), float64(given[answer]) / float64(n)})
			}
		}
	}
	return out
}
