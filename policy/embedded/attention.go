package embedded

import (
	"math"
	"sync"

	"xragent/internal/simd"

	G "gorgonia.org/gorgonia"
)

// rope turns every query and key head of the packed rows by the angles of
// cos and sin [rows, dim/2]; values pass. Element i is paired with i + dim/2.
func (b *builder) rope(x *G.Node, h heads, cos, sin *[]float32, rows *int) *G.Node {
	return b.like(x, "rope", G.Nodes{x}, b.turn(h, cos, sin, rows, 1), func(_, dy *G.Node) *G.Node {
		return b.like(x, "rope_dx", G.Nodes{dy}, b.turn(h, cos, sin, rows, -1))
	})
}

// turn rotates by the angles, or back where direction is -1.
func (b *builder) turn(h heads, cos, sin *[]float32, rows *int, direction float32) kernel {
	n, half, turned, threads := h.width(), h.dim/2, (h.q+h.kv)*h.dim, b.feed.threads
	return func(v [][]float32, out []float32) {
		simd.For(threads, *rows, func(lo, hi int) {
			for r := lo; r < hi; r++ {
				src, dst := v[0][r*n:(r+1)*n], out[r*n:(r+1)*n]
				c, s := (*cos)[r*half:(r+1)*half], (*sin)[r*half:(r+1)*half]
				for at := 0; at < turned; at += h.dim {
					rotate(dst[at:at+h.dim], src[at:at+h.dim], c, s, direction)
				}
				copy(dst[turned:], src[turned:])
			}
		})
	}
}

func rotate(dst, src, cos, sin []float32, direction float32) {
	half := len(cos)
	x, y := src[:half], src[half:]
	u, v := dst[:half], dst[half:]
	for i, c := range cos {
		s := direction * sin[i]
		u[i] = x[i]*c - y[i]*s
		v[i] = y[i]*c + x[i]*s
	}
}

// queryBlock is how many query rows share one product with the keys.
const queryBlock = 64

// An attention computes softmax(q·kᵀ/√dim)·v within each scope. Scores are
// held for one block of queries at a time and computed again on the way back
// (Dao et al. 2022). A family's key-value head is one unit of work, always done
// by one goroutine in one order.
type attention struct {
	heads
	threads  int
	families *[][]scope
	lse      []float32 // [rows, q]: log of each row's sum of exponentials
	scratch  sync.Pool
}

func (b *builder) attention(x *G.Node, h heads, families *[][]scope) *G.Node {
	a := &attention{heads: h, threads: b.feed.threads, families: families, lse: make([]float32, x.Shape()[0]*h.q)}
	shape := matrix(x.Shape()[0], h.out())
	return b.apply("attention", shape, G.Nodes{x}, func(v [][]float32, out []float32) {
		a.each(func(family []scope, head int) {
			for _, s := range family {
				a.forward(s, head, v[0], out)
			}
		})
	}, func(out, dy *G.Node) *G.Node {
		return b.like(x, "attention_dx", G.Nodes{dy, x, out}, func(v [][]float32, dx []float32) {
			a.each(func(family []scope, head int) {
				for _, s := range family {
					a.clearKeys(s.own, head, dx)
					a.backward(s, head, v[0], v[1], v[2], dx)
				}
			})
		})
	})
}

// each runs visit for every family and key-value head.
func (a *attention) each(visit func(family []scope, head int)) {
	simd.For(a.threads, len(*a.families)*a.kv, func(lo, hi int) {
		for unit := lo; unit < hi; unit++ {
			visit((*a.families)[unit/a.kv], unit%a.kv)
		}
	})
}

// A block is some queries of one scope and the keys that they may see: all
// before the scope, and its own from its start.
type block struct {
	scope
	first, rows int // queries, as rows of the batch
	keys        int // keys in all
	seen        int // keys seen by the first query
	step        int // further keys seen by each following query
}

func (a *attention) blocks(s scope) []block {
	var bs []block
	before := s.before.len()
	for lo := s.own.lo; lo < s.own.hi; lo += queryBlock {
		hi := min(lo+queryBlock, s.own.hi)
		if a.causal {
			bs = append(bs, block{s, lo, hi - lo, before + hi - s.own.lo, before + lo - s.own.lo + 1, 1})
		} else {
			bs = append(bs, block{s, lo, hi - lo, before + s.own.len(), before + s.own.len(), 0})
		}
	}
	return bs
}

// runs visits the block's keys as contiguous rows of the batch: n of them from
// row at, which stand in columns column... of its scores.
func (b block) runs(visit func(at, n, column int)) {
	before := b.before.len()
	if before > 0 {
		visit(b.before.lo, before, 0)
	}
	visit(b.own.lo, b.keys-before, before)
}

func (a *attention) forward(s scope, kv int, x, out []float32) {
	buffer := a.borrow(queryBlock * (s.before.len() + s.own.len()))
	defer a.scratch.Put(buffer)
	n, o, group := a.width(), a.out(), a.q/a.kv
	for head := kv * group; head < (kv+1)*group; head++ {
		for _, q := range a.blocks(s) {
			p := (*buffer)[:q.rows*q.keys]
			a.scores(p, q, head, kv, x)
			for i := range q.rows {
				row, seen := p[i*q.keys:(i+1)*q.keys], q.seen+i*q.step
				a.lse[(q.first+i)*a.q+head] = softmax(row[:seen])
				clear(row[seen:])
			}
			q.runs(func(at, keys, column int) {
				simd.Gemm(false, false, q.rows, a.dim, keys, p[column:], q.keys, x[at*n+a.valueAt(kv):], n, out[q.first*o+head*a.dim:], o, column > 0)
			})
		}
	}
}

// scores writes q·kᵀ/√dim of one block.
func (a *attention) scores(p []float32, q block, head, kv int, x []float32) {
	n := a.width()
	q.runs(func(at, keys, column int) {
		simd.Gemm(false, true, q.rows, keys, a.dim, x[q.first*n+head*a.dim:], n, x[at*n+a.keyAt(kv):], n, p[column:], q.keys, false)
	})
	simd.Scale(a.scale(), p)
}

func (a *attention) scale() float32 { return float32(1 / math.Sqrt(float64(a.dim))) }

// softmax normalises x in place and returns log Σ exp(x).
func softmax(x []float32) float32 {
	top := simd.Max(x)
	sum := simd.ExpSub(x, x, top)
	simd.Scale(1/sum, x)
	return top + float32(math.Log(float64(sum)))
}

// clearKeys zeroes the gradient of a segment's keys and values, to which its
// own scope and those behind it add.
func (a *attention) clearKeys(s segment, kv int, dx []float32) {
	n := a.width()
	for r := s.lo; r < s.hi; r++ {
		clear(dx[r*n+a.keyAt(kv) : r*n+a.keyAt(kv)+a.dim])
		clear(dx[r*n+a.valueAt(kv) : r*n+a.valueAt(kv)+a.dim])
	}
}

// backward: with p the weights and D = Σ dout·out, dv = pᵀ·dout,
// ds = p·(dout·vᵀ − D)/√dim, dq = ds·k, dk = dsᵀ·q.
func (a *attention) backward(s scope, kv int, dout, x, out, dx []float32) {
	buffer := a.borrow(2 * queryBlock * (s.before.len() + s.own.len()))
	defer a.scratch.Put(buffer)
	n, o, d, group := a.width(), a.out(), a.dim, a.q/a.kv
	for head := kv * group; head < (kv+1)*group; head++ {
		for _, q := range a.blocks(s) {
			size := q.rows * q.keys
			p, ds := (*buffer)[:size], (*buffer)[size:2*size]
			query, do := q.first*n+head*d, dout[q.first*o+head*d:]
			a.scores(p, q, head, kv, x)
			a.weights(p, q, head)
			q.runs(func(at, keys, column int) {
				value := at*n + a.valueAt(kv)
				simd.Gemm(true, false, keys, d, q.rows, p[column:], q.keys, do, o, dx[value:], n, true)
				simd.Gemm(false, true, q.rows, keys, d, do, o, x[value:], n, ds[column:], q.keys, false)
			})
			a.scoreGradients(ds, p, q, head, dout, out)
			q.runs(func(at, keys, column int) {
				key := at*n + a.keyAt(kv)
				simd.Gemm(false, false, q.rows, d, keys, ds[column:], q.keys, x[key:], n, dx[query:], n, column > 0)
				simd.Gemm(true, false, keys, d, q.rows, ds[column:], q.keys, x[query:], n, dx[key:], n, true)
			})
		}
	}
}

// weights turns scores into softmax weights by the sums that forward left.
func (a *attention) weights(p []float32, q block, head int) {
	for i := range q.rows {
		row, seen := p[i*q.keys:(i+1)*q.keys], q.seen+i*q.step
		simd.ExpSub(row[:seen], row[:seen], a.lse[(q.first+i)*a.q+head])
		clear(row[seen:])
	}
}

// scoreGradients turns dout·vᵀ in ds into the gradient of q·kᵀ.
func (a *attention) scoreGradients(ds, p []float32, q block, head int, dout, out []float32) {
	o, scale := a.out(), a.scale()
	for i := range q.rows {
		at := (q.first+i)*o + head*a.dim
		d := simd.Dot(dout[at:at+a.dim], out[at:at+a.dim])
		row, weight := ds[i*q.keys:(i+1)*q.keys], p[i*q.keys:(i+1)*q.keys]
		for j, w := range weight {
			row[j] = w * (row[j] - d) * scale
		}
	}
}

// borrow returns a buffer of at least n floats.
func (a *attention) borrow(n int) *[]float32 {
	buffer, ok := a.scratch.Get().(*[]float32)
	if !ok {
		buffer = new([]float32)
	}
	if len(*buffer) < n {
		*buffer = make([]float32, n)
	}
	return buffer
}
