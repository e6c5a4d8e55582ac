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
					simd.Turn(dst[at:at+h.dim], src[at:at+h.dim], c, s, direction)
				}
				copy(dst[turned:], src[turned:])
			}
		})
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
	units    sync.Pool // of *unit
}

func (b *builder) attention(x *G.Node, h heads, families *[][]scope) *G.Node {
	a := &attention{heads: h, threads: b.feed.threads, families: families, lse: make([]float32, x.Shape()[0]*h.q)}
	a.units.New = func() any { return &unit{attention: a} }
	shape := matrix(x.Shape()[0], h.out())
	return b.apply("attention", shape, G.Nodes{x}, func(v [][]float32, out []float32) {
		a.each(func(u *unit) { u.forward(v[0], out) })
	}, func(out, dy *G.Node) *G.Node {
		return b.like(x, "attention_dx", G.Nodes{dy, x, out}, func(v [][]float32, dx []float32) {
			a.each(func(u *unit) { u.backward(v[0], v[1], v[2], dx) })
		})
	})
}

// each runs visit for every family and key-value head.
func (a *attention) each(visit func(*unit)) {
	simd.For(a.threads, len(*a.families)*a.kv, func(lo, hi int) {
		u := a.units.Get().(*unit)
		defer a.units.Put(u)
		for i := lo; i < hi; i++ {
			u.family, u.head = (*a.families)[i/a.kv], i%a.kv
			visit(u)
		}
	})
}

// A unit is the work on one family and key-value head, with its scratch.
type unit struct {
	*attention
	family      []scope
	head        int       // of keys and values
	p, ds       []float32 // weights and score gradients of one block
	before, own operands  // of the scope at hand
}

// operands are the keys and values of a segment, packed for the products that
// all blocks of a scope make with them.
type operands struct {
	segment
	keys, values     simd.Packed // [rows, dim]
	keysT, valuesT   simd.Packed // [dim, rows]
	key, value, size int         // where they begin in the batch, and a row's size
}

// A block is some queries of one scope and the keys that they may see: all
// before the scope, and its own from its start.
type block struct {
	head        int // of queries
	first, rows int // queries, as rows of the batch
	keys        int // keys in all
	seen        int // keys seen by the first query
	step        int // further keys seen by each following query
}

// blocks visits the blocks of a scope, one query head after another.
func (u *unit) blocks(s scope, visit func(block)) {
	group, before := u.q/u.kv, s.before.len()
	for head := u.head * group; head < (u.head+1)*group; head++ {
		for lo := s.own.lo; lo < s.own.hi; lo += queryBlock {
			hi := min(lo+queryBlock, s.own.hi)
			b := block{head, lo, hi - lo, before + s.own.len(), before + s.own.len(), 0}
			if u.causal {
				b.keys, b.seen, b.step = before+hi-s.own.lo, before+lo-s.own.lo+1, 1
			}
			visit(b)
		}
	}
}

// scopes visits the family's scopes with scratch for them; fill packs a
// segment of the batch.
func (u *unit) scopes(fill func(*operands), visit func(scope)) {
	for i, s := range u.family {
		if i == 0 || s.before != u.before.segment {
			u.pack(&u.before, s.before, fill)
		}
		u.pack(&u.own, s.own, fill)
		size := queryBlock * (s.before.len() + s.own.len())
		u.p, u.ds = stretch(u.p, size), stretch(u.ds, size)
		visit(s)
	}
}

func (u *unit) pack(o *operands, s segment, fill func(*operands)) {
	o.segment, o.size = s, u.width()
	o.key, o.value = s.lo*o.size+u.keyAt(u.head), s.lo*o.size+u.valueAt(u.head)
	if s.len() > 0 {
		fill(o)
	}
}

// runs visits the block's keys as runs of one segment: n of them, which stand
// in columns column... of its scores.
func (u *unit) runs(q block, visit func(o *operands, n, column int)) {
	before := u.before.len()
	if before > 0 {
		visit(&u.before, before, 0)
	}
	visit(&u.own, q.keys-before, before)
}

func (u *unit) forward(x, out []float32) {
	n, width := u.width(), u.out()
	u.scopes(func(o *operands) {
		o.keysT.Fill(true, u.dim, o.len(), x[o.key:], n)
		o.values.Fill(false, o.len(), u.dim, x[o.value:], n)
	}, func(s scope) {
		u.blocks(s, func(q block) {
			p := u.scores(q, x)
			for i := range q.rows {
				row, seen := p[i*q.keys:(i+1)*q.keys], q.seen+i*q.step
				top, sum := softmax(row[:seen], attentionScale(u.dim))
				u.lse[(q.first+i)*u.q+q.head] = top + float32(math.Log(float64(sum)))
				clear(row[seen:])
			}
			u.runs(q, func(o *operands, keys, column int) {
				simd.GemmPart(q.rows, u.dim, keys, p[column:], q.keys, &o.values, out[q.first*width+q.head*u.dim:], width, column > 0)
			})
		})
	})
}

// scores writes q·kᵀ of one block.
func (u *unit) scores(q block, x []float32) []float32 {
	p, n := u.p[:q.rows*q.keys], u.width()
	u.runs(q, func(o *operands, keys, column int) {
		simd.GemmPart(q.rows, keys, u.dim, x[q.first*n+q.head*u.dim:], n, &o.keysT, p[column:], q.keys, false)
	})
	return p
}

// softmax replaces x by the softmax of scale·x. It returns the largest scale·x
// and Σ exp(scale·x − largest).
func softmax(x []float32, scale float32) (top, sum float32) {
	top = scale * simd.Max(x)
	sum = simd.ExpScaledSub(x, x, scale, top)
	simd.Scale(1/sum, x)
	return top, sum
}

// backward: with p the weights and D = Σ dout·out, dv = pᵀ·dout,
// ds = p·(dout·vᵀ − D)/√dim, dq = ds·k, dk = dsᵀ·q.
func (u *unit) backward(dout, x, out, dx []float32) {
	n := u.width()
	u.scopes(func(o *operands) {
		o.keysT.Fill(true, u.dim, o.len(), x[o.key:], n)
		o.valuesT.Fill(true, u.dim, o.len(), x[o.value:], n)
		o.keys.Fill(false, o.len(), u.dim, x[o.key:], n)
	}, func(s scope) {
		u.clearKeys(dx)
		u.blocks(s, func(q block) { u.blockBackward(q, dout, x, out, dx) })
	})
}

// clearKeys zeroes the gradient of a segment's keys and values, to which its
// own scope and those behind it add.
func (u *unit) clearKeys(dx []float32) {
	for r := range u.own.len() {
		key, value := u.own.key+r*u.own.size, u.own.value+r*u.own.size
		clear(dx[key : key+u.dim])
		clear(dx[value : value+u.dim])
	}
}

func (u *unit) blockBackward(q block, dout, x, out, dx []float32) {
	n, width, d := u.width(), u.out(), u.dim
	query, do := q.first*n+q.head*d, dout[q.first*width+q.head*d:]
	p, ds := u.scores(q, x), u.ds[:q.rows*q.keys]
	u.weights(p, q)
	u.runs(q, func(o *operands, keys, column int) {
		simd.Gemm(true, false, keys, d, q.rows, p[column:], q.keys, do, width, dx[o.value:], n, true)
		simd.GemmPart(q.rows, keys, d, do, width, &o.valuesT, ds[column:], q.keys, false)
	})
	u.scoreGradients(ds, p, q, dout, out)
	u.runs(q, func(o *operands, keys, column int) {
		simd.GemmPart(q.rows, d, keys, ds[column:], q.keys, &o.keys, dx[query:], n, column > 0)
		simd.Gemm(true, false, keys, d, q.rows, ds[column:], q.keys, x[query:], n, dx[o.key:], n, true)
	})
}

// weights turns scores into softmax weights by the sums that forward left.
func (u *unit) weights(p []float32, q block) {
	for i := range q.rows {
		row, seen := p[i*q.keys:(i+1)*q.keys], q.seen+i*q.step
		simd.ExpScaledSub(row[:seen], row[:seen], attentionScale(u.dim), u.lse[(q.first+i)*u.q+q.head])
		clear(row[seen:])
	}
}

// scoreGradients turns dout·vᵀ in ds into the gradient of q·kᵀ.
func (u *unit) scoreGradients(ds, p []float32, q block, dout, out []float32) {
	for i := range q.rows {
		at := (q.first+i)*u.out() + q.head*u.dim
		along := simd.Dot(dout[at:at+u.dim], out[at:at+u.dim])
		simd.SoftmaxBackward(ds[i*q.keys:(i+1)*q.keys], p[i*q.keys:(i+1)*q.keys], along, attentionScale(u.dim))
	}
}
