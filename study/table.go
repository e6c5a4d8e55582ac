package study

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"xragent/eval"
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
			"detectable: the smallest difference found with 80 %% power on these questions, and by so many runs that differ so much.\n\n", len(t.Pairs))
	}
	if t.Claim != nil {
		fmt.Fprintf(&b, "%s\n\n", t.Claim)
	}
	if err := t.Controls.write(&b, render); err != nil {
		return err
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
	g := grid{header: []string{"arm", "n", "accuracy", "95 % (these runs)", "each seed", "majority", "invalid", "calls", "alarms"}}
	for _, a := range t.Arms {
		g.rows = append(g.rows, []string{a.Arm, fmt.Sprint(a.Accuracy.N), points(a.Accuracy.Value), between(a.Accuracy.Low, a.Accuracy.High),
			each(a.Seeds, points), points(a.Majority), fmt.Sprint(a.Invalid), fmt.Sprintf("%.2f", a.Calls), list(a.Alarms)})
	}
	return g
}

func (t Table) pairs() grid {
	g := grid{header: []string{"arm", "against", "n", "gain", "95 % interval", "each seed", "fixed", "broken", "p", "p (Holm)", "detectable", "over runs"}}
	for _, p := range t.Pairs {
		gain, interval, seeds := pooled(p.All, p.Pooled)
		runs := "-"
		if p.Pooled != nil {
			runs = points(p.Pooled.Detectable)
		}
		g.rows = append(g.rows, []string{p.Arm, p.Against, fmt.Sprint(p.All.N), gain, interval, seeds, fmt.Sprint(p.All.Fixed), fmt.Sprint(p.All.Broken),
			fmt.Sprintf("%.2g", p.All.P), fmt.Sprintf("%.2g", p.Holm), points(p.All.Detectable), runs})
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

// write adds the tables of the controls that there are.
func (c Controls) write(w io.Writer, render func(grid) string) error {
	for _, part := range []struct {
		title string
		grid  grid
	}{
		{"Controls, against the same policy as it is; gains and intervals as above.", c.lines()},
		{"What is had without reading the film, where pixels decide, against constant answers per template:\nthe strongest on these very questions (majority), and the most frequent of the training split (of train). Balanced: the answers of a template weighed alike, where\nwhatever does not know the film comes to what a constant answer has, less what it gives that is right nowhere.", c.priors()},
		{"Questions on which tools are called: of those that the baseline gets wrong with tools off, and of those that it gets right.\nRatios: Mantel and Haenszel's over templates and seeds. Rescued: of the first, right with tools; damaged: of the second, wrong with them.", c.routing()},
		{"Out of distribution: the split that is made unlike training.", c.far()},
	} {
		if len(part.grid.rows) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s\n\n%s\n", part.title, render(part.grid)); err != nil {
			return err
		}
	}
	return nil
}

func (c Controls) lines() grid {
	g := grid{header: []string{"arm", "control", "questions", "n", "as it is", "accuracy", "gain", "95 % interval", "each seed", "fixed", "broken", "p (Holm)", "calls", "reward"}}
	for _, l := range c.Lines {
		gain, interval, seeds := pooled(l.Pair, l.Pooled)
		g.rows = append(g.rows, []string{l.Arm, underscored(string(l.Condition)), l.Group, fmt.Sprint(l.Accuracy.N),
			points(l.Accuracy.Value - l.Pair.Gain), points(l.Accuracy.Value), gain, interval, seeds,
			fmt.Sprint(l.Pair.Fixed), fmt.Sprint(l.Pair.Broken), fmt.Sprintf("%.2g", l.Holm),
			change(l, "%.2f → %.2f", l.Plain.Calls, l.Under.Calls), change(l, "%.3f → %.3f", l.Plain.Reward, l.Under.Reward)})
	}
	return g
}

// change is known of a line over all questions.
func change(l ControlLine, format string, from, to float64) string {
	if l.Under.N == 0 {
		return "-"
	}
	return fmt.Sprintf(format, from, to)
}

func (c Controls) far() grid {
	g := grid{header: []string{"arm", "n", "accuracy", "95 % (these runs)", "each seed", "majority", "test questions"}}
	for _, f := range c.Far {
		g.rows = append(g.rows, []string{f.Arm, fmt.Sprint(f.Accuracy.N), points(f.Accuracy.Value), between(f.Accuracy.Low, f.Accuracy.High),
			each(f.Each, points), points(f.Majority), points(f.Test)})
	}
	return g
}

func (c Controls) priors() grid {
	g := grid{header: []string{"arm", "prior", "n", "accuracy", "95 % interval", "majority", "difference", "of train", "difference", "balanced", "95 % interval", "a constant", "difference"}}
	for _, p := range c.Priors {
		learned, above := "-", "-"
		if p.Learned.N == p.Pixels.N { // known for every seed
			learned, above = points(p.Learned.Value), signed(p.Pixels.Value-p.Learned.Value)
		}
		row := []string{p.Arm, underscored(p.Prior), fmt.Sprint(p.Pixels.N), points(p.Pixels.Value), between(p.Pixels.Low, p.Pixels.High),
			points(p.Majority.Value), signed(p.Pixels.Value - p.Majority.Value), learned, above, "-", "-", "-", "-"}
		if b := p.Balanced; b.N > 0 {
			row = append(row[:9], points(b.Value), between(b.Low, b.High), points(b.Constant), signed(b.Over()))
		}
		g.rows = append(g.rows, row)
	}
	return g
}

func (c Controls) routing() grid {
	g := grid{header: []string{"arm", "seeds", "baseline wrong", "right", "ratio of rates", "of odds", "rescued", "damaged"}}
	for _, r := range c.Routing {
		g.rows = append(g.rows, []string{r.Arm, fmt.Sprint(r.Seeds), points(r.Wrong.Value), points(r.Right.Value), r.Rates.String(), r.Odds.String(),
			share(r.Rescued), share(r.Damaged)})
	}
	return g
}

func share(i eval.Interval) string { return points(i.Value) + " " + between(i.Low, i.High) }

func underscored(name string) string { return strings.ReplaceAll(name, "_", " ") }

// pooled are a gain, its interval and those of the seeds as text.
func pooled(all eval.Pair, p *eval.Pooled) (gain, interval, seeds string) {
	if p == nil {
		return signed(all.Gain), "one seed", signed(all.Gain)
	}
	return signed(p.Gain), fmt.Sprintf("[%s, %s]", signed(p.Low), signed(p.High)), each(p.Gains, signed)
}
