package eval

import (
	"fmt"
	"io"
)

// A Comparison holds others against a base on the same questions.
type Comparison struct {
	Base  string
	Pairs []NamedPair
	Holm  []float64 // of the pairs' p, over the table
}

// Against compares each of others with base. It refuses results of different
// questions.
func Against(base Result, others []Result) (Comparison, error) {
	c := Comparison{Base: base.Name}
	var ps []float64
	for _, r := range others {
		p, err := Compare(base, r)
		if err != nil {
			return c, err
		}
		rescue, damage := conditional(p, base.Rows)
		c.Pairs, ps = append(c.Pairs, NamedPair{base.Name, r.Name, p, rescue, damage}), append(ps, p.P)
	}
	c.Holm = Holm(ps)
	return c, nil
}

// WriteComparison writes a comparison as text, with what it cannot show.
func WriteComparison(w io.Writer, c Comparison) error {
	t := newTable(w)
	t.row("from\tto\tn\tgain\tfixed\tbroken\tp\tHolm p\tdetectable\trescue\tdamage")
	for i, p := range c.Pairs {
		t.row("%s\t%s\t%d\t%s\t%d\t%d\t%.3g\t%.3g\t%.1f\t%s\t%s", p.Before, p.After, p.N, points(p.Pair), p.Fixed, p.Broken, p.P, c.Holm[i],
			100*p.Detectable, pct(p.Rescue), pct(p.Damage))
	}
	t.row("\none training run each: no difference here supports a claim; that takes %d seeds (xragent study)", SeedsToClaim)
	if err := t.Flush(); t.err == nil {
		t.err = err
	}
	if t.err != nil {
		return fmt.Errorf("eval: write comparison: %w", t.err)
	}
	return nil
}
