package measure

import (
	"fmt"
	"image"
	"math"

	"xragent/rollout"
)

// The thresholds for radiographs. Each was set where 48 frontal films of many
// kinds of heart and lung leave room on one side and made faults on the other;
// their extremes stand beside. Between pass and fail lies unknown.
const (
	patternPass, patternFail   = 0.50, 0.45 // films 0.60 to 0.77; inverted 0.23 to 0.55, lying 0.23 to 0.41
	contrastPass, contrastFail = 0.08, 0.0  // films 0.20 to 0.48
	lowPass, lowFail           = 0.55, 0.50 // films 0.63 to 0.81; upside down 0.19 to 0.37
	leftPass, leftFail         = 0.01, -0.01
	maxTilt                    = 7.5 // degrees; films -5.0 to 6.9, turned by 15 degrees 8.3 and more
	narrowestPass, tallestFail = 1.0, 0.90
	widestPass, flattestFail   = 1.72, 1.90
	sharePass, shareFail       = 0.55, 0.50 // films 0.63 to 0.93; one of two panels 0.31 to 0.46
	maxContact                 = 0.02       // films 0
	usualOffset, offsetBand    = 0.028, 0.045
	maxHeartTall               = 0.68 // films 0.38 to 0.66
	minNarrow, minShort        = 0.60, 0.75
	minWhole                   = 0.90
	maxOverlap                 = 0.05       // films 0.01; 0.31 where a lung is drawn through the heart
	gapPass, gapMost           = 0.88, 1.15 // films 0.98 to 1.01; 1.35 and more where a lung is drawn through the heart
	minConvex                  = 0.91       // drawn hearts 0.925 and more
	maxFlat                    = 0.05       // films 0.01
	denseUnknown               = 0.15       // films 0.05
	minAgreement               = 0.80
)

// people is ln(A_R/A_L) with lungs drawn by people, the heart cut out: a line
// through 46 films, healthy ones and others, and a robust deviation about it.
var people = Reference{Name: "drawn lungs, heart cut out", Intercept: -0.19, Slope: 0.80, SD: 0.064}

// judgeFilm decides on a radiograph from its tags, its pixels and its masks.
func judgeFilm(in Input, s Structures) *verdicts {
	v := &verdicts{}
	v.viewByTags(in)
	v.projectByTag(in)
	if _, _, err := s.lungs(); err != nil {
		v.add(everything, "lungs_found", rollout.Fail, 0, 2, err.Error())
		v.patternWithoutMasks(in)
		return v
	}
	v.add(everything, "lungs_found", rollout.Pass, 2, 2, "")
	if err := s.need("right lung", "left lung", "heart"); err != nil {
		v.add(everything, "heart_found", rollout.Fail, 0, 1, err.Error())
		v.patternWithoutMasks(in)
		return v
	}
	f := newFilm(in.Image, s)
	v.viewOfFilm(f, in.Meta.SquarePx)
	v.masksOfFilm(f)
	if in.Second != nil {
		v.agree(s, *in.Second)
	}
	return v
}

// projectByTag takes the projection from the tag alone: nothing in lungs and
// heart tells AP from PA.
func (v *verdicts) projectByTag(in Input) {
	if view := in.Meta.View; view == "PA" || view == "AP" {
		v.projection = view
		v.add(nil, "projection", rollout.Pass, 0, 0, "")
		return
	}
	v.add(nil, "projection", rollout.Unknown, 0, 0, "no tag tells PA from AP")
}

// between passes from pass on and fails below fail; what lies between is unknown.
func (v *verdicts) between(bears []string, name string, value, pass, fail float64, reason string) {
	verdict := rollout.Unknown
	switch {
	case value >= pass:
		verdict = rollout.Pass
	case value < fail:
		verdict = rollout.Fail
	}
	v.add(bears, name, verdict, value, pass, reason)
}

// orUnknown passes up to most, and is unknown above.
func (v *verdicts) orUnknown(bears []string, name string, value, most float64, reason string) {
	verdict := rollout.Unknown
	if value <= most {
		verdict = rollout.Pass
	}
	v.add(bears, name, verdict, value, most, reason)
}

func (v *verdicts) pattern(value float64) {
	v.between(everything, "chest_pattern", value, patternPass, patternFail, "does not look like one upright frontal chest")
}

func (v *verdicts) viewOfFilm(f *film, square bool) {
	v.pattern(f.pattern)
	v.between(everything, "polarity", f.contrast, contrastPass, contrastFail, "lungs are not darker than the middle: inverted")
	v.between(everything, "upright", f.heartLow, lowPass, lowFail, "the heart does not lie low between the lungs")
	v.between(sides, "laterality", f.heartLeft, leftPass, leftFail, "the heart lies on the right: mirrored, or sides unknown")
	v.atMost(everything, "tilt", math.Abs(f.tilt), maxTilt, "the body is turned in the image")
	v.proportions(f.proportion, square)
	v.between(everything, "panels", f.share, sharePass, shareFail, "the chest fills little of the image: several panels, or a cut-out")
	v.atMost(areas, "cropping", f.contact, maxContact, "a lung reaches the film's edge")
	v.rotation(f)
	v.orUnknown(ctrOnly, "inspiration", f.heartTall, maxHeartTall, "the heart takes much of the lungs' height: poor inspiration or a large heart")
}

// rotation goes by the clavicles where they and the spine are known. Without
// them a mediastinum in its usual place speaks against a rotation; one that is
// off it may be either rotated or shifted, and nothing here tells which.
func (v *verdicts) rotation(f *film) {
	if !math.IsNaN(f.clavicles) {
		v.atMost(sides, "rotation", math.Abs(f.clavicles), maxRotation, "clavicles are not centred on the spine")
		return
	}
	v.orUnknown(sides, "rotation", math.Abs(f.offset-usualOffset), offsetBand, "the mediastinum is off the middle: rotated or shifted, clavicles would tell")
}

// proportions judges the chest's width over the lungs' height. Sound films of
// unknown pixel aspect have 0.95 to 1.77. Where a file vouches for square pixels,
// tall and wide chests are just that.
func (v *verdicts) proportions(value float64, square bool) {
	const reason = "the chest's proportions are unusual: squeezed, or pixels that are not square"
	switch {
	case square && value >= tallestFail && value < flattestFail:
		v.add(everything, "proportions", rollout.Pass, value, tallestFail, "")
	case value > widestPass:
		v.add(everything, "proportions", unknownIf(value < flattestFail), value, widestPass, reason)
	case value < narrowestPass:
		v.add(everything, "proportions", unknownIf(value >= tallestFail), value, narrowestPass, reason)
	default:
		v.add(everything, "proportions", rollout.Pass, value, narrowestPass, "")
	}
}

func unknownIf(close bool) rollout.Verdict {
	if close {
		return rollout.Unknown
	}
	return rollout.Fail
}

func (v *verdicts) masksOfFilm(f *film) {
	v.atLeast(areas, "lung_area", min(f.area[0], f.area[1]), minLungArea, "a lung is too small to be whole")
	v.atMost(areas, "lung_size", max(f.area[0], f.area[1]), maxLungArea, "a lung is too large to be one")
	v.atLeast(areas, "width_ratio", f.narrow, minNarrow, "one lung is much narrower")
	v.atLeast(areas, "height_ratio", f.short, minShort, "one lung is much lower")
	v.atLeast(everything, "components", f.whole, minWhole, "a mask falls into pieces")
	v.atMost(lnOnly, "overlap", f.overlap, maxOverlap, "a lung is drawn through the heart: areas follow another convention")
	v.between(ctrOnly, "heart_gap", f.filled, gapPass, gapPass-0.08, "the heart's mask does not reach the lungs")
	v.orUnknown(ctrOnly, "heart_in_lung", f.filled, gapMost, "the heart's mask reaches into the lungs, or they into it")
	v.between(areas, "heart_shape", f.convex, minConvex, 0, "the heart's border has a bay or a horn: hidden by an opacity, or drawn wrongly")
	v.atMost(areas, "texture", f.flat, maxFlat, "part of a lung has one grey level: covered")
	v.orUnknown(areas, "filled", f.dense, denseUnknown, "part of a lung is as bright as the middle: opaque, covered, or no lung")
}

// agree compares two segmentations: the lowest Dice coefficient of the three
// structures.
func (v *verdicts) agree(a, b Structures) {
	least := 1.0
	for _, pair := range [][2]*image.Alpha{{a.RightLung, b.RightLung}, {a.LeftLung, b.LeftLung}, {a.Heart, b.Heart}} {
		least = min(least, dice(pair[0], pair[1]))
	}
	v.atLeast(everything, "agreement", least, minAgreement, fmt.Sprintf("two segmentations agree by %.2f only", least))
}

// dice returns twice the overlap over the sum of both areas; 0 for masks that
// are missing or differ in size.
func dice(a, b *image.Alpha) float64 {
	if a == nil || b == nil || a.Rect.Size() != b.Rect.Size() {
		return 0
	}
	both, sum := 0, 0
	for i := range a.Pix {
		x, y := a.Pix[i] != 0, b.Pix[i] != 0
		if x && y {
			both += 2
		}
		if x {
			sum++
		}
		if y {
			sum++
		}
	}
	return float64(both) / float64(max(sum, 1))
}
