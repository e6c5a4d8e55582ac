package measure

import (
	"encoding/json"
	"image"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/rollout"
)

// frontal is a film on which every check passes: lungs 120 and 108 pixels
// wide, a heart of 160, a thorax of 368.
func frontal() Input {
	frame := image.Rect(0, 0, 512, 512)
	mask := func(r image.Rectangle) *image.Alpha {
		m := image.NewAlpha(frame)
		for y := r.Min.Y; y < r.Max.Y; y++ {
			for x := r.Min.X; x < r.Max.X; x++ {
				m.Pix[y*m.Stride+x] = 255
			}
		}
		return m
	}
	return Input{
		Image: image.NewGray(frame), InDomain: true,
		Meta: dataset.Image{View: "PA", Domain: "phantom", SquarePx: true, AgeYears: 60},
		Masks: Masks{
			RightLung: mask(image.Rect(76, 80, 196, 430)), LeftLung: mask(image.Rect(336, 80, 444, 430)),
			Heart: mask(image.Rect(200, 250, 330, 400)),
			Spine: 256, Trachea: 255, Airway: 256, Clavicle: 257, Level: 32,
			HeartRight: 60, HeartLeft: 100, HeartRightSeen: 1, HeartLeftSeen: 1, Step: 5,
			Parts: 2, Filled: 0.1, RightMargin: 30, LeftMargin: 30, Ribs: 11.3, Contrast: 90, Scale: 1,
		},
	}
}

func TestEverythingPasses(t *testing.T) {
	b := Assess(frontal(), AllOrNothing)
	if len(b.Reasons) != 0 {
		t.Fatalf("reasons %v, want none", b.Reasons)
	}
	want := map[string]struct {
		value    float64
		category string
	}{
		rollout.CTR:       {0.435, "normal"},
		rollout.Asymmetry: {round(math.Log(120. / 108)), "normal"},
		rollout.Shift:     {-0.003, "normal"},
	}
	for name, w := range want {
		m, ok := b.Find(name)
		if !ok || !m.Admitted || !m.Computed || m.Value != w.value || m.Category != w.category {
			t.Errorf("%s: %+v, want %v %s, admitted", name, m, w.value, w.category)
		}
	}
}

func TestGate(t *testing.T) {
	tests := []struct {
		name   string
		spoil  func(*Input)
		reason string
		kept   []string // under PerMeasurement
	}{
		{"other domain", func(in *Input) { in.InDomain, in.Masks = false, Masks{} }, "segmenter_domain", nil},
		{"no lungs", func(in *Input) { in.Failed, in.Masks = "no lungs", Masks{} }, "lungs_found", nil},
		{"lateral tag", func(in *Input) { in.Meta.View = "LATERAL" }, "frontal", nil},
		{"child", func(in *Input) { in.Meta.AgeYears = 6 }, "adult", nil},
		{"rotated", func(in *Input) { in.Masks.Clavicle = 275 }, "rotation", []string{rollout.CTR}},
		{"clavicles not found", func(in *Input) { in.Masks.Clavicle = math.NaN() }, "rotation", []string{rollout.CTR}},
		{"poor inspiration", func(in *Input) { in.Masks.Ribs = 9 }, "inspiration", []string{rollout.Asymmetry, rollout.Shift}},
		{"aspect unknown", func(in *Input) { in.Meta.SquarePx = false }, "inspiration", []string{rollout.Asymmetry, rollout.Shift}},
		{"cropped", func(in *Input) { in.Masks.LeftMargin = 2 }, "cropping", []string{rollout.Shift}},
		{"inverted", func(in *Input) { in.Masks.Contrast = -40 }, "polarity", nil},
		{"hidden border", func(in *Input) { in.Masks.HeartLeftSeen = 0 }, "heart_border", []string{rollout.Asymmetry, rollout.Shift}},
		{"device", func(in *Input) { in.Masks.Dense = 0.2 }, "dense_object", []string{rollout.Shift}},
		{"jump", func(in *Input) { in.Masks.Step = 40 }, "border_step", []string{rollout.Shift}},
		{"trachea", func(in *Input) { in.Masks.Airway = 270 }, "trachea_agreement", []string{rollout.CTR, rollout.Asymmetry}},
	}
	for _, tt := range tests {
		in := frontal()
		tt.spoil(&in)
		b := Assess(in, AllOrNothing)
		if !slices.Contains(b.Reasons, tt.reason) {
			t.Errorf("%s: reasons %v, want %s", tt.name, b.Reasons, tt.reason)
		}
		if got := admitted(b); len(got) != 0 {
			t.Errorf("%s, all or nothing: admitted %v", tt.name, got)
		}
		if got := admitted(Assess(in, PerMeasurement)); !slices.Equal(got, tt.kept) {
			t.Errorf("%s, per measurement: admitted %v, want %v", tt.name, got, tt.kept)
		}
		if _, err := json.Marshal(b); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func admitted(b rollout.Bundle) []string {
	var names []string
	for _, m := range b.Measurements {
		if m.Admitted {
			names = append(names, m.Name)
		}
	}
	return names
}

func TestHeartCategory(t *testing.T) {
	tests := []struct {
		projection string
		ctr        float64
		want       string
	}{
		{"PA", 0.479, "normal"}, {"PA", 0.48, "borderline"}, {"PA", 0.52, "borderline"}, {"PA", 0.521, "enlarged"},
		{"AP", 0.499, "normal"}, {"AP", 0.50, ""}, {"AP", 0.599, ""}, {"AP", 0.60, "enlarged"},
		{"", 0.30, ""}, {"", 0.70, ""},
	}
	for _, tt := range tests {
		if got := phantoms.category(rollout.CTR, tt.ctr, tt.ctr, tt.projection); got != tt.want {
			t.Errorf("%s %.3f: %q, want %q", tt.projection, tt.ctr, got, tt.want)
		}
	}
}

// TestTagAgainstPixels holds that a projection counts only where the tag and
// the clavicles agree, and that doubt costs the category, not the number.
func TestTagAgainstPixels(t *testing.T) {
	for _, tt := range []struct {
		tag   string
		level float64
		want  string
	}{{"PA", 32, "normal"}, {"AP", 4, "normal"}, {"PA", 4, ""}, {"AP", 32, ""}, {"", 32, ""}} {
		in := frontal()
		in.Meta.View, in.Masks.Level = tt.tag, tt.level
		m, _ := Assess(in, AllOrNothing).Find(rollout.CTR)
		if m.Category != tt.want || !m.Admitted {
			t.Errorf("tag %q, level %v: category %q, admitted %v; want %q, admitted", tt.tag, tt.level, m.Category, m.Admitted, tt.want)
		}
	}
}

// TestUnknownIsNotPass holds for any landmarks, with and without numbers.
func TestUnknownIsNotPass(t *testing.T) {
	number := rapid.OneOf(rapid.Float64Range(-600, 600), rapid.Just(math.NaN()), rapid.Just(math.Inf(1)))
	rapid.Check(t, func(t *rapid.T) {
		in := frontal()
		for _, v := range []*float64{&in.Masks.Spine, &in.Masks.Trachea, &in.Masks.Airway, &in.Masks.Clavicle,
			&in.Masks.HeartRight, &in.Masks.HeartLeft, &in.Masks.Ribs, &in.Masks.Dense, &in.Masks.RightMargin} {
			if rapid.Bool().Draw(t, "replace") {
				*v = number.Draw(t, "value")
			}
		}
		for _, preset := range []Preset{AllOrNothing, PerMeasurement} {
			b := Assess(in, preset)
			for _, m := range b.Measurements {
				for _, c := range m.Checks {
					if m.Admitted && c.Verdict != rollout.Pass {
						t.Fatalf("%s admitted although %s is %s", m.Name, c.Name, c.Verdict)
					}
				}
			}
			if _, err := json.Marshal(b); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestSmallerLung holds that the band moves with the heart.
func TestSmallerLung(t *testing.T) {
	for _, tt := range []struct {
		ln, ctr float64
		want    string
	}{{0.10, 0.45, "normal"}, {0.18, 0.45, "left smaller"}, {0.18, 0.60, "normal"}, {0.03, 0.45, "right smaller"}} {
		if got := phantoms.category(rollout.Asymmetry, tt.ln, tt.ctr, "PA"); got != tt.want {
			t.Errorf("ln %.2f at CTR %.2f: %q, want %q", tt.ln, tt.ctr, got, tt.want)
		}
	}
}
