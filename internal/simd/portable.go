package simd

import (
	"math"

	"gonum.org/v1/gonum/blas/gonum"
)

var level1 gonum.Implementation

// gemmPortable adds op(A)·op(B) to C.
func gemmPortable(m, n, k int, a operand, transB bool, b []float32, ldb int, c []float32, ldc int) {
	if transB {
		buf := borrow(k * n)
		defer buffers.Put(buf)
		packRows(*buf, true, k, n, b, ldb)
		b, ldb = *buf, n
	}
	gemmAxpy(m, n, k, a, b, ldb, c, ldc)
}

// gemmAxpy adds op(A)·B to C as a sum of scaled rows of B: for every element
// of C, the terms come in ascending k.
func gemmAxpy(m, n, k int, a operand, b []float32, ldb int, c []float32, ldc int) {
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		for p := range k {
			level1.Saxpy(n, a.data[i*a.rs+p*a.cs], b[p*ldb:], 1, row, 1)
		}
	}
}

// packRows writes op(B) to dst as a dense k×n matrix.
func packRows(dst []float32, transB bool, k, n int, b []float32, ldb int) {
	if !transB {
		for p := range k {
			copy(dst[p*n:(p+1)*n], b[p*ldb:])
		}
		return
	}
	for j := range n {
		for p, v := range b[j*ldb : j*ldb+k] {
			dst[p*n+j] = v
		}
	}
}

func expSubPortable(dst, x []float32, scale, m float32) float32 {
	var sum float32
	for i, v := range x {
		dst[i] = float32(math.Exp(float64(float32(scale*v) - m)))
		sum += dst[i]
	}
	return sum
}

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

func siluPortable(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = g * sigmoid(g) * up[i]
	}
}

func siluBackwardPortable(dGate, dUp, gate, up, dOut []float32) {
	for i, g := range gate {
		s := sigmoid(g)
		d, u := dOut[i], up[i] // read before dUp is written: it may be the same slice
		dUp[i] = d * g * s
		dGate[i] = d * u * (s + g*s*(1-s))
	}
}

// geluSlope and geluCubic are 2·√(2/π) and 0.044715 of the tanh form of GELU
// (Hendrycks and Gimpel 2016): ½(1+tanh u) is the logistic function of 2u.
const (
	geluSlope = 1.5957691216057308
	geluCubic = 0.044715
)

func geluPortable(dst, x []float32) {
	for i, v := range x {
		dst[i] = v * sigmoid(geluSlope*(v+geluCubic*v*v*v))
	}
}

func geluBackwardPortable(dx, x, dy []float32) {
	for i, v := range x {
		s := sigmoid(geluSlope * (v + geluCubic*v*v*v))
		dx[i] = dy[i] * (s + v*s*(1-s)*geluSlope*(1+3*geluCubic*v*v))
	}
}
