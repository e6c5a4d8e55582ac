// Package measure turns masks into the measurement bundle, and decides which
// numbers may be shown.
//
// It computes and judges; it finds nothing in an image. Each judgement is a
// [rollout.Check] with the value that decided it and its threshold. A verdict
// is pass, fail or unknown, and unknown is not pass. Results are deterministic:
// the same masks and metadata give the same bundle.
//
// There are two gates. A phantom's uses the landmarks that its segmenter finds.
// A radiograph's uses tags, masks and pixels alone.
//
// Sides are the patient's; nothing is ever flipped. No number here is a clinical
// claim.
package measure

import (
	"image"
	"math"

	"xragent/dataset"
	"xragent/rollout"
)

// Version is part of cache keys, of a run's identity and of a study's manifests; it
// is raised when any result changes.
const Version = "v3"

// Variant names the definitions: the cardiothoracic ratio from the widest
// horizontal extents of heart and lungs, each wherever it is widest; lung areas
// with the heart cut out; the upper mediastinum against the spine.
const Variant = "column_extent/v1"

// A Preset says how verdicts combine.
type Preset string

// The presets.
const (
	AllOrNothing   Preset = "all_or_nothing"  // every check of every measurement passes, or nothing is shown
	PerMeasurement Preset = "per_measurement" // each measurement by its own checks
)

// Masks is what a segmenter found; package segment documents the fields.
type Masks struct {
	RightLung, LeftLung, Heart *image.Alpha

	Spine    float64
	Trachea  float64
	Airway   float64
	Clavicle float64
	Level    float64

	HeartRight, HeartLeft         float64
	HeartRightSeen, HeartLeftSeen float64
	Step                          float64

	Parts                   float64
	Filled                  float64
	Dense                   float64
	RightMargin, LeftMargin float64
	Ribs                    float64
	Contrast                float64
	Scale                   float64

	More map[string]*image.Alpha
}

// Input is one image with what is known of it.
type Input struct {
	Image    *image.Gray
	Meta     dataset.Image
	InDomain bool   // the segmenter is made for such images
	Masks    Masks  // of a phantom; zero when Failed, or out of domain
	Failed   string // why the segmenter found nothing

	// Structures are a radiograph's masks, which are judged by themselves and the
	// pixels: no landmarks are needed. Second are those of another segmenter, nil
	// where there is none; their agreement is checked.
	Structures *Structures
	Second     *Structures
	CTR        string // the ratio's variant on Structures; "" for ColumnExtent
}

// Assess returns the bundle of one image. Measurements that could be computed
// have their values also where they are not admitted. Shown is left empty.
func Assess(in Input, preset Preset) rollout.Bundle {
	if in.Structures != nil && in.InDomain {
		return assessFilm(in, *in.Structures, preset)
	}
	b := rollout.Bundle{Variant: Variant}
	var g *geometry
	if in.InDomain && in.Failed == "" && in.Masks.RightLung != nil && in.Masks.LeftLung != nil {
		g = newGeometry(in.Masks)
	}
	fill(&b, judge(in, g), preset, g.value, phantoms)
	return b
}

// assessFilm is Assess of a radiograph.
func assessFilm(in Input, s Structures, preset Preset) rollout.Bundle {
	if in.CTR == "" {
		in.CTR = ColumnExtent
	}
	b := rollout.Bundle{Variant: in.CTR + "/" + Version}
	list := Numbers(s, in.CTR, in.Meta)
	value := func(name string) (float64, bool) {
		for _, n := range list {
			if n.Name == name {
				return n.Value, true
			}
		}
		return 0, false
	}
	fill(&b, judgeFilm(in, s), preset, value, radiographs)
	return b
}

// fill puts values, categories and verdicts into the bundle.
func fill(b *rollout.Bundle, checks *verdicts, preset Preset, value func(string) (float64, bool), words bands) {
	admitted := map[string]bool{}
	all := true
	for _, name := range rollout.Measurements {
		admitted[name] = checks.admit(name)
		all = all && admitted[name]
	}
	ctr, _ := value(rollout.CTR)
	for _, name := range rollout.Measurements {
		m := rollout.Measurement{Name: name, Checks: checks.of(name)}
		if m.Value, m.Computed = value(name); m.Computed {
			m.Value = round(m.Value)
			m.Category = words.category(name, m.Value, ctr, checks.projection)
		}
		m.Admitted = m.Computed && admitted[name] && (all || preset == PerMeasurement)
		b.Measurements = append(b.Measurements, m)
	}
	b.Reasons = checks.reasons()
}

// round keeps three decimals, which is what is shown and cited.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// geometry holds the lengths and areas that values and checks are made of, in
// pixels.
type geometry struct {
	Masks
	right, left         image.Rectangle
	rightArea, leftArea int
	thorax              float64 // widest inner extent
}

func newGeometry(m Masks) *geometry {
	g := &geometry{Masks: m}
	g.right, g.rightArea = extent(m.RightLung)
	g.left, g.leftArea = extent(m.LeftLung)
	g.thorax = float64(g.left.Max.X - g.right.Min.X)
	return g
}

// extent returns the bounds and the area of a mask.
func extent(m *image.Alpha) (r image.Rectangle, area int) {
	for y := range m.Rect.Dy() {
		first, last := -1, -1
		for x, v := range m.Pix[y*m.Stride : y*m.Stride+m.Rect.Dx()] {
			if v == 0 {
				continue
			}
			if area++; first < 0 {
				first = x
			}
			last = x
		}
		if first >= 0 {
			r = r.Union(image.Rect(first, y, last+1, y+1))
		}
	}
	return r, area
}

// value returns a measurement, and whether it could be computed.
func (g *geometry) value(name string) (v float64, ok bool) {
	if g == nil || g.thorax <= 0 || g.rightArea == 0 || g.leftArea == 0 {
		return 0, false
	}
	switch name {
	case rollout.CTR:
		v = (g.HeartRight + g.HeartLeft) / g.thorax
	case rollout.Asymmetry:
		v = math.Log(float64(g.rightArea) / float64(g.leftArea))
	case rollout.Shift:
		v = (g.Trachea - g.Spine) / g.thorax
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, false
	}
	return v, true
}

// The bands of the heart's categories.
const (
	normalBelow    = 0.48 // PA: CTR below is normal
	enlargedAbove  = 0.52 // PA: CTR above is enlarged, between is borderline
	NormalBelowAP  = 0.50 // AP magnifies: below is normal all the same
	EnlargedFromAP = 0.60 // AP: from here on enlarged all the same
)

// bands say from where on a lung counts as small and the mediastinum as
// shifted: outside two standard deviations of what one kind of masks shows.
type bands struct {
	asymmetry Reference
	shift     float64 // usual value
	shiftHalf float64
}

// phantoms is fitted to 1,601 synthetic films without lost volume, fluid or
// fault, moved by the masks' own bias. With the heart cut out the right lung is
// the larger, and the more so the larger the heart.
var phantoms = bands{asymmetry: Reference{Name: "phantoms", Intercept: -0.10, Slope: 0.46, SD: 0.03}, shiftHalf: 0.02}

// radiographs has the upper mediastinum between the lungs' inner edges, which
// the aortic arch moves to the left.
var radiographs = bands{asymmetry: people, shift: 0.028, shiftHalf: 0.035}

// category returns the word for a value; "" where none may be given. An
// unknown projection gives the heart a number without a category.
func (b bands) category(name string, v, ctr float64, projection string) string {
	switch name {
	case rollout.CTR:
		return heartCategory(v, projection)
	case rollout.Asymmetry:
		return band(v-b.asymmetry.Intercept-b.asymmetry.Slope*ctr, 2*b.asymmetry.SD, "right smaller", "left smaller")
	case rollout.Shift:
		return band(v-b.shift, b.shiftHalf, "right", "left")
	}
	return ""
}

func heartCategory(v float64, projection string) string {
	switch {
	case projection == "PA" && v < normalBelow, projection == "AP" && v < NormalBelowAP:
		return "normal"
	case projection == "PA" && v > enlargedAbove, projection == "AP" && v >= EnlargedFromAP:
		return "enlarged"
	case projection == "PA":
		return "borderline"
	}
	return ""
}

func band(v, half float64, below, above string) string {
	switch {
	case v < -half:
		return below
	case v > half:
		return above
	}
	return "normal"
}
