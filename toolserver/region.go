package toolserver

import (
	"image"
	"math"
	"strings"

	"xragent/toolserver/segment"
)

// Regions lists the anatomical regions that the tools know, in the order of
// the full schema. Sides are the patient's: the patient's right lies on the
// image's left, and nothing is ever flipped.
var Regions = regionNames()

var sidedRegions = []string{
	"lung", "upper zone", "middle zone", "lower zone", "apex", "base", "hilum", "costophrenic angle",
}

var midRegions = []string{"heart", "mediastinum", "trachea", "spine", "abdomen"}

func regionNames() []string {
	var names []string
	for _, side := range []string{"right", "left"} {
		for _, part := range sidedRegions {
			names = append(names, side+" "+part)
		}
	}
	return append(names, midRegions...)
}

// A box is a rectangle in relative coordinates: 0 to 1 from the left and the top.
type box struct{ X0, Y0, X1, Y1 float64 }

func (b box) in(outer box) box {
	w, h := outer.X1-outer.X0, outer.Y1-outer.Y0
	return box{outer.X0 + w*b.X0, outer.Y0 + h*b.Y0, outer.X0 + w*b.X1, outer.Y0 + h*b.Y1}
}

func (b box) clamp() (box, bool) {
	limit := func(v float64) float64 { return min(max(v, 0), 1) }
	c := box{limit(b.X0), limit(b.Y0), limit(b.X1), limit(b.Y1)}
	return c, c != b
}

func (b box) pixels(r image.Rectangle) image.Rectangle {
	w, h := float64(r.Dx()), float64(r.Dy())
	return image.Rect(
		int(math.Floor(b.X0*w)), int(math.Floor(b.Y0*h)),
		int(math.Ceil(b.X1*w)), int(math.Ceil(b.Y1*h))).Intersect(r)
}

// lungParts are the parts of a lung, relative to the box of the right one as
// displayed (medial is right). Zones are thirds of the height.
var lungParts = map[string]box{
	"lung":               {0, 0, 1, 1},
	"upper zone":         {0, 0, 1, 1. / 3},
	"middle zone":        {0, 1. / 3, 1, 2. / 3},
	"lower zone":         {0, 2. / 3, 1, 1},
	"apex":               {0.25, -0.04, 1, 0.2},
	"base":               {0, 0.75, 1, 1.08},
	"hilum":              {0.6, 0.35, 1.15, 0.65},
	"costophrenic angle": {-0.08, 0.8, 0.42, 1.08},
}

// midBoxes are the unpaired regions relative to the box of both lungs.
var midBoxes = map[string]box{
	"heart":       {0.33, 0.45, 0.8, 1},
	"mediastinum": {0.34, 0, 0.66, 0.62},
	"trachea":     {0.4, -0.08, 0.6, 0.36},
	"spine":       {0.43, 0, 0.57, 1.1},
	"abdomen":     {0, 0.95, 1, 1.25},
}

// Where the lungs are not known, these boxes of an ordinary frontal film stand
// in for them.
var (
	usualRight = box{0.12, 0.12, 0.46, 0.8}
	usualLeft  = box{0.54, 0.12, 0.88, 0.8}
)

// lungBoxes are the boxes of the two lungs, from masks where both were found.
type lungBoxes struct{ right, left box }

func boxesOf(m *segment.Masks, r image.Rectangle) lungBoxes {
	if m == nil || m.RightLung == nil || m.LeftLung == nil {
		return lungBoxes{usualRight, usualLeft}
	}
	return lungBoxes{maskBox(m.RightLung, r), maskBox(m.LeftLung, r)}
}

func maskBox(m *image.Alpha, r image.Rectangle) box {
	b := segment.Bounds(m)
	w, h := float64(r.Dx()), float64(r.Dy())
	return box{float64(b.Min.X) / w, float64(b.Min.Y) / h, float64(b.Max.X) / w, float64(b.Max.Y) / h}
}

// find returns the box of a region, and the canonical spelling of its name.
// Spelling is free in case, hyphens and "mid", and "zone" may be left out.
func (l lungBoxes) find(name string) (b box, canonical string, ok bool) {
	canonical, ok = regionName(name)
	if !ok {
		return box{}, "", false
	}
	side, part, _ := strings.Cut(canonical, " ")
	switch side {
	case "right":
		b = lungParts[part].in(l.right)
	case "left":
		b = mirror(lungParts[part]).in(l.left)
	default:
		b = midBoxes[canonical].in(box{l.right.X0, min(l.right.Y0, l.left.Y0), l.left.X1, max(l.right.Y1, l.left.Y1)})
	}
	b, _ = b.clamp()
	return b, canonical, true
}

func mirror(b box) box { return box{1 - b.X1, b.Y0, 1 - b.X0, b.Y1} }

var regionSpelling = strings.NewReplacer("_", " ", "-", " ", "mid zone", "middle zone", "lobe", "zone", "cp angle", "costophrenic angle")

func regionName(name string) (string, bool) {
	name = strings.Join(strings.Fields(regionSpelling.Replace(strings.ToLower(name))), " ")
	if strings.HasSuffix(name, " mid") {
		name += "dle"
	}
	for _, known := range Regions {
		if name == known || name+" zone" == known {
			return known, true
		}
	}
	return "", false
}

// otherSide returns the region across the midline, "" for unpaired ones.
func otherSide(region string) string {
	if part, ok := strings.CutPrefix(region, "right "); ok {
		return "left " + part
	}
	if part, ok := strings.CutPrefix(region, "left "); ok {
		return "right " + part
	}
	return ""
}
