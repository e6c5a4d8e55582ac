package segment

import (
	"xragent/internal/simd"
)

// A tensor is a square image of several channels: channels lie next to each
// other, pixels row by row.
type tensor struct {
	side, channels int
	data           []float32
}

func newTensor(side, channels int) tensor {
	return tensor{side, channels, make([]float32, side*side*channels)}
}

// A layer is a convolution with a bias, batch normalisation folded in.
type layer struct {
	in, out int
	kernel  int          // 3 with a border of zeros, or 1
	weights *simd.Packed // kernel·kernel·in × out, kernel row first, then column, then channel
	bias    []float32
}

// newLayer takes weights as PyTorch orders them: out × in × kernel × kernel.
func newLayer(out, in, kernel int, weights, bias []float32) layer {
	taps := kernel * kernel
	turned := make([]float32, len(weights))
	for o := range out {
		for c := range in {
			for t := range taps {
				turned[(t*in+c)*out+o] = weights[(o*in+c)*taps+t]
			}
		}
	}
	return layer{in, out, kernel, simd.Pack(false, taps*in, out, turned, out), bias}
}

// chunk is about how many pixels are convolved at a time, so that what is
// gathered for them stays in the cache.
const chunk = 128

// apply convolves x, every stride-th pixel of it. With relu, what is negative
// becomes 0.
func (l layer) apply(x tensor, stride int, relu bool) tensor {
	y := newTensor(x.side/stride, l.out)
	rows := max(1, min(chunk/y.side, y.side))
	k := l.kernel * l.kernel * l.in
	gathered := make([]float32, rows*y.side*k)
	for from := 0; from < y.side; from += rows {
		n := min(rows, y.side-from)
		a := x.data[from*x.side*l.in:]
		if l.kernel == 3 {
			for r := range n {
				gather(gathered[r*y.side*k:(r+1)*y.side*k], x, from+r, stride)
			}
			a = gathered
		}
		c := y.data[from*y.side*l.out : (from+n)*y.side*l.out]
		simd.GemmPacked(1, n*y.side, a, k, l.weights, c, l.out, false)
		l.finish(c, relu)
	}
	return y
}

// finish adds the bias.
func (l layer) finish(c []float32, relu bool) {
	for ; len(c) > 0; c = c[l.out:] {
		pixel := c[:l.out]
		for i, b := range l.bias {
			v := pixel[i] + b
			if relu {
				v = max(v, 0)
			}
			pixel[i] = v
		}
	}
}

// gather writes the 3 × 3 neighbourhoods of one row of the output, zeros
// outside of x.
func gather(dst []float32, x tensor, row, stride int) {
	c, width := x.channels, x.side*x.channels
	for ky := range 3 {
		y := row*stride + ky - 1
		if y < 0 || y >= x.side {
			for at := ky * 3 * c; at < len(dst); at += 9 * c {
				clear(dst[at : at+3*c])
			}
			continue
		}
		line := x.data[y*width : (y+1)*width]
		for at, from := ky*3*c, -c; at < len(dst); at, from = at+9*c, from+stride*c {
			three := dst[at : at+3*c]
			switch {
			case from < 0:
				clear(three[:c])
				copy(three[c:], line[:2*c])
			case from+3*c > width:
				clear(three[copy(three, line[from:]):])
			default:
				copy(three, line[from:])
			}
		}
	}
}

// addDoubled adds x to y, which has twice its side: each of x's pixels to four.
func addDoubled(y, x tensor) {
	c := y.channels
	for row := range y.side {
		from := x.data[row/2*x.side*c:]
		to := y.data[row*y.side*c : (row+1)*y.side*c]
		for i := range x.side {
			pixel := from[i*c : (i+1)*c]
			for j, v := range pixel {
				to[2*i*c+j] += v
				to[(2*i+1)*c+j] += v
			}
		}
	}
}

// net is the network: down through stages that halve the side, up again with
// what each stage saw added.
type net struct {
	down [][]layer // the first of a stage has stride 2
	side []layer   // 1 × 1, from a stage's channels to those of the one above
	up   []layer
	head layer
}

// The classes that the head tells apart.
const (
	nothing = iota
	rightLung
	leftLung
	heart
	classes
)

// forward returns logits at half the input's side.
func (n *net) forward(x tensor) tensor {
	seen := make([]tensor, len(n.down))
	for i, stage := range n.down {
		for j, l := range stage {
			x = l.apply(x, 2-min(j, 1), true)
		}
		seen[i] = x
	}
	for i := len(n.side) - 1; i >= 0; i-- {
		addDoubled(seen[i], n.side[i].apply(x, 1, false))
		x = n.up[i].apply(seen[i], 1, true)
	}
	return n.head.apply(x, 1, false)
}
