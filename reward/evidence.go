package reward

import (
	"math"
	"slices"

	"xragent/rollout"
)

// scales orders each measurement's categories, so that "borderline" has
// neighbours. A category outside its scale must be copied as it is.
var scales = map[string][]string{
	rollout.CTR: {"normal", "borderline", "enlarged"},
}

const borderline = "borderline"

// evidence is R_CXR and the number of fabricated claims: numbers given for a
// measurement that turn 2 was not shown. Any of them makes the term 0. Where no
// relevant measurement was shown it is 1, for the whole group alike; else the
// share of those that are cited with value and category.
func (c Config) evidence(claims []rollout.Claim, b rollout.Bundle, relevant []string) (term float64, fabricated int) {
	for _, claim := range claims {
		if slices.Contains(rollout.Measurements, claim.Name) && !slices.Contains(b.Shown, claim.Name) {
			fabricated++
		}
	}
	if fabricated > 0 {
		return 0, fabricated
	}
	due, cited := 0, 0
	for _, name := range rollout.Measurements {
		m, ok := b.Find(name)
		if !ok || !slices.Contains(relevant, name) || !slices.Contains(b.Shown, name) {
			continue
		}
		due++
		if c.cites(claims, m) {
			cited++
		}
	}
	if due == 0 {
		return 1, 0
	}
	return float64(cited) / float64(due), 0
}

// cites reports whether m is cited, and every claim about it is true: naming
// several values until one fits earns nothing.
func (c Config) cites(claims []rollout.Claim, m rollout.Measurement) bool {
	const rounding = 1e-9 // 0.505 is not exactly 0.5 + 0.005
	found := false
	for _, claim := range claims {
		if claim.Name != m.Name {
			continue
		}
		if !(math.Abs(claim.Value-m.Value) <= c.Tolerance+rounding) || !sameCategory(m, claim.Category) {
			return false
		}
		found = true
	}
	return found
}

// sameCategory accepts the bundle's category; a borderline value is also
// accepted under both neighbours' names.
func sameCategory(m rollout.Measurement, claimed string) bool {
	if claimed == m.Category {
		return true
	}
	scale := scales[m.Name]
	at, to := slices.Index(scale, borderline), slices.Index(scale, claimed)
	return m.Category == borderline && at >= 0 && to >= 0 && (to == at-1 || to == at+1)
}
