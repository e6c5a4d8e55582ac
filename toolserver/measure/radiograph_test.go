package measure

import (
	"image"
	"math"
	"slices"
	"testing"

	"xragent/dataset"
	"xragent/rollout"
)

// drawn is a film of 256 pixels on which the gate for radiographs passes.
func drawn() Input {
	size := 256
	s := Structures{
		RightLung: boxIn(size, image.Rect(42, 40, 96, 100), image.Rect(36, 100, 94, 190)),
		LeftLung:  boxIn(size, image.Rect(152, 40, 206, 100), image.Rect(168, 100, 212, 190)),
		Heart:     boxIn(size, image.Rect(94, 120, 168, 185)),
	}
	g := image.NewGray(image.Rect(0, 0, size, size))
	for i := range g.Pix {
		v := 150 + i%7*3
		if s.RightLung.Pix[i] != 0 || s.LeftLung.Pix[i] != 0 {
			v = 40 + i%5*4
		}
		if x := i % size; s.Heart.Pix[i] != 0 || x > 100 && x < 150 {
			v = 200 + i%3*3
		}
		g.Pix[i] = uint8(v)
	}
	return Input{Image: g, InDomain: true, Structures: &s, Meta: dataset.Image{View: "PA", ViewFrom: "view_position", Domain: "radiograph", SpacingMM: 0.8, SquarePx: true}}
}

func TestRadiographGate(t *testing.T) {
	moved := func(s Structures) *Structures {
		s.Heart = boxIn(256, image.Rect(60, 60, 120, 120))
		return &s
	}
	for _, c := range []struct {
		name   string
		spoil  func(*Input)
		reason string // "": none
		kept   []string
	}{
		{"sound", func(*Input) {}, "", everything},
		{"lateral by tag", func(in *Input) { in.Meta.View = "LATERAL" }, "frontal", nil},
		{"another part of the body", func(in *Input) { in.Meta.View = "OTHER" }, "frontal", nil},
		{"child", func(in *Input) { in.Meta.AgeYears = 7 }, "adult", nil},
		{"no heart", func(in *Input) { in.Structures.Heart = nil }, "heart_found", nil},
		{"empty lung", func(in *Input) { in.Structures.LeftLung = boxIn(256) }, "lungs_found", nil},
		{"mask of another size", func(in *Input) { in.Structures.LeftLung = boxIn(100, image.Rect(50, 10, 90, 90)) }, "lungs_found", nil},
		{"sides swapped", func(in *Input) {
			in.Structures.RightLung, in.Structures.LeftLung = in.Structures.LeftLung, in.Structures.RightLung
		}, "lungs_found", nil},
		{"segmenters agree", func(in *Input) { in.Second = in.Structures }, "", everything},
		{"segmenters disagree", func(in *Input) { in.Second = moved(*in.Structures) }, "agreement", nil},
		{"lung in pieces", func(in *Input) {
			in.Structures.LeftLung = boxIn(256, image.Rect(152, 40, 206, 90), image.Rect(168, 110, 212, 190))
		}, "components", nil},
		{"heart with a bay", func(in *Input) {
			h := in.Structures.Heart
			r := bounds(h)
			for y := r.Min.Y + r.Dy()/3; y < r.Min.Y+2*r.Dy()/3; y++ {
				for x := r.Max.X - r.Dx()/3; x < r.Max.X; x++ {
					h.Pix[y*h.Stride+x] = 0
				}
			}
		}, "heart_shape", []string{rollout.Shift}},
		{"no segmenter", func(in *Input) { in.InDomain = false }, "segmenter_domain", nil},
	} {
		in := drawn()
		c.spoil(&in)
		b := Assess(in, PerMeasurement)
		if got := admitted(b); !slices.Equal(got, c.kept) || c.reason == "" && len(b.Reasons) > 0 || c.reason != "" && !slices.Contains(b.Reasons, c.reason) {
			t.Errorf("%s: admitted %v for reasons %v, want %v and %q", c.name, got, b.Reasons, c.kept, c.reason)
		}
	}
}

// TestProportions holds that tall and wide chests pass where the pixels are known
// to be square, and are unknown or fail where they are not.
func TestProportions(t *testing.T) {
	for _, c := range []struct {
		value  float64
		square bool
		want   rollout.Verdict
	}{
		{1.3, false, rollout.Pass}, {0.95, false, rollout.Unknown}, {0.85, false, rollout.Fail}, {1.8, false, rollout.Unknown}, {2, false, rollout.Fail},
		{0.95, true, rollout.Pass}, {1.8, true, rollout.Pass}, {0.85, true, rollout.Fail}, {2, true, rollout.Fail},
	} {
		v := &verdicts{}
		v.proportions(c.value, c.square)
		if got := v.list[0].Verdict; got != c.want {
			t.Errorf("%g, square %v: %s, want %s", c.value, c.square, got, c.want)
		}
	}
}

// TestConvexity compares with areas that are known.
func TestConvexity(t *testing.T) {
	disc := image.NewAlpha(image.Rect(0, 0, 200, 200))
	for i := range disc.Pix {
		if math.Hypot(float64(i%200)-99.5, float64(i/200)-99.5) < 80 {
			disc.Pix[i] = 255
		}
	}
	notched := boxIn(100, image.Rect(10, 10, 90, 30), image.Rect(10, 30, 50, 70), image.Rect(10, 70, 90, 90))
	for name, c := range map[string]struct {
		mask      *image.Alpha
		want, off float64
	}{
		"box": {boxIn(100, image.Rect(20, 30, 60, 90)), 1, 0}, "disc": {disc, 0.99, 0.01}, "empty": {boxIn(100), math.NaN(), 0},
		"notched": {notched, 0.75, 0}, "step": {boxIn(100, image.Rect(0, 0, 50, 50), image.Rect(0, 50, 100, 100)), 7500. / 8750, 0},
	} {
		if got := convexity(c.mask); !(math.Abs(got-c.want) <= c.off) && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: %.4f, want %.4f", name, got, c.want)
		}
	}
}

// TestSeveralViewsAreNone holds that nothing is shown of a film whose tag may
// mean a lateral one.
func TestSeveralViewsAreNone(t *testing.T) {
	in := drawn()
	in.Meta.View, in.Meta.ViewFrom = "", "protocol_name"
	if m, _ := Assess(in, PerMeasurement).Find(rollout.CTR); m.Admitted || !slices.ContainsFunc(m.Checks, func(c rollout.Check) bool {
		return c.Name == "frontal" && c.Verdict == rollout.Unknown
	}) {
		t.Errorf("%+v", m)
	}
}

// TestRadiographCategories holds that only a tag gives the ratio a category.
func TestRadiographCategories(t *testing.T) {
	for view, want := range map[string]string{"PA": "normal", "AP": "normal", "": ""} {
		in := drawn()
		in.Meta.View, in.Meta.ViewFrom = view, "label"
		m, _ := Assess(in, PerMeasurement).Find(rollout.CTR)
		if m.Category != want || !m.Admitted || m.Value != round(74./176) {
			t.Errorf("view %q: %+v, want category %q", view, m, want)
		}
	}
}

// TestNumbers holds what is left out where it cannot be measured.
func TestNumbers(t *testing.T) {
	in := drawn()
	var names []string
	for _, n := range Numbers(*in.Structures, WidestRow, in.Meta) {
		names = append(names, n.Name)
		if n.Name == rollout.CTR && (n.Variant != WidestRow || len(n.Lines) != 3 || n.Lines[2].MM != 0.8*176) {
			t.Errorf("ratio %+v", n)
		}
	}
	if want := []string{rollout.CTR, rollout.Asymmetry, rollout.Shift, MediastinalRatio}; !slices.Equal(names, want) {
		t.Errorf("measured %v, want %v", names, want)
	}
	if list := Numbers(Structures{}, ColumnExtent, in.Meta); len(list) != 0 {
		t.Errorf("without masks: %v", list)
	}
}
