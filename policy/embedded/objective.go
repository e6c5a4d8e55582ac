package embedded

import (
	"fmt"
	"math"

	"xragent/internal/simd"
	"xragent/trainer/batch"
	"xragent/trainer/loss"

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

// tempered divides the rows that become logits by the temperature that they
// were sampled at. At temperature 1 their bits stay.
func (b *builder) tempered(x *G.Node, rows *int) *G.Node {
	f, n := b.feed, width(x)
	scaled := func(v [][]float32, out []float32) {
		copy(out, v[0][:*rows*n])
		if f.inverse != 1 {
			simd.Scale(f.inverse, out[:*rows*n])
		}
	}
	return b.like(x, "tempered", G.Nodes{x}, scaled, func(_, dy *G.Node) *G.Node {
		return b.like(x, "tempered_dx", G.Nodes{dy}, scaled)
	})
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

// objective is the loss of the micro-batch: its tokens' terms over the
// denominators of the whole batch. It is the graph's last node, so the gradient
// that flows into it is 1.
func (b *builder) objective(logprob *G.Node) *G.Node {
	f := b.feed
	return b.apply("objective", scalar(), G.Nodes{logprob}, func(v [][]float32, out []float32) {
		f.judge(v[0])
		f.observe(v[0])
		f.sums.loss = f.total()
		out[0] = float32(f.sums.loss)
	}, func(_, _ *G.Node) *G.Node {
		return b.like(logprob, "objective_dx", G.Nodes{logprob}, func(v [][]float32, d []float32) {
			f.judge(v[0])
			for _, s := range f.scored {
				divisor := f.divisor(s)
				for i := s.lo; i < s.hi; i++ {
					d[i] = float32(f.terms[i].Slope / divisor)
				}
			}
		})
	})
}

// judge computes every target's term from its log-prob: −log p, or that of
// package loss.
func (f *feed) judge(lp []float32) {
	for _, s := range f.scored {
		terms := f.terms[s.lo:s.hi]
		if f.kind == likelihood {
			for i := range terms {
				terms[i] = loss.Token{Loss: -float64(lp[s.lo+i]), Slope: -1}
			}
			continue
		}
		f.loss.Tokens(f.rowOf(s, lp), terms)
	}
}

// rowOf returns a sequence as package loss reads it, valid until the next call.
func (f *feed) rowOf(s scored, lp []float32) loss.Row {
	r := &f.row
	r.Logprobs, r.Behaviour, r.Reference, r.Advantage = r.Logprobs[:0], r.Behaviour[:0], r.Reference[:0], float64(s.advantage)
	for i, t := range f.target[s.lo:s.hi] {
		r.Logprobs = append(r.Logprobs, float64(lp[s.lo+i]))
		r.Behaviour = append(r.Behaviour, float64(t.behaviour))
		r.Reference = append(r.Reference, float64(t.reference))
	}
	if r.Old = r.Behaviour; f.loss.Old == loss.Learner {
		r.Old = r.Logprobs // this step is the first with these weights
	}
	return *r
}

// divisor returns the denominator of a sequence's terms.
func (f *feed) divisor(s scored) float64 {
	if f.kind == likelihood {
		return float64(f.count.Tokens)
	}
	return f.loss.Divisor(s.hi-s.lo, f.count)
}

// total sums the terms, dividing once wherever consecutive sequences share a
// denominator.
func (f *feed) total() float64 {
	total, part, divisor := 0.0, 0.0, 1.0
	for _, s := range f.scored {
		if d := f.divisor(s); d != divisor {
			total, part, divisor = total+part/divisor, 0, d
		}
		for _, t := range f.terms[s.lo:s.hi] {
			part += t.Loss
		}
	}
	return total + part/divisor
}

// observe counts the tokens for the step's statistics. kl is the k3 estimate
// ρ − 1 − log ρ of the learner against the behaviour policy (Schulman 2020).
func (f *feed) observe(lp []float32) {
	if f.kind == likelihood {
		return
	}
	low, high := f.loss.Bounds()
	for _, s := range f.scored {
		for i := s.lo; i < s.hi; i++ {
			log := float64(lp[i]) - float64(f.target[i].behaviour)
			f.sums.kl += math.Exp(log) - 1 - log
			f.sums.diff += math.Abs(log)
			f.sums.reference += f.terms[i].KL
			f.sums.weight += f.terms[i].Weight
			if s.advantage < 0 && f.terms[i].Ratio < low {
				f.sums.low++
			}
			if s.advantage > 0 && f.terms[i].Ratio > high {
				f.sums.high++
			}
		}
	}
}

// single rounds the bounds of the ratio to float32, the precision that log-probs
// and advantages come in.
func single(c loss.Config) loss.Config {
	low, high := c.Bounds()
	c.ClipLow, c.ClipHigh = 1-float64(float32(low)), float64(float32(high))-1
	return c
}
