package eval

import "math"

// z is the 97.5 % point of the standard normal distribution; zPower the 80 % point.
const (
	z      = 1.959963984540054
	zPower = 0.8416212335729143
)

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
	p, m := float64(right)/float64(n), float64(n)
	centre := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return Interval{n, right, p, max(0, centre-half), min(1, centre+half)}
}

// A Pair is McNemar's comparison of two policies on the same questions.
type Pair struct {
	N          int     `json:"n"`
	Fixed      int     `json:"fixed"`  // wrong before, right after
	Broken     int     `json:"broken"` // right before, wrong after
	Gain       float64 `json:"gain"`   // difference of accuracies, after - before
	Low        float64 `json:"low"`    // 95 % interval of Gain
	High       float64 `json:"high"`
	P          float64 `json:"p"`          // exact two-sided binomial test on the discordant pairs
	Detectable float64 `json:"detectable"` // gain found with 80 % power at this n and churn
}

// McNemar compares before and after, which must hold the same questions.
func McNemar(before, after []bool) Pair {
	if len(before) != len(after) {
		panic("eval: McNemar on lists of different length")
	}
	fixed, broken := 0, 0
	for i := range before {
		switch {
		case !before[i] && after[i]:
			fixed++
		case before[i] && !after[i]:
			broken++
		}
	}
	return NewPair(fixed, broken, len(before))
}

// NewPair is the comparison with fixed and broken out of n questions. The test
// is McNemar's (1947) in its exact form; the interval is Bonett and Price's
// (2012), Wald's with one question added to each discordant cell.
func NewPair(fixed, broken, n int) Pair {
	p := Pair{N: n, Fixed: fixed, Broken: broken, P: 1, Low: -1, High: 1, Detectable: 1}
	if n == 0 {
		return p
	}
	p.Gain = float64(fixed-broken) / float64(n)
	p.P = binomialTwoSided(min(fixed, broken), fixed+broken)
	p.Detectable = Detectable(n, float64(fixed+broken)/float64(n))
	m := float64(n + 2)
	up, down := float64(fixed+1)/m, float64(broken+1)/m
	half := z * math.Sqrt((up+down-(up-down)*(up-down))/m)
	p.Low, p.High = max(-1, up-down-half), min(1, up-down+half)
	return p
}

// Detectable returns the smallest difference of two paired proportions that a
// two-sided test at 5 % finds with 80 % power in n pairs, of which the share
// discordant disagrees: Connor's (1987, Biometrics 43:207) sample size
//
//	n = (z_α/2·√ψ + z_β·√(ψ−δ²))² / δ²
//
// solved for δ. It is 1 where n or the share is 0, and at most the share itself.
func Detectable(n int, discordant float64) float64 {
	if n == 0 || discordant <= 0 {
		return 1
	}
	need := func(d float64) float64 {
		r := z*math.Sqrt(discordant) + zPower*math.Sqrt(max(0, discordant-d*d))
		return r * r / (d * d)
	}
	low, high := 0.0, discordant
	for range 60 { // need falls in d
		if d := (low + high) / 2; need(d) > float64(n) {
			low = d
		} else {
			high = d
		}
	}
	return high
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
