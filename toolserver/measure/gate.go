package measure

import (
	"fmt"
	"math"
	"slices"

	"xragent/rollout"
)

// The thresholds. Lengths are shares of the thoracic width or of the image, so
// that they hold at any resolution.
const (
	maxRotation   = 0.022 // clavicles' midpoint from the spine
	minRibs       = 10.88 // height of the higher lung, in rib spaces
	minMargin     = 0.035 // chest wall beside a lung
	minEdge       = 0.010 // lungs' top and bottom from the film's edge
	minLungArea   = 0.030 // of the image, each lung
	maxLungArea   = 0.300
	maxParts      = 3
	minWidthRatio = 0.55 // narrower lung over wider
	maxFilled     = 0.22
	maxDense      = 0.010
	maxStep       = 14.0 / 512 // of the image's longer side
	maxDisagree   = 0.012      // trachea against mediastinum
	levelAP       = 18.0 / 512 // clavicles' ends below the lungs' top: higher up on AP films
	adultFrom     = 18.0
)

// The stages of the gate, and which measurements a check bears on.
var (
	everything = rollout.Measurements
	ctrOnly    = []string{rollout.CTR}
	areas      = []string{rollout.CTR, rollout.Asymmetry}
	sides      = []string{rollout.Asymmetry, rollout.Shift}
	lnOnly     = []string{rollout.Asymmetry}
	shiftOnly  = []string{rollout.Shift}
)

// judgement is a check with the measurements that it decides on.
type judgement struct {
	rollout.Check
	bears []string
}

// verdicts are all checks of one image, in a fixed order.
type verdicts struct {
	list       []judgement
	projection string // PA, AP or "" when unknown: decides the heart's category
}

// add appends a check. A value that is no number was not found, and its check
// is unknown.
func (v *verdicts) add(bears []string, name string, verdict rollout.Verdict, value, threshold float64, reason string) {
	if verdict == rollout.Pass {
		reason = ""
	}
	if math.IsNaN(value) || math.IsInf(value, 0) { // has no JSON form
		value, verdict, reason = 0, rollout.Unknown, "could not be found"
	}
	c := rollout.Check{Name: name, Verdict: verdict, Value: round(value), Threshold: round(threshold), Reason: reason}
	v.list = append(v.list, judgement{c, bears})
}

func (v *verdicts) atMost(bears []string, name string, value, most float64, reason string) {
	v.add(bears, name, passIf(value <= most), value, most, reason)
}

func (v *verdicts) atLeast(bears []string, name string, value, least float64, reason string) {
	v.add(bears, name, passIf(value >= least), value, least, reason)
}

func passIf(ok bool) rollout.Verdict {
	if ok {
		return rollout.Pass
	}
	return rollout.Fail
}

// judge runs view_check, then mask quality. What cannot be judged for want of
// masks is left out: the check that says why has failed already.
func judge(in Input, g *geometry) *verdicts {
	v := &verdicts{}
	v.add(everything, "segmenter_domain", passIf(in.InDomain), 0, 0, fmt.Sprintf("no segmenter for images of domain %q", in.Meta.Domain))
	v.viewByTags(in)
	if g == nil {
		v.patternWithoutMasks(in)
		if in.InDomain {
			v.add(everything, "lungs_found", rollout.Fail, 0, 2, in.Failed)
		}
		return v
	}
	v.add(everything, "lungs_found", rollout.Pass, 2, 2, "")
	v.viewByPixels(in, g)
	v.maskQuality(in, g)
	return v
}

// patternWithoutMasks says of a radiograph without masks that can be judged
// whether it looks like a chest.
func (v *verdicts) patternWithoutMasks(in Input) {
	if in.Meta.Domain != "phantom" && in.Image != nil && !in.Image.Rect.Empty() {
		v.pattern(chestPattern(in.Image))
	}
}

// viewTags are the tags of a DICOM file that may name several views.
var viewTags = []string{"view_position", "view_code", "protocol_name"}

func (v *verdicts) viewByTags(in Input) {
	other := in.Meta.View == "LATERAL" || in.Meta.View == "OTHER"
	if in.Meta.View == "" && slices.Contains(viewTags, in.Meta.ViewFrom) {
		v.add(everything, "frontal", rollout.Unknown, 0, 0, fmt.Sprintf("%s names several views", in.Meta.ViewFrom))
	} else {
		v.add(everything, "frontal", passIf(!other), 0, 0, fmt.Sprintf("view is %s by %s, not a frontal chest", in.Meta.View, in.Meta.ViewFrom))
	}
	if age := in.Meta.AgeYears; age > 0 {
		v.atLeast(everything, "adult", age, adultFrom, "adult thresholds do not hold for children")
	}
}

func (v *verdicts) viewByPixels(in Input, g *geometry) {
	size := in.Image.Rect
	v.project(in.Meta.View, g.Level/float64(max(size.Dx(), size.Dy())))
	v.atMost(sides, "rotation", math.Abs(g.Clavicle-g.Spine)/g.thorax, maxRotation, "clavicles are not centred on the spine")
	v.inspire(in, g)
	v.atLeast(areas, "cropping", min(g.RightMargin, g.LeftMargin)/g.thorax, minMargin, "a lung reaches the film's edge")
	top, bottom := min(g.right.Min.Y, g.left.Min.Y), size.Dy()-max(g.right.Max.Y, g.left.Max.Y)
	v.atLeast(areas, "inclusion", float64(min(top, bottom))/float64(size.Dy()), minEdge, "apices or bases are cut off")
	v.atLeast(everything, "polarity", g.Contrast, 0, "lungs brighter than soft tissue: inverted")
}

// project settles the projection from the tag and the clavicles' height. A tag
// that the pixels contradict, and pixels without a tag, leave it unknown. It
// bears on the category only, so that it withholds no number.
func (v *verdicts) project(tag string, level float64) {
	seen := "PA"
	if level < levelAP {
		seen = "AP"
	}
	if tag == seen {
		v.projection = tag
		v.add(nil, "projection", rollout.Pass, level, levelAP, "")
		return
	}
	v.add(nil, "projection", rollout.Unknown, level, levelAP, fmt.Sprintf("tag says %q, clavicles look like %s", tag, seen))
}

// inspire judges the lungs' height, which means nothing where pixels may not
// be square.
func (v *verdicts) inspire(in Input, g *geometry) {
	if !in.Meta.SquarePx {
		v.add(ctrOnly, "inspiration", rollout.Unknown, g.Ribs, minRibs, "aspect_unknown: pixels may not be square")
		return
	}
	v.atLeast(ctrOnly, "inspiration", g.Ribs, minRibs, "lungs are low: poor inspiration")
}

func (v *verdicts) maskQuality(in Input, g *geometry) {
	size := in.Image.Rect
	pixels := float64(size.Dx() * size.Dy())
	small, large := min(g.rightArea, g.leftArea), max(g.rightArea, g.leftArea)
	v.atLeast(areas, "lung_area", float64(small)/pixels, minLungArea, "a lung is too small to be whole")
	v.atMost(areas, "lung_size", float64(large)/pixels, maxLungArea, "a lung is too large to be one")
	v.atMost(lnOnly, "components", g.Parts, maxParts, "lungs fell into pieces")
	narrow, wide := min(g.right.Dx(), g.left.Dx()), max(g.right.Dx(), g.left.Dx())
	v.atLeast(areas, "width_ratio", float64(narrow)/float64(max(wide, 1)), minWidthRatio, "one lung is much narrower")
	v.atMost(lnOnly, "filled", g.Filled, maxFilled, "too much of the lungs is opaque")
	v.atLeast(ctrOnly, "heart_border", min(g.HeartRightSeen, g.HeartLeftSeen), 1, "a heart border is hidden")
	v.atMost(areas, "border_step", g.Step/float64(max(size.Dx(), size.Dy())), maxStep, "a border jumps: something lies over it")
	v.atMost(areas, "dense_object", g.Dense, maxDense, "the heart holds something denser than a heart")
	v.atMost(shiftOnly, "trachea_agreement", math.Abs(g.Trachea-g.Airway)/g.thorax, maxDisagree, "trachea and mediastinum disagree")
	v.atMost(ctrOnly, "overlap", overlap(g), 0.02, "heart and lung masks overlap")
}

// overlap returns the share of the heart's mask that is also lung.
func overlap(g *geometry) float64 {
	both, heart := 0, 0
	for i, v := range g.Heart.Pix {
		if v == 0 {
			continue
		}
		heart++
		if g.RightLung.Pix[i] != 0 || g.LeftLung.Pix[i] != 0 {
			both++
		}
	}
	return float64(both) / float64(max(heart, 1))
}

// of returns the checks that bear on a measurement.
func (v *verdicts) of(name string) []rollout.Check {
	var list []rollout.Check
	for _, j := range v.list {
		if j.bearsOn(name) {
			list = append(list, j.Check)
		}
	}
	return list
}

func (j judgement) bearsOn(name string) bool {
	for _, b := range j.bears {
		if b == name {
			return true
		}
	}
	return false
}

// admit reports whether every check that bears on the measurement passed.
func (v *verdicts) admit(name string) bool {
	for _, c := range v.of(name) {
		if c.Verdict != rollout.Pass {
			return false
		}
	}
	return true
}

// reasons names the checks that did not pass, in order.
func (v *verdicts) reasons() []string {
	var names []string
	for _, j := range v.list {
		if j.Verdict != rollout.Pass && len(j.bears) > 0 {
			names = append(names, j.Name)
		}
	}
	return names
}
