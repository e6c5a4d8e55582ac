package phantom

import (
	"math"
	"math/rand/v2"

	"xragent/dataset"
)

// A scene is all that the renderer draws.
type scene struct {
	view     View
	film     thorax // as projected
	findings []Finding
	tube     tubeKind
	tip      float64    // of the tube, below the carina
	line     [2]float64 // depth of each side's companion shadow below the chest wall
	veil     blob       // of a mask failure
	style    style
}

// A style is how the film was taken and printed.
type style struct {
	brightness, contrast float64
	heel                 float64 // exposure difference from top to bottom
	noise                float64 // standard deviation
	grid                 float64 // brightness of grid lines; 0: none
	shadows              int     // soft round vessel shadows in each lung
	vessels              int     // branches in each lung
	mottle               float64 // patchiness of the lungs; 0: none
	collimation          int     // border in pixels
	marker               string  // R or L
	markerSize, markerY  int
	boxed                bool   // the marker is dark in a bright box
	burnt                string // text burnt into the film
}

// A tubeKind says how an endotracheal tube shows.
type tubeKind int

const (
	noTube    tubeKind = iota
	thinTube           // its end is lost in the coarse view
	thickTube          // its end is seen in the coarse view
)

// between draws uniformly from [a, b).
func between(rng *rand.Rand, a, b float64) float64 { return a + rng.Float64()*(b-a) }

// chance is true with probability p.
func chance(rng *rand.Rand, p float64) bool { return rng.Float64() < p }

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// drawStyle draws a style; films of the out-of-distribution split are exposed,
// printed and marked in ways that no other split shows.
func drawStyle(rng *rand.Rand, ood bool) style {
	s := style{
		brightness: between(rng, -10, 10), contrast: between(rng, 0.9, 1.1),
		heel: between(rng, -8, 8), noise: between(rng, 2.5, 4.5), shadows: 5 + rng.IntN(4), vessels: 13,
		collimation: rng.IntN(12), marker: pick(rng, "R", "L"), markerSize: 4, markerY: 24 + rng.IntN(30),
	}
	if chance(rng, 0.3) {
		s.burnt = pick(rng, "147", "X71", "4411")
	}
	if chance(rng, 0.15) {
		s.grid = 3
	}
	if ood {
		s.brightness += pick(rng, -16.0, 16)
		s.contrast = pick(rng, between(rng, 0.75, 0.85), between(rng, 1.18, 1.3))
		s.noise, s.shadows, s.vessels, s.mottle = between(rng, 5.5, 7.5), 9, 18, between(rng, 3, 5)
		s.collimation, s.markerSize, s.markerY, s.boxed = 14+rng.IntN(12), 6, 60+rng.IntN(40), true
		s.grid = pick(rng, 0.0, 5)
	}
	return s
}

// drawThorax draws healthy anatomy with the given cardiothoracic ratio.
func drawThorax(rng *rand.Rand, ratio float64, split dataset.Split) thorax {
	t := thorax{
		spine: between(rng, 249, 263), apex: between(rng, 66, 88),
		trachea: between(rng, -2.5, 1.5), clavicle: between(rng, -2, 2),
	}
	half, dome := between(rng, 170, 194), t.apex+between(rng, 298, 316)
	if split == dataset.OOD {
		half, dome = pick(rng, between(rng, 152, 166), between(rng, 196, 204)), t.apex+pick(rng, between(rng, 290, 297), between(rng, 317, 328))
	}
	t.half = [2]float64{half, half * between(rng, 0.98, 1.02)}
	t.dome = [2]float64{dome, dome + between(rng, 4, 12)}
	t.setCTR(ratio, between(rng, 0.31, 0.36))
	return t
}

// setCTR makes the heart ratio times as wide as the chest; the share lies
// right of the spine.
func (t *thorax) setCTR(ratio, share float64) {
	w := ratio * t.width()
	t.heart = [2]float64{w * share, w * (1 - share)}
}

// risen is how far a diaphragm rises when its lung has lost all its volume: so
// little that the loss is not taken for a poor inspiration.
const risen = 40

// shrink takes the share f of a lung's volume.
func (t *thorax) shrink(side int, f float64) {
	t.half[side] *= 1 - f
	t.dome[side] -= risen * f
}

// push moves the mediastinum by px, positive to the left.
func (t *thorax) push(px float64) {
	t.trachea += px
	t.heart[left] += 0.6 * px
	t.heart[right] -= 0.6 * px
}

// widen multiplies the heart's width: the magnification of an AP film.
func (t *thorax) widen(by float64) {
	t.heart[right] *= by
	t.heart[left] *= by
}

// expire raises the diaphragm and adds to the cardiothoracic ratio.
func (t *thorax) expire(add float64) {
	t.widen(1 + add*t.width()/(t.heart[right]+t.heart[left]))
	for side := range t.dome {
		t.dome[side] -= 34 + 500*(add-0.03)
	}
}

// rotate turns the chest by deg degrees towards a side.
func (t *thorax) rotate(deg float64, side int) {
	s, other := deg/15, 1-side
	t.half[side] *= 1 + 0.17*s
	t.half[other] *= 1 - 0.17*s
	t.heart[side] += 9 * s
	t.heart[other] -= 9 * s
	t.trachea += toward(side) * 24 * s
	t.clavicle += toward(side) * 30 * s
}

// crop moves the chest so that a share of its width lies outside the film.
func (t *thorax) crop(share float64, side int) {
	off := t.half[side] - share*t.width()
	t.spine = off
	if side == left {
		t.spine = Size - off
	}
}

// place sets the centres of the findings on the film.
func (s *scene) place() {
	for i := range s.findings {
		f := &s.findings[i]
		if f.Zone == "" {
			continue
		}
		_, y := s.film.zone(f.side, f.zone)
		y += f.fy * (s.film.dome[f.side] - s.film.apex) / 3
		inner, outer := s.film.span(f.side, y)
		d := (inner+outer)/2 + f.fx*(outer-inner)
		f.X, f.Y = s.film.spine+toward(f.side)*d, y
	}
}

// disease draws the findings that are not geometry.
func (c *canvas) disease(s *scene, rng *rand.Rand) {
	air := [2]bool{}
	for _, f := range s.findings {
		r := f.SizeMM / SpacingMM / 2
		switch f.Name {
		case Nodule:
			c.nodule(f, r, rng)
		case Consolidation:
			c.drawBlob(blob{x: f.X, y: f.Y, rx: r * 1.1, ry: r * 0.9, bright: f.Opacity, soft: 0.45, inLung: true})
		case Edema:
			c.texture(&s.film, f, rng)
		case Scar:
			c.serrate(&s.film, f.side)
		case Pneumothorax:
			c.pleura(&s.film, f, s.line[f.side])
			air[f.side] = f.SizeMM > thinAir
		}
	}
	for side, collapsed := range air {
		if !collapsed {
			c.companion(&s.film, side, s.line[side])
		}
	}
}

// nodule draws a disc with a margin: rays where it is spiculated, else a faint
// halo. Of a small one the coarse view shows no more than the soft shadow that
// it stands in for.
func (c *canvas) nodule(f Finding, r float64, rng *rand.Rand) {
	if f.Large() {
		c.disc(f, r)
		return
	}
	s := softShadow(f.X, f.Y, r, rng)
	c.drawBlob(s)
	plain := c.v
	c.v = c.fine
	f.Opacity *= sharpened
	c.disc(f, r)
	s.bright = -s.bright
	c.drawBlob(s)
	c.v = plain
}

func (c *canvas) disc(f Finding, r float64) {
	c.drawBlob(blob{x: f.X, y: f.Y, rx: r, ry: r, bright: f.Opacity, soft: min(0.5, 1.6/r), inLung: true})
	if f.Margin != spiculated {
		c.drawBlob(blob{x: f.X, y: f.Y, rx: 2.4 * r, ry: 2.4 * r, bright: haloTone, soft: 1, inLung: true})
		return
	}
	for i := range rays {
		sin, cos := math.Sincos(f.phase + 2*math.Pi*float64(i)/rays)
		c.draw(stroke{
			x0: f.X + 0.8*r*cos, y0: f.Y + 0.8*r*sin, x1: f.X + 2.2*r*cos, y1: f.Y + 2.2*r*sin,
			r0: 0.55 + 0.09*r, r1: 0.25 + 0.03*r, bright: 0.8 * f.Opacity, soft: 1, inLung: true,
		})
	}
}

const (
	rays     = 7 // of a spiculated nodule
	haloTone = 7 // of a smooth one
	// sharpened is by how much the fine part of a small nodule is stronger, since
	// its broad part stays in the shadow's.
	sharpened = 1.9
	thinAir   = 20. // mm: a pneumothorax up to this shows by its line alone
)

// softShadow is a vessel seen end on, with about the sum of a nodule of that radius.
func softShadow(x, y, r float64, rng *rand.Rand) blob {
	wide := r + 5
	sum := 117 * r * r * between(rng, 0.85, 1.25)
	return blob{x: x, y: y, rx: wide, ry: wide, bright: min(36, 3*sum/(math.Pi*wide*wide)), soft: 1, inLung: true}
}

// shadows draws the soft shadows of one lung, less those that small nodules
// stand in for, so that a coarse view sees equally many with and without.
func (c *canvas) shadows(s *scene, side int, rng *rand.Rand) {
	n := s.style.shadows
	for _, f := range s.findings {
		if f.Name == Nodule && f.side == side && !f.Large() {
			n--
		}
	}
	for range n {
		x, y := s.film.somewhere(side, rng)
		c.drawBlob(softShadow(x, y, between(rng, smallNodule[0], smallNodule[1])/SpacingMM/2, rng))
	}
}

// texture adds a fine pattern to a zone.
func (c *canvas) texture(t *thorax, f Finding, rng *rand.Rand) {
	top, height := t.apex, (t.dome[f.side]+10-t.apex)/3
	wave := [coarseStep]float64{1, 1, -1, -1}
	for by := int(top+height*float64(f.zone)) / coarseStep; by < int(top+height*float64(f.zone+1))/coarseStep; by++ {
		for bx := range Size / coarseStep {
			if inside := float64(bx*coarseStep) >= t.spine; inside != (f.side == left) {
				continue
			}
			bright := f.Opacity * between(rng, 0.5, 1.5)
			for i := range coarseStep * coarseStep {
				at := (by*coarseStep+i/coarseStep)*Size + bx*coarseStep + i%coarseStep
				c.fine[at] += c.lung[at] * float32(bright*wave[i%coarseStep]*wave[i/coarseStep])
			}
		}
	}
}

// serrate gives the surface in a costophrenic angle the fine jags of a scar;
// fluid has none.
func (c *canvas) serrate(t *thorax, side int) {
	for y := int(t.dome[side]); y < Size; y++ {
		for x := range Size {
			d := toward(side) * (float64(x) - t.spine)
			if d < 0.7*t.half[side] || d > t.wall(side, float64(y)) || math.Abs(float64(y)-t.surface(side, d)) > 10 {
				continue
			}
			c.fine[y*Size+x] += scarTone * float32(1-2*(x/2%2))
		}
	}
}

const scarTone = 20

// companion draws the soft shadow that runs along the chest wall of every lung.
func (c *canvas) companion(t *thorax, side int, gap float64) {
	c.along(t, side, func(at int, air, depth float64) {
		c.v[at] += float32(air * companionTone * max(0, 1-math.Abs(depth-gap)/companionHalf))
	})
}

const (
	companionTone = 9
	companionHalf = 5
	pleuralTone   = 44 // of the fine line
)

// along calls f for the lung's pixels in the rows from apex to base, with their
// depth below the chest wall, which is measured along the row.
func (c *canvas) along(t *thorax, side int, f func(at int, air, depth float64)) {
	for y := int(t.apex) + 12; y < Size; y++ {
		_, outer := t.span(side, float64(y))
		for x := range Size {
			at, d := y*Size+x, toward(side)*(float64(x)-t.spine)
			if air := float64(c.lung[at]); d > 0 && air > 0 {
				f(at, air, outer-d)
			}
		}
	}
}

// pleura draws a pneumothorax. A thin one is a fine line inside the companion
// shadow, with nothing else to see. Outside the line of a large one
// there is air without vessels, inside it a lung that is denser the more it has
// collapsed.
func (c *canvas) pleura(t *thorax, f Finding, line float64) {
	if f.SizeMM <= thinAir {
		c.along(t, f.side, func(at int, air, depth float64) {
			if math.Abs(depth-line) < 1.1 {
				c.fine[at] += float32(air * pleuralTone)
			}
		})
		return
	}
	gap := f.SizeMM / SpacingMM
	c.along(t, f.side, func(at int, air, depth float64) {
		depth -= gap * (0.75 + 0.25*math.Cos(float64(at/Size)/40))
		switch {
		case depth < -1:
			c.v[at] += float32(air) * (lungTone - 14 - c.v[at])
		case depth < 1.2:
			c.v[at] += float32(air * f.Opacity)
		default:
			c.v[at] += float32(air * min(14, gap/6))
		}
	})
}
