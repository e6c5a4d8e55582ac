package embedded

import (
	"fmt"
	"math"
)

// Positions returns the M-RoPE position (time, height, width) of every id, and
// the position of the id that would follow. Text advances all three axes
// together. An image starts at the next position, its merged patches count
// height and width from there, and the text behind it goes on after its longest
// side, as transformers' get_rope_index does. ids are expanded: an image of
// grid t×h×w has t·h·w/merge² image-pad ids.
func (c Config) Positions(ids []int32, grids [][3]int) (pos [][3]int32, next int32, err error) {
	pos = make([][3]int32, 0, len(ids))
	image := 0
	for len(pos) < len(ids) {
		if ids[len(pos)] != c.ImageTokenID {
			pos = append(pos, [3]int32{next, next, next})
			next++
			continue
		}
		if image == len(grids) {
			return nil, 0, fmt.Errorf("image-pad id at %d belongs to no image: %d images given", len(pos), len(grids))
		}
		if pos, next, err = c.appendImage(pos, next, ids, grids[image]); err != nil {
			return nil, 0, fmt.Errorf("image %d: %w", image, err)
		}
		image++
	}
	if image < len(grids) {
		return nil, 0, fmt.Errorf("%d images given, but the ids have pads for %d", len(grids), image)
	}
	return pos, next, nil
}

func (c Config) appendImage(pos [][3]int32, start int32, ids []int32, grid [3]int) ([][3]int32, int32, error) {
	if err := c.Vision.checkGrid(grid); err != nil {
		return nil, 0, err
	}
	m := c.Vision.SpatialMergeSize
	t, h, w := grid[0], grid[1]/m, grid[2]/m
	first := len(pos)
	for i := range t * h * w {
		if at := first + i; at == len(ids) || ids[at] != c.ImageTokenID {
			return nil, 0, fmt.Errorf("grid %v needs %d image-pad ids, found %d", grid, t*h*w, i)
		}
		pos = append(pos, [3]int32{start + int32(i/(h*w)), start + int32(i/w%h), start + int32(i%w)})
	}
	return pos, start + int32(max(t, h, w)), nil
}

func (v VisionConfig) checkGrid(grid [3]int) error {
	m := v.SpatialMergeSize
	if grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0 || grid[1]%m != 0 || grid[2]%m != 0 {
		return fmt.Errorf("grid %v is not made of positive multiples of the merge size %d", grid, m)
	}
	return nil
}

// inverseFrequencies returns θ^(-2j/dim) for j < dim/2, in float32 as torch
// computes them.
func inverseFrequencies(theta float64, dim int) []float32 {
	f := make([]float32, dim/2)
	for j := range f {
		f[j] = 1 / float32(math.Pow(theta, float64(float32(2*j)/float32(dim))))
	}
	return f
}

// sinCos returns the sine and cosine of the float32 product, as torch has it.
func sinCos(position int32, frequency float32) (sin, cos float32) {
	s, c := math.Sincos(float64(float32(position) * frequency))
	return float32(s), float32(c)
}

// textRope fills cos and sin [len(pos), head_dim/2] of the interleaved M-RoPE:
// frequency j turns with height where j mod 3 is 1, with width where it is 2,
// each up to its section, and with time everywhere else.
func (t TextConfig) textRope(pos [][3]int32, cos, sin []float32) {
	frequencies := inverseFrequencies(t.RopeTheta, t.HeadDim)
	axes := t.ropeAxes()
	for i, p := range pos {
		at := i * len(frequencies)
		for j, f := range frequencies {
			sin[at+j], cos[at+j] = sinCos(p[axes[j]], f)
		}
	}
}

// ropeAxes returns the axis that turns each of the head_dim/2 frequencies.
func (t TextConfig) ropeAxes() []int {
	axes := make([]int, t.HeadDim/2)
	for j := range axes {
		if axis := j % 3; axis > 0 && j < 3*t.RopeScaling.Section[axis] {
			axes[j] = axis
		}
	}
	return axes
}

// visionRope fills cos and sin [patches, head_dim/2] of an image: the first
// half of the frequencies turns with the row, the second with the column.
func (v VisionConfig) visionRope(grid [3]int, cos, sin []float32) {
	frequencies := inverseFrequencies(visionTheta, v.HiddenSize/v.NumHeads/2)
	n := len(frequencies)
	v.eachPatch(grid, func(patch, row, col int) {
		at := patch * 2 * n
		for j, f := range frequencies {
			sin[at+j], cos[at+j] = sinCos(int32(row), f)
			sin[at+n+j], cos[at+n+j] = sinCos(int32(col), f)
		}
	})
}

// eachPatch visits the patches in the processor's order: frames, then merge
// blocks row by row, then the patches of a block row by row.
func (v VisionConfig) eachPatch(grid [3]int, visit func(patch, row, col int)) {
	m := v.SpatialMergeSize
	patch := 0
	for range grid[0] {
		for block := range (grid[1] / m) * (grid[2] / m) {
			top, left := block/(grid[2]/m)*m, block%(grid[2]/m)*m
			for i := range m * m {
				visit(patch, top+i/m, left+i%m)
				patch++
			}
		}
	}
}

// A blend is a patch's place between four learned positions.
type blend struct {
	index  [4]int32
	weight [4]float32
}

// positionBlends returns, patch by patch, the bilinear interpolation of the
// square grid of learned positions to the image's grid.
func (v VisionConfig) positionBlends(grid [3]int) []blend {
	side := v.gridSide()
	blends := make([]blend, grid[0]*grid[1]*grid[2])
	v.eachPatch(grid, func(patch, row, col int) {
		y0, y1, dy := between(row, grid[1], side)
		x0, x1, dx := between(col, grid[2], side)
		at := func(y, x int) int32 { return int32(y*side + x) }
		blends[patch] = blend{
			index:  [4]int32{at(y0, x0), at(y0, x1), at(y1, x0), at(y1, x1)},
			weight: [4]float32{(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx},
		}
	})
	return blends
}

// between places point i of n, spread evenly from 0 to side-1.
func between(i, n, side int) (lo, hi int, frac float32) {
	if n == 1 {
		return 0, min(1, side-1), 0
	}
	x := float32(side-1) / float32(n-1) * float32(i)
	if 2*i >= n {
		x = float32(side-1) - float32(side-1)/float32(n-1)*float32(n-1-i)
	}
	lo = int(x)
	return lo, min(lo+1, side-1), x - float32(lo)
}
