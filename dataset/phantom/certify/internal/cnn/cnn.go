// Package cnn holds a small convolutional network with many heads: one trunk
// turns a grey picture into features, and linear heads read classes, labels or
// numbers off them. It exists to find out what a picture shows; it refuses to
// be a framework. There is one architecture, one optimiser and no file format.
//
// The same seed, examples and options give the same weights, whatever the
// number of threads: a batch is cut into a fixed number of shards, whose
// gradients are summed in order.
package cnn

import (
	"fmt"
	"math"
	"math/rand/v2"

	"xragent/internal/simd"
)

// Side is the width and height of a picture in pixels.
const Side = 128

// A Loss says how a target's outputs are compared with what is wanted.
type Loss int

// The losses.
const (
	Classes Loss = iota // softmax cross-entropy; Target.Class is the right one
	Labels              // mean logistic loss; Target.Values are 0 or 1
	Numbers             // mean squared error / 2; Target.Values are the numbers
)

// A Target is one thing to be read off a picture: the outputs of its heads are
// summed, and compared with Class or Values. All heads of a target have as many
// outputs as there are classes or values.
type Target struct {
	Heads  []int // as AddHead returned them
	Loss   Loss
	Class  int
	Values []float32
	Weight float32 // of its loss in the example's
}

// Cells is the number of cells in a row and in a column of a map.
const Cells = 8

// An Example is a picture of Side × Side grey levels with its targets. Maps
// says where things are: Shape.Maps maps of Cells × Cells, 0 or 1; nil: unknown.
type Example struct {
	Pixels  []uint8
	Targets []Target
	Maps    []float32
}

// A Shape is the number of channels of each convolution and of the dense
// features, and how many maps are made of the last convolution. Beside the
// dense features the heads read each last channel's and each map's maximum over
// the picture and over eight bands of either half of it, which say whether
// something is there at all.
type Shape struct {
	Channels []int
	Features int
	Maps     int
}

// Usual is the probes' shape: four convolutions of stride 2, so 8 × 8 cells
// before the features.
var Usual = Shape{Channels: []int{16, 24, 32, 48}, Features: 128}

// A Net is the network with its weights.
type Net struct {
	convs []conv
	dense linear
	maps  linear // of a cell's channels
	pool  pool
	heads []linear
	theta []float32
}

// A conv is a convolution of stride 2 whose weights stand at theta[at:], out ×
// (in·kernel²), then out biases.
type conv struct {
	in, out, side, kernel, at int // side: of the input
}

func (c conv) half() int   { return c.side / 2 }
func (c conv) row() int    { return c.in * c.kernel * c.kernel }
func (c conv) params() int { return c.out * (c.row() + 1) }

// A linear is a map whose weights stand at theta[at:], out × in, then biases.
type linear struct{ in, out, at int }

func (l linear) params() int { return l.out * (l.in + 1) }

// A pool takes maxima of channels of side × side cells.
type pool struct{ channels, side int }

// bands is how many bands each half of the picture has.
const bands = 8

func (p pool) windows() int { return 2*bands + 1 }
func (p pool) outputs() int { return p.channels * p.windows() }

// window returns the rows and columns of a window; the last is the picture.
func (p pool) window(i int) (y0, y1, x0, x1 int) {
	if i == 2*bands {
		return 0, p.side, 0, p.side
	}
	band, half := i/2, i%2
	return band * p.side / bands, (band + 1) * p.side / bands, half * p.side / 2, (half + 1) * p.side / 2
}

// forward writes the maxima, and where they are.
func (p pool) forward(in, out []float32, at []int) {
	for w := range p.windows() {
		y0, y1, x0, x1 := p.window(w)
		for c := range p.channels {
			best := (c*p.side+y0)*p.side + x0
			for y := y0; y < y1; y++ {
				for x := x0; x < x1; x++ {
					if i := (c*p.side+y)*p.side + x; in[i] > in[best] {
						best = i
					}
				}
			}
			out[w*p.channels+c], at[w*p.channels+c] = in[best], best
		}
	}
}

// New makes a network without heads.
func New(shape Shape, seed uint64) *Net {
	n := &Net{}
	in, side := 1, Side
	rng := rand.New(rand.NewPCG(seed, 1))
	for i, out := range shape.Channels {
		c := conv{in: in, out: out, side: side, kernel: 3, at: len(n.theta)}
		if i == 0 {
			c.kernel = 5
		}
		n.convs = append(n.convs, c)
		n.grow(c.params())
		n.spread(rng, c.at, c.out*c.row(), math.Sqrt(2/float64(c.row())))
		in, side = out, side/2
	}
	n.dense = linear{in * side * side, shape.Features, len(n.theta)}
	n.grow(n.dense.params())
	n.maps = linear{in, shape.Maps, len(n.theta)}
	n.grow(n.maps.params())
	for i := range shape.Maps { // nothing is in most cells
		n.theta[n.maps.at+n.maps.in*n.maps.out+i] = -4
	}
	n.pool = pool{in + shape.Maps, side}
	n.spread(rng, n.dense.at, n.dense.in*n.dense.out, math.Sqrt(2/float64(n.dense.in)))
	return n
}

// features is how many the heads read.
func (n *Net) features() int { return n.dense.out + n.pool.outputs() }

func (n *Net) grow(by int) { n.theta = append(n.theta, make([]float32, by)...) }

// spread draws weights with a standard deviation (He et al. 2015, "Delving
// Deep into Rectifiers", section 2.2); biases stay zero.
func (n *Net) spread(rng *rand.Rand, at, count int, deviation float64) {
	for i := range count {
		n.theta[at+i] = float32(rng.NormFloat64() * deviation)
	}
}

// AddHead adds a head of that many outputs, all zero at first, and returns its
// index.
func (n *Net) AddHead(outputs int) int {
	n.heads = append(n.heads, linear{n.features(), outputs, len(n.theta)})
	n.grow(n.heads[len(n.heads)-1].params())
	return len(n.heads) - 1
}

// Outputs returns the sum of the heads' outputs for the picture.
func (n *Net) Outputs(pixels []uint8, heads ...int) []float32 {
	t := n.newTape()
	t.load(pixels, 0, 0)
	n.forward(t)
	return n.read(t, heads)
}

// A tape holds what one picture's way back needs.
type tape struct {
	acts  [][]float32 // the picture, then each convolution's output
	cols  [][]float32 // unrolled input of each convolution
	deep  []float32   // the last convolution's output, then the maps
	feats []float32
	at    []int     // of the maxima in deep
	keep  []float32 // of the features: 0, or what makes up for those that are dropped

	dActs, dCols  [][]float32
	dDeep, dFeats []float32
}

func (n *Net) newTape() *tape {
	t := &tape{feats: make([]float32, n.features()), dFeats: make([]float32, n.features()), at: make([]int, n.pool.outputs())}
	t.acts = append(t.acts, make([]float32, Side*Side))
	t.dActs = append(t.dActs, nil)
	for _, c := range n.convs {
		cells := c.half() * c.half()
		t.acts, t.dActs = append(t.acts, make([]float32, c.out*cells)), append(t.dActs, make([]float32, c.out*cells))
		t.cols, t.dCols = append(t.cols, make([]float32, c.row()*cells)), append(t.dCols, make([]float32, c.row()*cells))
	}
	deep := n.pool.channels * n.pool.side * n.pool.side
	t.deep, t.dDeep = make([]float32, deep), make([]float32, deep)
	last, size := len(n.convs), n.dense.in
	t.acts[last], t.dActs[last] = t.deep[:size], t.dDeep[:size]
	return t
}

// load standardises a picture, moved by dx and dy; what moves in repeats the edge.
func (t *tape) load(pixels []uint8, dx, dy int) {
	if len(pixels) != Side*Side {
		panic(fmt.Sprintf("cnn: picture of %d pixels, want %d", len(pixels), Side*Side))
	}
	sum, squares := 0, 0
	for _, v := range pixels {
		sum, squares = sum+int(v), squares+int(v)*int(v)
	}
	mean := float64(sum) / (Side * Side)
	scale := 1 / (math.Sqrt(max(0, float64(squares)/(Side*Side)-mean*mean)) + 1)
	for y := range Side {
		from := pixels[min(max(y+dy, 0), Side-1)*Side:]
		for x := range Side {
			t.acts[0][y*Side+x] = float32((float64(from[min(max(x+dx, 0), Side-1)]) - mean) * scale)
		}
	}
}

func (n *Net) forward(t *tape) {
	for i, c := range n.convs {
		c.forward(n.theta, t.acts[i], t.cols[i], t.acts[i+1])
	}
	last := t.acts[len(n.convs)]
	n.dense.forward(n.theta, last, t.feats)
	rectify(t.feats[:n.dense.out])
	n.maps.cells(n.theta, last, t.deep[len(last):])
	n.pool.forward(t.deep, t.feats[n.dense.out:], t.at)
	for i, k := range t.keep {
		t.feats[i] *= k
	}
}

// rectify sets what is negative to zero, by its sign bit: a branch would be
// mispredicted half of the time.
func rectify(v []float32) {
	for i, x := range v {
		bits := math.Float32bits(x)
		v[i] = math.Float32frombits(bits &^ uint32(int32(bits)>>31))
	}
}

// gate sets the gradient to zero where the rectified output is.
func gate(d, out []float32) {
	out = out[:len(d)]
	for i, x := range out {
		passes := uint32(-int32(math.Float32bits(x)) >> 31) // all ones where x > 0
		d[i] = math.Float32frombits(math.Float32bits(d[i]) & passes)
	}
}

func (c conv) forward(theta, in, cols, out []float32) {
	c.unroll(in, cols)
	cells, row := c.half()*c.half(), c.row()
	w, bias := theta[c.at:], theta[c.at+c.out*row:]
	for o := range c.out {
		for i := range cells {
			out[o*cells+i] = bias[o]
		}
	}
	simd.Gemm(false, false, c.out, cells, row, w, row, cols, cells, out, cells, true)
	rectify(out[:c.out*cells])
}

// unroll writes the input under each weight as a row of cols.
func (c conv) unroll(in, cols []float32) {
	c.each(func(row []float32, channel, y, from, to, x int) {
		clear(row)
		if y < 0 || y >= c.side {
			return
		}
		line := in[(channel*c.side+y)*c.side:]
		for i := from; i < to; i++ {
			row[i] = line[2*i+x]
		}
	}, cols)
}

// roll adds the rows of cols to the input that they came from.
func (c conv) roll(cols, in []float32) {
	c.each(func(row []float32, channel, y, from, to, x int) {
		if y < 0 || y >= c.side {
			return
		}
		line := in[(channel*c.side+y)*c.side:]
		for i := from; i < to; i++ {
			line[2*i+x] += row[i]
		}
	}, cols)
}

// each visits the pieces of cols that lie in one line of the input: piece[i]
// belongs to line y at 2i+x, for i in [from, to).
func (c conv) each(visit func(piece []float32, channel, y, from, to, x int), cols []float32) {
	half, pad := c.half(), (c.kernel-1)/2
	at := 0
	for channel := range c.in {
		for ky := range c.kernel {
			for kx := range c.kernel {
				x := kx - pad
				from, to := 0, half
				for 2*from+x < 0 {
					from++
				}
				for 2*(to-1)+x >= c.side {
					to--
				}
				for i := range half {
					visit(cols[at+i*half:at+(i+1)*half], channel, 2*i+ky-pad, from, to, x)
				}
				at += half * half
			}
		}
	}
}

// backward adds the weights' gradient; dOut is that of the rectified output.
func (c conv) backward(theta, grad, cols, out, dOut, dCols, dIn []float32) {
	cells, row := c.half()*c.half(), c.row()
	bias := grad[c.at+c.out*row:]
	for o := range c.out {
		gate(dOut[o*cells:(o+1)*cells], out[o*cells:(o+1)*cells])
		bias[o] += simd.Sum(dOut[o*cells : (o+1)*cells])
	}
	simd.Gemm(false, true, c.out, row, cells, dOut, cells, cols, cells, grad[c.at:], row, true)
	if dIn == nil {
		return
	}
	simd.Gemm(true, false, row, cells, c.out, theta[c.at:], row, dOut, cells, dCols, cells, false)
	clear(dIn)
	c.roll(dCols, dIn)
}

func (l linear) forward(theta, in, out []float32) {
	for o := range l.out {
		out[o] = theta[l.at+l.out*l.in+o] + simd.Dot(theta[l.at+o*l.in:l.at+(o+1)*l.in], in)
	}
}

// backward adds to the weights' gradient and, unless dIn is nil, to the input's.
func (l linear) backward(theta, grad, in, dOut, dIn []float32) {
	for o, d := range dOut {
		if d == 0 {
			continue
		}
		grad[l.at+l.out*l.in+o] += d
		simd.Axpy(d, in, grad[l.at+o*l.in:l.at+(o+1)*l.in])
		if dIn != nil {
			simd.Axpy(d, theta[l.at+o*l.in:l.at+(o+1)*l.in], dIn)
		}
	}
}

// cells applies l to each cell's channels.
func (l linear) cells(theta, in, out []float32) {
	size := len(in) / l.in
	for o := range l.out {
		for i := range size {
			out[o*size+i] = theta[l.at+l.out*l.in+o]
		}
	}
	simd.Gemm(false, false, l.out, size, l.in, theta[l.at:], l.in, in, size, out, size, true)
}

// cellsBackward adds to the gradients of the weights and of the input.
func (l linear) cellsBackward(theta, grad, in, dOut, dIn []float32) {
	size := len(in) / l.in
	for o := range l.out {
		grad[l.at+l.out*l.in+o] += simd.Sum(dOut[o*size : (o+1)*size])
	}
	simd.Gemm(false, true, l.out, l.in, size, dOut, size, in, size, grad[l.at:], l.in, true)
	simd.Gemm(true, false, l.in, size, l.out, theta[l.at:], l.in, dOut, size, dIn, size, true)
}

func (n *Net) read(t *tape, heads []int) []float32 {
	out := make([]float32, n.heads[heads[0]].out)
	one := make([]float32, len(out))
	for _, h := range heads {
		n.heads[h].forward(n.theta, t.feats, one)
		simd.Axpy(1, one, out)
	}
	return out
}

// backward adds the gradient of an example's loss, after forward, and returns
// the loss.
func (n *Net) backward(t *tape, e Example, grad []float32) float64 {
	clear(t.dFeats)
	loss := 0.0
	for _, target := range e.Targets {
		out := n.read(t, target.Heads)
		loss += target.compare(out)
		for _, h := range target.Heads {
			n.heads[h].backward(n.theta, grad, t.feats, out, t.dFeats)
		}
	}
	gate(t.dFeats[:n.dense.out], t.feats)
	for i, k := range t.keep {
		t.dFeats[i] *= k
	}
	clear(t.dDeep)
	last := len(n.convs)
	n.dense.backward(n.theta, grad, t.acts[last], t.dFeats[:n.dense.out], t.dActs[last])
	for i, at := range t.at {
		t.dDeep[at] += t.dFeats[n.dense.out+i]
	}
	size := len(t.acts[last])
	loss += locate(t.deep[size:], e.Maps, t.dDeep[size:])
	n.maps.cellsBackward(n.theta, grad, t.acts[last], t.dDeep[size:], t.dActs[last])
	for i := last - 1; i >= 0; i-- {
		n.convs[i].backward(n.theta, grad, t.cols[i], t.acts[i+1], t.dActs[i+1], t.dCols[i], t.dActs[i])
	}
	return loss
}

// locate returns the logistic loss of all cells and adds its gradient.
func locate(out, want, d []float32) (loss float64) {
	const weight = 0.5
	if want == nil {
		return 0
	}
	for i, z := range out {
		loss += weight * logistic(z, want[i])
		d[i] += weight * (sigmoid(z) - want[i])
	}
	return loss
}

func sigmoid(z float32) float32 { return float32(1 / (1 + math.Exp(-float64(z)))) }

// logistic is the loss of the logit z where the label is y.
func logistic(z, y float32) float64 {
	return math.Log1p(math.Exp(-math.Abs(float64(z)))) + float64(max(z, 0)) - float64(z*y)
}

// compare returns the loss and turns the outputs into its gradient.
func (t Target) compare(out []float32) (loss float64) {
	switch t.Loss {
	case Classes:
		loss = softmax(out, t.Class)
	case Labels:
		for i, z := range out {
			loss += logistic(z, t.Values[i]) / float64(len(out))
			out[i] = (sigmoid(z) - t.Values[i]) / float32(len(out))
		}
	case Numbers:
		for i, z := range out {
			d := z - t.Values[i]
			loss += float64(d*d) / 2 / float64(len(out))
			out[i] = d / float32(len(out))
		}
	}
	for i := range out {
		out[i] *= t.Weight
	}
	return loss * float64(t.Weight)
}

func softmax(out []float32, class int) float64 {
	top := out[0]
	for _, z := range out {
		top = max(top, z)
	}
	sum := 0.0
	for _, z := range out {
		sum += math.Exp(float64(z - top))
	}
	loss := math.Log(sum) - float64(out[class]-top)
	for i, z := range out {
		out[i] = float32(math.Exp(float64(z-top)) / sum)
	}
	out[class]--
	return loss
}
