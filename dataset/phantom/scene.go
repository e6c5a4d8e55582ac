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
	tube     bool
	tip      float64 // of the tube, below the carina
	veil     blob    // of a mask failure
	style    style
}

// A style is how the film was taken and printed.
type style struct {
	brightness, contrast float64
	heel                 float64 // exposure difference from top to bottom
	noise                float64 // standard deviation
	grid                 float64 // brightness of grid lines; 0: none
	shadows              int     // soft round vessel shadows in each lung
	collimation          int     // border in pixels
	marker               string  // R or L
	markerSize, markerY  int
	burnt                string // text burnt into the film
}

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
		heel: between(rng, -8, 8), noise: between(rng, 2.5, 4.5), shadows: 6,
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
		s.noise, s.shadows = between(rng, 5.5, 7.5), 9
		s.collimation, s.markerSize, s.markerY = 14+rng.IntN(12), 6, 60+rng.IntN(40)
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
	half, dome := between(rng, 170, 194), between(rng, 372, 398)
	if split == dataset.OOD {
		half, dome = pick(rng, between(rng, 152, 166), between(rng, 196, 204)), between(rng, 350, 410)
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

// shrink takes the share f of a lung's volume.
func (t *thorax) shrink(side int, f float64) {
	t.half[side] *= 1 - f
	t.dome[side] -= 120 * f
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
	for _, f := range s.findings {
		r := f.SizeMM / SpacingMM / 2
		switch f.Name {
		case Nodule:
			b := blob{x: f.X, y: f.Y, rx: r, ry: r, bright: f.Opacity, soft: min(0.5, 1.6/r), phase: f.phase, inLung: true}
			if f.Margin == spiculated {
				b.spikes = 11
			}
			c.drawBlob(b)
		case Consolidation:
			c.drawBlob(blob{x: f.X, y: f.Y, rx: r * 1.1, ry: r * 0.9, bright: f.Opacity, soft: 0.45, inLung: true})
		case Edema:
			c.texture(&s.film, f, rng)
		case haze:
			c.haze(&s.film, f)
		case Pneumothorax:
			c.pleura(&s.film, f)
		}
	}
}

// texture adds a fine pattern to a zone. Its mean over every aligned block of
// 4 × 4 pixels is zero, so that a view at a quarter of the scale does not show it.
func (c *canvas) texture(t *thorax, f Finding, rng *rand.Rand) {
	top, height := t.apex, (t.dome[f.side]+10-t.apex)/3
	wave := [4]float64{1, 1, -1, -1}
	for by := int(top+height*float64(f.zone)) / 4; by < int(top+height*float64(f.zone+1))/4; by++ {
		for bx := range Size / 4 {
			if inside := float64(bx*4) >= t.spine; inside != (f.side == left) {
				continue
			}
			bright := f.Opacity * between(rng, 0.5, 1.5)
			for i := range 16 {
				x, y := bx*4+i%4, by*4+i/4
				c.add(y*Size+x, bright*wave[i%4]*wave[i/4], true)
			}
		}
	}
}

// haze makes one lung slightly more opaque.
func (c *canvas) haze(t *thorax, f Finding) {
	for y := range Size {
		for x := range Size {
			if (float64(x) >= t.spine) == (f.side == left) {
				c.add(y*Size+x, f.Opacity, true)
			}
		}
	}
}

// pleura draws a pneumothorax: outside the pleural line there is air without
// vessels, inside it a lung that is denser the more it has collapsed.
func (c *canvas) pleura(t *thorax, f Finding) {
	gap := f.SizeMM / SpacingMM
	dark := float32(14 * min(1, gap/40)) // little free air is hardly darker than lung
	for y := int(t.apex); y < Size; y++ {
		_, outer := t.span(f.side, float64(y))
		for x := range Size {
			at, d := y*Size+x, toward(f.side)*(float64(x)-t.spine)
			air := float64(c.lung[at])
			if d < 0 || air == 0 {
				continue
			}
			depth := outer - d - gap*(0.75+0.25*math.Cos(float64(y)/40))
			switch {
			case depth < -1:
				c.v[at] += float32(air) * (lungTone - dark - c.v[at])
			case depth < 1.2:
				c.v[at] += float32(air * f.Opacity)
			default:
				c.v[at] += float32(air * min(14, gap/6))
			}
		}
	}
}
