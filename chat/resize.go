package chat

import "math"

// A plane is one 8-bit channel, row-major without padding.
type plane struct {
	w, h int
	pix  []uint8
}

func newPlane(w, h int) plane { return plane{w, h, make([]uint8, w*h)} }

// resize interpolates bicubically with antialiasing, as torchvision does on
// 8-bit tensors (and Pillow before it): one pass along x, one along y, each
// rounded to 8 bits; weights in fixed point with as many bits as keep the
// largest within 16. Source: Pillow's Resample.c and its port in PyTorch's
// UpSampleKernelAVXAntialias.h, which set the cubic's parameter to -1/2.
func (p plane) resize(w, h int) plane {
	if w != p.w {
		p = p.resizeRows(w)
	}
	if h != p.h {
		p = p.transpose().resizeRows(h).transpose()
	}
	return p
}

func (p plane) resizeRows(w int) plane {
	taps, bits := cubicTaps(p.w, w)
	out := newPlane(w, p.h)
	for y := range p.h {
		row := p.pix[y*p.w:][:p.w]
		for x, t := range taps {
			sum := int32(1) << (bits - 1)
			for i, v := range row[t.start:][:len(t.weights)] {
				sum += int32(v) * t.weights[i]
			}
			out.pix[y*w+x] = uint8(min(max(sum>>bits, 0), 255))
		}
	}
	return out
}

func (p plane) transpose() plane {
	out := newPlane(p.h, p.w)
	for y := range p.h {
		for x := range p.w {
			out.pix[x*p.h+y] = p.pix[y*p.w+x]
		}
	}
	return out
}

// A tap says which source pixels make one target pixel, and their weights in
// fixed point.
type tap struct {
	start   int
	weights []int32
}

// cubicTaps returns one tap a target pixel and the weights' fraction bits.
func cubicTaps(from, to int) (taps []tap, bits int) {
	scale := float64(from) / float64(to)
	stretch := max(scale, 1) // the filter widens when shrinking: antialiasing
	weights := make([][]float64, to)
	taps = make([]tap, to)
	largest := 0.0
	for i := range taps {
		center := scale * (float64(i) + 0.5)
		start := max(int(center-2*stretch+0.5), 0)
		end := min(int(center+2*stretch+0.5), from)
		taps[i] = tap{start, make([]int32, end-start)}
		weights[i] = cubicWeights(start, end, center, stretch)
		for _, w := range weights[i] {
			largest = max(largest, w)
		}
	}
	for bits < 22 && int(0.5+largest*float64(int(1)<<(bits+1))) < 1<<15 {
		bits++
	}
	for i, ws := range weights {
		for j, w := range ws {
			taps[i].weights[j] = int32(math.Round(w * float64(int(1)<<bits)))
		}
	}
	return taps, bits
}

// cubicWeights returns the normalised weights of source pixels [start, end).
func cubicWeights(start, end int, center, stretch float64) []float64 {
	ws := make([]float64, end-start)
	sum := 0.0
	for i := range ws {
		ws[i] = cubic((float64(start+i) - center + 0.5) / stretch)
		sum += ws[i]
	}
	for i := range ws {
		ws[i] /= sum
	}
	return ws
}

// cubic is Keys's kernel with a = -1/2.
func cubic(x float64) float64 {
	const a = -0.5
	switch x = math.Abs(x); {
	case x < 1:
		return ((a+2)*x-(a+3))*x*x + 1
	case x < 2:
		return (((x-5)*x+8)*x - 4) * a
	}
	return 0
}
