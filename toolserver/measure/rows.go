package measure

import (
	"image"
	"math"
	"slices"
)

// centre returns the x of a mask's centroid.
func centre(m *image.Alpha) float64 { return centroid(m).X }

// centroid returns the middle of a mask's pixels.
func centroid(m *image.Alpha) Point {
	var x, y, n float64
	for j := range m.Rect.Dy() {
		for i, v := range m.Pix[j*m.Stride : j*m.Stride+m.Rect.Dx()] {
			if v != 0 {
				x, y, n = x+float64(i)+0.5, y+float64(j)+0.5, n+1
			}
		}
	}
	return Point{x / n, y / n}
}

// rowsMean averages a value over rows; NaN where no row has it.
func rowsMean(y0, y1 int, at func(y int) (float64, bool)) float64 {
	sum, n := 0.0, 0.0
	for y := y0; y < y1; y++ {
		if v, ok := at(y); ok {
			sum, n = sum+v, n+1
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return sum / n
}

// rowsCentre averages the middles of a mask's rows.
func rowsCentre(m *image.Alpha, y0, y1 int) float64 {
	return rowsMean(y0, y1, func(y int) (float64, bool) {
		first, end, ok := row(m, y)
		return float64(first+end) / 2, ok
	})
}

// medianGap returns the row between the lungs whose width is the median.
func (s Structures) medianGap(y0, y1 int) Line {
	var lines []Line
	for y := y0; y < y1; y++ {
		if first, end, ok := s.gap(y); ok {
			lines = append(lines, Line{Name: "mediastinum", A: Point{first, float64(y) + 0.5}, B: Point{end, float64(y) + 0.5}})
		}
	}
	if len(lines) == 0 {
		return Line{}
	}
	slices.SortStableFunc(lines, func(a, b Line) int {
		switch {
		case a.width() < b.width():
			return -1
		case a.width() > b.width():
			return 1
		}
		return 0
	})
	return lines[len(lines)/2]
}
