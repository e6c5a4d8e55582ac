package measure

import (
	"errors"
	"fmt"
	"image"
	"math"
	"slices"
)

// Structures are masks of one image, all of its size; 0 is outside. Sides are
// the patient's. What a segmenter does not find is nil. Lungs and heart are
// needed for most measurements.
type Structures struct {
	RightLung, LeftLung, Heart *image.Alpha

	Trachea     *image.Alpha // with the main bronchi where they were found
	Mediastinum *image.Alpha // the upper one
	Spine       *image.Alpha

	RightClavicle, LeftClavicle *image.Alpha
}

// What can be wrong with masks.
var (
	ErrEmpty   = errors.New("mask is empty")
	ErrMissing = errors.New("mask is missing")
	ErrSize    = errors.New("masks differ in size")
	ErrSides   = errors.New("the right lung does not lie on the image's left: sides are swapped")
)

// need reports the first of the named masks that cannot be measured.
func (s Structures) need(names ...string) error {
	masks := map[string]*image.Alpha{"right lung": s.RightLung, "left lung": s.LeftLung, "heart": s.Heart,
		"trachea": s.Trachea, "mediastinum": s.Mediastinum, "spine": s.Spine,
		"right clavicle": s.RightClavicle, "left clavicle": s.LeftClavicle}
	var size image.Point
	for _, name := range names {
		m := masks[name]
		switch {
		case m == nil:
			return fmt.Errorf("%s: %w", name, ErrMissing)
		case size != (image.Point{}) && m.Rect.Size() != size:
			return fmt.Errorf("%s: %w: %v, others %v", name, ErrSize, m.Rect.Size(), size)
		}
		size = m.Rect.Size()
		if !slices.ContainsFunc(m.Pix, isSet) {
			return fmt.Errorf("%s: %w", name, ErrEmpty)
		}
	}
	return nil
}

func isSet(v uint8) bool { return v != 0 }

// lungs returns the bounds of both lungs, which must lie beside each other.
func (s Structures) lungs() (right, left image.Rectangle, err error) {
	if err := s.need("right lung", "left lung"); err != nil {
		return right, left, err
	}
	right, left = bounds(s.RightLung), bounds(s.LeftLung)
	if right.Min.X >= left.Min.X || right.Max.X >= left.Max.X {
		return right, left, ErrSides
	}
	return right, left, nil
}

// claviclesOff returns how far the middle between the clavicles' medial ends
// lies left of the spine, in pixels; NaN where one of the three is not known. It
// is the textbooks' sign of a rotated patient.
func (s Structures) claviclesOff() float64 {
	if s.need("right clavicle", "left clavicle", "spine") != nil {
		return math.NaN()
	}
	right, left := bounds(s.RightClavicle), bounds(s.LeftClavicle)
	middle := float64(right.Max.X+left.Min.X) / 2
	spine := rowsCentre(s.Spine, min(right.Min.Y, left.Min.Y), max(right.Max.Y, left.Max.Y))
	return middle - spine
}

// A Point is a place in the image, in pixels from its upper left corner: a
// pixel's centre lies at +0.5.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// A Line is one of the lengths that a number is made from. MM is 0 where the
// spacing is not known.
type Line struct {
	Name string  `json:"name"`
	A    Point   `json:"a"`
	B    Point   `json:"b"`
	MM   float64 `json:"mm,omitempty"`
}

// row returns the first and one past the last set pixel of a row; ok is false
// where it is empty.
func row(m *image.Alpha, y int) (first, end int, ok bool) {
	if y < 0 || y >= m.Rect.Dy() {
		return 0, 0, false
	}
	line := m.Pix[y*m.Stride : y*m.Stride+m.Rect.Dx()]
	for first < len(line) && line[first] == 0 {
		first++
	}
	end = len(line)
	for end > first && line[end-1] == 0 {
		end--
	}
	return first, end, first < end
}

// bounds returns the smallest rectangle that holds a mask.
func bounds(m *image.Alpha) (r image.Rectangle) {
	for y := range m.Rect.Dy() {
		if first, end, ok := row(m, y); ok {
			r = r.Union(image.Rect(first, y, end, y+1))
		}
	}
	return r
}

// columns returns the horizontal extent of a mask as a line, through the rows
// where its two ends lie.
func columns(name string, m *image.Alpha) Line {
	r := bounds(m)
	l := Line{Name: name, A: Point{X: float64(r.Min.X)}, B: Point{X: float64(r.Max.X)}}
	l.A.Y, l.B.Y = rowOf(m, r, true), rowOf(m, r, false)
	return l
}

// rowOf returns the middle of the rows in which a mask reaches its bounds'
// first or last column.
func rowOf(m *image.Alpha, r image.Rectangle, atStart bool) float64 {
	x := r.Max.X - 1
	if atStart {
		x = r.Min.X
	}
	sum, n := 0.0, 0
	for y := r.Min.Y; y < r.Max.Y; y++ {
		if m.Pix[y*m.Stride+x] != 0 {
			sum, n = sum+float64(y)+0.5, n+1
		}
	}
	return sum / float64(max(n, 1))
}

// width is a line's horizontal length in pixels.
func (l Line) width() float64 { return l.B.X - l.A.X }

// level puts a line's ends at the mean of their heights: what is measured is
// horizontal.
func (l Line) level() Line {
	y := (l.A.Y + l.B.Y) / 2
	l.A.Y, l.B.Y = y, y
	return l
}
