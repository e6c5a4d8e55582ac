package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// sameBits runs compute with AVX2 and with AVX-512 and holds the results
// against each other, NaN and signs of zero included.
func sameBits(t *rapid.T, what string, compute func() []float32) {
	defer func(have bool) { useAVX512 = have }(useAVX512)
	useAVX512 = false
	want := compute()
	useAVX512 = true
	for i, v := range compute() {
		if got, want := math.Float32bits(v), math.Float32bits(want[i]); got != want {
			t.Fatalf("%s: element %d is %#08x with AVX-512, %#08x with AVX2", what, i, got, want)
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
