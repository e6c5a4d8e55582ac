package phantom

import "math"

// The sides index every pair in this package.
const (
	right = 0 // on the image's left
	left  = 1
)

var sideNames = [2]string{"right", "left"}

// toward returns -1 for the patient's right and +1 for the left, the direction
// of growing x.
func toward(side int) float64 { return float64(2*side - 1) }

// A thorax is the geometry of one frontal film as projected, in source pixels.
// Distances d are horizontal, from the spine's centre towards one side.
type thorax struct {
	spine    float64    // x of the spine's centre
	apex     float64    // y of the lungs' top
	dome     [2]float64 // y of each hemidiaphragm's highest point
	half     [2]float64 // greatest distance of the inner chest wall
	heart    [2]float64 // greatest distance of the heart's border
	trachea  float64    // displacement of trachea and upper mediastinum, positive to the left
	clavicle float64    // displacement of both medial clavicle ends
	fluid    [2]float64 // height of an effusion above the costophrenic angle; 0: none
}

const (
	angleDepth  = 55.0  // costophrenic angle below the dome
	domeBend    = 180.0 // curvature of the diaphragm
	heartHeight = 182.0 // of the silhouette
	heartDip    = 24.0  // of the silhouette below the left dome
	mediastinum = 27.0  // half width of the upper mediastinum
	carinaBelow = 92.0  // carina below the lungs' top
	apexAt      = 0.40  // distance of the lung's tip as a share of half
)

// level returns how far y lies between the lung's top (0) and its lowest point (1).
func (t *thorax) level(side int, y float64) float64 {
	return (y - t.apex) / (t.dome[side] + angleDepth - t.apex)
}

// wall returns the distance of the inner chest wall at row y.
func (t *thorax) wall(side int, y float64) float64 {
	v := t.level(side, y)
	if v <= 0 {
		return apexAt * t.half[side]
	}
	grow := math.Pow(math.Sin(math.Pi/2*min(1, v/0.62)), 0.7)
	if low := min(v, 1) - 0.85; low > 0 {
		grow -= 2.5 * low * low
	}
	return t.half[side] * (apexAt + (1-apexAt)*grow)
}

// medial returns the distance of the lung's inner edge at row y, the heart left out.
func (t *thorax) medial(side int, y float64) float64 {
	tip := apexAt * t.half[side]
	edge := max(6, mediastinum+toward(side)*t.trachea)
	v := t.level(side, y)
	if v <= 0 {
		return tip
	}
	return tip - (tip-edge)*math.Pow(min(1, v/0.18), 0.6)
}

// heartRows returns the first and the last row of the heart.
func (t *thorax) heartRows() (top, base float64) {
	base = t.dome[left] + heartDip
	return base - heartHeight, base
}

// heartEdge returns the distance of the heart's border at row y; 0 outside the heart.
func (t *thorax) heartEdge(side int, y float64) float64 {
	top, base := t.heartRows()
	u := (y - top) / (base - top)
	if u <= 0 || u >= 1 {
		return 0
	}
	widest := [2]float64{0.56, 0.68}[side] // the left border bulges lower
	if u < widest {
		return t.heart[side] * math.Pow(math.Sin(math.Pi/2*u/widest), 1.25)
	}
	v := (u - widest) / (1 - widest)
	return t.heart[side] * math.Sqrt(1-v*v*v)
}

// floor returns the row at which the lung ends at distance d: the diaphragm or
// the surface of an effusion, which rises along the wall.
func (t *thorax) floor(side int, d float64) float64 {
	r := d / t.half[side]
	y := t.dome[side] + domeBend*(r-0.45)*(r-0.45)
	if h := t.fluid[side]; h > 0 {
		y = min(y, t.surface(side, d))
	}
	return y
}

func (t *thorax) surface(side int, d float64) float64 {
	r := d / t.half[side]
	h := t.fluid[side]
	return t.dome[side] + angleDepth - h - min(30, h/2)*r*r*r
}

// span returns the lung's edges at row y as distances; outer <= inner: no lung.
func (t *thorax) span(side int, y float64) (inner, outer float64) {
	if y < t.apex {
		return 0, 0
	}
	return max(t.medial(side, y), t.heartEdge(side, y)), t.wall(side, y)
}

// extent returns the greatest distance of the aerated lung from the spine,
// within the image.
func (t *thorax) extent(side int) float64 {
	far := 0.0
	for y := math.Ceil(t.apex); y < Size; y++ {
		inner, outer := t.span(side, y)
		if outer > inner && outer > far {
			far = max(far, t.lastAir(side, y, inner, outer))
		}
	}
	edge := t.spine
	if side == left {
		edge = Size - t.spine
	}
	return min(far, edge)
}

// lastAir returns the greatest distance in [inner, outer] that is above the
// lung's floor at row y, or 0.
func (t *thorax) lastAir(side int, y, inner, outer float64) float64 {
	for d := outer; d > inner; d -= 0.5 {
		if y < t.floor(side, d) {
			return d
		}
	}
	return 0
}

// area returns the aerated area in pixels, sampled on a grid of 4 pixels.
func (t *thorax) area(side int) float64 {
	const step = 4
	n := 0
	for y := step / 2.0; y < Size; y += step {
		inner, outer := t.span(side, y)
		for x := step / 2.0; x < Size; x += step {
			d := toward(side) * (x - t.spine)
			if d >= inner && d < outer && y < t.floor(side, d) {
				n++
			}
		}
	}
	return float64(n * step * step)
}

// measures returns what t measures on its film: the cardiothoracic ratio as the
// heart's greatest horizontal extent over that of the lungs (column-extent
// variant), the log ratio of the lungs' areas, and the shift of the trachea.
func (t *thorax) measures() Measures {
	heart := min(t.heart[right], t.spine) + min(t.heart[left], Size-t.spine)
	chest := t.extent(right) + t.extent(left)
	return Measures{
		CTR:       heart / chest,
		Asymmetry: math.Log(max(1, t.area(right)) / max(1, t.area(left))),
		Shift:     t.trachea / chest,
	}
}

// width returns the inner width of the chest, effusions and cropping left out.
func (t *thorax) width() float64 { return t.half[right] + t.half[left] }

// margin returns how many pixels at each edge of the film show no lung, which
// is what collimation may cover; 0 where the film is cropped.
func (t *thorax) margin() int {
	return int(max(0, min(t.spine-t.half[right], Size-t.spine-t.half[left])))
}

// zone returns the centre of a lung zone (0 upper, 1 middle, 2 lower): a third
// of the lung's height each.
func (t *thorax) zone(side, zone int) (x, y float64) {
	y = t.apex + (t.dome[side]+10-t.apex)*(float64(zone)+0.5)/3
	inner, outer := t.span(side, y)
	return t.spine + toward(side)*(inner+outer)/2, y
}

// carina returns the bifurcation of the trachea.
func (t *thorax) carina() (x, y float64) { return t.spine + t.trachea, t.apex + carinaBelow }
