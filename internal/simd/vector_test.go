package simd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var (
	inf    = float32(math.Inf(1))
	nan    = float32(math.NaN())
	lowest = math.Float32frombits(1) // the smallest denormal
)

// close64 reports whether got is want within a relative and an absolute error.
func close64(got float32, want, relative, absolute float64) bool {
	return math.Abs(float64(got)-want) <= relative*math.Abs(want)+absolute
}

func sigma(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func gelu(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

// slope is a central difference.
func slope(f func(float64) float64, x float64) float64 {
	const h = 1e-5
	return (f(x+h) - f(x-h)) / (2 * h)
}

func TestExpSub(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for n := range 41 {
			x := make([]float32, n+1)[1:]
			for i := range x {
				x[i] = float32(r.Float64()*170 - 85)
			}
			dst := make([]float32, n)
			sum, want := ExpSub(dst, x, 1.5), 0.0
			for i, v := range x {
				e := math.Exp(float64(v - 1.5))
				want += e
				if !close64(dst[i], e, 1e-6, 1e-38) {
					t.Errorf("n=%d: exp(%v) = %v, want %v", n, v-1.5, dst[i], e)
				}
			}
			if !close64(sum, want, 2e-6, 0) {
				t.Errorf("n=%d: sum %v, want %v", n, sum, want)
			}
		}
	})
}

func TestExpSubExtremes(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		x := []float32{-inf, inf, 0, lowest, -lowest, -104, -87, 88, 100, nan}
		got := make([]float32, len(x))
		ExpSub(got, x, 0)
		for i, want := range []float64{0, math.Inf(1), 1, 1, 1, 0, math.Exp(-87), math.Exp(88), math.Inf(1)} {
			if float64(got[i]) != want && !close64(got[i], want, 1e-6, 1.2e-38) {
				t.Errorf("exp(%v) = %v, want %v", x[i], got[i], want)
			}
		}
		if last := got[len(got)-1]; last == last {
			t.Errorf("exp(NaN) = %v", last)
		}
		if sum := ExpSub(got[:3], []float32{-inf, -inf, -inf}, 0); sum != 0 {
			t.Errorf("a masked row sums to %v", sum)
		}
	})
}

// Zeros behind a row (masked keys) must not change the bits of its sum.
func TestExpSubElementsStandAlone(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		x := random(rand.New(rand.NewPCG(1, 9)), 37)
		whole, one := make([]float32, len(x)), make([]float32, 1)
		ExpSub(whole, x, 0.3)
		for i := range x {
			if ExpSub(one, x[i:i+1], 0.3); one[0] != whole[i] {
				t.Errorf("element %d has other bits alone", i)
			}
		}
	})
}

func TestActivations(t *testing.T) {
	silu := func(x float64) float64 { return x * sigma(x) }
	exact := func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }
	eachKernelSet(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for n := range 41 {
			x, up, dy := random(r, n), random(r, n), random(r, n)
			for i := range x {
				x[i] *= 4
			}
			out, dGate, dUp, act, dx := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
			SiLU(out, x, up)
			SiLUBackward(dGate, dUp, x, up, dy)
			GELUTanh(act, x)
			GELUTanhBackward(dx, x, dy)
			erf, dErf := make([]float32, n), make([]float32, n)
			GELU(erf, x)
			GELUBackward(dErf, x, dy)
			for i := range n {
				v, u, d := float64(x[i]), float64(up[i]), float64(dy[i])
				for _, c := range []struct {
					name           string
					got            float32
					want, absolute float64
				}{
					{"SiLU", out[i], silu(v) * u, 1e-7},
					{"SiLUBackward dGate", dGate[i], d * u * slope(silu, v), 1e-6},
					{"SiLUBackward dUp", dUp[i], d * silu(v), 1e-7},
					{"GELUTanh", act[i], gelu(v), 1e-6},
					{"GELUTanhBackward", dx[i], d * slope(gelu, v), 2e-6},
					{"GELU", erf[i], exact(v), 1e-7},
					{"GELUBackward", dErf[i], d * slope(exact, v), 1e-6},
				} {
					if !close64(c.got, c.want, 3e-6, c.absolute) {
						t.Errorf("%s n=%d at %v: %v, want %v", c.name, n, v, c.got, c.want)
					}
				}
			}
		}
	})
}

func TestNormal(t *testing.T) {
	for z := -9.0; z <= 9; z += 1. / 1001 {
		cdf, density := normal(z)
		wantCDF, want := 0.5*math.Erfc(-z/math.Sqrt2), math.Exp(-z*z/2)/math.Sqrt(2*math.Pi)
		if !close64(float32(cdf), wantCDF, 1e-7, 1e-15) || !(math.Abs(cdf-wantCDF) <= 1e-9*wantCDF+1e-15) || !(math.Abs(density-want) <= 1e-9*want+1e-14) {
			t.Fatalf("at %v: %v and %v, want %v and %v", z, cdf, density, wantCDF, want)
		}
	}
	if cdf, density := normal(math.NaN()); cdf == cdf || density == density {
		t.Errorf("at NaN: %v and %v", cdf, density)
	}
}

func TestActivationsFarOut(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		x := []float32{-1e4, -100, 100, 1e4, 0}
		one := []float32{1, 1, 1, 1, 1}
		got := make([]float32, len(x))
		check := func(name string, want []float32) {
			t.Helper()
			for i := range got {
				if !close64(got[i], float64(want[i]), 0, 1e-5) {
					t.Errorf("%s(%v) = %v, want %v", name, x[i], got[i], want[i])
				}
			}
		}
		SiLU(got, x, one)
		check("SiLU", []float32{0, 0, 100, 1e4, 0})
		GELUTanh(got, x)
		check("GELUTanh", []float32{0, 0, 100, 1e4, 0})
		GELUTanhBackward(got, x, one)
		check("GELUTanhBackward", []float32{0, 0, 1, 1, 0.5})
	})
}

func TestLinear(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for n := range 100 {
			x, y := random(r, n+1)[1:], random(r, n)
			add, mul, axpy, scaled := make([]float32, n), make([]float32, n), slices.Clone(y), slices.Clone(x)
			Add(add, x, y)
			Mul(mul, x, y)
			Axpy(2.5, x, axpy)
			Scale(-3, scaled)
			var dot, sum, size float64
			for i := range x {
				a, b := float64(x[i]), float64(y[i])
				dot, sum, size = dot+a*b, sum+a, size+math.Abs(a*b)+math.Abs(a)
				if add[i] != x[i]+y[i] || mul[i] != x[i]*y[i] || scaled[i] != -3*x[i] || !close64(axpy[i], 2.5*a+b, 1e-6, 1e-6) {
					t.Fatalf("n=%d i=%d: add %v mul %v scale %v axpy %v", n, i, add[i], mul[i], scaled[i], axpy[i])
				}
			}
			if !close64(Dot(x, y), dot, 0, 1e-6*size) || !close64(Sum(x), sum, 0, 1e-6*size) {
				t.Fatalf("n=%d: dot %v want %v, sum %v want %v", n, Dot(x, y), dot, Sum(x), sum)
			}
			if n > 0 && Max(x) != slices.Max(x) {
				t.Fatalf("n=%d: max %v, want %v", n, Max(x), slices.Max(x))
			}
		}
		if Max(nil) != -inf {
			t.Error("the maximum of nothing is not -Inf")
		}
	})
}

// Masked stores must not touch what lies behind a slice.
func TestNeighboursAreKept(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		for n := range 17 {
			buf := make([]float32, n+8)
			x := buf[:n]
			ExpSub(x, x, 0)
			SiLU(x, x, x)
			GELUTanh(x, x)
			Add(x, x, x)
			Scale(3, x)
			Axpy(1, x, x)
			for i, v := range buf[n:] {
				if v != 0 {
					t.Fatalf("n=%d: element %d behind the slice became %v", n, i, v)
				}
			}
		}
	})
}

func TestForCoversOnce(t *testing.T) {
	for _, threads := range []int{0, 1, 2, 3, 8} {
		for _, n := range []int{0, 1, 2, 5, 17} {
			seen := make([]int32, n)
			For(threads, n, func(lo, hi int) {
				for i := lo; i < hi; i++ {
					seen[i]++ // ranges are disjoint, which -race checks
				}
			})
			for i, times := range seen {
				if times != 1 {
					t.Fatalf("threads=%d n=%d: %d visited %d times", threads, n, i, times)
				}
			}
		}
	}
}

func BenchmarkSiLU(b *testing.B) {
	x := random(rand.New(rand.NewPCG(1, 1)), 4096)
	dst := make([]float32, len(x))
	for b.Loop() {
		SiLU(dst, x, x)
	}
	b.SetBytes(int64(4 * len(x)))
}
