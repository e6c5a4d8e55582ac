package phantom

import (
	"math"
	"math/rand/v2"
	"testing"
)

// What is hidden is gone from the coarse view, and hiding once is enough.
func TestHide(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	v := make([]float32, Size*Size)
	for i := range v {
		v[i] = float32(rng.NormFloat64() * 20)
	}
	before, energy := largest(shrink(v)), norm(v)
	hide(v)
	if after := largest(shrink(v)); after > 1e-4 || before < 1 {
		t.Errorf("the coarse view holds %.2g, before it was hidden %.2g", after, before)
	}
	// A view of a sixteenth of the pixels takes that share of noise.
	if left := norm(v) / energy; math.Abs(left-15./16) > 0.01 {
		t.Errorf("%.3f of the noise is left, want 15/16", left)
	}
	once := append([]float32(nil), v...)
	hide(v)
	for i := range v {
		if math.Abs(float64(v[i]-once[i])) > 1e-3 {
			t.Fatalf("pixel %d: %v once hidden, %v twice", i, once[i], v[i])
		}
	}
}

func largest(v []float64) (most float64) {
	for _, x := range v {
		most = max(most, math.Abs(x))
	}
	return most
}

func norm(v []float32) (sum float64) {
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return sum
}
