package embedded

import (
	"fmt"

	"xragent/internal/simd"
)

// A decoder runs the model forward without a graph, straight over the kernels,
// with key-value caches. It never changes after [newDecoder], so goroutines
// share it, each with a workspace of its own.
//
// Prefill and decoding are the same code. A row sees its own inputs and the
// keys before it, in ascending order, and internal/simd's rule holds for every
// product: what a row computes does not depend on the rows beside it.
type decoder struct {
	cfg    Config
	heads  heads
	embed  []float32 // [vocab, hidden]
	layers []decoderLayer
	norm   []float32
	head   *simd.Packed // hidden × vocab
	tower  *tower
}

type decoderLayer struct {
	inputNorm, postNorm, qNorm, kNorm []float32
	qkv, o, gateUp, down              *simd.Packed
}

// newDecoder copies what it needs of w.
func newDecoder(w *Weights) *decoder {
	w = w.Clone()
	t := w.cfg.Text
	d := &decoder{
		cfg:   w.cfg,
		heads: heads{q: t.NumAttentionHeads, kv: t.NumKeyValueHeads, dim: t.HeadDim, causal: true},
		embed: w.Get(textPrefix + "embed_tokens.weight"),
		norm:  w.Get(textPrefix + "norm.weight"),
		tower: newTower(w),
	}
	for i := range t.NumHiddenLayers {
		d.layers = append(d.layers, newDecoderLayer(w, fmt.Sprintf("%slayers.%d.", textPrefix, i)))
	}
	head := d.embed
	if !w.cfg.TieWordEmbeddings {
		head = w.Get(headName)
	}
	d.head = simd.Pack(true, t.HiddenSize, t.VocabSize, head, t.HiddenSize)
	return d
}

func newDecoderLayer(w *Weights, p string) decoderLayer {
	t := w.cfg.Text
	pack := func(in int, names ...string) *simd.Packed {
		for i := range names {
			names[i] = p + names[i] + ".weight"
		}
		data := w.Packed(names...)
		return simd.Pack(true, in, len(data)/in, data, in)
	}
	return decoderLayer{
		inputNorm: w.Get(p + "input_layernorm.weight"),
		postNorm:  w.Get(p + "post_attention_layernorm.weight"),
		qNorm:     w.Get(p + "self_attn.q_norm.weight"),
		kNorm:     w.Get(p + "self_attn.k_norm.weight"),
		qkv:       pack(t.HiddenSize, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
		o:         pack(t.NumAttentionHeads*t.HeadDim, "self_attn.o_proj"),
		gateUp:    pack(t.HiddenSize, "mlp.gate_proj", "mlp.up_proj"),
		down:      pack(t.IntermediateSize, "mlp.down_proj"),
	}
}

// A kvCache holds the keys and values of a sequence's first n rows.
type kvCache struct {
	n, room int       // rows held, rows that fit
	heads   []headKV  // [layer·kv + head]
	slab    []float32 // of all values
}

// headKV is the part of one layer's key-value head. Keys lie as the columns of
// a packed matrix, so that scores are products that read memory in order.
type headKV struct {
	keys   *simd.Packed // [dim, room]
	values []float32    // [room, dim]
}

// kernelWidth is what a product's columns are rounded up to.
const kernelWidth = 16

func roundRows(n int) int { return (n + kernelWidth - 1) &^ (kernelWidth - 1) }

func newKVCache(t TextConfig, rows int) *kvCache {
	room := roundRows(rows)
	size, count := room*t.HeadDim, t.NumHiddenLayers*t.NumKeyValueHeads
	c := &kvCache{room: room, slab: make([]float32, size*count)}
	for i := range count {
		c.heads = append(c.heads, headKV{simd.NewPacked(t.HeadDim, room), c.slab[i*size : (i+1)*size]})
	}
	return c
}

// bytes returns the memory that c holds.
func (c *kvCache) bytes() int { return 4*len(c.slab) + len(c.heads)*c.heads[0].keys.Bytes() }

// copyFrom takes over the first n rows of src.
func (c *kvCache) copyFrom(src *kvCache, n int) {
	for i, from := range src.heads {
		to := c.heads[i]
		to.keys.CopyColumns(from.keys, n)
		copy(to.values, from.values[:n*to.keys.K])
	}
	c.n = n
}

// A span is consecutive rows of one sequence, pushed through the decoder
// behind what its cache holds.
type span struct {
	cache  *kvCache
	ids    []int32
	pos    [][3]int32
	visual []visualRow // one a row, or nil where no row is an image's
	wanted int         // how many of the last rows need logits
}

// A visualRow is the merged patch that stands at a row; text rows have nil.
type visualRow struct {
	of  *features
	row int
}

// A workspace holds one goroutine's activations between calls.
type workspace struct {
	x, normed, qkv, mixed, gateUp, act []float32
	cos, sin, scores, one, logits      []float32
}

// stretch returns a slice of n elements, reusing x where it can.
func stretch(x []float32, n int) []float32 {
	if cap(x) < n {
		return make([]float32, n)
	}
	return x[:n]
}

func (w *workspace) fit(d *decoder, rows int) {
	t := d.cfg.Text
	w.x = stretch(w.x, rows*t.HiddenSize)
	w.normed = stretch(w.normed, rows*t.HiddenSize)
	w.qkv = stretch(w.qkv, rows*d.heads.width())
	w.mixed = stretch(w.mixed, rows*d.heads.out())
	w.gateUp = stretch(w.gateUp, rows*2*t.IntermediateSize)
	w.act = stretch(w.act, rows*t.IntermediateSize)
	w.cos = stretch(w.cos, rows*t.HeadDim/2)
	w.sin = stretch(w.sin, rows*t.HeadDim/2)
	w.one = stretch(w.one, t.HeadDim)
}

// forward appends the spans' rows to their caches and returns the logits of
// the wanted rows, [wanted, vocab], in the spans' order. They are valid until
// the workspace is used again.
func (d *decoder) forward(w *workspace, spans []span) []float32 {
	rows := 0
	for _, s := range spans {
		rows += len(s.ids)
	}
	w.fit(d, rows)
	d.embedRows(w, spans)
	for i := range d.layers {
		d.attend(w, spans, i, rows)
		d.feedForward(w, &d.layers[i], rows)
		d.deepstack(w, spans, i)
	}
	for _, s := range spans {
		s.cache.n += len(s.ids)
	}
	return d.logits(w, spans)
}

// embedRows writes the embedding of every row, or its image feature, and its
// rotary angles.
func (d *decoder) embedRows(w *workspace, spans []span) {
	h, half := d.cfg.Text.HiddenSize, d.cfg.Text.HeadDim/2
	r := 0
	for _, s := range spans {
		d.cfg.Text.textRope(s.pos, w.cos[r*half:], w.sin[r*half:])
		for i, id := range s.ids {
			from := d.embed[int(id)*h : (int(id)+1)*h]
			if s.visual != nil && s.visual[i].of != nil {
				from = s.visual[i].of.merged[s.visual[i].row*h:]
			}
			copy(w.x[r*h:(r+1)*h], from)
			r++
		}
	}
}

// deepstack adds the features of a vision layer behind text layer i.
func (d *decoder) deepstack(w *workspace, spans []span, layer int) {
	if layer >= len(d.tower.deep) {
		return
	}
	h := d.cfg.Text.HiddenSize
	r := 0
	for _, s := range spans {
		for i, v := range s.visual {
			if v.of != nil {
				x := w.x[(r+i)*h : (r+i+1)*h]
				simd.Add(x, x, v.of.deep[layer][v.row*h:])
			}
		}
		r += len(s.ids)
	}
}

func (d *decoder) normRows(w *workspace, weight []float32, rows int) {
	h := d.cfg.Text.HiddenSize
	for r := range rows {
		rmsForward(w.normed[r*h:(r+1)*h], w.x[r*h:(r+1)*h], weight, d.cfg.Text.RMSNormEps)
	}
}

func (d *decoder) feedForward(w *workspace, l *decoderLayer, rows int) {
	h, n := d.cfg.Text.HiddenSize, d.cfg.Text.IntermediateSize
	d.normRows(w, l.postNorm, rows)
	simd.GemmPacked(1, rows, w.normed, h, l.gateUp, w.gateUp, 2*n, false)
	for r := range rows {
		gateUp := w.gateUp[2*r*n : 2*(r+1)*n]
		simd.SiLU(w.act[r*n:(r+1)*n], gateUp[:n], gateUp[n:])
	}
	simd.GemmPacked(1, rows, w.act, n, l.down, w.x, h, true)
}

func (d *decoder) attend(w *workspace, spans []span, layer, rows int) {
	l, h := &d.layers[layer], d.cfg.Text.HiddenSize
	d.normRows(w, l.inputNorm, rows)
	simd.GemmPacked(1, rows, w.normed, h, l.qkv, w.qkv, d.heads.width(), false)
	r := 0
	for _, s := range spans {
		for i := range s.ids {
			d.place(w, l, r+i, s.cache.heads[layer*d.heads.kv:], s.cache.n+i)
		}
		d.attendSpan(w, s.cache.heads[layer*d.heads.kv:], s.cache.n, r, len(s.ids))
		r += len(s.ids)
	}
	simd.GemmPacked(1, rows, w.mixed, d.heads.out(), l.o, w.x, h, true)
}

// place normalises and turns the heads of row r, scales its queries, and
// writes its keys and values to position at of the layer's caches.
func (d *decoder) place(w *workspace, l *decoderLayer, r int, caches []headKV, at int) {
	h := d.heads
	row := w.qkv[r*h.width() : (r+1)*h.width()]
	cos, sin := w.cos[r*h.dim/2:(r+1)*h.dim/2], w.sin[r*h.dim/2:(r+1)*h.dim/2]
	for i := range h.q + h.kv {
		weight := l.qNorm
		if i >= h.q {
			weight = l.kNorm
		}
		head := row[i*h.dim : (i+1)*h.dim]
		rmsForward(w.one, head, weight, d.cfg.Text.RMSNormEps)
		simd.Turn(head, w.one, cos, sin, 1)
	}
	simd.Scale(attentionScale(h.dim), row[:h.q*h.dim])
	for i, c := range caches[:h.kv] {
		c.keys.SetColumn(at, row[h.keyAt(i):h.keyAt(i+1)])
		copy(c.values[at*h.dim:(at+1)*h.dim], row[h.valueAt(i):])
	}
}

// attendSpan mixes the values for rows [r, r+n), the first of which stands at
// position at.
func (d *decoder) attendSpan(w *workspace, caches []headKV, at, r, n int) {
	h := d.heads
	group := h.q / h.kv
	for i, c := range caches[:h.kv] {
		if n == 1 { // the heads of a group share their keys: one product
			q, out := w.qkv[r*h.width()+i*group*h.dim:], w.mixed[r*h.out()+i*group*h.dim:]
			d.attendRows(w, c, q, h.dim, out, h.dim, group, at+1, 0)
			continue
		}
		for head := i * group; head < (i+1)*group; head++ {
			for lo := 0; lo < n; lo += queryBlock {
				q, out := w.qkv[(r+lo)*h.width()+head*h.dim:], w.mixed[(r+lo)*h.out()+head*h.dim:]
				d.attendRows(w, c, q, h.width(), out, h.out(), min(queryBlock, n-lo), at+lo+1, 1)
			}
		}
	}
}

// attendRows computes softmax(q·kᵀ)·v for m queries, ldq apart, against one
// key-value head. The first sees the positions below seen, each following one
// step more.
func (d *decoder) attendRows(w *workspace, c headKV, q []float32, ldq int, out []float32, ldo, m, seen, step int) {
	keys := seen + (m-1)*step
	width := roundRows(keys)
	w.scores = stretch(w.scores, m*width)
	simd.GemmColumns(m, width, q, ldq, c.keys, w.scores, width, false)
	for i := range m {
		row := w.scores[i*width : (i+1)*width]
		softmax(row[:seen+i*step], 1)
		clear(row[seen+i*step:])
	}
	simd.Gemm(false, false, m, d.heads.dim, keys, w.scores, width, c.values, d.heads.dim, out, ldo, false)
}

// logits computes the wanted rows' logits.
func (d *decoder) logits(w *workspace, spans []span) []float32 {
	h, v := d.cfg.Text.HiddenSize, d.cfg.Text.VocabSize
	r, wanted := 0, 0
	for _, s := range spans {
		r += len(s.ids)
		for i := r - s.wanted; i < r; i++ {
			rmsForward(w.normed[wanted*h:(wanted+1)*h], w.x[i*h:(i+1)*h], d.norm, d.cfg.Text.RMSNormEps)
			wanted++
		}
	}
	w.logits = stretch(w.logits, wanted*v)
	simd.GemmPacked(1, wanted, w.normed, h, d.head, w.logits, v, false)
	return w.logits
}
