package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// A product is one matrix product with strides wider than its matrices, at an
// odd offset, so that kernels see unaligned memory.
type product struct {
	transA, transB bool
	m, n, k        int
	a, b           []float32
	lda, ldb       int
}

func newProduct(r *rand.Rand, transA, transB bool, m, n, k int) product {
	ra, ca, rb, cb := m, k, k, n
	if transA {
		ra, ca = ca, ra
	}
	if transB {
		rb, cb = cb, rb
	}
	p := product{transA: transA, transB: transB, m: m, n: n, k: k, lda: ca + 3, ldb: cb + 1}
	p.a = random(r, ra*p.lda+1)[1:]
	p.b = random(r, rb*p.ldb+1)[1:]
	return p
}

// Rows a multiple of 4 KiB apart are copied to where they do not collide.
func TestGemmOfCollidingRows(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, m := range []int{12, 13, 100, 200} {
		const n, k = 160, 600
		p := newProduct(r, false, true, m, n, k)
		want := p.gemm(1)
		apart := p
		apart.lda = 1024
		apart.a = make([]float32, m*apart.lda)
		for i := range m {
			copy(apart.a[i*apart.lda:], p.a[i*p.lda:][:k])
		}
		if !slices.Equal(apart.gemm(1), want) {
			t.Errorf("%d rows that collide give other bits", m)
		}
	}
}

func (p product) left(i, q int) float32 {
	if p.transA {
		return p.a[q*p.lda+i]
	}
	return p.a[i*p.lda+q]
}

func (p product) right(q, j int) float32 {
	if p.transB {
		return p.b[j*p.ldb+q]
	}
	return p.b[q*p.ldb+j]
}

// want returns element (i, j) in float64 and a bound on its rounding error.
func (p product) want(i, j int) (value, bound float64) {
	var size float64
	for q := range p.k {
		term := float64(p.left(i, q)) * float64(p.right(q, j))
		value += term
		size += math.Abs(term)
	}
	return value, 1e-7*float64(p.k+2)*size + 1e-7
}

func (p product) gemm(threads int) []float32 {
	c := make([]float32, p.m*p.n)
	for i := range c {
		c[i] = nan // must be overwritten
	}
	ParallelGemm(threads, p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, c, p.n, false)
	return c
}

func (p product) check(t *testing.T, what string, c []float32) {
	t.Helper()
	for i := range p.m {
		for j := range p.n {
			want, bound := p.want(i, j)
			if got := float64(c[i*p.n+j]); !(math.Abs(got-want) <= bound) {
				t.Fatalf("%s transA=%v transB=%v %dx%dx%d: C[%d,%d] = %v, want %v ± %v",
					what, p.transA, p.transB, p.m, p.n, p.k, i, j, got, want, bound)
			}
		}
	}
}

// eachKernelSet runs test under every kernel set that this machine has.
func eachKernelSet(t *testing.T, test func(t *testing.T)) {
	have2, have512 := useAVX2, useAVX512
	defer func() { useAVX2, useAVX512 = have2, have512 }()
	for _, set := range [][2]bool{{false, false}, {true, false}, {true, true}} {
		if set[0] && !have2 || set[1] && !have512 {
			continue
		}
		useAVX2, useAVX512 = set[0], set[1]
		t.Run(Instructions(), test)
	}
}

func TestGemmEdges(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for m := range 13 {
			for _, n := range []int{1, 2, 7, 15, 16, 17, 31, 33, 40} {
				for _, k := range []int{0, 1, 9, 40} {
					for _, trans := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
						p := newProduct(r, trans[0], trans[1], m+1, n, k)
						p.check(t, "Gemm", p.gemm(1))
					}
				}
			}
		}
	})
}

func TestGemmBlocks(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, trans := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
			p := newProduct(r, trans[0], trans[1], 131, 531, 523)
			p.check(t, "Gemm", p.gemm(2))
		}
	})
}

func TestGemmAccumulatesAndKeepsNeighbours(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		p := newProduct(r, false, true, 7, 19, 5)
		const ldc = 23
		c := make([]float32, p.m*ldc)
		for i := range c {
			c[i] = 2
		}
		Gemm(p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, c, ldc, true)
		for i := range p.m {
			for j := range ldc {
				want, bound := 0.0, 0.0
				if j < p.n {
					want, bound = p.want(i, j)
				}
				if got := float64(c[i*ldc+j]); math.Abs(got-want-2) > bound+1e-6 {
					t.Fatalf("C[%d,%d] = %v, want %v", i, j, got, want+2)
				}
			}
		}
	})
}

// The rule: a row's bits do not depend on what is computed with it.
func TestGemmRule(t *testing.T) {
	eachKernelSet(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 7))
			m := rapid.IntRange(1, 40).Draw(t, "m")
			n := rapid.IntRange(1, 70).Draw(t, "n")
			k := rapid.SampledFrom([]int{1, 5, 32, 128, 300, 600}).Draw(t, "k")
			p := newProduct(r, rapid.Bool().Draw(t, "transA"), rapid.Bool().Draw(t, "transB"), m, n, k)
			whole := p.gemm(1)
			if !slices.Equal(whole, p.gemm(rapid.IntRange(2, 5).Draw(t, "threads"))) {
				t.Fatal("threads change the bits")
			}
			i0 := rapid.IntRange(0, m-1).Draw(t, "row")
			j0 := rapid.IntRange(0, n-1).Draw(t, "column")
			part := p
			part.m, part.n = 1+(m-i0-1)/2, n-j0
			part.a, part.b = skip(p.a, i0, p.lda, p.transA), skip(p.b, j0, p.ldb, !p.transB)
			got := part.gemm(1)
			for i := range part.m {
				if !slices.Equal(got[i*part.n:(i+1)*part.n], whole[(i0+i)*n+j0:(i0+i+1)*n]) {
					t.Fatalf("row %d differs in a product of %d rows from column %d", i0+i, part.m, j0)
				}
			}
			checkPacked(t, p, whole)
			checkPart(t, p)
			checkSplit(t, p, whole)
		})
	})
}

// checkPacked compares the prepacked product, row by row and whole.
func checkPacked(t *rapid.T, p product, whole []float32) {
	if p.transA {
		return
	}
	packed := Pack(p.transB, p.k, p.n, p.b, p.ldb)
	got := make([]float32, p.m*p.n)
	for i := range got {
		got[i] = nan // must be overwritten
	}
	GemmPacked(2, p.m, p.a, p.lda, packed, got, p.n, false)
	if !slices.Equal(got, whole) {
		t.Fatal("packing changes the bits")
	}
	i := p.m / 2
	GemmPacked(1, 1, p.a[i*p.lda:], p.lda, packed, got, p.n, false)
	if !slices.Equal(got[:p.n], whole[i*p.n:(i+1)*p.n]) {
		t.Fatal("a packed product of one row differs")
	}
}

// checkPart writes op(B) some columns at a time or row by row, copies it into another
// and multiplies by the first rows and columns.
func checkPart(t *rapid.T, p product) {
	if p.transA {
		return
	}
	columns, rows := NewPacked(p.k, p.n), NewPacked(p.k, p.n)
	ld := p.k + rapid.IntRange(0, 3).Draw(t, "apart")
	for j := 0; j < p.n; {
		n := rapid.IntRange(1, p.n-j).Draw(t, "columns")
		some := make([]float32, n*ld)
		for i := range n {
			for q := range p.k {
				some[i*ld+q] = p.right(q, j+i)
			}
		}
		columns.SetColumns(j, n, some, ld)
		j += n
	}
	for q := range p.k {
		row := make([]float32, p.n)
		for j := range row {
			row[j] = p.right(q, j)
		}
		rows.SetRow(q, row)
	}
	part := p
	part.n, part.k = 1+p.n/2, 1+p.k/2
	want := part.gemm(1)
	wide, tall := NewPacked(p.k, p.n+40), NewPacked(p.k+7, p.n)
	wide.CopyColumns(16, columns, 0, p.n)
	columns.CopyColumns(0, wide, 16, p.n)
	tall.CopyRows(5, rows, 0, p.k)
	rows.CopyRows(0, tall, 5, p.k)
	for _, packed := range []*Packed{columns, rows} {
		got := make([]float32, p.m*part.n)
		GemmPart(p.m, part.n, part.k, p.a, p.lda, packed, got, part.n, false)
		if !slices.Equal(got, want) {
			t.Fatalf("%d of %d rows and %d of %d columns of a packed matrix give other bits", part.k, p.k, part.n, p.n)
		}
	}
}

// checkSplit computes k in two calls: C carried must be C computed.
func checkSplit(t *rapid.T, p product, whole []float32) {
	half := p.k / 2
	if half == 0 {
		return
	}
	c := make([]float32, p.m*p.n)
	Gemm(p.transA, p.transB, p.m, p.n, half, p.a, p.lda, p.b, p.ldb, c, p.n, false)
	a, b := skip(p.a, half, p.lda, !p.transA), skip(p.b, half, p.ldb, p.transB)
	Gemm(p.transA, p.transB, p.m, p.n, p.k-half, a, p.lda, b, p.ldb, c, p.n, true)
	if !slices.Equal(c, whole) {
		t.Fatal("k in two calls differs from k in one")
	}
}

func TestGemmRefusesShortMatrices(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a matrix smaller than its shape was accepted")
		}
	}()
	Gemm(false, false, 2, 2, 2, make([]float32, 3), 2, make([]float32, 4), 2, make([]float32, 4), 2, false)
}

func BenchmarkGemm(b *testing.B) {
	for _, s := range []struct {
		m, n, k        int
		transA, transB bool
	}{
		{2048, 384, 128, false, true}, {2048, 128, 384, false, false}, {384, 128, 2048, true, false},
		{32, 384, 128, false, true}, {1, 384, 128, false, true},
	} {
		p := newProduct(rand.New(rand.NewPCG(1, 1)), s.transA, s.transB, s.m, s.n, s.k)
		c := make([]float32, s.m*s.n)
		flops := 2 * float64(s.m) * float64(s.n) * float64(s.k)
		name := fmt.Sprintf("%dx%dx%d,%v,%v", s.m, s.n, s.k, s.transA, s.transB)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Gemm(p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, c, p.n, false)
			}
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		if s.transA {
			continue
		}
		packed := Pack(p.transB, p.k, p.n, p.b, p.ldb)
		b.Run(name+",packed", func(b *testing.B) {
			for b.Loop() {
				GemmPacked(1, p.m, p.a, p.lda, packed, c, p.n, false)
			}
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

// Columns written together are those written one by one, wherever they begin
// and end.
func TestSetColumns(t *testing.T) {
	for _, k := range []int{1, 7, 8, 9, 64} {
		ld := k + 3
		rows := make([]float32, 40*ld)
		for i := range rows {
			rows[i] = float32(i)
		}
		for j := range 32 {
			for n := 1; n <= 32-j; n++ {
				got, want := NewPacked(k, 32), NewPacked(k, 32)
				got.SetColumns(j, n, rows, ld)
				for i := range n {
					want.SetColumns(j+i, 1, rows[i*ld:], ld)
				}
				if !slices.Equal(got.data, want.data) {
					t.Fatalf("%d columns of %d elements from %d on", n, k, j)
				}
			}
		}
	}
}
