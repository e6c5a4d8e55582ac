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
	if !accumulate {
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
		gemmAVX2(m, n, k, left, transB, b, ldb, c, ldc)
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

// Packed is a right-hand matrix op(B) laid out once for many products.
type Packed struct {
	K, N int // shape of op(B)
	data []float32
}

// Pack lays out op(B), k×n, for [GemmPacked]. b is stored as in [Gemm].
func Pack(transB bool, k, n int, b []float32, ldb int) *Packed {
	checkMatrix(transB, k, n, b, ldb)
	if useAVX2 {
		return &Packed{k, n, packPanels(transB, k, n, b, ldb)}
	}
	data := make([]float32, k*n)
	packRows(data, transB, k, n, b, ldb)
	return &Packed{k, n, data}
}

// GemmPacked computes C = A·P, or C += A·P, for a row-major A of m×P.K and
// C of m×P.N, with the bits of [Gemm]. It splits the columns over threads.
func GemmPacked(threads, m int, a []float32, lda int, p *Packed, c []float32, ldc int, accumulate bool) {
	if m <= 0 || p.N <= 0 {
		return
	}
	checkMatrix(false, m, p.K, a, lda)
	checkMatrix(false, m, p.N, c, ldc)
	if m*p.N*p.K < 1<<18 {
		threads = 1
	}
	panels := (p.N + panel - 1) / panel
	For(threads, panels, func(lo, hi int) {
		j0, j1 := lo*panel, min(hi*panel, p.N)
		if !accumulate {
			clearRows(m, j1-j0, c[j0:], ldc)
		}
		if useAVX2 {
			gemmPanels(m, j1-j0, p.K, operand{a, lda, 1}, p.data[j0*p.K:], c[j0:], ldc)
			return
		}
		gemmAxpy(m, j1-j0, p.K, operand{a, lda, 1}, p.data[j0:], p.N, c[j0:], ldc)
	})
}

// panel is the width of a column panel of B, and of the micro-kernel's tile.
const panel = 16
