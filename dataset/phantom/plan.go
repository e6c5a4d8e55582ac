package phantom

import (
	"math/rand/v2"

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

	view   View
	fault  Fault
	degree float64
	side   int // of the fault

	body  thorax // anatomical, with disease
	scene scene
}

func newPlan(seed uint64, split dataset.Split, k int) *plan {
	rng := stream(seed, split, k, streamPlan)
	p := &plan{key: splitKey{seed, k}, split: split}
	p.view = pick(rng, PA, PA, PA, PA, PA, AP, Lateral)
	p.body = drawThorax(rng, between(rng, 0.4, 0.6), split)
	if p.view == PA {
		p.fault = pick(rng, NoFault, NoFault, NoFault, NoFault, Rotated, Cropped, PoorInspiration, MaskFailure)
	}
	p.side = rng.IntN(2)
	p.scene.style = drawStyle(rng, split == dataset.OOD)
	f := Finding{side: rng.IntN(2), zone: rng.IntN(3), fx: between(rng, -.2, .2), fy: between(rng, -.2, .2), phase: rng.Float64() * 6}
	f.Side, f.Zone = sideNames[f.side], zoneNames[f.zone]
	switch rng.IntN(8) {
	case 0:
		f.Name, f.SizeMM, f.Margin, f.Opacity = Nodule, between(rng, 20, 30), spiculated, 50
	case 1:
		f.Name, f.SizeMM, f.Margin, f.Opacity = Nodule, between(rng, 5, 9), smooth, 30
	case 2:
		f.Name, f.SizeMM, f.Opacity = Consolidation, between(rng, 70, 95), 72
	case 3:
		f.Name, f.Opacity = Edema, 16
	case 4:
		f.Name, f.SizeMM, f.Opacity = Pneumothorax, between(rng, 8, 60), 24
	case 5:
		p.body.fluid[f.side] = pick(rng, 30.0, 150, 300)
	case 6:
		p.scene.tube, p.scene.tip = true, p.body.apex+carinaBelow-30
	case 7:
		p.body.shrink(f.side, between(rng, .05, .28))
	}
	if f.Name != "" {
		p.scene.findings = append(p.scene.findings, f)
	}
	p.project(rng)
	return p
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

func (p *plan) truth(id string) Truth {
	t := Truth{
		ID: id, Split: p.split, View: p.view, Fault: p.fault, FaultDegree: p.degree,
		Findings: p.scene.findings, scene: p.scene, split: p.key,
	}
	if p.view != Lateral {
		t.Anatomical, t.Apparent = p.body.measures(), p.scene.film.measures()
	}
	return t
}

func (p *plan) samples(id string) []dataset.Sample { return nil }
