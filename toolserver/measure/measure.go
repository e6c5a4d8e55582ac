// Package measure turns masks into the measurement bundle, and decides which
// numbers may be shown.
//
// It computes and judges; it finds nothing in an image. Each judgement is a
// [rollout.Check] with the value that decided it and its threshold. A verdict
// is pass, fail or unknown, and unknown is not pass. Results are deterministic:
// the same masks and metadata give the same bundle.
//
// Sides are the patient's. The thresholds were set on synthetic films; no
// number here is a clinical claim.
package measure

import (
	"image"
	"math"

	"xragent/dataset"
	"xragent/rollout"
)

// Version is part of cache keys; it is raised when any result changes.
const Version = "v1"

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
}

// Input is one image with what is known of it.
type Input struct {
	Image    *image.Gray
	Meta     dataset.Image
	InDomain bool   // the segmenter is made for such images
	Masks    Masks  // zero when Failed, or out of domain
	Failed   string // why the segmenter found nothing
}

// Assess returns the bundle of one image. Measurements that could be computed
// have their values also where they are not admitted. Shown is left empty.
func Assess(in Input, preset Preset) rollout.Bundle {
	b := rollout.Bundle{Variant: Variant}
	var g *geometry
	if in.InDomain && in.Failed == "" && in.Masks.RightLung != nil && in.Masks.LeftLung != nil {
		g = newGeometry(in.Masks)
	}
	checks := judge(in, g)
	admitted := map[string]bool{}
	all := true
	for _, name := range rollout.Measurements {
		admitted[name] = checks.admit(name)
		all = all && admitted[name]
	}
	ctr, _ := g.value(rollout.CTR)
	for _, name := range rollout.Measurements {
		m := rollout.Measurement{Name: name, Checks: checks.of(name)}
		if m.Value, m.Computed = g.value(name); m.Computed {
			m.Value = round(m.Value)
			m.Category = category(name, m.Value, ctr, checks.projection)
		}
		m.Admitted = m.Computed && admitted[name] && (all || preset == PerMeasurement)
		b.Measurements = append(b.Measurements, m)
	}
	b.Reasons = checks.reasons()
	return b
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

// The bands of the categories. A lung counts as small, and the mediastinum as
// shifted, outside what healthy synthetic films show.
const (
	normalBelow       = 0.48 // PA: CTR below is normal
	enlargedAbove     = 0.52 // PA: CTR above is enlarged, between is borderline
	normalBelowAP     = 0.50 // AP magnifies: below is normal all the same
	enlargedFromAP    = 0.60 // AP: from here on enlarged all the same
	asymmetryHalfBand = 0.06 // two standard deviations of healthy films about expectedAsymmetry
	shiftHalfBand     = 0.02
)

// expectedAsymmetry returns ln(A_R/A_L) of healthy lungs. With the heart cut
// out the right one is the larger, and the more so the larger the heart: a line
// fitted to 1,601 synthetic films without lost volume, fluid or fault (standard
// deviation 0.028), moved by the masks' own bias.
func expectedAsymmetry(ctr float64) float64 { return 0.46*ctr - 0.10 }

// category returns the word for a value; "" where none may be given. An
// unknown projection gives the heart a number without a category.
func category(name string, v, ctr float64, projection string) string {
	switch name {
	case rollout.CTR:
		return heartCategory(v, projection)
	case rollout.Asymmetry:
		return band(v-expectedAsymmetry(ctr), asymmetryHalfBand, "right smaller", "left smaller")
	case rollout.Shift:
		return band(v, shiftHalfBand, "right", "left")
	}
	return ""
}

func heartCategory(v float64, projection string) string {
	switch {
	case projection == "PA" && v < normalBelow, projection == "AP" && v < normalBelowAP:
		return "normal"
	case projection == "PA" && v > enlargedAbove, projection == "AP" && v >= enlargedFromAP:
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
