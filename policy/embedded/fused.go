package embedded

import (
	"fmt"
	"hash"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A kernel computes an operation's output from its inputs, all row-major. The
// output keeps what the last run left in it.
type kernel func(in [][]float32, out []float32)

// A pullback returns the node of the gradient with respect to one input, given
// the operation's output and the gradient that flows into it.
type pullback func(out, grad *G.Node) *G.Node

// A fused is one operation of the graph. It owns its output and hands out the
// same memory on every run, so a step allocates nothing; the order of
// operations that the graph fixes makes that safe.
type fused struct {
	name      string
	id        uint32 // makes the hash unique: the graph would merge equal ones
	signature hm.Type
	shape     tensor.Shape
	data      []float32
	value     G.Value
	inputs    [][]float32
	run       kernel
	pulls     []pullback
}

func (f *fused) Arity() int                                     { return len(f.inputs) }
func (f *fused) Type() hm.Type                                  { return f.signature }
func (f *fused) InferShape(...G.DimSizer) (tensor.Shape, error) { return f.shape, nil }
func (f *fused) ReturnsPtr() bool                               { return false }
func (f *fused) CallsExtern() bool                              { return false }
func (f *fused) OverwritesInput() int                           { return -1 }
func (f *fused) WriteHash(h hash.Hash)                          { fmt.Fprintf(h, "%s#%d", f.name, f.id) }
func (f *fused) Hashcode() uint32                               { return f.id }
func (f *fused) String() string                                 { return f.name }

// Do runs the kernel. The tape machine calls it on a goroutine of its own, so a
// panic is turned into an error here and not further out.
func (f *fused) Do(values ...G.Value) (_ G.Value, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: %v", f.name, r)
		}
	}()
	for i, v := range values {
		f.inputs[i] = floats(v)
	}
	f.run(f.inputs, f.data)
	if f.shape.IsScalar() {
		return G.NewF32(f.data[0]), nil
	}
	return f.value, nil
}

func floats(v G.Value) []float32 {
	switch data := v.Data().(type) {
	case []float32:
		return data
	case float32:
		return []float32{data}
	}
	panic(fmt.Sprintf("value of type %T", v))
}

// DiffWRT says which inputs have a pullback.
func (f *fused) DiffWRT(inputs int) []bool {
	wrt := make([]bool, inputs)
	for i, pull := range f.pulls {
		wrt[i] = pull != nil
	}
	return wrt
}

// SymDiff builds the gradients' nodes.
func (f *fused) SymDiff(inputs G.Nodes, out, grad *G.Node) (G.Nodes, error) {
	grads := make(G.Nodes, len(inputs))
	for i, pull := range f.pulls {
		if pull != nil {
			grads[i] = pull(out, grad)
		}
	}
	return grads, nil
}

// A builder adds fused operations to a graph. A graph that cannot be built is a
// broken invariant: the builder panics, and the learner turns that into an error.
type builder struct {
	graph *G.ExprGraph
	feed  *feed
	count uint32
}

// apply adds one operation. Missing pullbacks mean no gradient.
func (b *builder) apply(name string, shape tensor.Shape, in G.Nodes, run kernel, pulls ...pullback) *G.Node {
	b.count++
	op := &fused{name: name, id: b.count, shape: shape, run: run, pulls: pulls,
		inputs: make([][]float32, len(in)), data: make([]float32, shape.TotalSize())}
	result := hm.Type(tensor.Float32)
	if !shape.IsScalar() {
		result = G.TensorType{Dims: shape.Dims(), Of: tensor.Float32}
		op.value = tensor.New(tensor.WithShape(shape...), tensor.WithBacking(op.data))
	}
	types := make([]hm.Type, 0, len(in)+1)
	for _, n := range in {
		types = append(types, n.Type())
	}
	op.signature = hm.NewFnType(append(types, result)...)
	node, err := G.ApplyOp(op, in...)
	if err != nil {
		panic(fmt.Errorf("graph operation %s: %w", name, err))
	}
	return node
}

// like adds an operation whose output has x's shape.
func (b *builder) like(x *G.Node, name string, in G.Nodes, run kernel, pulls ...pullback) *G.Node {
	return b.apply(name, x.Shape().Clone(), in, run, pulls...)
}

func width(n *G.Node) int { return n.Shape()[n.Dims()-1] }

func matrix(rows, cols int) tensor.Shape { return tensor.Shape{rows, cols} }

func identity(_, grad *G.Node) *G.Node { return grad }
