package embedded

import (
	"fmt"

	"xragent/internal/simd"
	"xragent/trainer/loss"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A graph is the model for micro-batches up to a capacity, bound to one set of
// weights. Running it reads its feed, and writes the feed's sums, the log-probs
// of the loss tokens and, where it trains, adds to the gradient.
type graph struct {
	rows, patches int // capacity; patches 0: no vision tower
	feed          *feed
	vm            G.VM
	logprobs      []float32 // [rows]; the first feed.targets are valid
	logits        []float32 // [rows, vocab], likewise
}

// newGraph builds the graph. gradient is a slab like the weights' own, or nil
// for a graph that only evaluates.
func newGraph(w *Weights, gradient []float32, threads, rows, patches int) (g *graph, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("building the graph for %d rows and %d patches: %v", rows, patches, r)
		}
	}()
	m := &model{weights: w, builder: builder{graph: G.NewGraph(), feed: newFeed(w.cfg, threads, rows, patches)}}
	logits := m.text(rows, m.vision(patches))
	logprob := m.logprob(logits)
	value := m.objective(logprob)
	if gradient != nil {
		m.differentiate(value, gradient)
	}
	output := func(n *G.Node) []float32 { return n.Op().(*fused).data }
	return &graph{rows, patches, m.feed, G.NewTapeMachine(m.graph), output(logprob), output(logits)}, nil
}

// run executes the graph once over its feed.
func (g *graph) run() error {
	g.feed.sums = sums{}
	err := g.vm.RunAll()
	g.vm.Reset()
	return err
}

func (g *graph) close() error { return g.vm.Close() }

// newFeed allocates a feed's buffers. Memory that no micro-batch touches is
// never resident.
func newFeed(cfg Config, threads, rows, patches int) *feed {
	half, vhalf := cfg.Text.HeadDim/2, cfg.Vision.HiddenSize/cfg.Vision.NumHeads/2
	return &feed{
		threads: threads, inverse: 1,
		ids: make([]int32, rows), source: make([]int32, rows), target: make([]target, rows), terms: make([]loss.Token, rows),
		cos: make([]float32, rows*half), sin: make([]float32, rows*half),
		pixels: make([]float32, patches*cfg.Vision.PatchDim()), blends: make([]blend, patches),
		vcos: make([]float32, patches*vhalf), vsin: make([]float32, patches*vhalf),
	}
}

// A model builds Qwen3-VL.
type model struct {
	builder
	weights *Weights
	params  G.Nodes
	spans   [][2]int // of each parameter in the slab
	known   map[string]*G.Node
}

// param returns the node of consecutive tensors as one matrix, or of a vector.
func (m *model) param(names ...string) *G.Node {
	if n, ok := m.known[names[0]]; ok {
		return n
	}
	first := m.weights.tensors[m.weights.index[names[0]]]
	data := m.weights.Packed(names...)
	shape := tensor.Shape{len(data)}
	if len(first.Shape) > 1 {
		rows := elements(first.Shape) / first.Shape[0]
		shape = matrix(len(data)/rows, rows)
	}
	value := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
	n := G.NewTensor(m.graph, tensor.Float32, shape.Dims(), G.WithShape(shape...), G.WithName(names[0]), G.WithValue(value))
	lo, hi := m.weights.span(names...)
	m.params, m.spans = append(m.params, n), append(m.spans, [2]int{lo, hi})
	if m.known == nil {
		m.known = map[string]*G.Node{}
	}
	m.known[names[0]] = n
	return n
}

// dense is a linear layer with a bias.
func (m *model) dense(x *G.Node, name string, rows *int) *G.Node {
	return m.linear(x, m.param(name+".weight"), m.param(name+".bias"), rows, false)
}

func (m *model) norm(x *G.Node, name string, rows *int) *G.Node {
	return m.layerNorm(x, m.param(name+".weight"), m.param(name+".bias"), rows)
}

// visual is what the tower gives to the decoder.
type visual struct {
	features  *G.Node   // [features, hidden]; nil: no image
	deepstack []*G.Node // one for each of the first decoder layers
}

func (m *model) vision(capacity int) visual {
	var out visual
	if capacity == 0 {
		return out
	}
	v, f := m.weights.cfg.Vision, m.feed
	value := tensor.New(tensor.WithShape(capacity, v.PatchDim()), tensor.WithBacking(f.pixels))
	pixels := G.NewMatrix(m.graph, tensor.Float32, G.WithShape(capacity, v.PatchDim()), G.WithName("pixels"), G.WithValue(value))
	x := m.linear(pixels, m.param(visualPrefix+"patch_embed.proj.weight"), m.param(visualPrefix+"patch_embed.proj.bias"), &f.patches, true)
	x = m.learnedPositions(x, m.param(visualPrefix+"pos_embed.weight"))
	for i := range v.Depth {
		x = m.visionBlock(x, fmt.Sprintf("%sblocks.%d.", visualPrefix, i))
		if k := len(out.deepstack); k < len(v.DeepstackVisualIndexes) && v.DeepstackVisualIndexes[k] == i {
			out.deepstack = append(out.deepstack, m.deepstackMerger(x, fmt.Sprintf("%sdeepstack_merger_list.%d.", visualPrefix, k)))
			x = m.pass(x, &f.patches)
		}
	}
	out.features = m.merger(x, visualPrefix+"merger.")
	return out
}

func (m *model) visionBlock(x *G.Node, p string) *G.Node {
	v, f := m.weights.cfg.Vision, m.feed
	h := heads{q: v.NumHeads, kv: v.NumHeads, dim: v.HiddenSize / v.NumHeads}
	qkv := m.dense(m.norm(x, p+"norm1", &f.patches), p+"attn.qkv", &f.patches)
	attended := m.attention(m.rope(qkv, h, &f.vcos, &f.vsin, &f.patches), h, &f.frames)
	x = m.add(x, m.dense(attended, p+"attn.proj", &f.patches), &f.patches)
	hidden := m.geluTanh(m.dense(m.norm(x, p+"norm2", &f.patches), p+"mlp.linear_fc1", &f.patches), &f.patches)
	return m.add(x, m.dense(hidden, p+"mlp.linear_fc2", &f.patches), &f.patches)
}

// merger normalises the patches and then joins them; a DeepStack merger joins
// them first.
func (m *model) merger(x *G.Node, p string) *G.Node {
	return m.mergeMLP(m.regroup(m.norm(x, p+"norm", &m.feed.patches), m.mergeSize(), &m.feed.patches), p)
}

func (m *model) deepstackMerger(x *G.Node, p string) *G.Node {
	return m.mergeMLP(m.norm(m.regroup(x, m.mergeSize(), &m.feed.patches), p+"norm", &m.feed.features), p)
}

func (m *model) mergeMLP(x *G.Node, p string) *G.Node {
	rows := &m.feed.features
	return m.dense(m.geluErf(m.dense(x, p+"linear_fc1", rows), rows), p+"linear_fc2", rows)
}

func (m *model) mergeSize() int {
	n := m.weights.cfg.Vision.SpatialMergeSize
	return n * n
}

// text returns the logits of the loss tokens.
func (m *model) text(capacity int, v visual) *G.Node {
	t, f := m.weights.cfg.Text, m.feed
	embedding := m.param(textPrefix + "embed_tokens.weight")
	x := m.embed(embedding, capacity)
	if v.features != nil {
		x = m.place(x, v.features)
	}
	rows := &f.rows
	for i := range t.NumHiddenLayers {
		p := fmt.Sprintf("%slayers.%d.", textPrefix, i)
		attended := m.selfAttention(x, p+"self_attn.", p+"input_layernorm.weight")
		if i == t.NumHiddenLayers-1 && i >= len(v.deepstack) {
			// nothing looks at the other rows any more
			x, attended, rows = m.lossRows(x), m.lossRows(attended), &f.targets
		}
		x = m.add(x, m.linear(attended, m.param(p+"self_attn.o_proj.weight"), nil, rows, false), rows)
		x = m.add(x, m.mlp(x, p, rows), rows)
		if i < len(v.deepstack) {
			x = m.deepstack(x, v.deepstack[i])
		}
	}
	if rows == &f.rows {
		x, rows = m.lossRows(x), &f.targets
	}
	x = m.tempered(m.rmsNorm(x, m.param(textPrefix+"norm.weight"), t.RMSNormEps, rows), rows)
	if !m.weights.cfg.TieWordEmbeddings {
		embedding = m.param(headName)
	}
	return m.linear(x, embedding, nil, rows, false)
}

func (m *model) selfAttention(x *G.Node, p, norm string) *G.Node {
	t, f := m.weights.cfg.Text, m.feed
	h := heads{q: t.NumAttentionHeads, kv: t.NumKeyValueHeads, dim: t.HeadDim, causal: true}
	x = m.rmsNorm(x, m.param(norm), t.RMSNormEps, &f.rows)
	qkv := m.linear(x, m.param(p+"q_proj.weight", p+"k_proj.weight", p+"v_proj.weight"), nil, &f.rows, false)
	qkv = m.headNorm(qkv, m.param(p+"q_norm.weight"), m.param(p+"k_norm.weight"), h, t.RMSNormEps, &f.rows)
	return m.attention(m.rope(qkv, h, &f.cos, &f.sin, &f.rows), h, &f.families)
}

func (m *model) mlp(x *G.Node, p string, rows *int) *G.Node {
	x = m.rmsNorm(x, m.param(p+"post_attention_layernorm.weight"), m.weights.cfg.Text.RMSNormEps, rows)
	gated := m.swiglu(m.linear(x, m.param(p+"mlp.gate_proj.weight", p+"mlp.up_proj.weight"), nil, rows, false), rows)
	return m.linear(gated, m.param(p+"mlp.down_proj.weight"), nil, rows, false)
}

// differentiate adds the gradients to the graph, and an operation that adds
// them to the slab.
func (m *model) differentiate(loss *G.Node, gradient []float32) {
	grads, err := G.Grad(loss, m.params...)
	if err != nil {
		panic(err)
	}
	m.apply("accumulate", scalar(), grads, func(v [][]float32, _ []float32) {
		for i, s := range m.spans {
			simd.For(m.feed.threads, s[1]-s[0], func(lo, hi int) {
				sum := gradient[s[0]+lo : s[0]+hi]
				simd.Add(sum, sum, v[i][lo:hi])
			})
		}
	})
}
