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

// An attention computes softmax(q·kᵀ/√dim)·v within each segment. Scores are
// held for one block of queries at a time and computed again on the way back
// (Dao et al. 2022). A segment's key-value head is one unit of work, always done
// by one goroutine in one order.
type attention struct {
	heads
	threads  int
	segments *[]segment
	lse      []float32 // [rows, q]: log of each row's sum of exponentials
	scratch  sync.Pool
}

func (b *builder) attention(x *G.Node, h heads, segments *[]segment) *G.Node {
	a := &attention{heads: h, threads: b.feed.threads, segments: segments, lse: make([]float32, x.Shape()[0]*h.q)}
	shape := matrix(x.Shape()[0], h.out())
	return b.apply("attention", shape, G.Nodes{x}, func(v [][]float32, out []float32) {
		a.each(func(s segment, head int) { a.forward(s, head, v[0], out) })
	}, func(out, dy *G.Node) *G.Node {
		return b.like(x, "attention_dx", G.Nodes{dy, x, out}, func(v [][]float32, dx []float32) {
			a.each(func(s segment, head int) { a.backward(s, head, v[0], v[1], v[2], dx) })
		})
	})
}

// each runs visit for every segment and key-value head.
func (a *attention) each(visit func(s segment, head int)) {
	simd.For(a.threads, len(*a.segments)*a.kv, func(lo, hi int) {
		for unit := lo; unit < hi; unit++ {
			visit((*a.segments)[unit/a.kv], unit%a.kv)
		}
	})
}

// block is a stretch of queries of one segment and one query head, with the
// keys that they may see.
type block struct {
	first, rows int // queries, as rows of the batch
	keys        int // keys, from the segment's start
	seen        int // keys seen by the first query
	step        int // further keys seen by each following query
}

func (a *attention) blocks(s segment) []block {
	var bs []block
	for lo := s.lo; lo < s.hi; lo += queryBlock {
		hi := min(lo+queryBlock, s.hi)
		if a.causal {
			bs = append(bs, block{lo, hi - lo, hi - s.lo, lo - s.lo + 1, 1})
		} else {
			bs = append(bs, block{lo, hi - lo, s.hi - s.lo, s.hi - s.lo, 0})
		}
	}
	return bs
}

func (a *attention) forward(s segment, kv int, x, out []float32) {
	buffer := a.borrow(queryBlock * (s.hi - s.lo))
	defer a.scratch.Put(buffer)
	n, group := a.width(), a.q/a.kv
	values := x[s.lo*n+a.valueAt(kv):]
	for head := kv * group; head < (kv+1)*group; head++ {
		for _, q := range a.blocks(s) {
			p := (*buffer)[:q.rows*q.keys]
			a.scores(p, q, s, head, kv, x)
			for i := range q.rows {
				row, seen := p[i*q.keys:(i+1)*q.keys], q.seen+i*q.step
				a.lse[(q.first+i)*a.q+head] = softmax(row[:seen])
				clear(row[seen:])
			}
			simd.Gemm(false, false, q.rows, a.dim, q.keys, p, q.keys, values, n, out[q.first*a.out()+head*a.dim:], a.out(), false)
		}
	}
}

// scores writes q·kᵀ/√dim of one block.
func (a *attention) scores(p []float32, q block, s segment, head, kv int, x []float32) {
	n := a.width()
	simd.Gemm(false, true, q.rows, q.keys, a.dim, x[q.first*n+head*a.dim:], n, x[s.lo*n+a.keyAt(kv):], n, p, q.keys, false)
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

// backward: with p the weights and D = Σ dout·out, dv = pᵀ·dout,
// ds = p·(dout·vᵀ − D)/√dim, dq = ds·k, dk = dsᵀ·q.
func (a *attention) backward(s segment, kv int, dout, x, out, dx []float32) {
	length := s.hi - s.lo
	buffer := a.borrow(2 * queryBlock * length)
	defer a.scratch.Put(buffer)
	n, o, group := a.width(), a.out(), a.q/a.kv
	key, value := s.lo*n+a.keyAt(kv), s.lo*n+a.valueAt(kv)
	for r := range length {
		clear(dx[key+r*n : key+r*n+a.dim])
		clear(dx[value+r*n : value+r*n+a.dim])
	}
	for head := kv * group; head < (kv+1)*group; head++ {
		for _, q := range a.blocks(s) {
			p, ds := (*buffer)[:q.rows*q.keys], (*buffer)[q.rows*q.keys:2*q.rows*q.keys]
			query, do := q.first*n+head*a.dim, dout[q.first*o+head*a.dim:]
			a.scores(p, q, s, head, kv, x)
			a.weights(p, q, head)
			simd.Gemm(true, false, q.keys, a.dim, q.rows, p, q.keys, do, o, dx[value:], n, true)
			simd.Gemm(false, true, q.rows, q.keys, a.dim, do, o, x[value:], n, ds, q.keys, false)
			a.scoreGradients(ds, p, q, head, dout, out)
			simd.Gemm(false, false, q.rows, a.dim, q.keys, ds, q.keys, x[key:], n, dx[query:], n, false)
			simd.Gemm(true, false, q.keys, a.dim, q.rows, ds, q.keys, x[query:], n, dx[key:], n, true)
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
