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
func parameters(w *Weights, gradient []float32) []G.ValueGrad {
	var all []G.ValueGrad
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

// Step updates every parameter.
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

// update moves elements [lo, hi) of one parameter. Vectors, that is norms and
// biases, do not decay.
func (a *adamW) update(p parameter, lo, hi int) {
	x, g := p.Data[lo:hi], p.grad.Data().([]float32)[lo:hi]
	m, v := a.moment[0][p.lo+lo:p.lo+hi], a.moment[1][p.lo+lo:p.lo+hi]
	b1, b2 := float32(a.Beta1), float32(a.Beta2)
	size := float32(a.rate / (1 - math.Pow(a.Beta1, float64(a.steps))))
	unbias := float32(1 / math.Sqrt(1-math.Pow(a.Beta2, float64(a.steps))))
	keep := float32(1)
	if len(p.Shape) > 1 {
		keep = float32(1 - a.rate*a.Decay)
	}
	eps := float32(a.Eps)
	for i, d := range g {
		m[i] = b1*m[i] + (1-b1)*d
		v[i] = b2*v[i] + (1-b2)*d*d
		root := float32(math.Sqrt(float64(v[i])))
		x[i] = x[i]*keep - size*m[i]/(root*unbias+eps)
	}
}

// norm returns the Euclidean norm of x, summed in float64 over fixed blocks.
func norm(x []float32) float64 {
	const size = 4096
	total := 0.0
	for len(x) > 0 {
		n := min(size, len(x))
		part := 0.0
		for _, v := range x[:n] {
			part += float64(v) * float64(v)
		}
		total += part
		x = x[n:]
	}
	return math.Sqrt(total)
}
