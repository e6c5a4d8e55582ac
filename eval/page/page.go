// Package page shows an evaluation as one HTML page with plots: priors, training
// curves, routing, tools, gate, rescue and damage, distribution shift,
// confusions and the calibration of priors.
//
// The page holds everything that it shows: plots are inline SVG, there is no
// script, and its content policy lets a browser load nothing. The package draws
// what a report says and computes no figure of its own.
package page

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"xragent/eval"
)

//go:embed page.html.tmpl
var text string

var tmpl = template.Must(template.New("page").Funcs(template.FuncMap{
	"words": words, "interval": interval, "gain": gain, "pvalue": pvalue,
	"points": func(v float64) string { return strings.ReplaceAll(fmt.Sprintf("%+.1f", 100*v), "-", "−") },
	"pct":    func(v float64) string { return fmt.Sprintf("%.1f", 100*v) },
	"two":    func(v float64) string { return fmt.Sprintf("%.2f", v) },
	"four":   func(v float64) string { return strings.Replace(fmt.Sprintf("%.4f", v), "-", "−", 1) },
	"shade":  shade, "over": over, "first": func(n int, s string) string { return s[:min(n, len(s))] },
	"same": func(list []eval.Contrast, i int) bool { return i > 0 && list[i-1].Condition == list[i].Condition },
}).Parse(text))

// words is a name as people read it.
func words(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") }

func pvalue(p float64) string {
	if p < 0.001 {
		return "< 0.001"
	}
	return fmt.Sprintf("%.3f", p)
}

func over(a, b eval.Interval) string {
	if b.Value == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a.Value/b.Value)
}

// shade is the background of a confusion's cell: its share of the row, green on
// the diagonal.
func shade(row []int, column int, diagonal bool) template.CSS {
	total := 0
	for _, n := range row {
		total += n
	}
	rgb := "213,94,0"
	if diagonal {
		rgb = "0,158,115"
	}
	return template.CSS(fmt.Sprintf("background:rgba(%s,%.2f)", rgb, 0.75*float64(row[column])/float64(max(1, total))))
}

// A view is what the template is given.
type view struct {
	eval.Report
	Policy string
	Curves []chart

	Accuracies, Trained, PriorPlot, ToolPlot, GatePlot, ChurnPlot, ShiftPlot, CallPlot forest

	Frontier, Prior  scatter
	Routes, ToolRows []eval.Contrast
	GateRows         []eval.Contrast
	Lines            []eval.Line // of the last policy
	Phantom          bool
}

// Write writes the page. Panels are the training curves; those without lines
// are left out.
func Write(w io.Writer, r eval.Report, panels []Panel) error {
	v := view{Report: r, Policy: r.Policy(), Phantom: r.Source == "phantom"}
	for _, p := range panels {
		if len(p.Lines) > 0 {
			v.Curves = append(v.Curves, draw(p))
		}
	}
	v.sortContrasts()
	v.drawAccuracies()
	v.drawPriors()
	v.drawRouting()
	v.drawGate()
	v.drawChurn()
	v.drawShifts()
	v.drawCalibration()
	if err := tmpl.Execute(w, v); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

func (v *view) sortContrasts() {
	for _, c := range v.Contrasts {
		switch c.Section {
		case eval.Routing:
			v.Routes = append(v.Routes, c)
		case eval.Tools:
			v.ToolRows = append(v.ToolRows, c)
		case eval.Gate:
			v.GateRows = append(v.GateRows, c)
		}
	}
	var tools []mark
	for _, c := range v.ToolRows {
		tools = append(tools, gainMark(c.Policy+", "+words(c.Condition), c.Pair, colour(0)))
	}
	v.ToolPlot = plot("points against plain", tools, new(float64))
}

func (v *view) drawAccuracies() {
	var all, trained []mark
	for _, s := range v.Summaries {
		if s.Condition == eval.Plain && s.Split == "test" {
			all = append(all, accuracyMark(s.Name, s.All().Strict, colour(0)))
			if s.Name == v.Policy {
				v.Lines = s.Lines
			}
		}
	}
	var majority *float64
	if len(v.Lines) > 0 {
		m := 100 * v.Lines[0].Majority
		majority = &m
		v.Accuracies = plot("accuracy, %; line: strongest constant answer per template", all, majority)
	}
	for _, p := range v.Pairs {
		trained = append(trained, gainMark(p.Before+" → "+p.After, p.Pair, colour(2)))
	}
	v.Trained = plot("points gained", trained, new(float64))
}

func (v *view) drawPriors() {
	var marks []mark
	for _, p := range v.Priors {
		c := colour(6)
		if p.Name == string(eval.Plain) {
			c = colour(0)
		}
		marks = append(marks, accuracyMark(words(p.Name), p.Pixels, c))
	}
	m := 100 * v.Priors[0].Pixels.Value
	v.PriorPlot = plot("accuracy, %, on questions that pixels decide; line: majority", marks, &m)
}

// drawRouting plots accuracy against calls, and for whom is called.
func (v *view) drawRouting() {
	var points []point
	var names []legend
	add := func(name string, acc eval.Interval, calls float64) {
		c := colour(len(points))
		names = append(names, legend{name, c})
		points = append(points, point{X: calls, Y: 100 * acc.Value, Y0: 100 * acc.Low, Y1: 100 * acc.High, Size: 5, Colour: c,
			Title: fmt.Sprintf("%s: %.2f calls, %s", name, calls, interval(acc))})
	}
	if as := v.AsIs.Lines; len(as) > 0 { // on the questions that the controls were asked
		add(v.Policy, as[0].Strict, as[0].Calls)
	}
	for _, c := range v.Routes {
		add(words(c.Condition), c.Accuracy, c.Calls)
	}
	v.Frontier = disperse(scatter{XLabel: "calls a question", YLabel: "accuracy, %", Legend: names}, points, false)
	var marks []mark
	for _, c := range v.Calls {
		marks = append(marks, accuracyMark(c.Policy+", where the base is wrong", c.Wrong, colour(1)),
			accuracyMark(c.Policy+", where the base is right", c.Right, colour(2)))
	}
	v.CallPlot = plot("share of questions with a call, %", marks, nil)
}

func (v *view) drawGate() {
	var marks []mark
	for _, g := range v.GateGroups {
		if g.Condition != eval.Plain {
			marks = append(marks, gainMark(words(g.Condition)+": "+g.Group, g.Pair, colour(3)))
		}
	}
	v.GatePlot = plot("points against the gate on", marks, new(float64))
}

func (v *view) drawChurn() {
	var marks []mark
	add := func(name string, rescue, damage eval.Interval) {
		marks = append(marks, accuracyMark(name+": rescue", rescue, colour(2)), accuracyMark(name+": damage", damage, colour(1)))
	}
	for _, p := range v.Pairs {
		add(p.Before+" → "+p.After, p.Rescue, p.Damage)
	}
	for _, c := range v.Contrasts {
		if c.Condition == eval.ToolsOff {
			rescue, damage := c.ToolsAdd()
			add(c.Policy+" without → with tools", rescue, damage)
		}
	}
	for _, f := range v.Churns {
		add(floorName(f)+", sampled again", f.Rescue, f.Damage)
	}
	v.ChurnPlot = plot("share of questions, %", marks, nil)
}

func floorName(f eval.Floor) string {
	if f.Tools {
		return f.Policy
	}
	return f.Policy + " without tools"
}

func (v *view) drawShifts() {
	var marks []mark
	for _, s := range v.Shifts {
		marks = append(marks, accuracyMark(s.Policy+", test", s.In, colour(0)), accuracyMark(s.Policy+", out of distribution", s.Out, colour(1)))
	}
	v.ShiftPlot = plot("accuracy, %", marks, nil)
}

// drawCalibration plots how often an answer is given against how often it is
// right; the size of a point is the template's number of questions.
func (v *view) drawCalibration() {
	var points []point
	colours := map[eval.Condition]string{eval.Plain: colour(0), eval.TextOnly: colour(4)}
	for _, f := range sorted(v.Calibration, func(a, b eval.Frequency) int { return cmp.Compare(b.N, a.N) }) {
		points = append(points, point{X: f.Key, Y: f.Given, Y0: f.Given, Y1: f.Given, Size: 2.5 + min(5, float64(f.N)/25), Colour: colours[f.Condition],
			Title: fmt.Sprintf("%s, %s: %q is right in %.0f %%, given in %.0f %% of %d", words(f.Condition), f.Template, f.Answer, 100*f.Key, 100*f.Given, f.N)})
	}
	shown := scatter{XLabel: "share of questions where the answer is right", YLabel: "share where it is given"}
	for _, c := range []eval.Condition{eval.Plain, eval.TextOnly} {
		if slices.ContainsFunc(v.Calibration, func(f eval.Frequency) bool { return f.Condition == c }) {
			shown.Legend = append(shown.Legend, legend{words(c), colours[c]})
		}
	}
	v.Prior = disperse(shown, points, true)
}
