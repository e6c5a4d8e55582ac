package embedded

import (
	"fmt"
	"math"

	"xragent/internal/simd"
	"xragent/trainer/batch"

	G "gorgonia.org/gorgonia"
)

type objectiveKind int

const (
	likelihood objectiveKind = iota // "sft"
	clipped                         // "grpo"
)

func parseObjective(o batch.Objective) (objectiveKind, error) {
	switch o.Kind {
	case "sft":
		return likelihood, nil
	case "grpo":
		return clipped, nil
	}
	return 0, fmt.Errorf("objective kind is %q, want \"sft\" or \"grpo\"", o.Kind)
}

// logprob returns the log-softmax of each logits row at its target.
func (b *builder) logprob(logits *G.Node) *G.Node {
	f, n := b.feed, width(logits)
	entropy := make([]float64, logits.Shape()[0])
	lse := make([]float32, logits.Shape()[0])
	return b.apply("logprob", logits.Shape()[:1].Clone(), G.Nodes{logits}, func(v [][]float32, out []float32) {
		simd.For(f.threads, f.targets, func(lo, hi int) {
			weights := make([]float32, n)
			for i := lo; i < hi; i++ {
				row := v[0][i*n : (i+1)*n]
				top := simd.Max(row)
				sum := simd.ExpSub(weights, row, top)
				lse[i] = top + float32(math.Log(float64(sum)))
				entropy[i] = float64(lse[i] - simd.Dot(weights, row)/sum)
				out[i] = row[f.target[i].id] - lse[i]
			}
		})
		for _, h := range entropy[:f.targets] {
			f.sums.entropy += h
		}
	}, func(out, dlp *G.Node) *G.Node {
		return b.like(logits, "logprob_dx", G.Nodes{dlp, logits, out}, func(v [][]float32, d []float32) {
			simd.For(f.threads, f.targets, func(lo, hi int) {
				for i := lo; i < hi; i++ {
					row := d[i*n : (i+1)*n]
					simd.ExpSub(row, v[1][i*n:(i+1)*n], lse[i])
					simd.Scale(-v[0][i], row)
					row[f.target[i].id] += v[0][i]
				}
			})
		})
	})
}

// objective is the loss of the micro-batch: its tokens' terms over the whole
// batch's token count. It is the graph's last node, so the gradient that flows
// into it is 1.
func (b *builder) objective(logprob *G.Node) *G.Node {
	f := b.feed
	return b.apply("objective", scalar(), G.Nodes{logprob}, func(v [][]float32, out []float32) {
		total := 0.0
		for i, t := range f.target[:f.targets] {
			loss, _ := f.term(t, v[0][i])
			total += loss
			f.observe(t, v[0][i])
		}
		f.sums.loss = total / f.tokens
		out[0] = float32(f.sums.loss)
	}, func(_, _ *G.Node) *G.Node {
		return b.like(logprob, "objective_dx", G.Nodes{logprob}, func(v [][]float32, d []float32) {
			for i, t := range f.target[:f.targets] {
				_, slope := f.term(t, v[0][i])
				d[i] = float32(slope / f.tokens)
			}
		})
	})
}

// term returns one token's loss and its derivative by the log-prob: −lp, or the
// clipped surrogate −min(ρA, clip(ρ)A) with ρ = exp(lp − behaviour)
// (Schulman et al. 2017).
func (f *feed) term(t target, lp float32) (loss, slope float64) {
	if f.kind == likelihood {
		return -float64(lp), -1
	}
	ratio, advantage := f.ratio(t, lp), float64(t.advantage)
	bounded := min(max(ratio, float64(f.clip[0])), float64(f.clip[1]))
	if bounded*advantage < ratio*advantage {
		return -bounded * advantage, 0
	}
	return -ratio * advantage, -ratio * advantage
}

func (f *feed) ratio(t target, lp float32) float64 {
	return math.Exp(float64(lp) - float64(t.behaviour))
}

// observe counts one token for the step's statistics. kl is the k3 estimate
// ρ − 1 − log ρ (Schulman 2020).
func (f *feed) observe(t target, lp float32) {
	if f.kind == likelihood {
		return
	}
	ratio, log := f.ratio(t, lp), float64(lp)-float64(t.behaviour)
	f.sums.kl += ratio - 1 - log
	f.sums.diff += math.Abs(log)
	if t.advantage < 0 && ratio < float64(f.clip[0]) {
		f.sums.low++
	}
	if t.advantage > 0 && ratio > float64(f.clip[1]) {
		f.sums.high++
	}
}
