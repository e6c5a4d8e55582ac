package phantom

import (
	"image"
	"math"
	"math/rand/v2"
)

// Brightness of the tissues, before exposure.
const (
	airTone    = 8
	lungTone   = 64
	wallTone   = 136
	heartTone  = 180
	bellyTone  = 190
	fluidTone  = 172
	spineTone  = 20  // added
	airwayTone = -42 // added
)

// edge widths in pixels.
const (
	wallEdge  = 7
	heartEdge = 5
	floorEdge = 5
)

// render paints the scene. All of the image's randomness comes from rng.
func render(s *scene, rng *rand.Rand) *image.Gray {
	c := newCanvas()
	if s.view == Lateral {
		c.lateral(s, rng)
	} else {
		c.frontal(s, rng)
	}
	return c.expose(s.style, rng)
}

// frontal paints a PA or AP film from the back to the front.
func (c *canvas) frontal(s *scene, rng *rand.Rand) {
	t := &s.film
	c.tissue(t)
	c.vessels(t, s, rng)
	c.disease(s, rng)
	c.ribs(t)
	c.midline(t)
	c.shoulders(s)
	c.device(s)
	if s.veil.bright > 0 {
		c.drawBlob(s.veil)
	}
	c.settle()
}

// tissue lays down chest wall, lungs, heart, mediastinum, abdomen and fluid.
func (c *canvas) tissue(t *thorax) {
	floors := [2][]float64{c.floors(t, right), c.floors(t, left)}
	for y := range Size {
		fy := float64(y)
		var inner, outer, body [2]float64
		for side := range 2 {
			inner[side], outer[side] = t.span(side, fy)
			body[side] = t.skin(side, fy)
		}
		for x := range Size {
			d, side := float64(x)-t.spine, left
			if d < 0 {
				d, side = -d, right
			}
			tone, air := t.tone(side, d, fy, inner[side], outer[side], floors[side][x])
			c.lung[y*Size+x] = float32(air)
			tone += (lungTone - tone) * air
			skin := ramp(body[side]-d, 14)
			c.v[y*Size+x] = float32(airTone + (tone-airTone)*skin)
		}
	}
}

func (c *canvas) floors(t *thorax, side int) []float64 {
	floor := make([]float64, Size)
	for x := range floor {
		floor[x] = t.floor(side, math.Abs(float64(x)-t.spine))
	}
	return floor
}

// tone returns the brightness of a pixel's soft tissue and its share of air.
// inner and outer are the lung's edges in this row, floor the row of its end
// in this column.
func (t *thorax) tone(side int, d, y, inner, outer, floor float64) (tone, air float64) {
	switch {
	case outer <= inner || d > outer:
		return wallTone, 0
	case y > floor && t.fluid[side] > 0 && y > t.surface(side, d):
		return fluidTone, 0
	case y > floor:
		return bellyTone, 0
	case d < inner:
		return heartTone, 0
	}
	air = ramp(d-inner, heartEdge) * ramp(outer-d, wallEdge) * ramp(floor-y, floorEdge)
	switch near := min(d-inner, outer-d, floor-y); near {
	case outer - d:
		return wallTone, air
	case floor - y:
		return bellyTone, air
	}
	return heartTone, air
}

// skin returns the distance of the body's surface from the spine at row y.
func (t *thorax) skin(side int, y float64) float64 {
	trunk := t.half[side] + 34
	neck := 66.0
	v := (y - t.apex + 62) / 110
	if v <= 0 {
		return neck
	}
	return neck + (trunk-neck)*math.Sqrt(min(1, v))
}

// vessels draws branching lines from the hila, and soft round shadows that a
// coarse view cannot tell from small nodules.
func (c *canvas) vessels(t *thorax, s *scene, rng *rand.Rand) {
	for side := range 2 {
		hx := t.spine + toward(side)*(mediastinum+toward(side)*t.trachea+16)
		hy := t.apex + (t.dome[side]-t.apex)*0.48
		c.drawBlob(blob{x: hx, y: hy, rx: 20, ry: 30, bright: 46, soft: 1})
		for range s.style.vessels {
			angle := (rng.Float64() - 0.5) * 2.6
			reach := (0.35 + 0.5*rng.Float64()) * t.half[side]
			c.draw(stroke{
				x0: hx + between(rng, -6, 6), y0: hy + angle*14 + between(rng, -14, 14), x1: hx + toward(side)*reach*math.Cos(angle), y1: hy + reach*math.Sin(angle),
				r0: 2.6, r1: 0.6, bright: 17, soft: 2.5, inLung: true,
			})
		}
		c.shadows(s, side, rng)
	}
	if s.style.mottle > 0 {
		c.patch(s.style.mottle, rng)
	}
}

// patch makes the lungs uneven in squares of the given grain, as no film
// outside the out-of-distribution split is.
func (c *canvas) patch(bright float64, rng *rand.Rand) {
	const grain = 12
	for by := 0; by < Size; by += grain {
		for bx := 0; bx < Size; bx += grain {
			c.drawBlob(blob{x: float64(bx), y: float64(by), rx: grain, ry: grain, bright: bright * (4*rng.Float64() - 2), soft: 1, inLung: true})
		}
	}
}

// somewhere returns a place in the lung.
func (t *thorax) somewhere(side int, rng *rand.Rand) (x, y float64) {
	for range 50 {
		y = t.apex + 30 + rng.Float64()*(t.dome[side]-t.apex-40)
		inner, outer := t.span(side, y)
		d := inner + 12 + rng.Float64()*(outer-inner-24)
		x = t.spine + toward(side)*d
		if outer-inner > 40 && y < t.floor(side, d)-10 {
			return x, y
		}
	}
	return t.zone(side, 1)
}

// ribs lays posterior ribs, which fall outwards, and fainter anterior ones,
// which fall inwards, over the chest.
func (c *canvas) ribs(t *thorax) {
	const spacing = 31
	var fall, rise [Size]int
	for x := range Size {
		side := left
		if float64(x) < t.spine {
			side = right
		}
		r := math.Abs(float64(x)-t.spine) / t.half[side]
		fall[x] = int(18*r + 30*r*r*r)
		rise[x] = int(70 * (1 - r) * (1 - r))
	}
	back, front := ribProfile(spacing, 9, 15), ribProfile(spacing, 8, 7)
	first := int(t.apex) + 8
	for y := first; y < int(max(t.dome[right], t.dome[left]))+60 && y < Size; y++ {
		wall := [2]float64{t.wall(right, float64(y)) + 8, t.wall(left, float64(y)) + 8}
		from := max(0, int(t.spine-wall[right]))
		to := min(Size, int(t.spine+wall[left]))
		for x := from; x < to; x++ {
			if p := y - first - fall[x]; p >= 0 {
				c.v[y*Size+x] += back[p%spacing]
			}
			if p := y - first - 60 + rise[x]; p >= 60 && math.Abs(float64(x)-t.spine) > 40 {
				c.v[y*Size+x] += front[p%spacing]
			}
		}
	}
}

func ribProfile(spacing, thick int, bright float64) []float32 {
	p := make([]float32, spacing)
	for i := range thick {
		p[i] = float32(bright * (0.55 + 0.45*math.Abs(float64(2*i-thick+1))/float64(thick-1)))
	}
	return p
}

// midline draws spine, trachea, main bronchi and the stomach bubble.
func (c *canvas) midline(t *thorax) {
	for y := range Size {
		vertebra := 1 - 0.5*ramp(math.Abs(math.Mod(float64(y)-t.apex+300, 27)-13.5)-10, 2)
		for x := max(0, int(t.spine)-19); x < min(Size, int(t.spine)+20); x++ {
			c.v[y*Size+x] += float32(spineTone * vertebra * ramp(19.5-math.Abs(float64(x)-t.spine), 4))
		}
	}
	x, y := t.carina()
	c.draw(stroke{x0: t.spine + 0.4*t.trachea, y0: 4, x1: x, y1: y, r0: 8, r1: 8, bright: airwayTone, soft: 4})
	c.draw(stroke{x0: x, y0: y, x1: x - 30, y1: y + 40, r0: 6, r1: 5, bright: 0.6 * airwayTone, soft: 4})
	c.draw(stroke{x0: x, y0: y, x1: x + 40, y1: y + 36, r0: 5, r1: 4, bright: 0.6 * airwayTone, soft: 4})
	c.drawBlob(blob{x: t.spine + 0.5*t.half[left], y: t.dome[left] + 34, rx: 30, ry: 16, bright: -85, soft: 0.4})
}

// shoulders draws clavicles and scapulae; on an AP film the clavicles lie
// higher and flatter and the scapulae inside the lungs.
func (c *canvas) shoulders(s *scene) {
	t := &s.film
	fall, inset := 34.0, -16.0
	if s.view == AP {
		fall, inset = 6, 40
	}
	for side := range 2 {
		dir := toward(side)
		x, y := t.spine+t.clavicle+dir*24, t.apex+fall
		end := t.spine + dir*(t.half[side]+20)
		c.draw(stroke{x0: x, y0: y, x1: end, y1: t.apex - 4, r0: 7, r1: 5, bright: 34, soft: 3})
		out := t.spine + dir*(t.half[side]-inset)
		c.draw(stroke{x0: out + dir*4, y0: t.apex + 36, x1: out - dir*8, y1: t.apex + 165, r0: 28, r1: 7, bright: 20, soft: 5})
	}
}

// device draws an endotracheal tube. A thick one ends where it is seen to end.
// The line of a thin one is fine detail inside a soft shadow that goes on into
// the right main bronchus wherever the tube ends.
func (c *canvas) device(s *scene) {
	if s.tube == noTube {
		return
	}
	t := &s.film
	if s.tube == thickTube {
		c.course(t, s.tip, stroke{r0: 2.3, r1: 2.3, bright: 62, soft: 1.2})
		return
	}
	c.course(t, thinEnd, stroke{r0: 2.6, r1: 2.6, bright: 9, soft: 4})
	plain := c.v
	c.v = c.fine
	c.course(t, s.tip, stroke{r0: 1, r1: 1, bright: 44, soft: 1})
	c.v = plain
}

// thinEnd is where the shadow of a thin tube ends, below the carina.
const thinEnd = 40

// course draws a stroke from the neck down the trachea, and past the carina
// into the right main bronchus, to a tip so far below the carina.
func (c *canvas) course(t *thorax, tip float64, like stroke) {
	x, y := t.carina()
	x0 := t.spine + 0.4*t.trachea
	down := like
	down.x0, down.y0 = x0, 0
	if tip <= 0 {
		share := (y + tip) / y
		down.x1, down.y1 = x0+(x-x0)*share, y+tip
		c.draw(down)
		return
	}
	down.x1, down.y1 = x, y
	c.draw(down)
	into := like
	into.x0, into.y0, into.x1, into.y1 = x, y, x-0.75*tip, y+tip
	c.draw(into)
}

// lateral paints a lateral film: one lung field, spine behind, heart in front.
func (c *canvas) lateral(s *scene, rng *rand.Rand) {
	t := &s.film
	cx, top, base := t.spine, t.apex, t.dome[left]
	depth := 0.82 * t.half[left]
	for y := range Size {
		u := (float64(y) - top + 40) / (base + 90 - top)
		half := depth * (0.72 + 0.45*math.Sin(math.Pi*max(0, min(1, u))))
		for x := range Size {
			c.v[y*Size+x] = float32(airTone + (wallTone-airTone)*ramp(half+26-math.Abs(float64(x)-cx), 16))
		}
	}
	mid := (top + base) / 2
	c.drawBlob(blob{x: cx + 8, y: mid, rx: depth * 0.92, ry: (base - top) * 0.62, bright: lungTone - wallTone, soft: 0.12})
	heart := t.heart[right] + t.heart[left]
	c.drawBlob(blob{x: cx - 0.3*depth, y: base - 56, rx: 0.38 * heart, ry: 74, bright: 84, soft: 0.16})
	c.drawBlob(blob{x: cx, y: base + 118, rx: depth * 1.15, ry: 112, bright: 62, soft: 0.12})
	for i := range 17 {
		y := top - 50 + 27*float64(i)
		bend := 26 * math.Sin(math.Pi*float64(i)/17)
		c.draw(stroke{x0: cx + 0.66*depth + bend - 12, y0: y, x1: cx + 0.66*depth + bend + 12, y1: y + 3, r0: 10, r1: 10, bright: 40, soft: 3})
	}
	for i := range 9 {
		y := top + 20 + 31*float64(i)
		c.draw(stroke{x0: cx + 0.7*depth, y0: y - 18, x1: cx - 0.8*depth, y1: y + 46, r0: 4, r1: 4, bright: 13, soft: 3})
	}
	c.draw(stroke{x0: cx - 2, y0: 20, x1: cx + 14, y1: top + carinaBelow, r0: 9, r1: 8, bright: airwayTone, soft: 4})
	for range 10 {
		angle := rng.Float64() * 2 * math.Pi
		c.draw(stroke{x0: cx + 8, y0: mid - 20, x1: cx + 8 + 80*math.Cos(angle), y1: mid - 20 + 80*math.Sin(angle), r0: 3, r1: 1, bright: 14, soft: 3})
	}
}

// expose turns the canvas into film: contrast, fogging, grid, noise, markers,
// collimation. Grey values are multiples of 4, as a 6-bit detector has them,
// which keeps the encoded files small.
func (c *canvas) expose(st style, rng *rand.Rand) *image.Gray {
	c.markers(st)
	img := image.NewGray(image.Rect(0, 0, Size, Size))
	noise := newNoise(rng, st.noise)
	for y := range Size {
		slope := float32(st.heel * (float64(y)/Size - 0.5))
		if st.grid > 0 && y%6 < 2 {
			slope += float32(st.grid)
		}
		row := img.Pix[y*Size : (y+1)*Size]
		for x := range row {
			v := (c.v[y*Size+x]-128)*float32(st.contrast) + 128 + float32(st.brightness) + slope + noise.next()
			row[x] = uint8(max(0, min(252, v+2))) &^ 3
		}
	}
	collimate(img, st.collimation)
	return img
}

func (c *canvas) markers(st style) {
	x := Size - 24 - st.markerSize*6*len(st.marker)
	if st.marker == "R" {
		x = 24
	}
	bright := float32(250)
	if st.boxed {
		c.fill(x-st.markerSize, st.markerY-st.markerSize, 9*st.markerSize, bright)
		bright = 10
	}
	c.write(st.marker, x, st.markerY, st.markerSize, bright)
	c.write(st.burnt, Size/2-40, Size-34, 3, 240)
}

func collimate(img *image.Gray, border int) {
	for y := range Size {
		for x := range Size {
			if min(x, y, Size-1-x, Size-1-y) < border {
				img.Pix[y*Size+x] = 4
			}
		}
	}
}

// noise is film grain: nearly Gaussian, from a table.
type noise struct {
	table [256]float32
	rng   *rand.Rand
	bits  uint64
	left  int
}

func newNoise(rng *rand.Rand, sigma float64) *noise {
	n := &noise{rng: rng}
	for i := range n.table {
		n.table[i] = float32(sigma * math.Sqrt2 * math.Erfinv((float64(i)+0.5)/128-1))
	}
	return n
}

func (n *noise) next() float32 {
	if n.left == 0 {
		n.bits, n.left = n.rng.Uint64(), 8
	}
	v := n.table[n.bits&255]
	n.bits >>= 8
	n.left--
	return v
}
