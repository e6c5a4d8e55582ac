package embedded

import (
	"math"
	"testing"

	"xragent/trainer/batch"
)

// TestAdamW compares three steps with the textbook's form in float64. The
// matrix decays, the vector does not.
func TestAdamW(t *testing.T) {
	w := &Weights{tensors: []Tensor{
		{"matrix", []int{1, 2}, []float32{0.5, -2}},
		{"vector", []int{2}, []float32{1, 3}},
	}}
	gradient := []float32{0.1, -3, 0, 1e-4}
	want := []float64{0.5, -2, 1, 3}
	var m, v [4]float64
	o := batch.Objective{LR: 0.01, Weight: batch.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-6, Decay: 0.1}}
	a := newAdamW(4, 2)
	params := parameters(w, gradient)
	for s := 1; s <= 3; s++ {
		if err := a.take(params, o); err != nil {
			t.Fatal(err)
		}
		for i, g := range gradient {
			m[i] = 0.9*m[i] + 0.1*float64(g)
			v[i] = 0.95*v[i] + 0.05*float64(g)*float64(g)
			mean, square := m[i]/(1-math.Pow(0.9, float64(s))), v[i]/(1-math.Pow(0.95, float64(s)))
			if i < 2 {
				want[i] -= 0.01 * 0.1 * want[i]
			}
			want[i] -= 0.01 * mean / (math.Sqrt(square) + 1e-6)
		}
		gradient[1] = -gradient[1]
	}
	for i, x := range []float32{w.tensors[0].Data[0], w.tensors[0].Data[1], w.tensors[1].Data[0], w.tensors[1].Data[1]} {
		if math.Abs(float64(x)-want[i]) > 2e-6 {
			t.Errorf("element %d is %v, want %v", i, x, want[i])
		}
	}
}

// TestClipping holds the gradient to be scaled down to the bound, never up.
func TestClipping(t *testing.T) {
	l, b := newTestLearner(t, tiny(), 1, 1000), mixedBatch(tiny())
	o := objective("sft", 0)
	o.MaxNorm = 0
	free := step(t, l, b, o).GradNorm
	for _, bound := range []float64{free / 3, free * 3} {
		o.MaxNorm = bound
		if reported := step(t, l, b, o).GradNorm; reported != free {
			t.Errorf("reported norm %v, before clipping it is %v", reported, free)
		}
		if got := norm(1, l.gradient); math.Abs(got-min(bound, free)) > 1e-5*free {
			t.Errorf("norm %v after clipping to %v, want %v", got, bound, min(bound, free))
		}
	}
}
