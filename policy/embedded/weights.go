package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sort"
	"strings"
)

// A Tensor is one named parameter, row-major. Data is a view into its
// [Weights]; writing to it changes them.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

// Weights are a model's parameters, in the order and under the names of
// transformers' state dict. They lie in one slab, in which q_proj, k_proj and
// v_proj of a layer, and gate_proj and up_proj, are neighbours: one packed
// matrix each.
type Weights struct {
	cfg     Config
	slab    []float32
	tensors []Tensor
	index   map[string]int
}

// NewWeights returns zero weights for cfg, which must be valid.
func NewWeights(cfg Config) *Weights {
	w := &Weights{cfg: cfg, index: map[string]int{}}
	total := 0
	for _, l := range layout(cfg) {
		total += elements(l.Shape)
	}
	w.slab = make([]float32, total)
	rest := w.slab
	for _, l := range layout(cfg) {
		n := elements(l.Shape)
		l.Data, rest = rest[:n:n], rest[n:]
		w.index[l.Name] = len(w.tensors)
		w.tensors = append(w.tensors, l)
	}
	return w
}

// Config returns the configuration that w belongs to.
func (w *Weights) Config() Config { return w.cfg }

// Tensors returns every parameter in order. The data are views.
func (w *Weights) Tensors() []Tensor { return w.tensors }

// Len returns the number of parameters, all elements counted.
func (w *Weights) Len() int { return len(w.slab) }

// Get returns the data of the named tensor. A name that the configuration does
// not have is a programming error and panics.
func (w *Weights) Get(name string) []float32 {
	i, ok := w.index[name]
	if !ok {
		panic("embedded: no tensor named " + name)
	}
	return w.tensors[i].Data
}

// Packed returns the data of consecutive tensors as one row-major matrix.
func (w *Weights) Packed(names ...string) []float32 {
	lo, hi := w.span(names...)
	return w.slab[lo:hi:hi]
}

// span returns where the consecutive tensors lie in the slab.
func (w *Weights) span(names ...string) (lo, hi int) {
	first, ok := w.index[names[0]]
	if !ok {
		panic("embedded: no tensor named " + names[0])
	}
	for i := range first {
		lo += len(w.tensors[i].Data)
	}
	hi = lo
	for i, name := range names {
		if t := w.tensors[first+i]; t.Name != name {
			panic("embedded: " + name + " does not follow " + names[0])
		}
		hi += len(w.tensors[first+i].Data)
	}
	return lo, hi
}

// Clone returns a copy that shares nothing with w.
func (w *Weights) Clone() *Weights {
	c := NewWeights(w.cfg)
	copy(c.slab, w.slab)
	return c
}

// TakeVision replaces the vision tower, its mergers included, by that of other
// weights of the same configuration.
func (w *Weights) TakeVision(from *Weights) error {
	if w.cfg.fingerprint() != from.cfg.fingerprint() {
		return errors.New("weights of another config.json have no vision tower to take")
	}
	for i, t := range w.tensors {
		if strings.HasPrefix(t.Name, visualPrefix) {
			copy(t.Data, from.tensors[i].Data)
		}
	}
	return nil
}

// Digest returns the sha256, in hex, of the safetensors file that w makes.
func (w *Weights) Digest() string {
	sum := sha256.Sum256(w.Safetensors())
	return hex.EncodeToString(sum[:])
}

// Init returns freshly drawn weights: matrices from a normal distribution with
// the configuration's initializer_range (residual projections scaled down by
// √(2·layers), as GPT-2 does), norms 1, biases 0. Each tensor depends on seed
// and its name alone.
func Init(cfg Config, seed uint64) *Weights {
	w := NewWeights(cfg)
	for _, t := range w.tensors {
		switch {
		case isNorm(t.Name):
			fill(t.Data, 1)
		case !strings.HasSuffix(t.Name, ".bias"):
			normal(t.Data, tensorSeed(seed, t.Name), initScale(cfg, t))
		}
	}
	return w
}

func isNorm(name string) bool {
	return strings.HasSuffix(name, "norm.weight") || strings.HasSuffix(name, "norm1.weight") || strings.HasSuffix(name, "norm2.weight")
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// initScale returns the standard deviation for t. The patch embedding follows
// its fan-in, so that the tower sees its image from the first step.
func initScale(cfg Config, t Tensor) float64 {
	std := cfg.Text.InitializerRange
	depth := cfg.Text.NumHiddenLayers
	if strings.HasPrefix(t.Name, visualPrefix) {
		std, depth = cfg.Vision.InitializerRange, cfg.Vision.Depth
	}
	switch {
	case strings.HasSuffix(t.Name, "patch_embed.proj.weight"):
		return 1 / math.Sqrt(float64(cfg.Vision.PatchDim()))
	case strings.HasSuffix(t.Name, "o_proj.weight"), strings.HasSuffix(t.Name, "down_proj.weight"),
		strings.HasSuffix(t.Name, "attn.proj.weight"), strings.HasSuffix(t.Name, "mlp.linear_fc2.weight"):
		return std / math.Sqrt(2*float64(depth))
	}
	return std
}

func tensorSeed(seed uint64, name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mix64(seed ^ h.Sum64())
}

// mix64 is the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
func mix64(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// normal fills x with normal deviates of standard deviation std by the
// Box-Muller transform over a counter-based stream.
func normal(x []float32, seed uint64, std float64) {
	unit := func(i uint64) float64 { return (float64(mix64(seed+i)>>11) + 0.5) / (1 << 53) }
	for i := range x {
		radius := math.Sqrt(-2 * math.Log(unit(2*uint64(i))))
		x[i] = float32(std * radius * math.Cos(2*math.Pi*unit(2*uint64(i)+1)))
	}
}

const (
	textPrefix   = "model.language_model."
	visualPrefix = "model.visual."
	headName     = "lm_head.weight"
)

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// layout lists every tensor of the state dict, without data.
func layout(c Config) []Tensor {
	var ts []Tensor
	add := func(name string, shape ...int) { ts = append(ts, Tensor{Name: name, Shape: shape}) }
	visionLayout(c.Vision, func(name string, shape ...int) { add(visualPrefix+name, shape...) })
	textLayout(c.Text, func(name string, shape ...int) { add(textPrefix+name, shape...) })
	if !c.TieWordEmbeddings {
		add(headName, c.Text.VocabSize, c.Text.HiddenSize)
	}
	return ts
}

func textLayout(t TextConfig, add func(string, ...int)) {
	h, q, kv := t.HiddenSize, t.NumAttentionHeads*t.HeadDim, t.NumKeyValueHeads*t.HeadDim
	add("embed_tokens.weight", t.VocabSize, h)
	for i := range t.NumHiddenLayers {
		p := fmt.Sprintf("layers.%d.", i)
		add(p+"self_attn.q_proj.weight", q, h)
		add(p+"self_attn.k_proj.weight", kv, h)
		add(p+"self_attn.v_proj.weight", kv, h)
		add(p+"self_attn.o_proj.weight", h, q)
		add(p+"self_attn.q_norm.weight", t.HeadDim)
		add(p+"self_attn.k_norm.weight", t.HeadDim)
		add(p+"mlp.gate_proj.weight", t.IntermediateSize, h)
		add(p+"mlp.up_proj.weight", t.IntermediateSize, h)
		add(p+"mlp.down_proj.weight", h, t.IntermediateSize)
		add(p+"input_layernorm.weight", h)
		add(p+"post_attention_layernorm.weight", h)
	}
	add("norm.weight", h)
}

func visionLayout(v VisionConfig, add func(string, ...int)) {
	h := v.HiddenSize
	linear := func(name string, out, in int) {
		add(name+".weight", out, in)
		add(name+".bias", out)
	}
	norm := func(name string, n int) {
		add(name+".weight", n)
		add(name+".bias", n)
	}
	add("patch_embed.proj.weight", h, v.InChannels, v.TemporalPatchSize, v.PatchSize, v.PatchSize)
	add("patch_embed.proj.bias", h)
	add("pos_embed.weight", v.NumPositionEmbeddings, h)
	for i := range v.Depth {
		p := fmt.Sprintf("blocks.%d.", i)
		norm(p+"norm1", h)
		norm(p+"norm2", h)
		linear(p+"attn.qkv", 3*h, h)
		linear(p+"attn.proj", h, h)
		linear(p+"mlp.linear_fc1", v.IntermediateSize, h)
		linear(p+"mlp.linear_fc2", h, v.IntermediateSize)
	}
	merged := h * v.SpatialMergeSize * v.SpatialMergeSize
	merger := func(p string, normed int) {
		norm(p+"norm", normed)
		linear(p+"linear_fc1", merged, merged)
		linear(p+"linear_fc2", v.OutHiddenSize, merged)
	}
	merger("merger.", h)
	for i := range v.DeepstackVisualIndexes {
		merger(fmt.Sprintf("deepstack_merger_list.%d.", i), merged)
	}
}

// sortedByName returns the tensors in name order.
func sortedByName(ts []Tensor) []Tensor {
	sorted := slices.Clone(ts)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	return sorted
}
