package trainer

import (
	"fmt"
	"slices"
)

const (
	spikeWindow = 20 // steps whose norms tell what is usual
	spikeLeast  = 10 // of them, before the rule acts
)

// norms lists the gradient norms of the steps that trained.
func norms(history []StepRecord) []float64 {
	var found []float64
	for _, r := range history {
		if !r.Skipped {
			found = append(found, r.Stats.GradNorm)
		}
	}
	return found
}

// spikeBound returns the gradient norm above which a step is a spike, given the
// norms of the steps before it: spike times the median of the last ones. 0: no
// bound, because the rule is off or knows too few steps.
func (o Optimizer) spikeBound(norms []float64) float64 {
	last := slices.Clone(norms[max(0, len(norms)-spikeWindow):])
	if o.Spike == 0 || len(last) < spikeLeast {
		return 0
	}
	slices.Sort(last)
	return o.Spike * last[len(last)/2]
}

// markSpike writes down the bound that the step's gradient was cut to, where it
// exceeded it, and says so.
func (r *StepRecord) markSpike(bound float64, notice func(string)) {
	if bound == 0 || r.Stats.GradNorm <= bound {
		return
	}
	r.Spike = bound
	notice(fmt.Sprintf("%s: step %d: gradient norm %.3g is a spike, above %.3g: cut to that; see its rows in the ledger or corpus if it comes again", r.Stage, r.Step, r.Stats.GradNorm, bound))
}
