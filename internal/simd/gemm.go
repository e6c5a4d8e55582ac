package simd

import "sync"

// Gemm computes C = op(A)·op(B), or C += op(A)·op(B) where accumulate is set.
// All matrices are row-major; op(A) is m×k, op(B) is k×n, C is m×n. With
// transA, a holds the k×m matrix whose transpose is op(A); with transB, b
// holds n×k. lda, ldb and ldc are the row strides of the matrices as stored.
// C must not overlap A or B. It runs on the calling goroutine.
func Gemm(transA, transB bool, m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int, accumulate bool) {
	if m <= 0 || n <= 0 {
		return
	}
	checkMatrix(transA, m, k, a, lda)
	checkMatrix(transB, k, n, b, ldb)
	checkMatrix(false, m, n, c, ldc)
	if !accumulate && (k <= 0 || !useAVX2) {
		clearRows(m, n, c, ldc)
	}
	if k <= 0 {
		return
	}
	left := operand{a, lda, 1}
	if transA {
		left = operand{a, 1, lda}
	}
	if useAVX2 {
		gemmFMA(m, n, k, left, transB, b, ldb, output{c, ldc, !accumulate})
		return
	}
	gemmPortable(m, n, k, left, transB, b, ldb, c, ldc)
}

// ParallelGemm is [Gemm] with the rows or columns of C split over threads.
// The result has the same bits for every number of threads.
func ParallelGemm(threads int, transA, transB bool, m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int, accumulate bool) {
	const worthwhile = 1 << 16 // multiply-adds below which a goroutine costs more than it saves
	if m*n*k < worthwhile {
		threads = 1
	}
	if m >= n {
		For(threads, m, func(lo, hi int) {
			Gemm(transA, transB, hi-lo, n, k, skip(a, lo, lda, transA), lda, b, ldb, c[lo*ldc:], ldc, accumulate)
		})
		return
	}
	For(threads, n, func(lo, hi int) {
		Gemm(transA, transB, m, hi-lo, k, a, lda, skip(b, lo, ldb, !transB), ldb, c[lo:], ldc, accumulate)
	})
}

// skip drops the first i rows of op(x), or its columns where x is read across.
func skip(x []float32, i, ld int, across bool) []float32 {
	if across {
		return x[i:]
	}
	return x[i*ld:]
}

// An operand is op(A): element (i, p) is data[i*rs+p*cs].
type operand struct {
	data   []float32
	rs, cs int
}

// checkMatrix panics unless x can hold op(x) of rows×cols with stride ld.
func checkMatrix(trans bool, rows, cols int, x []float32, ld int) {
	if trans {
		rows, cols = cols, rows
	}
	if rows > 0 && cols > 0 && (ld < cols || len(x) < (rows-1)*ld+cols) {
		panic("simd: matrix is smaller than its shape")
	}
}

// An output is a matrix to write: added to, or fresh, whatever it held.
type output struct {
	data  []float32
	ld    int
	fresh bool
}

func clearRows(m, n int, c []float32, ldc int) {
	for i := range m {
		clear(c[i*ldc : i*ldc+n])
	}
}

// buffers holds packing buffers between calls.
var buffers = sync.Pool{New: func() any { return new([]float32) }}

func borrow(n int) *[]float32 {
	p := buffers.Get().(*[]float32)
	if cap(*p) < n {
		*p = make([]float32, n)
	}
	*p = (*p)[:n]
	return p
}

// Packed is a right-hand matrix op(B) in the order in which the kernels read
// it: packed once for many products, or written by column or by row.
type Packed struct {
	K, N int // shape of op(B)
	data []float32
}

// NewPacked returns a zero k×n matrix.
func NewPacked(k, n int) *Packed {
	if useAVX2 {
		n = roundUp(n)
	}
	return &Packed{k, n, make([]float32, k*n)}
}

// Pack lays out op(B), k×n, for [GemmPacked]. b is stored as in [Gemm].
func Pack(transB bool, k, n int, b []float32, ldb int) *Packed {
	p := new(Packed)
	p.Fill(transB, k, n, b, ldb)
	return p
}

// Fill is [Pack] into p, whose memory it reuses.
func (p *Packed) Fill(transB bool, k, n int, b []float32, ldb int) {
	checkMatrix(transB, k, n, b, ldb)
	size := k * n
	if useAVX2 {
		size = k * roundUp(n)
	}
	if cap(p.data) < size {
		p.data = make([]float32, size)
	}
	p.K, p.N, p.data = k, n, p.data[:size]
	if useAVX2 {
		pack(p.data, transB, k, n, b, ldb)
	} else {
		packRows(p.data, transB, k, n, b, ldb)
	}
}

// SetColumns writes n columns from column j on: the first K elements of n rows
// that lie ld apart.
func (p *Packed) SetColumns(j, n int, rows []float32, ld int) {
	for i := 0; i < n; {
		at, step := j+i, p.N
		if useAVX2 {
			at, step = (j+i)/panel*panel*p.K+(j+i)%panel, panel
		}
		if useAVX2 && (j+i)%8 == 0 && n-i >= 8 && p.K >= 8 {
			packEight(p.data[at:], p.K, rows[i*ld:], ld)
			i += 8
			continue
		}
		for _, v := range rows[i*ld : i*ld+p.K] {
			p.data[at] = v
			at += step
		}
		i++
	}
}

// SetRow writes row i, of N elements or fewer.
func (p *Packed) SetRow(i int, row []float32) {
	if !useAVX2 {
		copy(p.data[i*p.N:(i+1)*p.N], row)
		return
	}
	for j := 0; j < len(row); j += panel {
		at := j*p.K + i*panel
		copy(p.data[at:at+panel], row[j:])
	}
}

// CopyColumns writes n columns of src, which has p's K, from column lo on to
// columns from at on. Both must begin a panel: at multiples of 16. It may write
// up to 15 columns more.
func (p *Packed) CopyColumns(at int, src *Packed, lo, n int) {
	if useAVX2 {
		copy(p.data[at*p.K:], src.data[lo*p.K:(lo+roundUp(n))*p.K])
		return
	}
	for i := range p.K {
		copy(p.data[i*p.N+at:i*p.N+at+n], src.data[i*src.N+lo:])
	}
}

// CopyRows writes n rows of src, which has p's N, from row lo on to rows from
// at on.
func (p *Packed) CopyRows(at int, src *Packed, lo, n int) {
	if !useAVX2 {
		copy(p.data[at*p.N:(at+n)*p.N], src.data[lo*p.N:])
		return
	}
	for j := 0; j < p.N; j += panel {
		to, from := j*p.K+at*panel, j*src.K+lo*panel
		copy(p.data[to:to+n*panel], src.data[from:])
	}
}

// Bytes returns the memory that p holds.
func (p *Packed) Bytes() int { return 4 * len(p.data) }

// GemmPacked computes C = A·P, or C += A·P, for a row-major A of m×P.K and
// C of m×P.N, with the bits of [Gemm]. It splits the columns over threads.
func GemmPacked(threads, m int, a []float32, lda int, p *Packed, c []float32, ldc int, accumulate bool) {
	if m*p.N*p.K < 1<<18 {
		threads = 1
	}
	if threads <= 1 {
		gemmPacked(m, 0, p.N, p.K, a, lda, p, c, ldc, accumulate)
		return
	}
	panels := (p.N + panel - 1) / panel
	For(threads, panels, func(lo, hi int) {
		gemmPacked(m, lo*panel, min(hi*panel, p.N), p.K, a, lda, p, c, ldc, accumulate)
	})
}

// GemmPart is [GemmPacked] with the first k rows and n columns of P only, and
// as many columns of A and C, on the calling goroutine.
func GemmPart(m, n, k int, a []float32, lda int, p *Packed, c []float32, ldc int, accumulate bool) {
	if k > p.K || n > p.N {
		panic("simd: the packed matrix is smaller than the part asked for")
	}
	gemmPacked(m, 0, n, k, a, lda, p, c, ldc, accumulate)
}

// gemmPacked computes columns [j0, j1) of C over the first k rows of P; j0 is a
// multiple of panel.
func gemmPacked(m, j0, j1, k int, a []float32, lda int, p *Packed, c []float32, ldc int, accumulate bool) {
	if m <= 0 || j1 <= j0 {
		return
	}
	checkMatrix(false, m, k, a, lda)
	checkMatrix(false, m, j1, c, ldc)
	left := operand{a, lda, 1}
	if useAVX2 && k > 0 {
		gemmPanels(m, j1-j0, k, left, p.data[j0*p.K:roundUp(j1)*p.K], p.K, output{c[j0:], ldc, !accumulate})
		return
	}
	if !accumulate {
		clearRows(m, j1-j0, c[j0:], ldc)
	}
	gemmAxpy(m, j1-j0, k, left, p.data[j0:], p.N, c[j0:], ldc)
}

// panel is the width of a column panel of B, and of the micro-kernel's tile.
const panel = 16

func roundUp(n int) int { return (n + panel - 1) &^ (panel - 1) }
