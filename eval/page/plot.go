package page

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"xragent/eval"
)

// A Line is one series of a panel; X and Y have equal length.
type Line struct {
	Name string
	X, Y []float64
}

// A Panel is a chart of lines over steps.
type Panel struct {
	Title  string
	XLabel string
	YLabel string
	Lines  []Line
}

// colours are Okabe and Ito's, told apart by the colour-blind too.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"}

func colour(i int) string { return colours[i%len(colours)] }

// A scale maps values to pixels.
type scale struct{ low, high, from, to float64 }

func (s scale) at(v float64) float64 {
	return s.from + (v-s.low)/(s.high-s.low)*(s.to-s.from)
}

// A tick is a mark of an axis.
type tick struct {
	At   float64
	Text string
}

func (s scale) ticks() []tick {
	var out []tick
	step := niceStep((s.high - s.low) / 5)
	first := math.Ceil(s.low/step - 1e-9)
	for i := range 10 { // a step is at least a fifth of the range
		if v := (first + float64(i)) * step; v <= s.high+step*1e-9 {
			out = append(out, tick{s.at(v), short(v)})
		}
	}
	return out
}

// niceStep is 1, 2 or 5 times a power of ten, at least v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= v*(1-1e-9) {
			return f * power
		}
	}
	return 10 * power
}

func short(v float64) string {
	if v == 0 {
		return "0" // not -0
	}
	return strings.Replace(fmt.Sprintf("%.4g", v), "-", "−", 1)
}

// span is the smallest range that holds the values. It is never empty, nor so
// narrow that rounding makes it up.
func span(values []float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			low, high = min(low, v), max(high, v)
		}
	}
	switch {
	case low > high:
		return 0, 1
	case high-low <= 1e-9*max(1, math.Abs(low), math.Abs(high)):
		return low - 0.5, high + 0.5
	}
	return low, high
}

// The size of a chart of lines and where its axes lie.
const (
	chartWidth, chartHeight = 520, 260
	chartLeft, chartRight   = 52, 508
	chartTop, chartBottom   = 14, 214
)

// A chart is a drawn panel.
type chart struct {
	Panel
	Width, Height            int
	Left, Right, Top, Bottom int
	XTicks, YTicks           []tick
	Paths                    []path
}

// A path is a drawn line.
type path struct {
	Name, Colour, D string
	Dot             bool    // the series has one point
	X, Y            float64 // of the last point
}

func draw(p Panel) chart {
	var xs, ys []float64
	for _, l := range p.Lines {
		xs, ys = append(xs, l.X...), append(ys, l.Y...)
	}
	c := chart{Panel: p, Width: chartWidth, Height: chartHeight, Left: chartLeft, Right: chartRight, Top: chartTop, Bottom: chartBottom}
	x := scale{from: chartLeft, to: chartRight}
	x.low, x.high = span(xs)
	y := scale{from: chartBottom, to: chartTop}
	y.low, y.high = span(ys)
	if y.low > 0 && y.low < y.high/2 { // a share or a loss is read from 0
		y.low = 0
	}
	c.XTicks, c.YTicks = x.ticks(), y.ticks()
	for i, l := range p.Lines {
		c.Paths = append(c.Paths, trace(l, x, y, colour(i)))
	}
	return c
}

func trace(l Line, x, y scale, colour string) path {
	p := path{Name: l.Name, Colour: colour}
	var d strings.Builder
	n := 0
	for i := range l.X {
		if math.IsNaN(l.Y[i]) || math.IsInf(l.Y[i], 0) {
			continue
		}
		verb := "L"
		if n == 0 {
			verb = "M"
		}
		p.X, p.Y = x.at(l.X[i]), y.at(l.Y[i])
		fmt.Fprintf(&d, "%s%.1f %.1f", verb, p.X, p.Y)
		n++
	}
	p.D, p.Dot = d.String(), n == 1
	return p
}

// Smooth is a running mean over n points, so that a noisy curve can be read.
func Smooth(y []float64, n int) []float64 {
	out, sum := make([]float64, len(y)), 0.0
	for i, v := range y {
		sum += v
		if i >= n {
			sum -= y[i-n]
		}
		out[i] = sum / float64(min(i+1, n))
	}
	return out
}

// A mark is one interval to draw; of nothing none is drawn.
type mark struct {
	Label            string
	N                int
	Value, Low, High float64
	Text             string
	Colour           string
}

// The layout of a forest plot: labels, the plot, figures.
const (
	forestWidth           = 900
	forestLeft, forestEnd = 300, 700
	forestRow, forestHead = 24, 10
)

// A forest draws intervals below one another over one axis.
type forest struct {
	Label         string
	Width, Height int
	Left, End     int
	Axis          int
	Ticks         []tick
	Line          float64 // of the reference value
	HasLine       bool
	Rows          []drawn
}

type drawn struct {
	mark
	Y          int
	X, X0, X1  float64
	TextX, Mid int
}

// plot draws marks over the range that holds them all and the reference.
func plot(label string, marks []mark, reference *float64) forest {
	marks = slices.DeleteFunc(marks, func(m mark) bool { return m.N == 0 })
	var all []float64
	for _, m := range marks {
		all = append(all, m.Low, m.High)
	}
	if reference != nil {
		all = append(all, *reference)
	}
	s := scale{from: forestLeft, to: forestEnd}
	s.low, s.high = span(all)
	f := forest{Label: label, Width: forestWidth, Left: forestLeft, End: forestEnd, Axis: forestHead + forestRow*len(marks), Ticks: s.ticks()}
	f.Height = f.Axis + 44
	if reference != nil {
		f.Line, f.HasLine = s.at(*reference), true
	}
	for i, m := range marks {
		y := forestHead + forestRow*i + forestRow/2
		f.Rows = append(f.Rows, drawn{mark: m, Y: y, X: s.at(m.Value), X0: s.at(m.Low), X1: s.at(m.High), TextX: forestEnd + 14, Mid: y + 4})
	}
	return f
}

func accuracyMark(label string, i eval.Interval, colour string) mark {
	return mark{label, i.N, 100 * i.Value, 100 * i.Low, 100 * i.High, interval(i), colour}
}

func gainMark(label string, p eval.Pair, colour string) mark {
	return mark{label, p.N, 100 * p.Gain, 100 * p.Low, 100 * p.High, gain(p), colour}
}

// A point of a scatter plot, with its interval upwards and downwards.
type point struct {
	X, Y, Y0, Y1  float64
	Size          float64
	Colour, Title string
}

// A scatter plots points over two axes.
type scatter struct {
	XLabel, YLabel           string
	Width, Height            int
	Left, Right, Top, Bottom int
	XTicks, YTicks           []tick
	Diagonal                 bool
	Points                   []point
	Legend                   []legend
}

type legend struct{ Name, Colour string }

// disperse draws points given in values.
func disperse(s scatter, points []point, square bool) scatter {
	s.Width, s.Height, s.Left, s.Right, s.Top, s.Bottom = 620, 360, 56, 600, 14, 306
	var xs, ys []float64
	for _, p := range points {
		xs, ys = append(xs, p.X), append(ys, p.Y0, p.Y1, p.Y)
	}
	x, y := scale{from: float64(s.Left), to: float64(s.Right)}, scale{from: float64(s.Bottom), to: float64(s.Top)}
	x.low, x.high = span(xs)
	y.low, y.high = span(ys)
	if square {
		s.Width, s.Height, s.Right, s.Bottom = 470, 460, 450, 408
		x, y = scale{0, 1, float64(s.Left), float64(s.Right)}, scale{0, 1, float64(s.Bottom), float64(s.Top)}
		s.Diagonal = true
	} else {
		margin := (x.high - x.low) * 0.06
		x.low, x.high = x.low-margin, x.high+margin
	}
	s.XTicks, s.YTicks = x.ticks(), y.ticks()
	for _, p := range points {
		p.X, p.Y, p.Y0, p.Y1 = x.at(p.X), y.at(p.Y), y.at(p.Y0), y.at(p.Y1)
		s.Points = append(s.Points, p)
	}
	return s
}

func interval(i eval.Interval) string {
	if i.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f [%.1f, %.1f]", 100*i.Value, 100*i.Low, 100*i.High)
}

func gain(p eval.Pair) string {
	if p.N == 0 {
		return "–"
	}
	return strings.ReplaceAll(fmt.Sprintf("%+.1f [%+.1f, %+.1f]", 100*p.Gain, 100*p.Low, 100*p.High), "-", "−")
}

// sorted returns a copy in the order of less.
func sorted[T any](list []T, compare func(a, b T) int) []T {
	out := slices.Clone(list)
	slices.SortStableFunc(out, compare)
	return out
}
