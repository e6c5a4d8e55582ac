package segment

import (
	"image"
	"math"

	"xragent/internal/simd"
)

// inputSide is the side of the network's input in pixels.
const inputSide = 256

// taps are the source pixels that one resampled pixel is made of.
type taps struct {
	first   int
	weights []float32 // sum 1
}

// triangle returns the taps that resample n pixels to m: a triangle filter as
// wide as two steps, at least two pixels, which is PyTorch's antialiased
// bilinear interpolation.
func triangle(n, m int) []taps {
	scale := float64(n) / float64(m)
	half := max(scale, 1)
	out := make([]taps, m)
	for i := range out {
		centre := scale * (float64(i) + 0.5)
		first, end := max(int(centre-half+0.5), 0), min(int(centre+half+0.5), n)
		weights, sum := make([]float32, end-first), 0.0
		for j := range weights {
			w := max(1-math.Abs(float64(first+j)-centre+0.5)/half, 0)
			weights[j], sum = float32(w), sum+w
		}
		simd.Scale(float32(1/sum), weights)
		out[i] = taps{first, weights}
	}
	return out
}

// squeezed returns a film at side × side, its aspect not kept, in the middle of
// the network's input: grey levels 0 to 255, black around it.
func squeezed(img *image.Gray, side int) tensor {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	across, down := triangle(w, side), triangle(h, side)
	rows := make([]float32, h*side)
	for y := range h {
		line, out := img.Pix[y*img.Stride:y*img.Stride+w], rows[y*side:(y+1)*side]
		for x, t := range across {
			out[x] = t.of(line)
		}
	}
	x, margin := newTensor(inputSide, 1), (inputSide-side)/2
	for y, t := range down {
		at := (y+margin)*inputSide + margin
		out := x.data[at : at+side]
		for j, weight := range t.weights {
			simd.Axpy(weight, rows[(t.first+j)*side:(t.first+j+1)*side], out)
		}
	}
	return x
}

// raise raises grey levels, as shares of white, to a power.
func raise(x []float32, power float64) {
	if power == 1 {
		return
	}
	for i, v := range x {
		x[i] = float32(255 * math.Pow(max(float64(v), 0)/255, power))
	}
}

func (t taps) of(line []uint8) (sum float32) {
	line = line[t.first:]
	for i, w := range t.weights {
		sum += w * float32(line[i])
	}
	return sum
}

// normalise brings x to mean 0 and deviation 1. It reports false where all
// values are alike.
func normalise(x []float32) bool {
	var sum, squares float64
	for _, v := range x {
		sum += float64(v)
	}
	mean := sum / float64(len(x))
	for _, v := range x {
		squares += (float64(v) - mean) * (float64(v) - mean)
	}
	variance := squares / float64(len(x))
	if variance < 1e-3 {
		return false
	}
	by := 1 / math.Sqrt(variance+1e-6)
	for i, v := range x {
		x[i] = float32((float64(v) - mean) * by)
	}
	return true
}
