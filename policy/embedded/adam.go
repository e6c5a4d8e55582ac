package embedded

import (
	"fmt"
	"math"

	"xragent/internal/simd"
	"xragent/trainer/batch"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// adamW is Adam with decoupled weight decay (Loshchilov and Hutter 2019) as a
// Gorgonia solver. Its moments lie in slabs like the weights'.
type adamW struct {
	batch.Adam
	rate    float64
	threads int
	steps   int // taken
	moment  [2][]float32
}

// A parameter is a tensor with its gradient.
type parameter struct {
	Tensor
	lo          int // where it lies in the slab
	value, grad *tensor.Dense
}

// Value and Grad make a parameter a Gorgonia ValueGrad.
func (p parameter) Value() G.Value         { return p.value }
func (p parameter) Grad() (G.Value, error) { return p.grad, nil }

// parameters pairs w's tensors with their gradients in a slab.
func parameters(w *Weights, gradient []float32) []parameter {
	var all []parameter
	lo := 0
	for _, t := range w.tensors {
		hi := lo + len(t.Data)
		all = append(all, parameter{Tensor: t, lo: lo,
			value: tensor.New(tensor.WithShape(t.Shape...), tensor.WithBacking(t.Data)),
			grad:  tensor.New(tensor.WithShape(t.Shape...), tensor.WithBacking(gradient[lo:hi:hi]))})
		lo = hi
	}
	return all
}

func newAdamW(n, threads int) adamW {
	return adamW{threads: threads, moment: [2][]float32{make([]float32, n), make([]float32, n)}}
}

// take makes one step with the objective's constants.
func (a *adamW) take(params []parameter, o batch.Objective) error {
	a.Adam, a.rate = o.Weight, o.LR
	model := make([]G.ValueGrad, len(params))
	for i, p := range params {
		model[i] = p
	}
	return a.Step(model)
}

// Step updates every parameter. It makes adamW a Gorgonia solver.
func (a *adamW) Step(model []G.ValueGrad) error {
	a.steps++
	for _, vg := range model {
		p, ok := vg.(parameter)
		if !ok {
			return fmt.Errorf("optimizer given a %T, want a parameter", vg)
		}
		simd.For(a.threads, len(p.Data), func(lo, hi int) { a.update(p, lo, hi) })
	}
	return nil
}

// checkObjective refuses constants that would spoil the weights.
func checkObjective(o batch.Objective) error {
	for _, c := range []struct {
		name   string
		value  float64
		lo, hi float64 // value must lie in [lo, hi)
	}{
		{"lr", o.LR, 0, maxRate}, {"beta1", o.Weight.Beta1, 0, 1}, {"beta2", o.Weight.Beta2, 0, 1},
		{"eps", o.Weight.Eps, minEps, 1}, {"decay", o.Weight.Decay, 0, math.Inf(1)}, {"lr·decay", o.LR * o.Weight.Decay, 0, 1},
		{"max_norm", o.MaxNorm, 0, math.Inf(1)}, {"temperature", o.Temperature, 0, math.Inf(1)},
	} {
		if !(c.value >= c.lo && c.value < c.hi) {
			return fmt.Errorf("objective: %s is %v, must lie in [%.3g, %v)", c.name, c.value, c.lo, c.hi)
		}
	}
	if o.Kind == "grpo" {
		if err := o.Loss.Ready(); err != nil {
			return fmt.Errorf("objective: loss.%w", err)
		}
	}
	return nil
}

// update moves elements [lo, hi) of one parameter. Vectors, that is norms and
// biases, do not decay.
func (a *adamW) update(p parameter, lo, hi int) {
	rule := simd.AdamRule{
		Beta1: float32(a.Beta1), Beta2: float32(a.Beta2), Keep: 1, Eps: float32(a.Eps),
		Step:   float32(a.rate / (1 - math.Pow(a.Beta1, float64(a.steps)))),
		Unbias: float32(1 / math.Sqrt(1-math.Pow(a.Beta2, float64(a.steps)))),
	}
	if len(p.Shape) > 1 {
		rule.Keep = float32(1 - a.rate*a.Decay)
	}
	g, m, v := p.grad.Data().([]float32), a.moment[0][p.lo:], a.moment[1][p.lo:]
	rule.Apply(p.Data[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi])
}

// norm returns the Euclidean norm of x, summed in float64 over fixed blocks,
// which are spread over threads.
func norm(threads int, x []float32) float64 {
	const size = 4096
	parts := make([]float64, (len(x)+size-1)/size)
	simd.For(threads, len(parts), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			parts[i] = squares(x[i*size : min((i+1)*size, len(x))])
		}
	})
	total := 0.0
	for _, part := range parts {
		total += part
	}
	return math.Sqrt(total)
}

// squares sums the squares of x in order.
func squares(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return sum
}
