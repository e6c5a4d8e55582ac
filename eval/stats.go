package eval

import "math"

// An Interval is a proportion with its 95 % confidence bounds.
type Interval struct {
	N     int     `json:"n"`
	Right int     `json:"right"`
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Wilson returns the Wilson score interval at 95 % for right out of n
// (Wilson 1927). With n = 0 it spans [0, 1].
func Wilson(right, n int) Interval {
	if n == 0 {
		return Interval{High: 1}
	}
	const z = 1.959963984540054
	p, m := float64(right)/float64(n), float64(n)
	centre := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return Interval{n, right, p, max(0, centre-half), min(1, centre+half)}
}

// A Pair is McNemar's comparison of two policies on the same questions.
type Pair struct {
	N      int     `json:"n"`
	Fixed  int     `json:"fixed"`  // wrong before, right after
	Broken int     `json:"broken"` // right before, wrong after
	Gain   float64 `json:"gain"`   // difference of accuracies, after - before
	P      float64 `json:"p"`      // exact two-sided binomial test on the discordant pairs
}

// McNemar compares before and after, which must hold the same questions.
func McNemar(before, after []bool) Pair {
	if len(before) != len(after) {
		panic("eval: McNemar on lists of different length")
	}
	pair := Pair{N: len(before), P: 1}
	for i := range before {
		switch {
		case !before[i] && after[i]:
			pair.Fixed++
		case before[i] && !after[i]:
			pair.Broken++
		}
	}
	if pair.N > 0 {
		pair.Gain = float64(pair.Fixed-pair.Broken) / float64(pair.N)
	}
	pair.P = binomialTwoSided(min(pair.Fixed, pair.Broken), pair.Fixed+pair.Broken)
	return pair
}

// binomialTwoSided is 2·P(X ≤ k), X ~ B(n, ½), capped at 1.
func binomialTwoSided(k, n int) float64 {
	if n == 0 {
		return 1
	}
	sum := 0.0
	for i := 0; i <= k; i++ {
		sum += math.Exp(logChoose(n, i) - float64(n)*math.Ln2)
	}
	return min(1, 2*sum)
}

func logChoose(n, k int) float64 {
	lgamma := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
	return lgamma(n) - lgamma(k) - lgamma(n-k)
}
