// Package segment finds anatomy in a radiograph: pixels in, masks out.
//
// A [Segmenter] sees an image and nothing else. It is deterministic, reports
// honestly what it could not find, and declares the domain of images that it
// is made for; what it says of other images means nothing. Whether a mask is
// good enough for a measurement is not decided here.
//
// Sides are the patient's: in the standard display, which is assumed and never
// changed, the right lung lies on the image's left.
package segment

import (
	"errors"
	"image"
)

// A Segmenter finds lungs, heart and landmarks. It is safe for concurrent use.
type Segmenter interface {
	Name() string   // with its version; part of cache keys
	Domain() string // the dataset.Image.Domain that it is made for
	Segment(img *image.Gray) (Masks, error)
}

// ErrNoLungs says that an image shows no two lung fields beside a midline, as
// a lateral film does.
var ErrNoLungs = errors.New("no right and left lung field beside a midline")

// Masks is what was found in one image. Masks have the image's size, 255
// inside and 0 outside. Lungs are their aerated part with the heart left out.
// Coordinates are in pixels of the image; NaN where nothing was found.
type Masks struct {
	RightLung, LeftLung, Heart *image.Alpha

	Spine    float64 // x of the spine's centre
	Trachea  float64 // x of the upper mediastinum's centre, carina level
	Airway   float64 // x of the trachea's shadow there, found in another way
	Clavicle float64 // x midway between the medial ends of the clavicles
	Level    float64 // y of those ends below the lungs' top, negative above

	// The heart's borders: the greatest distance of either from the spine, and
	// 1 where lung was seen beside the border's bulge and again below it. A
	// border that ends in opaque tissue is not the heart's.
	HeartRight, HeartLeft         float64
	HeartRightSeen, HeartLeftSeen float64
	Step                          float64 // greatest jump of a lung's inner edge between two rows 3 apart

	Parts                   float64 // dark pieces of at least 1 % of the image, before joining
	Filled                  float64 // share of the lungs that was opaque and bridged over
	Dense                   float64 // share of the heart brighter than a heart can be
	RightMargin, LeftMargin float64 // chest wall beside each lung, to the film's or the light field's edge
	Ribs                    float64 // height of the higher lung, in spaces between ribs
	Contrast                float64 // grey levels between lung and soft tissue
	Scale                   float64 // pixels of the image per working pixel

	// More has further structures by name, by the segmenters that find any:
	// trachea, upper_mediastinum, spine, right_clavicle, left_clavicle.
	More map[string]*image.Alpha
}

// Area returns how many pixels are inside m.
func Area(m *image.Alpha) int {
	n := 0
	for _, v := range m.Pix {
		if v != 0 {
			n++
		}
	}
	return n
}

// Bounds returns the smallest rectangle that holds all of m; empty when m is.
func Bounds(m *image.Alpha) image.Rectangle {
	var r image.Rectangle
	w := m.Rect.Dx()
	for y := range m.Rect.Dy() {
		row := m.Pix[y*m.Stride : y*m.Stride+w]
		first, last := span(row)
		if last < first {
			continue
		}
		r = r.Union(image.Rect(first, y, last+1, y+1))
	}
	return r
}

// span returns the first and the last set pixel of a row; last < first: none.
func span(row []uint8) (first, last int) {
	first, last = 0, len(row)-1
	for first <= last && row[first] == 0 {
		first++
	}
	for last >= first && row[last] == 0 {
		last--
	}
	return first, last
}
