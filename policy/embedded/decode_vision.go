package embedded

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"xragent/internal/simd"
)

// features is what the vision tower makes of one image.
type features struct {
	merged []float32   // [pads, hidden]: stands at the image's pad ids
	deep   [][]float32 // [pads, hidden] each: added behind the first text layers
}

func (f *features) bytes() int { return 4 * len(f.merged) * (1 + len(f.deep)) }

// A tower is the vision part of a decoder. It never changes.
type tower struct {
	cfg       VisionConfig
	patch     dense
	positions []float32 // [learned positions, hidden]
	blocks    []towerBlock
	merger    merger
	deep      []merger
}

type towerBlock struct {
	norm1, norm2        scaling
	qkv, proj, fc1, fc2 dense
}

// A merger joins merge×merge patches to one token. The main one normalises
// patches, DeepStack's normalise the joined rows.
type merger struct {
	norm     scaling
	fc1, fc2 dense
}

// dense is a linear layer with bias.
type dense struct {
	weight *simd.Packed
	bias   []float32
}

// scaling is the learned part of a layer norm.
type scaling struct{ weight, bias []float32 }

// newTower keeps views of w, which must not change.
func newTower(w *Weights) *tower {
	layer := func(name string) dense {
		weight, bias := w.Get(visualPrefix+name+".weight"), w.Get(visualPrefix+name+".bias")
		in := len(weight) / len(bias)
		return dense{simd.Pack(true, in, len(bias), weight, in), bias}
	}
	norm := func(name string) scaling {
		return scaling{w.Get(visualPrefix + name + ".weight"), w.Get(visualPrefix + name + ".bias")}
	}
	join := func(p string) merger {
		return merger{norm(p + "norm"), layer(p + "linear_fc1"), layer(p + "linear_fc2")}
	}
	t := &tower{
		cfg:       w.cfg.Vision,
		patch:     layer("patch_embed.proj"),
		positions: w.Get(visualPrefix + "pos_embed.weight"),
		merger:    join("merger."),
	}
	for i := range t.cfg.Depth {
		p := fmt.Sprintf("blocks.%d.", i)
		t.blocks = append(t.blocks, towerBlock{
			norm(p + "norm1"), norm(p + "norm2"),
			layer(p + "attn.qkv"), layer(p + "attn.proj"), layer(p + "mlp.linear_fc1"), layer(p + "mlp.linear_fc2"),
		})
	}
	for i := range t.cfg.DeepstackVisualIndexes {
		t.deep = append(t.deep, join(fmt.Sprintf("deepstack_merger_list.%d.", i)))
	}
	return t
}

// towerRows is how many patches of several images go through the tower at a
// time, so that its weights are read once for them.
const towerRows = 256

// together returns how many of the first images go through the tower at a time.
func together(images []*sourceImage) int {
	n, rows := 1, images[0].size()
	for ; n < len(images); n++ {
		if rows += images[n].size(); rows > towerRows {
			break
		}
	}
	return n
}

// A towerSpace holds the activations of a pass through the tower. Passes use
// each other's: memory fresh from the system costs as much as the products.
type towerSpace struct{ x, cos, sin, normed, wide, mixed, turned, scores []float32 }

var towerSpaces = sync.Pool{New: func() any { return new(towerSpace) }}

// features runs the tower over images. What a patch becomes depends on its own
// image alone.
func (t *tower) features(images ...picture) []*features {
	n, h := 0, t.cfg.HiddenSize
	var frames []int // their sizes
	for _, p := range images {
		n += p.size()
		frames = append(frames, slices.Repeat([]int{p.grid[1] * p.grid[2]}, p.grid[0])...)
	}
	half := h / t.cfg.NumHeads / 2
	s := towerSpaces.Get().(*towerSpace)
	defer towerSpaces.Put(s)
	s.x, s.cos, s.sin = stretch(s.x, n*h), stretch(s.cos, n*half), stretch(s.sin, n*half)
	at := 0
	for _, p := range images {
		t.embed(s.x[at*h:(at+p.size())*h], p)
		t.cfg.visionRope(p.grid, s.cos[at*half:], s.sin[at*half:])
		at += p.size()
	}
	made := make([]*features, len(images))
	for i := range made {
		made[i] = new(features)
	}
	for i := range t.blocks {
		t.block(&t.blocks[i], s, frames)
		for k, at := range t.cfg.DeepstackVisualIndexes {
			if at == i {
				t.deal(t.deep[k].apply(s, t.joined(), t.joined()), images, func(i int, rows []float32) { made[i].deep = append(made[i].deep, rows) })
			}
		}
	}
	t.deal(t.merger.apply(s, h, t.joined()), images, func(i int, rows []float32) { made[i].merged = rows })
	return made
}

// embed writes the patches' embeddings and positions.
func (t *tower) embed(x []float32, p picture) {
	h := t.cfg.HiddenSize
	t.patch.apply(x, p.patches, p.size())
	for i, b := range t.cfg.positionBlends(p.grid) {
		for j, at := range b.index {
			simd.Axpy(b.weight[j], t.positions[int(at)*h:(int(at)+1)*h], x[i*h:(i+1)*h])
		}
	}
}

// deal gives each image its merged rows.
func (t *tower) deal(merged []float32, images []picture, give func(i int, rows []float32)) {
	for i, p := range images {
		n := p.size() / t.cfg.SpatialMergeSize / t.cfg.SpatialMergeSize * t.cfg.OutHiddenSize
		give(i, slices.Clone(merged[:n])) // caches drop images one by one
		merged = merged[n:]
	}
}

// joined is the width of the patches of one token side by side.
func (t *tower) joined() int {
	return t.cfg.HiddenSize * t.cfg.SpatialMergeSize * t.cfg.SpatialMergeSize
}

// block runs one layer over patches in place. Patches see those of their own
// frame.
func (t *tower) block(b *towerBlock, s *towerSpace, frames []int) {
	h := t.cfg.HiddenSize
	n := len(s.x) / h
	s.normed = b.norm1.rows(s.normed, s.x, h)
	s.wide = stretch(s.wide, n*b.qkv.weight.N)
	b.qkv.apply(s.wide, s.normed, n)
	s.mixed = stretch(s.mixed, len(s.x))
	lo := 0
	for _, frame := range frames {
		t.attend(s, lo, frame)
		lo += frame
	}
	b.proj.addTo(s.x, s.mixed, n)
	s.normed = b.norm2.rows(s.normed, s.x, h)
	s.wide = stretch(s.wide, n*b.fc1.weight.N)
	b.fc1.apply(s.wide, s.normed, n)
	simd.GELUTanh(s.wide, s.wide)
	b.fc2.addTo(s.x, s.wide, n)
}

// attend mixes n rows of packed [q | k | v] from row first on.
func (t *tower) attend(s *towerSpace, first, n int) {
	h := t.cfg.HiddenSize
	dim := h / t.cfg.NumHeads
	qkv, out := s.wide[3*first*h:], s.mixed[first*h:]
	cos, sin := s.cos[first*dim/2:], s.sin[first*dim/2:]
	s.turned = stretch(s.turned, dim)
	for r := range n {
		for at := 3 * r * h; at < 3*r*h+2*h; at += dim {
			copy(s.turned, qkv[at:at+dim])
			simd.Turn(qkv[at:at+dim], s.turned, cos[r*dim/2:(r+1)*dim/2], sin[r*dim/2:(r+1)*dim/2], 1)
		}
	}
	s.scores = stretch(s.scores, min(n, queryBlock)*n)
	scores := s.scores
	for at := 0; at < h; at += dim {
		for lo := 0; lo < n; lo += queryBlock {
			m := min(queryBlock, n-lo)
			simd.Gemm(false, true, m, n, dim, qkv[3*lo*h+at:], 3*h, qkv[h+at:], 3*h, scores, n, false)
			for i := range m {
				softmax(scores[i*n:(i+1)*n], attentionScale(dim))
			}
			simd.Gemm(false, false, m, dim, n, scores, n, qkv[2*h+at:], 3*h, out[lo*h+at:], h, false)
		}
	}
}

func attentionScale(dim int) float32 { return float32(1 / math.Sqrt(float64(dim))) }

// apply normalises rows of normed elements and maps rows of joined elements. The
// result is valid until s is used again.
func (m merger) apply(s *towerSpace, normed, joined int) []float32 {
	n := len(s.x) / joined
	s.normed = m.norm.rows(s.normed, s.x, normed)
	s.wide = stretch(s.wide, n*m.fc1.weight.N)
	m.fc1.apply(s.wide, s.normed, n)
	simd.GELU(s.wide, s.wide)
	s.mixed = stretch(s.mixed, n*m.fc2.weight.N)
	m.fc2.apply(s.mixed, s.wide, n)
	return s.mixed
}

// apply sets n rows of out to x·Wᵀ + bias.
func (l dense) apply(out, x []float32, n int) {
	for r := range n {
		copy(out[r*l.weight.N:(r+1)*l.weight.N], l.bias)
	}
	simd.GemmPacked(1, n, x, l.weight.K, l.weight, out, l.weight.N, true)
}

// addTo adds x·Wᵀ + bias to n rows of out.
func (l dense) addTo(out, x []float32, n int) {
	for r := range n {
		row := out[r*l.weight.N : (r+1)*l.weight.N]
		simd.Add(row, row, l.bias)
	}
	simd.GemmPacked(1, n, x, l.weight.K, l.weight, out, l.weight.N, true)
}

// rows returns the layer norm of x in rows of n elements, in out where it is
// large enough.
func (s scaling) rows(out, x []float32, n int) []float32 {
	const eps = 1e-6 // fixed in the architecture, not in its configuration
	out = stretch(out, len(x))
	for at := 0; at < len(x); at += n {
		row := out[at : at+n]
		standardise(row, x[at:at+n], eps)
		simd.Mul(row, row, s.weight)
		simd.Add(row, row, s.bias)
	}
	return out
}
