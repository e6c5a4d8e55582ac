package measure

import (
	"fmt"
	"image"
	"math"
)

// carinaDepths are where the walls are taken, as shares of the bronchi's height
// below the carina.
var carinaDepths = []float64{0.2, 0.4, 0.6}

// maxCarinaSpread is the spread of the angles at these depths, in degrees, from
// which on the walls are not straight and the angle means nothing.
const maxCarinaSpread = 20

// Carina returns the angle between the lower (medial) walls of the main bronchi
// at the carina, in degrees; the mean over several depths. The mask is of the
// trachea with the main bronchi. Pixels must be square.
func Carina(s Structures) (Number, error) {
	if err := s.need("trachea"); err != nil {
		return Number{}, fmt.Errorf("carinal angle: %w", err)
	}
	apex, bottom, ok := fork(s.Trachea)
	if !ok {
		return Number{}, fmt.Errorf("carinal angle: the trachea's mask does not fork")
	}
	n := Number{Name: CarinalAngle, Variant: "medial_walls", Unit: "deg", Points: []Point{apex}}
	var angles []float64
	for _, d := range carinaDepths {
		y := int(apex.Y + d*(float64(bottom)-apex.Y))
		runs := runsOf(s.Trachea, y)
		if len(runs) != 2 {
			continue
		}
		a, b := Point{float64(runs[0].end), float64(y) + 0.5}, Point{float64(runs[1].first), float64(y) + 0.5}
		angles = append(angles, angle(apex, a, b))
		n.Lines = []Line{{Name: "right main bronchus", A: apex, B: a}, {Name: "left main bronchus", A: apex, B: b}}
	}
	if len(angles) < 2 {
		return Number{}, fmt.Errorf("carinal angle: the bronchi can be told apart at %d of %d depths, want 2", len(angles), len(carinaDepths))
	}
	mean, low, high := 0.0, angles[0], angles[0]
	for _, a := range angles {
		mean += a / float64(len(angles))
		low, high = min(low, a), max(high, a)
	}
	if high-low > maxCarinaSpread {
		return Number{}, fmt.Errorf("carinal angle: %.0f to %.0f degrees at different depths, want within %d: the walls are not straight", low, high, maxCarinaSpread)
	}
	n.Value = mean
	return n, nil
}

// angle returns the angle at apex, in degrees.
func angle(apex, a, b Point) float64 {
	return math.Abs(math.Atan2(a.X-apex.X, a.Y-apex.Y)-math.Atan2(b.X-apex.X, b.Y-apex.Y)) * 180 / math.Pi
}

// A run is a stretch of set pixels in a row.
type run struct{ first, end int }

func runsOf(m *image.Alpha, y int) []run {
	var runs []run
	inside := false
	for x, v := range m.Pix[y*m.Stride : y*m.Stride+m.Rect.Dx()] {
		switch {
		case v != 0 && !inside:
			runs = append(runs, run{first: x, end: x + 1})
		case v != 0:
			runs[len(runs)-1].end = x + 1
		}
		inside = v != 0
	}
	return runs
}

// fork finds the carina: the middle of the gap at the top of the lowest stretch
// of rows that have two runs. Notches of the outline are shorter than a tenth of
// the mask's height and are passed over.
func fork(m *image.Alpha) (apex Point, bottom int, ok bool) {
	r := bounds(m)
	least := max(r.Dy()/10, 3)
	start := -1
	for y := r.Min.Y; y < r.Max.Y; y++ {
		if len(runsOf(m, y)) != 2 {
			start = -1
			continue
		}
		if start < 0 {
			start = y
		}
		if y-start+1 >= least {
			return apexOf(m, start), lastOfTwo(m, y, r.Max.Y), true
		}
	}
	return Point{}, 0, false
}

func apexOf(m *image.Alpha, y int) Point {
	runs := runsOf(m, y)
	return Point{float64(runs[0].end+runs[1].first) / 2, float64(y)}
}

// lastOfTwo returns the row below which the two runs end.
func lastOfTwo(m *image.Alpha, y, end int) int {
	for y < end && len(runsOf(m, y)) == 2 {
		y++
	}
	return y
}
