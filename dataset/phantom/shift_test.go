package phantom

import (
	"image"
	"math"
	"testing"

	"xragent/toolserver/measure"
)

// TestShift holds the shift that true masks give against the generator's own:
// within half a pixel at the mediastinum and at the spine. The spine is a band
// about its centre. A mediastinum does not move further than narrowest as a
// whole.
func TestShift(t *testing.T) {
	const narrowest, films = 21, 15 // pixels
	compared := 0
	for i := range films {
		truth := Describe(Config{Seed: 5, Train: films}, i).Truth
		if truth.View == Lateral {
			continue
		}
		alpha := func(m Mask) *image.Alpha { return &image.Alpha{Pix: m.Pix, Stride: m.Stride, Rect: m.Rect} }
		m := truth.Masks()
		s := measure.Structures{RightLung: alpha(m.RightLung), LeftLung: alpha(m.LeftLung), Heart: alpha(m.Heart), Spine: image.NewAlpha(m.Heart.Rect)}
		for i := range s.Spine.Pix {
			if x := float64(i%s.Spine.Stride) + 0.5; math.Abs(x-truth.scene.film.spine) < 12 {
				s.Spine.Pix[i] = 255
			}
		}
		ctr, err := measure.CTR(s, measure.ColumnExtent, 0)
		if err != nil {
			t.Fatalf("%s: %v", truth.ID, err)
		}
		width := math.Abs(ctr.Lines[1].B.X - ctr.Lines[1].A.X) // of the chest
		if math.Abs(truth.Apparent.Shift)*width > narrowest {
			continue
		}
		compared++
		moved, err := measure.Shift(s, 0)
		if off := math.Abs(moved.Value-truth.Apparent.Shift) * width; err != nil || off > 1 {
			t.Errorf("%s: shift %.4f, analytic %.4f: %.2f pixels apart, error %v", truth.ID, moved.Value, truth.Apparent.Shift, off, err)
		}
	}
	if compared < films/2 {
		t.Errorf("%d of %d films compared", compared, films)
	}
}
