package toolserver

import "fmt"

// rates counts a sign's presence against what was reported.
type rates struct{ hit, missed, falseAlarm, quiet int }

func (r *rates) add(present, reported bool) {
	switch {
	case present && reported:
		r.hit++
	case present:
		r.missed++
	case reported:
		r.falseAlarm++
	default:
		r.quiet++
	}
}

func (r *rates) sensitivity() float64 { return float64(r.hit) / float64(max(r.hit+r.missed, 1)) }

func (r *rates) specificity() float64 {
	return float64(r.quiet) / float64(max(r.quiet+r.falseAlarm, 1))
}

func (r *rates) String() string {
	return fmt.Sprintf("sensitivity %.2f (%d of %d), specificity %.2f (%d of %d)",
		r.sensitivity(), r.hit, r.hit+r.missed, r.specificity(), r.quiet, r.quiet+r.falseAlarm)
}
