package measure

import (
	"image"
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

// TestRadiographCategories holds that only a tag gives the ratio a category.
func TestRadiographCategories(t *testing.T) {
	for view, want := range map[string]string{"PA": "normal", "AP": "normal", "": ""} {
		in := drawn()
		in.Meta.View = view
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
