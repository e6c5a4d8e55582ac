package phantom

import (
	"image"
	"math"
	"sync"
)

// coarseSize is the side of the policy's view in pixels, coarseStep how many
// source pixels one of them spans.
const (
	coarseSize = 128
	coarseStep = Size / coarseSize
)

// Coarse returns the film as the policy sees it: 128 × 128 pixels, by bicubic
// interpolation with antialiasing as image processors do it (Pillow's and
// torchvision's: Keys's kernel with a = -1/2, widened by the scale). It differs
// from theirs by their rounding between the two passes.
func Coarse(img *image.Gray) *image.Gray {
	v := make([]float32, Size*Size)
	for y := range Size {
		for x := range Size {
			v[y*Size+x] = float32(img.Pix[y*img.Stride+x])
		}
	}
	out := image.NewGray(image.Rect(0, 0, coarseSize, coarseSize))
	for i, s := range shrink(v) {
		out.Pix[i] = uint8(max(0, min(255, math.Round(s))))
	}
	return out
}

// A tap is the weights of the source pixels, from the first on, that make one
// coarse pixel of a row or a column.
type tap struct {
	first   int
	weights []float64
}

var taps = sync.OnceValue(func() (out [coarseSize]tap) {
	for i := range out {
		centre := coarseStep * (float64(i) + 0.5)
		first, end := max(0, int(centre-2*coarseStep+0.5)), min(Size, int(centre+2*coarseStep+0.5))
		w, sum := make([]float64, end-first), 0.0
		for j := range w {
			w[j] = keys((float64(first+j) - centre + 0.5) / coarseStep)
			sum += w[j]
		}
		for j := range w {
			w[j] /= sum
		}
		out[i] = tap{first, w}
	}
	return out
})

// keys is the cubic convolution kernel of Keys 1981 with a = -1/2.
func keys(x float64) float64 {
	switch x = math.Abs(x); {
	case x < 1:
		return (1.5*x-2.5)*x*x + 1
	case x < 2:
		return ((-0.5*x+2.5)*x-4)*x + 2
	}
	return 0
}

// shrink returns A·v·Aᵀ, where the rows of A are the taps.
func shrink(v []float32) []float64 {
	t := taps()
	half := make([]float64, Size*coarseSize)
	for y := range Size {
		for i := range t {
			sum, row := 0.0, v[y*Size+t[i].first:]
			for j, w := range t[i].weights {
				sum += w * float64(row[j])
			}
			half[y*coarseSize+i] = sum
		}
	}
	out := make([]float64, coarseSize*coarseSize)
	for i := range t {
		for j, w := range t[i].weights {
			row := half[(t[i].first+j)*coarseSize:]
			for x := range coarseSize {
				out[i*coarseSize+x] += w * row[x]
			}
		}
	}
	return out
}

// hide takes from v the least that leaves nothing of it in the coarse view: its
// orthogonal projection onto the null space of shrink, v - Aᵀ·X·A with
// (A·Aᵀ)·X·(A·Aᵀ) = A·v·Aᵀ.
func hide(v []float32) {
	x := shrink(v)
	g := gram()
	for range 2 { // solve for the columns, and after a transposition for the rows
		g.solve(x)
		transpose(x)
	}
	t := taps()
	half := make([]float64, Size*coarseSize) // Aᵀ·X
	for i := range t {
		for j, w := range t[i].weights {
			row := half[(t[i].first+j)*coarseSize:]
			for c := range coarseSize {
				row[c] += w * x[i*coarseSize+c]
			}
		}
	}
	for y := range Size {
		row := v[y*Size : (y+1)*Size]
		for i := range t {
			s := half[y*coarseSize+i]
			for j, w := range t[i].weights {
				row[t[i].first+j] -= float32(w * s)
			}
		}
	}
}

func transpose(x []float64) {
	for i := range coarseSize {
		for j := range i {
			x[i*coarseSize+j], x[j*coarseSize+i] = x[j*coarseSize+i], x[i*coarseSize+j]
		}
	}
}

// band is how far from the diagonal A·Aᵀ has entries.
const band = 3

// A factor is the Cholesky factor of A·Aᵀ: entry d of row i is L[i][i-d].
type factor [coarseSize][band + 1]float64

var gram = sync.OnceValue(func() *factor {
	t := taps()
	var l factor
	for i := range l {
		for d := min(i, band); d >= 0; d-- {
			j := i - d
			sum := t[i].dot(t[j])
			for k := max(0, i-band); k < j; k++ {
				if j-k <= band {
					sum -= l[i][i-k] * l[j][j-k]
				}
			}
			if d == 0 {
				l[i][0] = math.Sqrt(sum)
			} else {
				l[i][d] = sum / l[j][0]
			}
		}
	}
	return &l
})

func (a tap) dot(b tap) (sum float64) {
	for i, w := range a.weights {
		if k := a.first + i - b.first; k >= 0 && k < len(b.weights) {
			sum += w * b.weights[k]
		}
	}
	return sum
}

// solve replaces each column b of x by the solution of L·Lᵀ·y = b.
func (l *factor) solve(x []float64) {
	row := func(i int) []float64 { return x[i*coarseSize : (i+1)*coarseSize] }
	for i := range coarseSize {
		for d := 1; d <= min(i, band); d++ {
			for c, v := range row(i - d) {
				x[i*coarseSize+c] -= l[i][d] * v
			}
		}
		for c := range coarseSize {
			x[i*coarseSize+c] /= l[i][0]
		}
	}
	for i := coarseSize - 1; i >= 0; i-- {
		for d := 1; d <= band && i+d < coarseSize; d++ {
			for c, v := range row(i + d) {
				x[i*coarseSize+c] -= l[i+d][d] * v
			}
		}
		for c := range coarseSize {
			x[i*coarseSize+c] /= l[i][0]
		}
	}
}
