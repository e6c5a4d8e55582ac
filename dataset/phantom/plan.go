package phantom

import (
	"math/rand/v2"
	"slices"

	"xragent/dataset"
)

const (
	smooth     = "smooth"
	spiculated = "spiculated"
)

var zoneNames = [3]string{"upper", "middle", "lower"}

// A plan is a study in the making: first the question and its answer, then a
// body for which that answer is right, then a film of that body.
type plan struct {
	key   splitKey
	split dataset.Split

	need                 Need
	tmpl                 *template
	kind                 dataset.Kind
	answer               int  // of tmpl.answers
	untold               bool // the film cannot tell: CannotTell is right
	askedSide, askedZone int
	placed               bool   // the question says where to look
	code                 string // of the site protocol asked for

	view   View
	fault  Fault
	degree float64
	side   int // of the fault
	age    float64

	body  thorax  // anatomical, with disease
	ratio float64 // cardiothoracic, anatomical
	loss  [2]float64
	large bool // what is drawn next is seen in the coarse view
	scene scene
}

func newPlan(seed uint64, split dataset.Split, k int) *plan {
	rng := stream(seed, split, k, streamPlan)
	p := &plan{key: splitKey{seed, k}, split: split, view: PA}
	p.ask(rng, newStratum(seed, split, k))
	p.conditions(rng)
	p.age = float64(20 + rng.IntN(70))
	p.ratio = between(rng, 0.39, 0.54)
	p.body = drawThorax(rng, p.ratio, split)
	p.scene.line = [2]float64{between(rng, 9, 14), between(rng, 9, 14)}
	if !p.untold {
		p.large = p.need == NeedCoarse
		p.tmpl.arrange(p, rng, p.answer)
	}
	p.background(rng)
	p.project(rng)
	p.scene.style = drawStyle(rng, split == dataset.OOD)
	p.scene.style.collimation = min(p.scene.style.collimation, p.scene.film.margin())
	return p
}

// conditions draws view and fault.
func (p *plan) conditions(rng *rand.Rand) {
	p.side = rng.IntN(2)
	switch {
	case p.need == NeedMisleading:
		p.mislead(rng)
	case p.need == NeedBundle || len(p.relevant()) > 0 || p.tmpl.plain || p.tmpl.general && p.need == NeedCoarse:
		// A clean PA film; the projection's own question sets the view.
	case p.need == NeedLookup, p.kind == dataset.Report && chance(rng, 0.7):
		p.view = Lateral
	case p.tmpl.sided && p.kind == dataset.MultipleChoice && chance(rng, 0.04):
		p.view, p.untold, p.need = Lateral, true, NeedCoarse // the view alone tells
	default:
		p.common(rng)
	}
	if p.tmpl.sided && p.fault == Cropped && p.need != NeedMisleading {
		p.fault = NoFault
	}
}

// common draws what a film of no particular question may be.
func (p *plan) common(rng *rand.Rand) {
	at := rng.Float64() * 100
	for _, c := range []struct {
		percent float64
		view    View
		fault   Fault
	}{{28, AP, NoFault}, {1, PA, Rotated}, {7, PA, Cropped}, {11, PA, PoorInspiration}, {7, PA, MaskFailure}} {
		if at -= c.percent; at < 0 {
			p.view, p.fault = c.view, c.fault
			return
		}
	}
}

// mislead draws a fault that spoils the measurement that the question is about,
// in the direction away from the right answer where there is a choice.
func (p *plan) mislead(rng *rand.Rand) {
	switch p.tmpl.name {
	case "heart-size", "heart-enlarged":
		p.fault = pick(rng, NoFault, NoFault, NoFault, NoFault, NoFault, Cropped, Cropped, PoorInspiration, PoorInspiration)
		if p.fault == NoFault {
			p.view = AP
		}
		if chance(rng, 0.07) {
			p.view, p.fault = PA, MaskFailure
		}
	case "shift-side":
		p.fault, p.side = Rotated, 1-p.answer
	default: // a lung that has lost volume
		p.fault, p.side = Rotated, p.lost()
		if chance(rng, 0.4) {
			p.fault, p.side = Cropped, 1-p.lost()
		}
	}
}

// lost returns the side that a question about lost volume has as its answer.
func (p *plan) lost() int {
	if p.tmpl.binary {
		return p.askedSide ^ p.answer
	}
	return p.answer
}

// project makes the film from the body.
func (p *plan) project(rng *rand.Rand) {
	film := p.body
	if p.view == AP {
		film.widen(between(rng, 1.10, 1.20))
	}
	switch p.fault {
	case Rotated:
		p.degree = between(rng, 8, 15)
		film.rotate(p.degree, p.side)
	case PoorInspiration:
		p.degree = between(rng, 0.03, 0.06)
		film.expire(p.degree)
	case Cropped:
		p.degree = between(rng, 0.05, 0.08)
		film.crop(p.degree, p.side)
	case MaskFailure:
		p.scene.veil = veil(&film, p.side, rng)
	}
	p.scene.view, p.scene.film = p.view, film
	p.scene.place()
}

// veil returns something dense over the heart's border, which a segmenter
// takes for heart, and through which an eye still sees it.
func veil(t *thorax, side int, rng *rand.Rand) blob {
	return blob{
		x: t.spine + toward(side)*(t.heart[side]+between(rng, 8, 20)), y: t.dome[side] - between(rng, 60, 90),
		rx: between(rng, 52, 64), ry: between(rng, 46, 58), bright: 64, soft: 0.08,
	}
}

// add puts a finding into a zone; zone -1 stands for the whole side.
func (p *plan) add(rng *rand.Rand, f Finding, side, zone int) {
	f.side, f.zone, f.Side = side, zone, sideNames[side]
	if zone >= 0 {
		f.Zone = zoneNames[zone]
	}
	f.fx, f.fy, f.phase = between(rng, -0.2, 0.2), between(rng, -0.2, 0.2), between(rng, 0, 6)
	if zone == len(zoneNames)-1 {
		f.fy += 0.1 // clear of what a crop of the middle zone shows
	}
	p.scene.findings = append(p.scene.findings, f)
}

func (p *plan) has(name string) bool {
	return slices.ContainsFunc(p.scene.findings, func(f Finding) bool { return f.Name == name })
}

func (p *plan) elsewhere(rng *rand.Rand) (side, zone int) {
	i := (p.askedSide*3 + p.askedZone + 1 + rng.IntN(5)) % 6
	return i / 3, i % 3
}

// The diameters of nodules in millimetres.
var (
	smallNodule = [2]float64{5, 9}
	largeNodule = [2]float64{20, 30}
)

func (p *plan) nodule(rng *rand.Rand, side, zone int, margin string) {
	f := Finding{Name: Nodule, SizeMM: between(rng, smallNodule[0], smallNodule[1]), Margin: margin}
	f.Opacity = 44 - 1.4*f.SizeMM
	if p.large {
		f.SizeMM, f.Opacity = between(rng, largeNodule[0], largeNodule[1]), 56
	}
	p.add(rng, f, side, zone)
}

// opacity makes one zone opaque, which every view shows.
func (p *plan) opacity(rng *rand.Rand, side, zone int) {
	p.add(rng, Finding{Name: Consolidation, SizeMM: between(rng, 70, 95), Opacity: 72}, side, zone)
}

// pattern makes one zone abnormal.
func (p *plan) pattern(rng *rand.Rand, side, zone int) {
	if p.large {
		p.opacity(rng, side, zone)
		return
	}
	p.edema(rng, side, zone, true)
}

func (p *plan) edema(rng *rand.Rand, side, zone int, marked bool) {
	bright := 8.0
	if marked {
		bright = 18
	}
	p.add(rng, Finding{Name: Edema, Opacity: bright}, side, zone)
}

func (p *plan) pneumothorax(rng *rand.Rand, side int) {
	f := Finding{Name: Pneumothorax, SizeMM: p.scene.line[side] * SpacingMM, Opacity: 24}
	if p.large {
		f.SizeMM = between(rng, 35, 60)
	}
	p.add(rng, f, side, -1)
}

// effusion fills a costophrenic angle. Little fluid has a scar on the other
// side for company, which looks the same in the coarse view. Much fluid either
// leaves the heart's border free or hides it altogether.
func (p *plan) effusion(rng *rand.Rand, side int) {
	if !p.large {
		p.scars(rng)
		p.scene.findings = slices.DeleteFunc(p.scene.findings, func(f Finding) bool { return f.Name == Scar && f.side == side })
		p.add(rng, Finding{Name: Effusion, SizeMM: p.body.fluid[side] * SpacingMM}, side, -1)
		return
	}
	mm := between(rng, 54, 60)
	if p.tmpl.name != diagnosisName && chance(rng, 0.6) {
		mm = between(rng, 100, 200)
	}
	p.scene.findings = slices.DeleteFunc(p.scene.findings, func(f Finding) bool { return f.Name == Scar && f.side == side })
	p.body.fluid[side] = mm / SpacingMM
	if mm > 180 { // massive: pushes the mediastinum away
		p.body.push(-toward(side) * 24)
	}
	p.add(rng, Finding{Name: Effusion, SizeMM: mm}, side, -1)
}

// scars blunts both costophrenic angles.
func (p *plan) scars(rng *rand.Rand) {
	for side := range 2 {
		if p.body.fluid[side] == 0 {
			p.body.fluid[side] = between(rng, 9, 12) / SpacingMM
			p.add(rng, Finding{Name: Scar}, side, -1)
		}
	}
}

// intubate places a tube with its tip above the carina (0) or in the right main
// bronchus (1).
func (p *plan) intubate(rng *rand.Rand, where int) {
	p.scene.tube, p.scene.tip = thinTube, -between(rng, 9, 22)
	if p.large {
		p.scene.tube, p.scene.tip = thickTube, -between(rng, 40, 66)
	}
	name := tube
	if where == 1 {
		name, p.scene.tip = TubeMalposition, -0.9*p.scene.tip
	}
	p.scene.findings = append(p.scene.findings, Finding{Name: name, TipMM: p.scene.tip * SpacingMM})
}

// The anatomical cardiothoracic ratios of a normal, borderline and enlarged
// heart, so chosen that the number on a spoilt film is mostly one category off.
var heartRanges = map[Fault][3][2]float64{
	NoFault:         {{0.455, 0.475}, {0.485, 0.515}, {0.525, 0.545}},
	MaskFailure:     {{0.455, 0.475}, {0.485, 0.515}, {0.525, 0.545}},
	PoorInspiration: {{0.455, 0.475}, {0.495, 0.515}, {0.53, 0.58}},
	Cropped:         {{0.46, 0.475}, {0.502, 0.515}, {0.53, 0.57}},
}

var heartRangesAP = [3][2]float64{{0.44, 0.465}, {0.485, 0.515}, {0.55, 0.60}}

// The heart of a protocol's question: its ratio says nothing of the answer,
// which lies in the limit; a large or a small one is over or under any limit.
func (p *plan) protocolHeart(rng *rand.Rand, yes bool) {
	const clear = 0.012 // of the limit
	if p.large {
		p.code = limit.drawCode(rng, p.split, rng.IntN(len(limit.values)))
		p.heartEnlarged(rng, yes)
		return
	}
	p.setRatio(rng, between(rng, 0.475, 0.525))
	var fitting []int
	for i, v := range limitValues {
		if yes && v < p.ratio-clear || !yes && v > p.ratio+clear {
			fitting = append(fitting, i)
		}
	}
	p.code = limit.drawCode(rng, p.split, pick(rng, fitting...))
}

func (p *plan) heartSize(rng *rand.Rand, a int) {
	r := heartRanges[p.fault][a]
	if p.view == AP {
		r = heartRangesAP[a]
	}
	p.setRatio(rng, between(rng, r[0], r[1]))
}

func (p *plan) heartEnlarged(rng *rand.Rand, yes bool) {
	switch {
	case p.large && yes:
		p.setRatio(rng, between(rng, 0.61, 0.66))
	case p.large:
		p.setRatio(rng, between(rng, 0.36, 0.415))
	case yes:
		p.heartSize(rng, 2)
	default:
		p.heartSize(rng, 0)
	}
}

func (p *plan) setRatio(rng *rand.Rand, ratio float64) {
	p.ratio = ratio
	p.body.setCTR(ratio, between(rng, 0.31, 0.36))
}

// collapse takes volume from one lung.
func (p *plan) collapse(rng *rand.Rand, side int) {
	f := between(rng, 0.08, 0.12)
	switch {
	case p.large:
		f = between(rng, 0.22, 0.30)
	case p.need == NeedMisleading:
		f = between(rng, 0.03, 0.045)
	}
	p.loss[side] = f
	p.body.shrink(side, f)
	p.body.setCTR(p.ratio, between(rng, 0.31, 0.36))
	p.add(rng, Finding{Name: VolumeLoss, SizeMM: f * p.body.half[side] * SpacingMM}, side, -1)
}

// shift pushes the mediastinum to one side.
func (p *plan) shift(rng *rand.Rand, side int) {
	px := between(rng, 13, 20)
	switch {
	case p.large:
		px = between(rng, 32, 42)
	case p.need == NeedMisleading:
		px = between(rng, 8, 11)
	}
	p.body.push(toward(side) * px)
	p.add(rng, Finding{Name: mediastinalShift, SizeMM: px * SpacingMM}, side, -1)
}

// anomaly makes one lung abnormal in a way that the need's evidence shows.
func (p *plan) anomaly(rng *rand.Rand, side int) {
	nodule := func() { p.nodule(rng, side, rng.IntN(3), pick(rng, smooth, spiculated)) }
	air := func() { p.pneumothorax(rng, side) }
	switch p.need {
	case NeedCoarse:
		pick(rng, nodule, air, func() { p.effusion(rng, side) }, func() { p.opacity(rng, side, rng.IntN(3)) }, func() { p.collapse(rng, side) })()
	case NeedCrop:
		pick(rng, nodule, air)()
	case NeedParse:
		p.edema(rng, side, rng.IntN(3), true)
	default:
		p.collapse(rng, side)
	}
}

// airless takes air from one lung in a way that the need's evidence shows.
func (p *plan) airless(rng *rand.Rand, side int) {
	switch p.need {
	case NeedCoarse:
		pick(rng, func() { p.effusion(rng, side) }, func() { p.opacity(rng, side, rng.IntN(3)) }, func() { p.collapse(rng, side) })()
	case NeedParse:
		p.edema(rng, side, rng.IntN(3), true)
	default:
		p.collapse(rng, side)
	}
}

// pair makes a nodule and a large effusion, on the same side or not.
func (p *plan) pair(rng *rand.Rand, same bool) {
	side := rng.IntN(2)
	other := side
	if !same {
		other = 1 - side
	}
	p.nodule(rng, side, rng.IntN(2), pick(rng, smooth, spiculated)) // above the fluid
	p.large = true
	p.body.fluid[other] = between(rng, 54, 60) / SpacingMM
	p.add(rng, Finding{Name: Effusion, SizeMM: p.body.fluid[other] * SpacingMM}, other, -1)
}

// mainFinding makes one finding the only one, by its place in the template's answers.
func (p *plan) mainFinding(rng *rand.Rand, a int) {
	p.setRatio(rng, between(rng, 0.44, 0.47))
	p.scars(rng)
	side := rng.IntN(2)
	switch a {
	case 0:
		p.effusion(rng, side)
	case 1:
		p.pneumothorax(rng, side)
	case 2:
		p.nodule(rng, side, rng.IntN(3), pick(rng, smooth, spiculated))
	case enlargedHeart:
		p.heartEnlarged(rng, true)
	default:
		p.collapse(rng, side)
	}
}

// background adds findings that the question is not about.
func (p *plan) background(rng *rand.Rand) {
	if p.view == Lateral {
		p.scene.findings, p.body.fluid, p.scene.tube = nil, [2]float64{}, noTube
		return
	}
	if !p.tmpl.general && chance(rng, 0.3) {
		p.scars(rng)
	}
	often := 0.1
	if p.kind == dataset.Report {
		often = 0.16
	}
	for _, name := range anything {
		hit := chance(rng, often) && !(name == Effusion && p.has(Scar))
		if hit && slices.Contains(p.tmpl.allow, name) && !p.has(name) {
			p.large = chance(rng, 0.5)
			if p.kind == dataset.Report {
				p.large = p.need == NeedCoarse
			}
			p.addByName(rng, name)
		}
	}
}

func (p *plan) addByName(rng *rand.Rand, name string) {
	side := rng.IntN(2)
	switch name {
	case Nodule:
		p.nodule(rng, side, rng.IntN(3), pick(rng, smooth, spiculated))
	case Consolidation:
		p.opacity(rng, side, rng.IntN(3))
	case Effusion:
		p.effusion(rng, side)
	case Pneumothorax:
		p.pneumothorax(rng, side)
	case Edema:
		p.edema(rng, side, rng.IntN(3), chance(rng, 0.5))
	case VolumeLoss:
		p.collapse(rng, side)
	case tube:
		p.intubate(rng, 0)
	case TubeMalposition:
		if !p.has(tube) {
			p.intubate(rng, 1)
		}
	}
}
