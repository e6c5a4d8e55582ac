package eval

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Holm returns p-values adjusted for a table of them (Holm 1979, Scandinavian
// Journal of Statistics 6:65), in the order given: step down, multiply by what
// is left, keep monotone.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[a], p[b]) })
	out, floor := make([]float64, len(p)), 0.0
	for rank, i := range order {
		floor = max(floor, min(1, p[i]*float64(len(p)-rank)))
		out[i] = floor
	}
	return out
}

// The fewest seeds that may support a claim, and an ablation.
const (
	SeedsToClaim  = 3
	SeedsToAblate = 5
)

// Pooled is the gain of one arm over another, over seeds.
type Pooled struct {
	Seeds   int       `json:"seeds"`
	Gain    float64   `json:"gain"` // unweighted mean over seeds
	Low     float64   `json:"low"`  // 95 % interval of Gain
	High    float64   `json:"high"`
	Least   float64   `json:"least"`   // of the seeds' gains
	Between float64   `json:"between"` // standard deviation between seeds
	Gains   []float64 `json:"gains"`
	// Detectable is the mean gain that so many runs, which differ so much, find
	// with 80 % power: (t of 0.975 + t of 0.80) standard errors. It says how well
	// another such study would fare; that this one found something Low says.
	Detectable float64 `json:"detectable"`
}

// Pool averages paired gains over seeds; it refuses fewer than two, of which
// nothing can be said beyond the one.
//
// Two errors make up the interval: that of the seeds, by Student's t with
// seeds − 1 degrees of freedom from the standard deviation between gains, and
// that of the questions, by the mean paired variance of a gain. With
// test questions of its own for each seed the first contains the second, which
// is only a floor; with the same questions for all seeds the second is common
// to them, does not shrink with seeds, and is added in squares (Zou and Donner
// 2008, Statistics in Medicine 27:1693).
func Pool(pairs []Pair, sameQuestions bool) (Pooled, error) {
	k := float64(len(pairs))
	if len(pairs) < 2 {
		return Pooled{}, fmt.Errorf("eval: %d seed: no claim can rest on it; run at least %d seeds", len(pairs), SeedsToClaim)
	}
	out := Pooled{Seeds: len(pairs), Least: math.Inf(1)}
	within := 0.0
	for i, p := range pairs {
		if p.N == 0 {
			return Pooled{}, fmt.Errorf("eval: seed %d of %d has no questions: evaluate it", i+1, len(pairs))
		}
		out.Gains = append(out.Gains, p.Gain)
		out.Gain += p.Gain / k
		out.Least = min(out.Least, p.Gain)
		within += p.variance() / k
	}
	for _, g := range out.Gains {
		out.Between += (g - out.Gain) * (g - out.Gain) / (k - 1)
	}
	out.Between = math.Sqrt(out.Between)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: k - 1}
	errorOf := func(t, z float64) float64 {
		seeds := t * out.Between / math.Sqrt(k)
		if sameQuestions {
			return math.Hypot(seeds, z*math.Sqrt(within))
		}
		return max(seeds, z*math.Sqrt(within/k))
	}
	half := errorOf(t.Quantile(0.975), z)
	out.Low, out.High = max(-1, out.Gain-half), min(1, out.Gain+half)
	out.Detectable = min(1, errorOf(t.Quantile(0.975)+t.Quantile(0.80), z+zPower))
	return out, nil
}

// variance estimates that of Gain, with half a question more in each of the four
// cells, so that a difference never seen is not known to be none (Agresti and
// Min 2005, Statistics in Medicine 24:729).
func (p Pair) variance() float64 {
	n, d := float64(p.N)+2, float64(p.Fixed-p.Broken)
	return (float64(p.Fixed+p.Broken) + 1 - d*d/n) / (n * n)
}

// Claim says whether the gain may be called an improvement of at least size:
// enough seeds, a mean of that size, a lower bound and every seed above 0, and
// no less than what the questions can detect. It returns the reasons why not.
func (p Pooled) Claim(size, detectable float64) (ok bool, why []string) {
	refuse := func(when bool, format string, args ...any) {
		if when {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	refuse(p.Seeds < SeedsToClaim, "%d seeds, want %d", p.Seeds, SeedsToClaim)
	refuse(p.Gain < size, "mean gain %.1f points, want %.1f", 100*p.Gain, 100*size)
	refuse(p.Low <= 0, "lower bound %.1f points, want more than 0", 100*p.Low)
	refuse(p.Least <= 0, "one seed gains %.1f points, want more than 0", 100*p.Least)
	refuse(p.Gain < detectable, "mean gain %.1f points, detectable are %.1f", 100*p.Gain, 100*detectable)
	return why == nil, why
}
