package segment

import (
	"image"
	"slices"
)

// A plane is a grey image, or a mask of 0 and 255, with no gaps between rows.
type plane struct {
	w, h int
	pix  []uint8
}

func newPlane(w, h int) plane { return plane{w, h, make([]uint8, w*h)} }

func (p plane) row(y int) []uint8 { return p.pix[y*p.w : (y+1)*p.w] }

// resample returns img at w × h pixels: each is the mean of the source pixels
// under it, or the nearest one when enlarging.
func resample(img *image.Gray, w, h int) plane {
	b := img.Rect
	p := newPlane(w, h)
	if b.Dx() == w && b.Dy() == h {
		for y := range h {
			copy(p.row(y), img.Pix[y*img.Stride:y*img.Stride+w])
		}
		return p
	}
	for y := range h {
		y0, y1 := y*b.Dy()/h, max((y+1)*b.Dy()/h, y*b.Dy()/h+1)
		for x := range w {
			x0, x1 := x*b.Dx()/w, max((x+1)*b.Dx()/w, x*b.Dx()/w+1)
			sum := 0
			for yy := y0; yy < y1; yy++ {
				for _, v := range img.Pix[yy*img.Stride+x0 : yy*img.Stride+x1] {
					sum += int(v)
				}
			}
			p.pix[y*w+x] = uint8(sum / ((y1 - y0) * (x1 - x0)))
		}
	}
	return p
}

// alpha returns p as a mask of w × h pixels.
func (p plane) alpha(w, h int) *image.Alpha {
	m := image.NewAlpha(image.Rect(0, 0, w, h))
	for y := range h {
		src := p.row(y * p.h / h)
		for x := range w {
			m.Pix[y*m.Stride+x] = src[x*p.w/w]
		}
	}
	return m
}

// blur returns the mean over squares of 2r+1 pixels, edges repeated.
func (p plane) blur(r int) plane {
	return p.filter(func(in, out []uint8) {
		last, width := len(in)-1, 2*r+1
		sum := 0
		for i := -r; i <= r; i++ {
			sum += int(in[min(max(i, 0), last)])
		}
		for i := range in {
			out[i] = uint8((sum + width/2) / width)
			sum += int(in[min(i+r+1, last)]) - int(in[max(i-r, 0)])
		}
	})
}

// closing fills gaps of a mask up to 2r pixels across: it grows by a square of
// radius r and shrinks again.
func (p plane) closing(r int) plane { return p.grow(r, 255).grow(r, 0) }

// grow spreads a value of a mask by a square of radius r.
func (p plane) grow(r int, value uint8) plane {
	return p.filter(func(in, out []uint8) {
		last := -r - 1 // index of the nearest such pixel on the left
		for i, v := range in {
			if v == value {
				last = i
			}
			out[i] = 255 - value
			if i-last <= r {
				out[i] = value
			}
		}
		next := len(in) + r // and on the right
		for i := len(in) - 1; i >= 0; i-- {
			if in[i] == value {
				next = i
			}
			if next-i <= r {
				out[i] = value
			}
		}
	})
}

// filter runs a filter of one dimension over the rows and then the columns.
func (p plane) filter(f func(in, out []uint8)) plane {
	return p.alongRows(f).transposed().alongRows(f).transposed()
}

func (p plane) alongRows(f func(in, out []uint8)) plane {
	out := newPlane(p.w, p.h)
	for y := range p.h {
		f(p.row(y), out.row(y))
	}
	return out
}

// transposed returns p with rows and columns exchanged, in blocks that fit a cache.
func (p plane) transposed() plane {
	const block = 32
	t := newPlane(p.h, p.w)
	for y0 := 0; y0 < p.h; y0 += block {
		for x0 := 0; x0 < p.w; x0 += block {
			for y := y0; y < min(y0+block, p.h); y++ {
				for x := x0; x < min(x0+block, p.w); x++ {
					t.pix[x*p.h+y] = p.pix[y*p.w+x]
				}
			}
		}
	}
	return t
}

// below returns the mask of pixels darker than t.
func (p plane) below(t uint8) plane {
	m := newPlane(p.w, p.h)
	for i, v := range p.pix {
		if v < t {
			m.pix[i] = 255
		}
	}
	return m
}

// border returns the set pixels that are connected to the image's border.
func (p plane) border() plane {
	seen := newPlane(p.w, p.h)
	var stack []int32
	push := func(i int) {
		if p.pix[i] != 0 && seen.pix[i] == 0 {
			seen.pix[i] = 255
			stack = append(stack, int32(i))
		}
	}
	for x := range p.w {
		push(x)
		push((p.h-1)*p.w + x)
	}
	for y := range p.h {
		push(y * p.w)
		push(y*p.w + p.w - 1)
	}
	p.spread(&stack, push)
	return seen
}

// spread pushes the four neighbours of everything on the stack.
func (p plane) spread(stack *[]int32, push func(int)) {
	for len(*stack) > 0 {
		i := int((*stack)[len(*stack)-1])
		*stack = (*stack)[:len(*stack)-1]
		if x := i % p.w; x > 0 {
			push(i - 1)
		}
		if x := i % p.w; x < p.w-1 {
			push(i + 1)
		}
		if i >= p.w {
			push(i - p.w)
		}
		if i < p.w*(p.h-1) {
			push(i + p.w)
		}
	}
}

// A piece is one connected part of a mask.
type piece struct {
	label                  uint8
	area                   int
	x                      float64 // of the centre
	minX, maxX, minY, maxY int
}

// solidity returns the share of its bounding box that the piece covers.
func (p piece) solidity() float64 {
	return float64(p.area) / float64((p.maxX-p.minX+1)*(p.maxY-p.minY+1))
}

// pieces labels the connected parts of at least smallest pixels, largest
// first, at most 100. labels holds each pixel's label, 0 for none.
func (p plane) pieces(smallest int) (list []piece, labels plane) {
	labels = newPlane(p.w, p.h)
	var stack, members []int32
	for start, v := range p.pix {
		if v == 0 || labels.pix[start] != 0 || len(list) == 100 {
			continue
		}
		members = members[:0]
		push := func(i int) {
			if p.pix[i] != 0 && labels.pix[i] == 0 {
				labels.pix[i] = 255 // visited; too small unless labelled below
				stack, members = append(stack, int32(i)), append(members, int32(i))
			}
		}
		push(start)
		p.spread(&stack, push)
		if len(members) < smallest {
			continue
		}
		c := piece{label: uint8(len(list) + 1), area: len(members), minX: p.w, minY: p.h}
		for _, i := range members {
			labels.pix[i] = c.label
			x, y := int(i)%p.w, int(i)/p.w
			c.x += float64(x) / float64(c.area)
			c.minX, c.maxX = min(c.minX, x), max(c.maxX, x)
			c.minY, c.maxY = min(c.minY, y), max(c.maxY, y)
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b piece) int { return b.area - a.area })
	return list, labels
}

// only returns the mask of the pixels with one of the labels.
func (p plane) only(labels []uint8) plane {
	var wanted [256]uint8
	for _, l := range labels {
		wanted[l] = 255
	}
	m := newPlane(p.w, p.h)
	for i, v := range p.pix {
		m.pix[i] = wanted[v]
	}
	return m
}

// hull returns the pixels that lie between set pixels both in their row and in
// their column, with the set ones.
func (p plane) hull() plane {
	between := func(in, out []uint8) {
		if first, last := span(in); first <= last {
			for i := first; i <= last; i++ {
				out[i] = 255
			}
		}
	}
	m := p.alongRows(between)
	for i, v := range p.transposed().alongRows(between).transposed().pix {
		m.pix[i] = m.pix[i]&v | p.pix[i]
	}
	return m
}

// convex fills dents of a mask's left or right outline: a chest wall has none,
// so that what dents it is opaque lung.
func (p plane) convex(left bool) plane {
	type point struct{ x, y int }
	var chain []point // outermost points, each turning the same way
	for y := range p.h {
		first, last := span(p.row(y))
		if last < first {
			continue
		}
		at := point{last, y}
		if left {
			at.x = p.w - 1 - first
		}
		for n := len(chain); n >= 2; n = len(chain) {
			a, b := chain[n-2], chain[n-1]
			if (b.x-a.x)*(at.y-a.y) > (at.x-a.x)*(b.y-a.y) {
				break
			}
			chain = chain[:n-1]
		}
		chain = append(chain, at)
	}
	m := plane{p.w, p.h, slices.Clone(p.pix)}
	for i := 1; i < len(chain); i++ {
		a, b := chain[i-1], chain[i]
		for y := a.y; y <= b.y; y++ {
			x := a.x + (b.x-a.x)*(y-a.y)/(b.y-a.y)
			if left {
				x = p.w - 1 - x
			}
			m.pix[y*p.w+x] = 255
		}
	}
	return m
}
