package embedded

import (
	"xragent/internal/simd"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// linear is x·Wᵀ, and + bias where bias is not nil. rows counts x's rows in use;
// with leaf set, x is data and gets no gradient.
func (b *builder) linear(x, w, bias *G.Node, rows *int, leaf bool) *G.Node {
	in, out, threads := width(x), w.Shape()[0], b.feed.threads
	run := func(v [][]float32, y []float32) {
		if bias != nil {
			for r := range *rows {
				copy(y[r*out:], v[2])
			}
		}
		simd.ParallelGemm(threads, false, true, *rows, out, in, v[0], in, v[1], in, y, out, bias != nil)
	}
	dx := func(_, dy *G.Node) *G.Node {
		return b.like(x, "linear_dx", G.Nodes{dy, w}, func(v [][]float32, d []float32) {
			simd.ParallelGemm(threads, false, false, *rows, in, out, v[0], out, v[1], in, d, in, false)
		})
	}
	if leaf {
		dx = nil
	}
	dw := func(_, dy *G.Node) *G.Node {
		return b.like(w, "linear_dw", G.Nodes{dy, x}, func(v [][]float32, d []float32) {
			simd.ParallelGemm(threads, true, false, out, in, *rows, v[0], out, v[1], in, d, in, false)
		})
	}
	shape := matrix(x.Shape()[0], out)
	if bias == nil {
		return b.apply("linear", shape, G.Nodes{x, w}, run, dx, dw)
	}
	db := func(_, dy *G.Node) *G.Node { return b.columnSums(dy, bias, rows) }
	return b.apply("linear", shape, G.Nodes{x, w, bias}, run, dx, dw, db)
}

// columnSums adds up dy's rows: the gradient of a bias.
func (b *builder) columnSums(dy, bias *G.Node, rows *int) *G.Node {
	n := width(dy)
	return b.like(bias, "column_sums", G.Nodes{dy}, func(v [][]float32, d []float32) {
		clear(d)
		b.columns(n, func(lo, hi int) {
			for r := range *rows {
				simd.Add(d[lo:hi], d[lo:hi], v[0][r*n+lo:r*n+hi])
			}
		})
	})
}

// columns splits n columns over the threads. What sums rows column by column
// has the same bits for any number of threads.
func (b *builder) columns(n int, visit func(lo, hi int)) {
	const least = 16 // columns, a cache line
	simd.For(b.feed.threads, (n+least-1)/least, func(lo, hi int) { visit(lo*least, min(hi*least, n)) })
}

// add is x + y.
func (b *builder) add(x, y *G.Node, rows *int) *G.Node {
	n := width(x)
	return b.like(x, "add", G.Nodes{x, y}, func(v [][]float32, out []float32) {
		simd.For(b.feed.threads, *rows, func(lo, hi int) {
			simd.Add(out[lo*n:hi*n], v[0][lo*n:hi*n], v[1][lo*n:hi*n])
		})
	}, identity, identity)
}

// pass is x under another node. Where a node has three uses, two of them go
// through it: the graph then adds gradients in pairs, and a sum of two has the
// same bits in either order.
func (b *builder) pass(x *G.Node, rows *int) *G.Node {
	n := width(x)
	return b.like(x, "pass", G.Nodes{x}, func(v [][]float32, out []float32) {
		copy(out, v[0][:*rows*n])
	}, identity)
}

// regroup reads x's rows in groups of n as one row: the merge of neighbouring
// patches, which the processor's order has made neighbours in memory.
func (b *builder) regroup(x *G.Node, n int, rows *int) *G.Node {
	size := width(x)
	copyUsed := func(v [][]float32, out []float32) { copy(out, v[0][:*rows*size]) }
	shape := matrix(x.Shape()[0]/n, size*n)
	return b.apply("regroup", shape, G.Nodes{x}, copyUsed, func(_, dy *G.Node) *G.Node {
		return b.like(x, "regroup_dx", G.Nodes{dy}, copyUsed)
	})
}

// embed looks the ids up in w [vocab, hidden].
func (b *builder) embed(w *G.Node, capacity int) *G.Node {
	f, n := b.feed, width(w)
	return b.apply("embed", matrix(capacity, n), G.Nodes{w}, func(v [][]float32, out []float32) {
		for r, id := range f.ids[:f.rows] {
			copy(out[r*n:(r+1)*n], v[0][int(id)*n:])
		}
	}, func(_, dy *G.Node) *G.Node {
		return b.like(w, "embed_dw", G.Nodes{dy}, func(v [][]float32, d []float32) {
			clear(d)
			for r, id := range f.ids[:f.rows] {
				if f.source[r] < 0 {
					at := d[int(id)*n : (int(id)+1)*n]
					simd.Add(at, at, v[0][r*n:(r+1)*n])
				}
			}
		})
	})
}

// place puts the image features where the image-pad ids stand. The embedding of
// an image-pad id has no effect there, so embed leaves those rows out of its
// gradient and x's gradient needs no masking.
func (b *builder) place(x, features *G.Node) *G.Node {
	f, n := b.feed, width(x)
	return b.like(x, "place", G.Nodes{x, features}, func(v [][]float32, out []float32) {
		copy(out, v[0][:f.rows*n])
		for r, s := range f.source[:f.rows] {
			if s >= 0 {
				copy(out[r*n:(r+1)*n], v[1][int(s)*n:])
			}
		}
	}, identity, b.collectFeatures(features))
}

// deepstack adds image features to the rows of the image-pad ids.
func (b *builder) deepstack(x, features *G.Node) *G.Node {
	f, n := b.feed, width(x)
	return b.like(x, "deepstack", G.Nodes{x, features}, func(v [][]float32, out []float32) {
		copy(out, v[0][:f.rows*n])
		for r, s := range f.source[:f.rows] {
			if s >= 0 {
				at := out[r*n : (r+1)*n]
				simd.Add(at, at, v[1][int(s)*n:(int(s)+1)*n])
			}
		}
	}, identity, b.collectFeatures(features))
}

// collectFeatures sums the gradient of each feature over its uses, in row order.
func (b *builder) collectFeatures(features *G.Node) pullback {
	f, n := b.feed, width(features)
	return func(_, dy *G.Node) *G.Node {
		return b.like(features, "features_dx", G.Nodes{dy}, func(v [][]float32, d []float32) {
			clear(d[:f.features*n])
			for r, s := range f.source[:f.rows] {
				if s >= 0 {
					at := d[int(s)*n : (int(s)+1)*n]
					simd.Add(at, at, v[0][r*n:(r+1)*n])
				}
			}
		})
	}
}

// learnedPositions adds the interpolated positions w [positions, hidden] to the
// patches.
func (b *builder) learnedPositions(x, w *G.Node) *G.Node {
	f, n := b.feed, width(x)
	each := func(visit func(patch int, index int, weight float32)) {
		for p := range f.patches {
			for k, index := range f.blends[p].index {
				visit(p, int(index), f.blends[p].weight[k])
			}
		}
	}
	return b.like(x, "positions", G.Nodes{x, w}, func(v [][]float32, out []float32) {
		copy(out, v[0][:f.patches*n])
		each(func(p, index int, weight float32) {
			simd.Axpy(weight, v[1][index*n:(index+1)*n], out[p*n:(p+1)*n])
		})
	}, identity, func(_, dy *G.Node) *G.Node {
		return b.like(w, "positions_dw", G.Nodes{dy}, func(v [][]float32, d []float32) {
			clear(d)
			each(func(p, index int, weight float32) {
				simd.Axpy(weight, v[0][p*n:(p+1)*n], d[index*n:(index+1)*n])
			})
		})
	})
}

// lossRows takes, for each loss token, the row that predicts it. A row that
// bundled sequences share may predict several.
func (b *builder) lossRows(x *G.Node) *G.Node {
	f, n := b.feed, width(x)
	return b.like(x, "loss_rows", G.Nodes{x}, func(v [][]float32, out []float32) {
		for i, t := range f.target[:f.targets] {
			copy(out[i*n:(i+1)*n], v[0][int(t.row)*n:])
		}
	}, func(_, dy *G.Node) *G.Node {
		return b.like(x, "loss_rows_dx", G.Nodes{dy}, func(v [][]float32, d []float32) {
			clear(d[:f.rows*n])
			for i, t := range f.target[:f.targets] {
				at := d[int(t.row)*n : (int(t.row)+1)*n]
				simd.Add(at, at, v[0][i*n:(i+1)*n])
			}
		})
	})
}

// swiglu is silu(gate)·up of the packed [gate | up].
func (b *builder) swiglu(x *G.Node, rows *int) *G.Node {
	n, threads := width(x)/2, b.feed.threads
	return b.apply("swiglu", matrix(x.Shape()[0], n), G.Nodes{x}, func(v [][]float32, out []float32) {
		simd.For(threads, *rows, func(lo, hi int) {
			for r := lo; r < hi; r++ {
				gu := v[0][2*r*n : 2*(r+1)*n]
				simd.SiLU(out[r*n:(r+1)*n], gu[:n], gu[n:])
			}
		})
	}, func(_, dy *G.Node) *G.Node {
		return b.like(x, "swiglu_dx", G.Nodes{dy, x}, func(v [][]float32, d []float32) {
			simd.For(threads, *rows, func(lo, hi int) {
				for r := lo; r < hi; r++ {
					at := d[2*r*n : 2*(r+1)*n]
					gu := v[1][2*r*n : 2*(r+1)*n]
					simd.SiLUBackward(at[:n], at[n:], gu[:n], gu[n:], v[0][r*n:(r+1)*n])
				}
			})
		})
	})
}

// geluTanh is GELU in its tanh form.
func (b *builder) geluTanh(x *G.Node, rows *int) *G.Node {
	return b.pointwise("gelu_tanh", x, rows, simd.GELUTanh, simd.GELUTanhBackward)
}

// geluErf is GELU in its exact form, which the mergers use.
func (b *builder) geluErf(x *G.Node, rows *int) *G.Node {
	return b.pointwise("gelu", x, rows, simd.GELU, simd.GELUBackward)
}

// pointwise applies a function to every element.
func (b *builder) pointwise(name string, x *G.Node, rows *int, forward func(out, x []float32), backward func(dx, x, dy []float32)) *G.Node {
	n, threads := width(x), b.feed.threads
	return b.like(x, name, G.Nodes{x}, func(v [][]float32, out []float32) {
		simd.For(threads, *rows, func(lo, hi int) { forward(out[lo*n:hi*n], v[0][lo*n:hi*n]) })
	}, func(_, dy *G.Node) *G.Node {
		return b.like(x, name+"_dx", G.Nodes{dy, x}, func(v [][]float32, d []float32) {
			simd.For(threads, *rows, func(lo, hi int) { backward(d[lo*n:hi*n], v[1][lo*n:hi*n], v[0][lo*n:hi*n]) })
		})
	})
}

// scalar is the shape of a single number.
func scalar() tensor.Shape { return tensor.ScalarShape() }
