package certify

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"text/tabwriter"
)

// A Figure is one thing that was measured. Shares and accuracies are between 0
// and 1; Low and High are their 95 % interval where N says how many cases
// there were.
type Figure struct {
	Group string   `json:"group"`
	Name  string   `json:"name"`
	Value float64  `json:"value"`
	Low   float64  `json:"low,omitempty"`
	High  float64  `json:"high,omitempty"`
	N     int      `json:"n,omitempty"`
	Min   *float64 `json:"min,omitempty"` // the value must not be below
	Max   *float64 `json:"max,omitempty"` // nor above
	Pass  bool     `json:"pass"`
	Note  string   `json:"note,omitempty"`
}

// Bound says what is asked of the value; "" when nothing is.
func (f Figure) Bound() string {
	switch {
	case f.Min != nil && f.Max != nil:
		return fmt.Sprintf("%.4g to %.4g", *f.Min, *f.Max)
	case f.Min != nil:
		return fmt.Sprintf("≥ %.4g", *f.Min)
	case f.Max != nil:
		return fmt.Sprintf("≤ %.4g", *f.Max)
	}
	return ""
}

// judged says whether the bounds hold. What could not be counted holds none.
func (f Figure) judged() Figure {
	f.Pass = f.Bound() == "" || (f.Min == nil || f.Value >= *f.Min) && (f.Max == nil || f.Value <= *f.Max)
	if math.IsNaN(f.Value) { // has no JSON form
		f.Value, f.Low, f.High, f.Note, f.Pass = 0, 0, 0, "nothing to count", f.Bound() == ""
	}
	return f
}

func (f Figure) atLeast(v float64) Figure { f.Min = &v; return f }
func (f Figure) atMost(v float64) Figure  { f.Max = &v; return f }

// share is a figure of hits out of n, with its Wilson interval.
func share(group, name string, hits, n int) Figure {
	f := Figure{Group: group, Name: name, N: n, Value: float64(hits) / float64(n)} // of none: no number
	f.Low, f.High = wilson(hits, n)
	return f
}

// wilson returns the 95 % score interval of a share (Wilson 1927).
func wilson(hits, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	const z = 1.959963984540054
	p, m := float64(hits)/float64(n), float64(n)
	centre := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return max(0, centre-half), min(1, centre+half)
}

// A Certificate says what was measured on a generator, and whether it is what
// the world promises. It has no date: the same generator, configuration and
// tools give the same bytes.
type Certificate struct {
	Generator string   `json:"generator"` // phantom.Hash
	Version   string   `json:"version"`   // phantom.Version
	Examiner  string   `json:"examiner"`  // Version of this package
	Quick     bool     `json:"quick,omitempty"`
	Config    Config   `json:"config"`
	Passed    bool     `json:"passed"`
	Figures   []Figure `json:"figures"`
}

// Failures returns the figures that are out of bounds.
func (c Certificate) Failures() []Figure {
	var out []Figure
	for _, f := range c.Figures {
		if !f.Pass {
			out = append(out, f)
		}
	}
	return out
}

// WriteText writes the certificate as a table for people.
func (c Certificate) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "phantom world %s, generator %s, examiner %s, seed %d\n", c.Version, c.Generator, c.Examiner, c.Config.Seed)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	group := ""
	for _, f := range c.Figures {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(tw, "\n%s\n", group)
		}
		fmt.Fprintln(tw, f.line())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s\n", c.verdict())
	return nil
}

func (f Figure) line() string {
	mark, interval := "    ", ""
	if f.Bound() != "" {
		mark = "ok  "
	}
	if !f.Pass {
		mark = "FAIL"
	}
	if f.High > f.Low {
		interval = fmt.Sprintf("[%.3f, %.3f]", f.Low, f.High)
	}
	n := ""
	if f.N > 0 {
		n = fmt.Sprintf("n=%d", f.N)
	}
	return fmt.Sprintf("  %s\t%s\t%.4f\t%s\t%s\t%s\t%s", mark, f.Name, f.Value, interval, n, f.Bound(), f.Note)
}

func (c Certificate) verdict() string {
	bounds := 0
	for _, f := range c.Figures {
		if f.Bound() != "" {
			bounds++
		}
	}
	text := fmt.Sprintf("%d of %d bounds hold", bounds-len(c.Failures()), bounds)
	switch {
	case c.Quick:
		return text + "; a quick look, which certifies nothing"
	case c.Passed:
		return text + ": certified"
	}
	return text + ": not certified"
}

// WriteFile writes the certificate as JSON.
func (c Certificate) WriteFile(path string) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Read reads what [Certificate.WriteFile] wrote.
func Read(path string) (Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Certificate{}, fmt.Errorf("certificate: %w: make one with xragent phantom certify", err)
	}
	var c Certificate
	if err := json.Unmarshal(text, &c); err != nil {
		return Certificate{}, fmt.Errorf("certificate %s: %w: make it again with xragent phantom certify", path, err)
	}
	return c, nil
}

// Check returns nil when the file holds a passed, full certificate of the
// generator with that hash (phantom.Hash), and else says what is wrong.
func Check(path, hash string) error {
	c, err := Read(path)
	if err != nil {
		return err
	}
	const remedy = "run xragent phantom certify"
	switch {
	case c.Generator != hash:
		return fmt.Errorf("certificate %s is of generator %.12s, this one is %.12s: the world has changed since; %s and train again",
			path, c.Generator, hash, remedy)
	case c.Examiner != Version:
		return fmt.Errorf("certificate %s was made by examiner %s, this is %s: %s", path, c.Examiner, Version, remedy)
	case c.Quick:
		return fmt.Errorf("certificate %s is a quick look, which certifies nothing: %s without --quick", path, remedy)
	case !c.Passed || len(c.Failures()) > 0:
		return fmt.Errorf("certificate %s failed: %d figures are out of bounds: mend the world, then %s", path, len(c.Failures()), remedy)
	}
	return nil
}
