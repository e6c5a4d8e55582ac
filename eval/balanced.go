package eval

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Balanced is accuracy with the answers of a template weighed alike: the share
// right of each answer, in the mean of a template's answers, in the mean of
// templates by their questions (Brodersen et al. 2010, "The balanced accuracy and
// its posterior distribution"). What does not know the film has Constant, one over
// the number of a template's answers, whether it always says the same or follows
// another film; unweighed, the second is below the first wherever answers are not
// equally frequent. Answers that are right of none of the rows take it below Constant, few rows
// therefore too.
type Balanced struct {
	N        int     `json:"n"`
	Value    float64 `json:"value"`
	Low      float64 `json:"low"` // 95 %, normal, from the variance of each answer's share
	High     float64 `json:"high"`
	Constant float64 `json:"constant"`
}

// Over is how far the value is above that of a constant answer.
func (b Balanced) Over() float64 { return b.Value - b.Constant }

// With puts the questions of another run beside those of b, each run's answers
// weighed among themselves.
func (b Balanced) With(o Balanced) Balanced {
	n := b.N + o.N
	if n == 0 {
		return b
	}
	x, y := float64(b.N)/float64(n), float64(o.N)/float64(n)
	mean := func(p, q float64) float64 { return x*p + y*q }
	value := mean(b.Value, o.Value)
	half := math.Hypot(x*(b.High-b.Value), y*(o.High-o.Value))
	return Balanced{n, value, max(0, value-half), min(1, value+half), mean(b.Constant, o.Constant)}
}

// Leaks reports whether answers to another film know more of the right one than
// chance and [WithinPoints] allow.
func (b Balanced) Leaks() bool { return b.Over() > WithinPoints && b.Low > b.Constant }

func (b Balanced) String() string {
	if b.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f [%.1f, %.1f]", 100*b.Value, 100*b.Low, 100*b.High)
}

// Balance weighs the answers of each template alike.
func Balance(rows []Row, right func(Row) bool) Balanced {
	type share struct{ right, n int }
	templates := map[string]map[string]share{}
	for _, r := range rows {
		if templates[r.Template] == nil {
			templates[r.Template] = map[string]share{}
		}
		s := templates[r.Template][r.key()]
		templates[r.Template][r.key()] = share{s.right + one(right(r)), s.n + 1}
	}
	b, variance := Balanced{N: len(rows)}, 0.0
	for _, template := range slices.Sorted(maps.Keys(templates)) { // in one order, as sums are of floats
		answers := templates[template]
		n := 0
		for _, s := range answers {
			n += s.n
		}
		weight := float64(n) / float64(len(rows)) / float64(len(answers))
		b.Constant += weight
		for _, key := range slices.Sorted(maps.Keys(answers)) {
			s := answers[key]
			b.Value += weight * float64(s.right) / float64(s.n)
			p := float64(s.right+1) / float64(s.n+2) // Laplace's, so that an answer seen once is not taken to be certain
			variance += weight * weight * p * (1 - p) / float64(s.n)
		}
	}
	half := z * math.Sqrt(variance)
	b.Low, b.High = max(0, b.Value-half), min(1, b.Value+half)
	return b
}
