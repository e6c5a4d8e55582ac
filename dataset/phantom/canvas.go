package phantom

import (
	"math"
	"slices"
)

// A canvas is a radiograph in the making: brightness as on a film, 0 black
// (air) to 255 white (bone, metal).
type canvas struct {
	v    []float32 // Size × Size
	lung []float32 // share of aerated lung at each pixel, for what stays inside lungs
	fine []float32 // detail that the coarse view must not show
}

func newCanvas() *canvas {
	return &canvas{v: make([]float32, Size*Size), lung: make([]float32, Size*Size), fine: make([]float32, Size*Size)}
}

// settle adds the fine detail, less what a coarse view would show of it.
func (c *canvas) settle() {
	if !slices.ContainsFunc(c.fine, func(v float32) bool { return v != 0 }) {
		return
	}
	hide(c.fine)
	for i, v := range c.fine {
		c.v[i] += v
	}
}

// ramp returns 0 at x <= 0, 1 at x >= width, and a straight line between.
func ramp(x, width float64) float64 { return max(0, min(1, x/width)) }

// rows calls f for every row and column range that the box touches.
func rows(x0, y0, x1, y1 float64, f func(y, from, to int)) {
	from, to := max(0, int(x0)), min(Size-1, int(x1)+1)
	for y := max(0, int(y0)); y <= min(Size-1, int(y1)+1); y++ {
		if from <= to {
			f(y, from, to)
		}
	}
}

// A stroke is a straight bar with round ends, as tubes, vessels and bones are.
type stroke struct {
	x0, y0, x1, y1 float64
	r0, r1         float64 // radius at both ends
	bright         float64 // added at the centre line
	soft           float64 // width of the edge
	inLung         bool    // drawn only where there is aerated lung
}

// draw adds s to the canvas.
func (c *canvas) draw(s stroke) {
	r := max(s.r0, s.r1) + s.soft
	dx, dy := s.x1-s.x0, s.y1-s.y0
	length := dx*dx + dy*dy
	rows(min(s.x0, s.x1)-r, min(s.y0, s.y1)-r, max(s.x0, s.x1)+r, max(s.y0, s.y1)+r, func(y, from, to int) {
		for x := from; x <= to; x++ {
			px, py := float64(x)-s.x0, float64(y)-s.y0
			t := 0.0
			if length > 0 {
				t = max(0, min(1, (px*dx+py*dy)/length))
			}
			ex, ey := px-t*dx, py-t*dy
			reach := s.r0 + t*(s.r1-s.r0) + s.soft/2
			if gap := ex*ex + ey*ey; gap < reach*reach {
				c.add(y*Size+x, s.bright*ramp(reach-math.Sqrt(gap), s.soft), s.inLung)
			}
		}
	})
}

func (c *canvas) add(at int, bright float64, inLung bool) {
	if inLung {
		bright *= float64(c.lung[at])
	}
	c.v[at] += float32(bright)
}

// A blob is a roundish opacity.
type blob struct {
	x, y   float64
	rx, ry float64
	bright float64
	soft   float64 // width of the edge as a share of the radius
	inLung bool
}

// drawBlob adds b to the canvas.
func (c *canvas) drawBlob(b blob) {
	rows(b.x-b.rx, b.y-b.ry, b.x+b.rx, b.y+b.ry, func(y, from, to int) {
		for x := from; x <= to; x++ {
			ex, ey := (float64(x)-b.x)/b.rx, (float64(y)-b.y)/b.ry
			if r := math.Sqrt(ex*ex + ey*ey); r < 1 {
				c.add(y*Size+x, b.bright*ramp(1-r, b.soft), b.inLung)
			}
		}
	})
}

// A glyph is 5 columns × 7 rows, one row a byte, the high bit on the left.
var glyphs = map[rune][7]byte{
	'R': {0b11110, 0b10001, 0b10001, 0b11110, 0b10100, 0b10010, 0b10001},
	'L': {0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b11111},
	'A': {0b01110, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001},
	'P': {0b11110, 0b10001, 0b10001, 0b11110, 0b10000, 0b10000, 0b10000},
	'1': {0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110},
	'4': {0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010},
	'7': {0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000},
	'X': {0b10001, 0b10001, 0b01010, 0b00100, 0b01010, 0b10001, 0b10001},
}

// write burns text into the film with its upper left corner at (x, y).
func (c *canvas) write(text string, x, y, scale int, bright float32) {
	for i, r := range text {
		for row, bits := range glyphs[r] {
			for col := range 5 {
				if bits>>(4-col)&1 == 1 {
					c.fill(x+(6*i+col)*scale, y+row*scale, scale, bright)
				}
			}
		}
	}
}

func (c *canvas) fill(x, y, side int, bright float32) {
	for yy := max(0, y); yy < min(Size, y+side); yy++ {
		for xx := max(0, x); xx < min(Size, x+side); xx++ {
			c.v[yy*Size+xx] = bright
		}
	}
}
