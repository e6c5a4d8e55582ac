package toolserver

import (
	"image"
	"image/color"
	"image/draw"
	"math"

	scale "golang.org/x/image/draw"
	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"

	"xragent/toolserver/measure"
)

// The colours of an overlay.
var (
	rightColour = color.RGBA{0x4c, 0xc9, 0xf0, 0xff}
	leftColour  = color.RGBA{0x80, 0xed, 0x99, 0xff}
	heartColour = color.RGBA{0xff, 0xb7, 0x03, 0xff}
	lineColour  = color.RGBA{0xff, 0x4d, 0x6d, 0xff}
	pointColour = color.RGBA{0xff, 0xff, 0xff, 0xff}
)

// Overlay draws masks as outlines and numbers as the points and lines that they
// were made from, with lines of text in the corner, for a person to check at a
// glance. It changes nothing that was given.
func Overlay(gray *image.Gray, s measure.Structures, numbers []measure.Number, text []string) *image.RGBA {
	out := image.NewRGBA(gray.Rect)
	draw.Draw(out, out.Rect, gray, gray.Rect.Min, draw.Src)
	outline(out, s.RightLung, rightColour)
	outline(out, s.LeftLung, leftColour)
	outline(out, s.Heart, heartColour)
	for _, n := range numbers {
		for _, l := range n.Lines {
			segmentLine(out, l.A, l.B)
		}
		for _, p := range n.Points {
			dot(out, p)
		}
	}
	for i, t := range text {
		write(out, image.Pt(6, 16*(i+1)), t)
	}
	return out
}

// outline colours a mask's pixels that border on others.
func outline(out *image.RGBA, m *image.Alpha, c color.RGBA) {
	if m == nil || m.Rect.Size() != out.Rect.Size() {
		return
	}
	w, h := m.Rect.Dx(), m.Rect.Dy()
	in := func(x, y int) bool { return x >= 0 && y >= 0 && x < w && y < h && m.Pix[y*m.Stride+x] != 0 }
	for y := range h {
		for x := range w {
			if in(x, y) && !(in(x-1, y) && in(x+1, y) && in(x, y-1) && in(x, y+1)) {
				out.SetRGBA(x, y, c)
			}
		}
	}
}

// segmentLine draws a line, two pixels thick, with ticks at its ends where it is
// horizontal.
func segmentLine(out *image.RGBA, a, b measure.Point) {
	stroke(out, a, b)
	if math.Abs(a.Y-b.Y) < 1 {
		const tick = 6
		for _, p := range []measure.Point{a, b} {
			stroke(out, measure.Point{X: p.X, Y: p.Y - tick}, measure.Point{X: p.X, Y: p.Y + tick})
		}
	}
}

func stroke(out *image.RGBA, a, b measure.Point) {
	n := int(math.Ceil(max(math.Abs(b.X-a.X), math.Abs(b.Y-a.Y), 1)))
	for i := range n + 1 {
		t := float64(i) / float64(n)
		x, y := int(a.X+t*(b.X-a.X)), int(a.Y+t*(b.Y-a.Y))
		draw.Draw(out, image.Rect(x, y, x+2, y+2), image.NewUniform(lineColour), image.Point{}, draw.Src)
	}
}

func dot(out *image.RGBA, p measure.Point) {
	x, y := int(p.X), int(p.Y)
	draw.Draw(out, image.Rect(x-2, y-2, x+3, y+3), image.NewUniform(pointColour), image.Point{}, draw.Src)
}

// smaller returns the picture with its longer side at most n pixels long.
func smaller(img *image.RGBA, n int) *image.RGBA {
	if longer(img.Rect) <= n {
		return img
	}
	f := float64(n) / float64(longer(img.Rect))
	out := image.NewRGBA(image.Rect(0, 0, max(1, int(float64(img.Rect.Dx())*f)), max(1, int(float64(img.Rect.Dy())*f))))
	scale.ApproxBiLinear.Scale(out, out.Rect, img, img.Rect, draw.Src, nil)
	return out
}

// write puts text on a dark ground, its baseline at p.
func write(out *image.RGBA, p image.Point, text string) {
	face := basicfont.Face7x13
	draw.Draw(out, image.Rect(p.X-2, p.Y-12, p.X+7*len(text)+2, p.Y+4), image.NewUniform(color.RGBA{0, 0, 0, 0xc0}), image.Point{}, draw.Over)
	(&font.Drawer{Dst: out, Src: image.White, Face: face, Dot: fixed.P(p.X, p.Y)}).DrawString(text)
}
