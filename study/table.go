package study

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// A grid is a table of text.
type grid struct {
	header []string
	rows   [][]string
}

// Text writes the table for a terminal.
func (t Table) Text(w io.Writer) error { return t.write(w, textGrid, "") }

// Markdown writes it for a page.
func (t Table) Markdown(w io.Writer) error { return t.write(w, markdownGrid, "- ") }

func (t Table) write(w io.Writer, render func(grid) string, bullet string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "study %s: %d arms, %d seeds; generator %.12s, certificate %.12s\n\n", t.Study, len(t.Arms), len(t.Seeds), orNone(t.Generator), t.Certificate)
	for _, m := range t.Marks {
		fmt.Fprintf(&b, "%sMARKED: %s\n", bullet, m)
	}
	if len(t.Marks) > 0 {
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "%s\n", render(t.arms()))
	if len(t.Pairs) > 0 {
		fmt.Fprintf(&b, "%s\n", render(t.pairs()))
		fmt.Fprintf(&b, "Gains in points. The interval is over training runs (seeds); p is McNemar's over all seeds' questions, given these runs, Holm-corrected over %d pairs;\n"+
			"detectable: the smallest difference found with 80 %% power on these questions.\n\n", len(t.Pairs))
	}
	if t.Claim != nil {
		fmt.Fprintf(&b, "%s\n\n", t.Claim)
	}
	about := "A small policy on few images"
	if t.Generator != "" {
		about = "Phantoms are synthetic"
	}
	fmt.Fprintf(&b, "%s\n%s: no figure here is a clinical claim.\n", render(t.cells()), about)
	_, err := io.WriteString(w, b.String())
	return err
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (t Table) arms() grid {
	g := grid{header: []string{"arm", "n", "accuracy", "95 % interval", "each seed", "majority", "invalid", "calls", "alarms"}}
	for _, a := range t.Arms {
		g.rows = append(g.rows, []string{a.Arm, fmt.Sprint(a.Accuracy.N), points(a.Accuracy.Value), between(a.Accuracy.Low, a.Accuracy.High),
			each(a.Seeds, points), points(a.Majority), fmt.Sprint(a.Invalid), fmt.Sprintf("%.2f", a.Calls), list(a.Alarms)})
	}
	return g
}

func (t Table) pairs() grid {
	g := grid{header: []string{"arm", "against", "n", "gain", "95 % interval", "each seed", "fixed", "broken", "p", "p (Holm)", "detectable"}}
	for _, p := range t.Pairs {
		gain, interval, seeds := p.All.Gain, "one seed", signed(p.All.Gain)
		if p.Pooled != nil {
			gain, interval, seeds = p.Pooled.Gain, fmt.Sprintf("[%s, %s]", signed(p.Pooled.Low), signed(p.Pooled.High)), each(p.Pooled.Gains, signed)
		}
		g.rows = append(g.rows, []string{p.Arm, p.Against, fmt.Sprint(p.All.N), signed(gain), interval, seeds, fmt.Sprint(p.All.Fixed), fmt.Sprint(p.All.Broken),
			fmt.Sprintf("%.2g", p.All.P), fmt.Sprintf("%.2g", p.Holm), points(p.All.Detectable)})
	}
	return g
}

func (t Table) cells() grid {
	g := grid{header: []string{"cell", "accuracy", "manifest", "made again by"}}
	for _, c := range t.Cells {
		g.rows = append(g.rows, []string{fmt.Sprintf("%s-%d", c.Arm, c.Seed), points(c.Accuracy.Value), fmt.Sprintf("%.16s", c.Manifest), c.Command})
	}
	return g
}

// String is the verdict in one sentence.
func (v Verdict) String() string {
	claim := fmt.Sprintf("claim: %s gains at least %.1f points over %s, and more than %s; %s gains less than %.0f", v.Arm, v.Gain, v.Over, v.Above, v.Control, 100*controlGain)
	if v.Holds {
		return claim + ": holds"
	}
	return claim + ": does not hold: " + strings.Join(v.Why, "; ")
}

func points(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

func signed(share float64) string { return fmt.Sprintf("%+.1f", 100*share) }

func between(low, high float64) string { return fmt.Sprintf("[%s, %s]", points(low), points(high)) }

func each(values []float64, format func(float64) string) string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = format(v)
	}
	return strings.Join(out, " ")
}

func list(words []string) string {
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, " ")
}

func textGrid(g grid) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{g.header}, g.rows...) {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	_ = tw.Flush() // a strings.Builder does not fail
	return b.String()
}

func markdownGrid(g grid) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(g.header)
	fmt.Fprintf(&b, "|%s\n", strings.Repeat(" --- |", len(g.header)))
	for _, row := range g.rows {
		line(row)
	}
	return b.String()
}
