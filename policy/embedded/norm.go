package embedded

import (
	"math"

	"xragent/internal/simd"

	G "gorgonia.org/gorgonia"
)

// rmsNorm is x/√(mean(x²)+eps)·w, row by row.
func (b *builder) rmsNorm(x, w *G.Node, eps float64, rows *int) *G.Node {
	n, threads := width(x), b.feed.threads
	rstd := make([]float32, x.Shape()[0])
	return b.like(x, "rms_norm", G.Nodes{x, w}, func(v [][]float32, out []float32) {
		simd.For(threads, *rows, func(lo, hi int) {
			for r := lo; r < hi; r++ {
				rstd[r] = rmsForward(out[r*n:(r+1)*n], v[0][r*n:(r+1)*n], v[1], eps)
			}
		})
	}, func(out, dy *G.Node) *G.Node {
		return b.like(x, "rms_norm_dx", G.Nodes{dy, x, w, out}, func(v [][]float32, d []float32) {
			simd.For(threads, *rows, func(lo, hi int) {
				for r := lo; r < hi; r++ {
					rmsBackward(d[r*n:(r+1)*n], v[0][r*n:(r+1)*n], v[1][r*n:(r+1)*n], v[2], rstd[r])
				}
			})
		})
	}, func(out, dy *G.Node) *G.Node {
		return b.like(w, "rms_norm_dw", G.Nodes{dy, x, out}, func(v [][]float32, d []float32) {
			clear(d)
			b.columns(n, func(lo, hi int) {
				product := make([]float32, hi-lo)
				for r := range *rows {
					simd.Mul(product, v[0][r*n+lo:r*n+hi], v[1][r*n+lo:r*n+hi])
					simd.Axpy(rstd[r], product, d[lo:hi])
				}
			})
		})
	})
}

// rmsForward normalises one row and returns 1/√(mean(x²)+eps).
func rmsForward(out, x, w []float32, eps float64) float32 {
	rstd := float32(1 / math.Sqrt(float64(simd.Dot(x, x))/float64(len(x))+eps))
	simd.Mul(out, x, w)
	simd.Scale(rstd, out)
	return rstd
}

// rmsBackward: with g = dy·w, dx = rstd·g − x·rstd³·mean(g·x).
func rmsBackward(dx, dy, x, w []float32, rstd float32) {
	simd.Mul(dx, dy, w)
	along := simd.Dot(dx, x) / float32(len(x))
	simd.Scale(rstd, dx)
	simd.Axpy(-rstd*rstd*rstd*along, x, dx)
}

// layerNorm is (x−mean)/√(var+eps)·w + bias, row by row.
func (b *builder) layerNorm(x, w, bias *G.Node, rows *int) *G.Node {
	const eps = 1e-6 // fixed in the architecture, not in its configuration
	n, threads := width(x), b.feed.threads
	unit := make([]float32, x.Shape().TotalSize()) // the normalised rows
	rstd := make([]float32, x.Shape()[0])
	return b.like(x, "layer_norm", G.Nodes{x, w, bias}, func(v [][]float32, out []float32) {
		simd.For(threads, *rows, func(lo, hi int) {
			for r := lo; r < hi; r++ {
				row := unit[r*n : (r+1)*n]
				rstd[r] = standardise(row, v[0][r*n:(r+1)*n], eps)
				simd.Mul(out[r*n:(r+1)*n], row, v[1])
				simd.Add(out[r*n:(r+1)*n], out[r*n:(r+1)*n], v[2])
			}
		})
	}, func(out, dy *G.Node) *G.Node {
		return b.like(x, "layer_norm_dx", G.Nodes{dy, w, out}, func(v [][]float32, d []float32) {
			simd.For(threads, *rows, func(lo, hi int) {
				for r := lo; r < hi; r++ {
					layerBackward(d[r*n:(r+1)*n], v[0][r*n:(r+1)*n], unit[r*n:(r+1)*n], v[1], rstd[r])
				}
			})
		})
	}, func(out, dy *G.Node) *G.Node {
		return b.like(w, "layer_norm_dw", G.Nodes{dy, out}, func(v [][]float32, d []float32) {
			clear(d)
			b.columns(n, func(lo, hi int) {
				product := make([]float32, hi-lo)
				for r := range *rows {
					simd.Mul(product, v[0][r*n+lo:r*n+hi], unit[r*n+lo:r*n+hi])
					simd.Add(d[lo:hi], d[lo:hi], product)
				}
			})
		})
	}, func(_, dy *G.Node) *G.Node { return b.columnSums(dy, bias, rows) })
}

// standardise writes (x−mean)/√(var+eps) to out and returns the factor.
func standardise(out, x []float32, eps float64) float32 {
	mean := simd.Sum(x) / float32(len(x))
	for i, v := range x {
		out[i] = v - mean
	}
	rstd := float32(1 / math.Sqrt(float64(simd.Dot(out, out))/float64(len(x))+eps))
	simd.Scale(rstd, out)
	return rstd
}

// layerBackward: with g = dy·w, dx = rstd·(g − mean(g) − unit·mean(g·unit)).
func layerBackward(dx, dy, unit, w []float32, rstd float32) {
	simd.Mul(dx, dy, w)
	mean := simd.Sum(dx) / float32(len(dx))
	along := simd.Dot(dx, unit) / float32(len(dx))
	for i := range dx {
		dx[i] -= mean
	}
	simd.Axpy(-along, unit, dx)
	simd.Scale(rstd, dx)
}

// heads says how a packed [q | k | v] row divides.
type heads struct {
	q, kv, dim int
	causal     bool
}

func (h heads) width() int { return (h.q + 2*h.kv) * h.dim }
func (h heads) out() int   { return h.q * h.dim }

// keyAt and valueAt return where a key or value head starts in a packed row.
func (h heads) keyAt(head int) int   { return (h.q + head) * h.dim }
func (h heads) valueAt(head int) int { return (h.q + h.kv + head) * h.dim }

// A headNorm is RMSNorm of each query head with one weight and each key head
// with another; values pass.
type headNorm struct {
	heads
	threads int
	rows    *int
	eps     float64
	rstd    []float32 // [rows, q+kv]
}

func (b *builder) headNorm(x, wq, wk *G.Node, h heads, eps float64, rows *int) *G.Node {
	n := &headNorm{h, b.feed.threads, rows, eps, make([]float32, x.Shape()[0]*(h.q+h.kv))}
	dx := func(out, dy *G.Node) *G.Node {
		return b.like(x, "head_norm_dx", G.Nodes{dy, x, wq, wk, out}, n.backward)
	}
	dw := func(w *G.Node, first, last int) pullback {
		return func(out, dy *G.Node) *G.Node {
			return b.like(w, "head_norm_dw", G.Nodes{dy, x, out}, n.weightGradient(first, last))
		}
	}
	return b.like(x, "head_norm", G.Nodes{x, wq, wk}, n.forward, dx, dw(wq, 0, h.q), dw(wk, h.q, h.q+h.kv))
}

// each visits the query and key heads of the rows in use: the elements [lo, hi)
// of the packed rows, the head's place in rstd, and the weight among wq, wk. The
// values are copied from src to dst.
func (n *headNorm) each(dst, src []float32, visit func(lo, hi, at, weight int)) {
	width, turned := n.width(), n.q+n.kv
	simd.For(n.threads, *n.rows, func(first, last int) {
		for r := first; r < last; r++ {
			for head := range turned {
				weight := 0
				if head >= n.q {
					weight = 1
				}
				lo := r*width + head*n.dim
				visit(lo, lo+n.dim, r*turned+head, weight)
			}
			values := r*width + turned*n.dim
			copy(dst[values:(r+1)*width], src[values:])
		}
	})
}

// forward takes x, wq, wk.
func (n *headNorm) forward(v [][]float32, out []float32) {
	n.each(out, v[0], func(lo, hi, at, weight int) {
		n.rstd[at] = rmsForward(out[lo:hi], v[0][lo:hi], v[1+weight], n.eps)
	})
}

// backward takes dy, x, wq, wk.
func (n *headNorm) backward(v [][]float32, dx []float32) {
	n.each(dx, v[0], func(lo, hi, at, weight int) {
		rmsBackward(dx[lo:hi], v[0][lo:hi], v[1][lo:hi], v[2+weight], n.rstd[at])
	})
}

// weightGradient takes dy, x and sums over the heads [first, last).
func (n *headNorm) weightGradient(first, last int) kernel {
	return func(v [][]float32, dw []float32) {
		clear(dw)
		product := make([]float32, n.dim)
		for r := range *n.rows {
			for head := first; head < last; head++ {
				lo := r*n.width() + head*n.dim
				simd.Mul(product, v[0][lo:lo+n.dim], v[1][lo:lo+n.dim])
				simd.Axpy(n.rstd[r*(n.q+n.kv)+head], product, dw)
			}
		}
	}
}
