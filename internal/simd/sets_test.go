package simd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// sameBits runs compute with AVX2 and with AVX-512 and holds the results
// against each other, NaN and signs of zero included.
func sameBits(t *rapid.T, what string, compute func() []float32) {
	t.Helper()
	equalBits(t, what, &useAVX512, compute)
}

// equalBits runs compute without and with a set.
func equalBits(t *rapid.T, what string, set *bool, compute func() []float32) {
	t.Helper()
	defer func(have bool) { *set = have }(*set)
	*set = false
	want := compute()
	*set = true
	for i, v := range compute() {
		if got, want := math.Float32bits(v), math.Float32bits(want[i]); got != want {
			t.Fatalf("%s: element %d is %#08x in %s, %#08x in the set below", what, i, got, Instructions(), want)
		}
	}
}

func needAVX512(t *testing.T) {
	if !useAVX512 {
		t.Skip("no AVX-512 here: not checked that it gives AVX2's bits")
	}
}

func TestAVX512GemmHasAVX2Bits(t *testing.T) {
	needAVX512(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 8))
		m := rapid.OneOf(rapid.IntRange(1, 30), rapid.IntRange(90, 200)).Draw(t, "m")
		n := rapid.OneOf(rapid.IntRange(1, 150), rapid.IntRange(500, 600)).Draw(t, "n")
		k := rapid.SampledFrom([]int{1, 2, 31, 64, 255, 256, 257, 530}).Draw(t, "k")
		p := newProduct(r, rapid.Bool().Draw(t, "transA"), rapid.Bool().Draw(t, "transB"), m, n, k)
		sameBits(t, "Gemm", func() []float32 { return p.gemm(1) })
		before, ldc := random(r, m*(n+5)), n+5
		sameBits(t, "Gemm, accumulating", func() []float32 {
			c := append([]float32(nil), before...)
			Gemm(p.transA, p.transB, m, n, k, p.a, p.lda, p.b, p.ldb, c, ldc, true)
			return c
		})
		if p.transA {
			return
		}
		packed := Pack(p.transB, k, n, p.b, p.ldb)
		sameBits(t, "GemmPacked", func() []float32 {
			c := append([]float32(nil), before...)
			GemmPacked(1, m, p.a, p.lda, packed, c, ldc, false)
			return c
		})
	})
}

// special are the values at which elementwise kernels could part.
var special = []float32{0, float32(math.Copysign(0, -1)), inf, -inf, nan, lowest, -lowest, 88.8, 89.1, -87.4, -88.1, 1e20, -1e20, 3e38}

func TestAVX512VectorsHaveAVX2Bits(t *testing.T) {
	needAVX512(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 9))
		n := rapid.IntRange(0, 200).Draw(t, "n")
		scale := rapid.SampledFrom([]float32{0.1, 1, 30}).Draw(t, "scale")
		values := func() []float32 {
			x := random(r, n+1)[1:]
			for i := range x {
				x[i] *= scale
				if r.IntN(20) == 0 {
					x[i] = special[r.IntN(len(special))]
				}
			}
			return x
		}
		x, y, z := values(), values(), values()
		into := func(f func(dst []float32)) func() []float32 {
			return func() []float32 {
				dst := make([]float32, n+20) // what lies behind must stay
				f(dst[:n])
				return dst
			}
		}
		sameBits(t, "ExpSub", func() []float32 {
			dst := make([]float32, n+20)
			return append(dst, ExpSub(dst[:n], x, 0.7))
		})
		sameBits(t, "SiLU", into(func(dst []float32) { SiLU(dst, x, y) }))
		sameBits(t, "GELUTanh", into(func(dst []float32) { GELUTanh(dst, x) }))
		sameBits(t, "GELUTanhBackward", into(func(dst []float32) { GELUTanhBackward(dst, x, y) }))
		sameBits(t, "SiLUBackward", func() []float32 {
			dst := make([]float32, 2*(n+20))
			SiLUBackward(dst[:n], dst[n+20:2*n+20], x, y, z)
			return dst
		})
	})
}

// What multiplies and adds without fusing has the portable set's bits.
func TestAVX2UnfusedHasPortableBits(t *testing.T) {
	if !useAVX2 {
		t.Skip("no AVX2 here: not checked that its unfused functions give the portable bits")
	}
	defer func(have bool) { useAVX512 = have }(useAVX512)
	useAVX512 = false
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 10))
		n := rapid.IntRange(0, 70).Draw(t, "n")
		x, g, m, v := random(r, n+1)[1:], random(r, n), random(r, n), random(r, n)
		for i := range v {
			v[i] *= v[i]
		}
		rule := AdamRule{Beta1: 0.9, Beta2: 0.95, Step: 0.01, Unbias: 1.3, Keep: 0.999, Eps: 1e-8}
		equalBits(t, "AdamRule", &useAVX2, func() []float32 {
			all := slices.Concat(x, m, v, []float32{1, 2, 3})
			rule.Apply(all[:n], g, all[n:2*n], all[2*n:3*n])
			return all
		})
		equalBits(t, "SoftmaxBackward", &useAVX2, func() []float32 {
			dx := slices.Concat(x, []float32{1, 2, 3})
			SoftmaxBackward(dx[:n], g, 0.3, 0.7)
			return dx
		})
		equalBits(t, "Turn", &useAVX2, func() []float32 {
			half := n / 2
			dst := make([]float32, n+3)
			Turn(dst, x, g[:half], m[:half], -1)
			return dst
		})
	})
}

func TestAdamRule(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		x, m, v := []float32{1}, []float32{0.5}, []float32{0.25}
		AdamRule{Beta1: 0.9, Beta2: 0.99, Step: 0.1, Unbias: 2, Keep: 0.98, Eps: 0.01}.Apply(x, []float32{2}, m, v)
		for _, c := range []struct {
			got  float32
			want float64
		}{{m[0], 0.65}, {v[0], 0.2875}, {x[0], 0.98 - 0.1*0.65/(2*math.Sqrt(0.2875)+0.01)}} {
			if !close64(c.got, c.want, 1e-6, 0) {
				t.Errorf("%v, want %v", c.got, c.want)
			}
		}
	})
}

func TestFinite(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		for n := range 20 {
			x := make([]float32, n+1)[:n]
			for i := range x {
				x[i] = []float32{-1, 3e38, lowest, float32(math.Copysign(0, -1))}[i%4]
			}
			if !Finite(x) {
				t.Fatalf("%v is finite", x)
			}
			for i, before := range x {
				for _, bad := range []float32{nan, inf, -inf} {
					if x[i] = bad; Finite(x) {
						t.Fatalf("%v at %d of %d was called finite", bad, i, n)
					}
				}
				x[i] = before
			}
		}
	})
}
