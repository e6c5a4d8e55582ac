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
	q, kv, o, gateUp, down            *simd.Packed
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
		q:         pack(t.HiddenSize, "self_attn.q_proj"),
		kv:        pack(t.HiddenSize, "self_attn.k_proj", "self_attn.v_proj"),
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
	skip   int         // rows at the front that the layer at hand leaves out
}

// A visualRow is the merged patch that stands at a row; text rows have nil.
type visualRow struct {
	of  *features
	row int
}

// A workspace holds one goroutine's activations between calls.
type workspace struct {
	x, normed, q, kv, mixed, gateUp, act []float32
	cos, sin, scores, one, logits        []float32
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
	w.q = stretch(w.q, rows*d.heads.out())
	w.kv = stretch(w.kv, rows*(d.heads.width()-d.heads.out()))
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
		d.remember(w, spans, i, rows)
		if i == len(d.layers)-1 { // of other rows only the keys and values are still needed
			rows = d.keepWanted(w, spans)
		}
		d.attend(w, spans, i, rows)
		d.feedForward(w, &d.layers[i], rows)
		d.deepstack(w, spans, i)
	}
	for _, s := range spans {
		s.cache.n += len(s.ids)
	}
	return d.logits(w, rows)
}

// keepWanted moves the wanted rows to the front and returns how many they are.
func (d *decoder) keepWanted(w *workspace, spans []span) (kept int) {
	h, half := d.cfg.Text.HiddenSize, d.cfg.Text.HeadDim/2
	r := 0
	for i := range spans {
		s := &spans[i]
		s.skip = len(s.ids) - s.wanted
		from := r + s.skip
		r += len(s.ids)
		moveRows(w.x, h, kept, from, s.wanted)
		moveRows(w.normed, h, kept, from, s.wanted)
		moveRows(w.cos, half, kept, from, s.wanted)
		moveRows(w.sin, half, kept, from, s.wanted)
		kept += s.wanted
	}
	return kept
}

// moveRows copies n rows of width elements within x.
func moveRows(x []float32, width, to, from, n int) {
	copy(x[to*width:(to+n)*width], x[from*width:(from+n)*width])
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
		for i := s.skip; i < len(s.visual); i++ {
			if v := s.visual[i]; v.of != nil {
				x := w.x[(r+i-s.skip)*h : (r+i-s.skip+1)*h]
				simd.Add(x, x, v.of.deep[layer][v.row*h:])
			}
		}
		r += len(s.ids) - s.skip
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

// remember writes the keys and values of all rows into their caches.
func (d *decoder) remember(w *workspace, spans []span, layer, rows int) {
	l, h := &d.layers[layer], d.heads
	width := h.width() - h.out()
	d.normRows(w, l.inputNorm, rows)
	simd.GemmPacked(1, rows, w.normed, d.cfg.Text.HiddenSize, l.kv, w.kv, width, false)
	for r := range rows {
		for head := range h.kv {
			d.turn(w, w.kv[r*width+head*h.dim:r*width+(head+1)*h.dim], l.kNorm, r)
		}
	}
	r := 0
	for _, s := range spans {
		for head := range h.kv {
			keys, values := w.kv[r*width+head*h.dim:], w.kv[r*width+(h.kv+head)*h.dim:]
			s.cache.set(layer*h.kv+head, s.cache.n, len(s.ids), keys, values, width)
		}
		r += len(s.ids)
	}
}

// turn normalises a head of row r and turns it by the row's angles.
func (d *decoder) turn(w *workspace, head, weight []float32, r int) {
	half := d.heads.dim / 2
	rmsForward(w.one, head, weight, d.cfg.Text.RMSNormEps)
	simd.Turn(head, w.one, w.cos[r*half:(r+1)*half], w.sin[r*half:(r+1)*half], 1)
}

// attend adds to the rows that are not left out what they attend to. Their
// inputs are normalised already.
func (d *decoder) attend(w *workspace, spans []span, layer, rows int) {
	l, h, hidden := &d.layers[layer], d.heads, d.cfg.Text.HiddenSize
	simd.GemmPacked(1, rows, w.normed, hidden, l.q, w.q, h.out(), false)
	for r := range rows {
		row := w.q[r*h.out() : (r+1)*h.out()]
		for at := 0; at < len(row); at += h.dim {
			d.turn(w, row[at:at+h.dim], l.qNorm, r)
		}
		simd.Scale(attentionScale(h.dim), row)
	}
	r := 0
	for _, s := range spans {
		n := len(s.ids) - s.skip
		d.attendSpan(w, s, layer, r, n)
		r += n
	}
	simd.GemmPacked(1, rows, w.mixed, h.out(), l.o, w.x, hidden, true)
}

// attendSpan mixes the values for rows [r, r+n), which are the last n of s.
func (d *decoder) attendSpan(w *workspace, s span, layer, r, n int) {
	h, seen := d.heads, s.cache.n+s.skip+1
	group := h.q / h.kv
	for i := range h.kv {
		to := attendance{cache: s.cache, head: layer*h.kv + i, ldq: h.out(), ldo: h.out(), step: 1}
		if n == 1 { // the heads of a group share their keys: one product
			to.ldq, to.ldo, to.step = h.dim, h.dim, 0
			at := r*h.out() + i*group*h.dim
			d.attendRows(w, to, w.q[at:], w.mixed[at:], group, seen)
			continue
		}
		for head := i * group; head < (i+1)*group; head++ {
			for lo := 0; lo < n; lo += queryBlock {
				at := (r+lo)*h.out() + head*h.dim
				d.attendRows(w, to, w.q[at:], w.mixed[at:], min(queryBlock, n-lo), seen+lo)
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

// logits computes those of the first rows, which are the wanted ones.
func (d *decoder) logits(w *workspace, rows int) []float32 {
	d.normRows(w, d.norm, rows)
	v := d.cfg.Text.VocabSize
	w.logits = stretch(w.logits, rows*v)
	simd.GemmPacked(1, rows, w.normed, d.cfg.Text.HiddenSize, d.head, w.logits, v, false)
	return w.logits
}
