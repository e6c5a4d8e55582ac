package control

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/eval"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// A measurement within these of the anatomical truth does not mislead: half the
// width of the CTR's borderline band (0.48 to 0.52), and for the others about
// what tells a side.
var tolerance = map[string]float64{rollout.CTR: 0.02, rollout.Asymmetry: 0.1, rollout.Shift: 0.02}

// SwapAtLeast is how far the CTR of a swapped bundle lies from the film's own.
const SwapAtLeast = 0.1

// fixedBundle are tools that measured this.
type fixedBundle struct {
	loop.Tools
	bundle rollout.Bundle
}

func (t fixedBundle) Measure(context.Context, [][]byte, []dataset.Image) (rollout.Bundle, error) {
	return t.bundle, nil
}

// gates measures every study and changes what is admitted or what it says.
func (b *Bench) gates(ctx context.Context, cond eval.Condition, samples []dataset.Sample) (change, error) {
	own, err := b.Bundles(ctx, samples)
	if err != nil {
		return nil, err
	}
	var shown []rollout.Bundle
	switch cond {
	case eval.GateOracle:
		shown, err = b.byTruth(samples, own)
	case eval.GateRandom:
		shown = byChance(own, b.Seed)
	default:
		shown = swapped(samples, own, b.Seed)
	}
	return func(i int, p parts) parts { p.tools = fixedBundle{p.tools, shown[i]}; return p }, err
}

// admitting is a bundle with other admissions.
func admitting(b rollout.Bundle, admit func(rollout.Measurement) bool) rollout.Bundle {
	b.Measurements = slices.Clone(b.Measurements)
	some := false
	for i := range b.Measurements {
		m := &b.Measurements[i]
		m.Admitted = m.Computed && admit(*m)
		some = some || m.Admitted
	}
	switch {
	case !some:
		b.Image = -1
	case b.Image < 0: // what a withheld bundle holds is of the first image
		b.Image = 0
	}
	return b
}

// byTruth admits what lies near the anatomical truth: each measurement by
// itself, or the bundle where all that it holds does.
func (b *Bench) byTruth(samples []dataset.Sample, own []rollout.Bundle) ([]rollout.Bundle, error) {
	truths, err := b.truths(samples)
	if err != nil {
		return nil, err
	}
	out := make([]rollout.Bundle, len(own))
	for i, t := range truths {
		truth := map[string]float64{rollout.CTR: t.Anatomical.CTR, rollout.Asymmetry: t.Anatomical.Asymmetry, rollout.Shift: t.Anatomical.Shift}
		near := func(m rollout.Measurement) bool {
			return t.View != phantom.Lateral && math.Abs(m.Value-truth[m.Name]) <= tolerance[m.Name]
		}
		if b.Whole && slices.ContainsFunc(own[i].Measurements, func(m rollout.Measurement) bool { return m.Computed && !near(m) }) {
			near = func(rollout.Measurement) bool { return false }
		}
		out[i] = admitting(own[i], near)
	}
	return out, nil
}

// byChance deals the gate's decisions out anew, whole bundles at a time.
func byChance(own []rollout.Bundle, seed uint64) []rollout.Bundle {
	open := make([]bool, len(own))
	for i, b := range own {
		open[i] = len(b.Admit(rollout.GateOn)) > 0
	}
	open = permuted(open, seed)
	out := make([]rollout.Bundle, len(own))
	for i, b := range own {
		out[i] = admitting(b, func(rollout.Measurement) bool { return open[i] })
	}
	return out
}

// swapped replaces every bundle that the gate admits by another study's that it
// admits too, whose CTR is far from the film's own. Where there is none, and
// where nothing is admitted, the film keeps its own.
func swapped(samples []dataset.Sample, own []rollout.Bundle, seed uint64) []rollout.Bundle {
	order := rand.New(rand.NewPCG(seed, 0x6a09e667)).Perm(len(own))
	out := slices.Clone(own)
	for k, i := range order {
		mine, ok := admittedCTR(own[i])
		if !ok {
			continue
		}
		for step := 1; step < len(order); step++ {
			j := order[(k+step)%len(order)]
			theirs, ok := admittedCTR(own[j])
			if ok && samples[i].Study != samples[j].Study && math.Abs(mine-theirs) >= SwapAtLeast {
				out[i] = own[j]
				out[i].Image = own[i].Image
				break
			}
		}
	}
	return out
}

func admittedCTR(b rollout.Bundle) (float64, bool) {
	m, ok := b.Find(rollout.CTR)
	return m.Value, ok && m.Admitted && m.Computed
}
