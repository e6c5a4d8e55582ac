package eval

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"xragent/dataset"
)

// A table writes aligned columns and remembers the first error.
type table struct {
	*tabwriter.Writer
	out io.Writer
	err error
}

func newTable(w io.Writer) *table {
	return &table{Writer: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), out: w}
}

func (t *table) row(format string, args ...any) {
	if _, err := fmt.Fprintf(t, format+"\n", args...); t.err == nil {
		t.err = err
	}
}

// head ends the table before and writes a title and the next one's head.
func (t *table) head(title, columns string) {
	if err := t.Flush(); t.err == nil {
		t.err = err
	}
	t.row("\n%s\n", title)
	if columns != "" {
		t.row("%s", columns)
	}
}

func words(s string) string { return strings.ReplaceAll(s, "_", " ") }

func pct(i Interval) string {
	if i.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f [%.1f, %.1f]", 100*i.Value, 100*i.Low, 100*i.High)
}

func points(p Pair) string {
	if p.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.1f [%+.1f, %+.1f]", 100*p.Gain, 100*p.Low, 100*p.High)
}

func (r Ratio) String() string {
	if !r.Known {
		return "unknown"
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", r.Value, r.Low, r.High)
}

// WriteText writes the whole report as text.
func (r Report) WriteText(w io.Writer) error {
	t := newTable(w)
	t.row("\n%d held-out questions, fixed denominator; majority: the strongest constant answer per template\n", r.Questions)
	t.err = WriteTable(t, r.Summaries, false)
	for _, s := range r.Summaries {
		if s.Condition == Plain && s.Split == dataset.Test && s.Name == r.Policy() {
			t.head("By kind, capability and need", "")
			if err := WriteTable(t, []Summary{s}, true); t.err == nil {
				t.err = err
			}
			t.row("macro average over kinds %.1f", 100*s.Macro)
		}
	}
	for _, part := range []func(*table){r.pairsText, r.priorsText, r.routingText, r.toolsText, r.gateText, r.churnText, r.shiftText, r.marksText} {
		part(t)
	}
	if err := t.Flush(); t.err == nil {
		t.err = err
	}
	return t.err
}

// Policy is the last policy, which is put under the controls.
func (r Report) Policy() string {
	name := ""
	for _, s := range r.Summaries {
		if s.Condition == Plain && s.Split == dataset.Test {
			name = s.Name
		}
	}
	return name
}

func (r Report) pairsText(t *table) {
	if len(r.Pairs) == 0 {
		return
	}
	t.head("Training", "")
	for _, p := range r.Pairs {
		t.row("%s → %s: %+.1f points [%+.1f, %+.1f]; %d fixed, %d broken, exact McNemar p = %.3g; detectable %.1f", p.Before, p.After,
			100*p.Gain, 100*p.Low, 100*p.High, p.Fixed, p.Broken, p.P, 100*p.Detectable)
	}
}

func (r Report) priorsText(t *table) {
	t.head("Priors: what can be had without reading this film ("+r.Policy()+")", "prior\tall\tpixels decide\tbalanced\twhat")
	for _, p := range r.Priors {
		t.row("%s\t%s\t%s\t%s\t%s", words(p.Name), pct(p.All), pct(p.Pixels), p.Balanced, p.What)
	}
}

func (r Report) contrastsText(t *table, section Section, title string) {
	var list []Contrast
	for _, c := range r.Contrasts {
		if c.Section == section {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return
	}
	t.head(title, "policy\tcondition\taccuracy\tagainst plain\tHolm p\ttouched\tthere\trescue\tdamage\tcalls\treward")
	plain := r.AsIs
	t.row("%s\tplain\t%s\t\t\t\t\t\t\t%.2f\t%.2f", plain.Name, pct(plain.All().Strict), plain.All().Calls, plain.Reward)
	for _, c := range list {
		t.row("%s\t%s\t%s\t%s\t%.3g\t%d\t%s\t%s\t%s\t%.2f\t%.2f", c.Policy, words(string(c.Condition)), pct(c.Accuracy), points(c.Pair),
			c.Holm, c.Touched, points(c.On), pct(c.Rescue), pct(c.Damage), c.Calls, c.Reward)
	}
}

func (r Report) routingText(t *table) {
	r.contrastsText(t, Routing, "Routing: who is called for")
	if len(r.Calls) == 0 {
		return
	}
	t.head("Calls where the base without tools is wrong, and where it is right, by template (Mantel–Haenszel)", "policy\tbase\twrong\tright\trates\todds")
	for _, c := range r.Calls {
		t.row("%s\t%s\t%s\t%s\t%v\t%v", c.Policy, c.Base, pct(c.Wrong), pct(c.Right), c.Rates, c.Odds)
	}
}

func (r Report) toolsText(t *table) { r.contrastsText(t, Tools, "Tools: what their answers are worth") }

func (r Report) gateText(t *table) {
	r.contrastsText(t, Gate, "Gate: what is shown")
	if len(r.GateGroups) == 0 {
		return
	}
	t.head("Gate by question", "condition\tquestions\tn\taccuracy\tagainst gate on\tshown")
	for _, g := range r.GateGroups {
		against := points(g.Pair)
		if g.Condition == Plain {
			against = ""
		}
		t.row("%s\t%s\t%d\t%s\t%s\t%.0f %%", words(string(g.Condition)), g.Group, g.Accuracy.N, pct(g.Accuracy), against, 100*g.Shown)
	}
	if i := r.GateTells; i != nil {
		t.head("I(gate; answer | template)", "")
		t.row("%.4f bits after correction (%.4f observed, %.4f by chance at 95 %%)", i.Bits, i.Plain, i.Chance)
	}
	if s := r.Swap; s != nil {
		t.row("measurements swapped on %d questions: %s of answers changed; %s where a measurement bears on the question", s.Swapped, pct(s.Changed), pct(s.Relevant))
	}
}

func (r Report) churnText(t *table) {
	if len(r.Pairs) == 0 && len(r.Churns) == 0 {
		return
	}
	t.head("Rescue and damage, with the churn between two samplings as the floor", "from\tto\trescue\tdamage\tratio")
	for _, p := range r.Pairs {
		t.row("%s\t%s\t%s\t%s\t%s", p.Before, p.After, pct(p.Rescue), pct(p.Damage), over(p.Rescue, p.Damage))
	}
	for _, c := range r.Contrasts {
		if c.Condition == ToolsOff { // the other way round: what tools add
			rescue, damage := c.ToolsAdd()
			t.row("%s, tools off\t%s\t%s\t%s\t%s", c.Policy, c.Policy, pct(rescue), pct(damage), over(rescue, damage))
		}
	}
	for _, f := range r.Churns {
		name := f.Policy
		if !f.Tools {
			name += ", tools off"
		}
		t.row("%s\tsampled again\t%s\t%s\t%s", name, pct(f.Rescue), pct(f.Damage), over(f.Rescue, f.Damage))
	}
}

// ToolsAdd turns a contrast from plain to tools off round: of those wrong
// without tools, how many are right with them, and the reverse.
func (c Contrast) ToolsAdd() (rescue, damage Interval) {
	return Wilson(c.Broken, c.Accuracy.N-c.Accuracy.Right), Wilson(c.Fixed, c.Accuracy.Right)
}

func over(a, b Interval) string {
	if b.Value == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a.Value/b.Value)
}

func (r Report) shiftText(t *table) {
	if len(r.Shifts) == 0 {
		return
	}
	t.head("In and out of distribution", "policy\ttest\tout of distribution\tdifference")
	for _, s := range r.Shifts {
		t.row("%s\t%s\t%s\t%+.1f [%+.1f, %+.1f]", s.Policy, pct(s.In), pct(s.Out), 100*s.Gain, 100*s.Low, 100*s.High)
	}
}

func (r Report) marksText(t *table) {
	t.head("Mind", "")
	for _, m := range r.Marks {
		t.row("- %s", m)
	}
	for _, s := range r.Skipped {
		t.row("- left out: %s", s)
	}
	if r.Source == "phantom" {
		t.row("\nPhantoms are synthetic: no figure here is a clinical claim.")
	} else {
		t.row("\nA small model on few images: no figure here is a clinical claim.")
	}
}
