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
			d.place(w, l, r+i, s.cache, layer, s.cache.n+i)
		}
		d.attendSpan(w, s.cache, layer, r, len(s.ids))
		r += len(s.ids)
	}
	simd.GemmPacked(1, rows, w.mixed, d.heads.out(), l.o, w.x, h, true)
}

// place normalises and turns the heads of row r, scales its queries, and
// writes its keys and values to position at of the layer's cache.
func (d *decoder) place(w *workspace, l *decoderLayer, r int, cache *kvCache, layer, at int) {
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
	for i := range h.kv {
		cache.set(layer*h.kv+i, at, row[h.keyAt(i):h.keyAt(i+1)], row[h.valueAt(i):h.valueAt(i+1)])
	}
}

// attendSpan mixes the values for rows [r, r+n), whose keys are those behind
// the cache's rows.
func (d *decoder) attendSpan(w *workspace, cache *kvCache, layer, r, n int) {
	h := d.heads
	group := h.q / h.kv
	for i := range h.kv {
		to := attendance{cache: cache, head: layer*h.kv + i, ldq: h.width(), ldo: h.out(), step: 1}
		if n == 1 { // the heads of a group share their keys: one product
			to.ldq, to.ldo, to.step = h.dim, h.dim, 0
			at := i * group * h.dim
			d.attendRows(w, to, w.qkv[r*h.width()+at:], w.mixed[r*h.out()+at:], group, cache.n+1)
			continue
		}
		for head := i * group; head < (i+1)*group; head++ {
			for lo := 0; lo < n; lo += queryBlock {
				q, out := w.qkv[(r+lo)*h.width()+head*h.dim:], w.mixed[(r+lo)*h.out()+head*h.dim:]
				d.attendRows(w, to, q, out, min(queryBlock, n-lo), cache.n+lo+1)
			}
		}
	}
}

// An attendance says which key-value head queries are held against, how far
// apart queries and outputs are, and how many positions more each query sees
// than the one before.
type attendance struct {
	cache          *kvCache
	head           int
	ldq, ldo, step int
}

// attendRows computes softmax(q·kᵀ)·v for m queries, the first of which sees
// the positions below seen.
func (d *decoder) attendRows(w *workspace, to attendance, q, out []float32, m, seen int) {
	keys := seen + (m-1)*to.step
	width := roundRows(keys)
	w.scores = stretch(w.scores, m*width)
	to.cache.score(to.head, m, width, q, to.ldq, w.scores)
	for i := range m {
		row := w.scores[i*width : (i+1)*width]
		softmax(row[:seen+i*to.step], 1)
		clear(row[seen+i*to.step:])
	}
	to.cache.mix(to.head, m, keys, d.heads.dim, w.scores, width, out, to.ldo)
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
