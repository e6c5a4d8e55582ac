package eval

import "math"

// A Stratum is one 2 × 2 table: how often something happens among the exposed
// and among the others.
type Stratum struct {
	Name      string `json:"name"`
	Yes       int    `json:"yes"` // of the N exposed
	N         int    `json:"n"`
	OthersYes int    `json:"others_yes"`
	OthersN   int    `json:"others_n"`
}

// A Ratio is a common ratio over strata with its 95 % interval. It is not known
// where no stratum holds both outcomes on both sides.
type Ratio struct {
	Known bool    `json:"known"`
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// OddsRatio is Mantel and Haenszel's (1959) common odds ratio over strata, with
// the interval by the variance of its logarithm of Robins, Breslow and
// Greenland (1986, Biometrics 42:311).
func OddsRatio(strata []Stratum) Ratio {
	var r, s, pr, mixed, qs float64
	for _, t := range strata {
		a, b := float64(t.Yes), float64(t.N-t.Yes)
		c, d := float64(t.OthersYes), float64(t.OthersN-t.OthersYes)
		n := a + b + c + d
		if n == 0 {
			continue
		}
		p, q := (a+d)/n, (b+c)/n
		ri, si := a*d/n, b*c/n
		r, s = r+ri, s+si
		pr, mixed, qs = pr+p*ri, mixed+p*si+q*ri, qs+q*si
	}
	if r == 0 || s == 0 {
		return Ratio{}
	}
	return ratio(r/s, pr/(2*r*r)+mixed/(2*r*s)+qs/(2*s*s))
}

// RateRatio is Mantel and Haenszel's common ratio of rates over strata, exposed
// to others, with the interval by the variance of its logarithm of Greenland
// and Robins (1985, Biometrics 41:55).
func RateRatio(strata []Stratum) Ratio {
	var r, s, v float64
	for _, t := range strata {
		a, c := float64(t.Yes), float64(t.OthersYes)
		n1, n0 := float64(t.N), float64(t.OthersN)
		n := n1 + n0
		if n == 0 {
			continue
		}
		r, s = r+a*n0/n, s+c*n1/n
		v += ((a+c)*n1*n0 - a*c*n) / (n * n)
	}
	if r == 0 || s == 0 {
		return Ratio{}
	}
	return ratio(r/s, v/(r*s))
}

// ratio has its interval on the logarithmic scale.
func ratio(value, variance float64) Ratio {
	f := math.Exp(z * math.Sqrt(variance))
	return Ratio{Known: true, Value: value, Low: value / f, High: value * f}
}
