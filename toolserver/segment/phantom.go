package segment

import (
	"fmt"
	"image"
	"math"
	"slices"
)

// Phantom segments the synthetic films of this project by classical means:
// one threshold where edges are steepest, connected parts, and profiles along
// rows. Its constants are lengths on a film of 512 pixels, to which every
// image is scaled first.
type Phantom struct{}

// Name identifies the method and its version.
func (Phantom) Name() string { return "phantom/v1" }

// Domain is the images that the method is made for.
func (Phantom) Domain() string { return "phantom" }

const (
	workSize    = 512   // longer side of the working image
	minLung     = 0.01  // share of the image; smaller dark parts are no lung
	minRest     = 0.003 // unless they lie along the chest wall beside one
	besideWall  = 15
	edge        = 3    // half the width of a soft edge: a threshold at half height cuts it off
	bridge      = 7    // radius of what is bridged: ribs, clavicles, vessels
	spineHalf   = 19   // half the width of the spine
	ribSpace    = 31   // from rib to rib
	medialGap   = 24   // from the midline to the medial end of a clavicle
	bulge       = 1.2  // a heart's border reaches this much farther than the mediastinum's
	carinaBelow = 92   // carina below the lungs' top
	leap        = 15   // from one row to the next: no border of a heart does that
	blank       = 7    // darker than any air inside the light field
	rare        = 0.01 // share of pixels that an edge's tone should have to count in full
)

// Segment finds the lungs, the heart between them, and landmarks. It returns
// [ErrNoLungs] for what is no frontal chest film.
func (Phantom) Segment(img *image.Gray) (Masks, error) {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	if w < 64 || h < 64 {
		return Masks{}, fmt.Errorf("image of %d x %d pixels, want at least 64 x 64", w, h)
	}
	scale := float64(workSize) / float64(max(w, h))
	f := &film{grey: resample(img, int(math.Round(float64(w)*scale)), int(math.Round(float64(h)*scale)))}
	f.soft = f.grey.blur(2)
	f.findTones()
	if err := f.findLungs(); err != nil {
		return Masks{}, err
	}
	f.findMidline()
	m := f.findHeart()
	f.findClavicles(&m)
	f.rest(&m)
	m.RightLung, m.LeftLung, m.Heart = f.lung[0].mask.alpha(w, h), f.lung[1].mask.alpha(w, h), f.heart.alpha(w, h)
	m.rescale(1 / scale)
	return m, nil
}

// rescale turns working pixels into those of the image.
func (m *Masks) rescale(by float64) {
	for _, v := range []*float64{
		&m.Spine, &m.Trachea, &m.Airway, &m.Clavicle, &m.Level,
		&m.HeartRight, &m.HeartLeft, &m.Step, &m.RightMargin, &m.LeftMargin,
	} {
		*v *= by
	}
	m.Scale = by
}

// A film is an image at working size with what has been found so far.
type film struct {
	grey, soft plane
	tissue     uint8 // at least this bright: soft tissue
	air        uint8 // darker than this: outside the body
	contrast   float64
	outside    plane // mask of air and collimated border
	lung       [2]field
	parts      int
	spine      float64
	top        int // of the lungs
	heart      plane
}

// A field is one lung: its mask, and where each row of it begins and ends.
type field struct {
	mask        plane
	medial      []int // by row: distance of the inner edge from the spine; -1: no lung
	lateral     []int // by row: x of the outer edge
	top, bottom int
	filled      int // pixels that were bridged
}

// findTones sets the grey levels that separate air, lung and tissue: tissue
// begins where edges are steepest on average, air is the darker of the two
// classes below it (Otsu 1979).
func (f *film) findTones() {
	var count, slope [256]float64
	for y := 1; y < f.soft.h-1; y++ {
		up, row, down := f.soft.row(y-1), f.soft.row(y), f.soft.row(y+1)
		for x := 1; x < f.soft.w-1; x++ {
			v := row[x]
			count[v]++
			slope[v] += math.Abs(float64(row[x+1])-float64(row[x-1])) + math.Abs(float64(down[x])-float64(up[x]))
		}
	}
	best := 0.
	for t := 60; t <= 150; t++ {
		n, g := rare*float64(len(f.soft.pix)), 0.
		for v := t - 6; v <= t+6; v++ {
			n, g = n+count[v], g+slope[v]
		}
		if g/n > best {
			best, f.tissue = g/n, uint8(t)
		}
	}
	clear(count[:blank]) // collimated border
	f.air = otsu(count[:f.tissue])
	// Edges to bone and to muscle are steepest at different levels; midway
	// between lung and the darker tissue is the same on every film.
	f.tissue = uint8((classMean(count[:], int(f.air), int(f.tissue)) + quantile(count[:], int(f.tissue), 0.25)) / 2)
	f.contrast = classMean(count[:], int(f.tissue), 256) - classMean(count[:], int(f.air), int(f.tissue))
}

// otsu returns the level that best splits a histogram in two.
func otsu(count []float64) uint8 {
	var n, sum float64
	for v, c := range count {
		n, sum = n+c, sum+c*float64(v)
	}
	var below, belowSum, best float64
	split := 0
	for v, c := range count {
		if d := n*belowSum - below*sum; below > 0 && below < n && d*d/(below*(n-below)) > best {
			best, split = d*d/(below*(n-below)), v
		}
		below, belowSum = below+c, belowSum+c*float64(v)
	}
	return uint8(split)
}

// quantile returns the level below which the share q of the pixels from that
// level upwards lies.
func quantile(count []float64, from int, q float64) float64 {
	n, sum := 0., 0.
	for _, c := range count[from:] {
		n += c
	}
	for v := from; v < len(count); v++ {
		if sum += count[v]; sum >= q*n {
			return float64(v)
		}
	}
	return float64(len(count) - 1)
}

func classMean(count []float64, from, to int) float64 {
	var n, sum float64
	for v := from; v < to; v++ {
		n, sum = n+count[v], sum+count[v]*float64(v)
	}
	return sum / max(n, 1)
}

// findLungs separates the two dark fields inside the body.
func (f *film) findLungs() error {
	f.outside = f.soft.below(f.air).border().grow(4, 255)
	dark := f.soft.below(f.tissue)
	for i, out := range f.outside.pix {
		if out != 0 {
			dark.pix[i] = 0
		}
	}
	closed := dark.closing(bridge)
	list, labels := closed.pieces(int(minRest * float64(len(dark.pix))))
	// A thin piece is the body's rim.
	list = slices.DeleteFunc(list, func(p piece) bool { return p.solidity() < 0.15 })
	sides, err := f.sort(list)
	if err != nil {
		return err
	}
	for side, wanted := range sides {
		f.lung[side].fill(labels.only(wanted), dark, side)
	}
	f.top = min(f.lung[0].top, f.lung[1].top)
	return nil
}

// sort returns the labels of the pieces of either lung, from a list with the
// largest first.
func (f *film) sort(list []piece) (sides [2][]uint8, err error) {
	smallest := int(minLung * float64(len(f.soft.pix)))
	mid := f.middle(list)
	var wall [2]int // outermost column of the lung's largest piece
	for _, p := range list {
		if p.minX < int(mid)-60 && p.maxX > int(mid)+60 {
			return sides, ErrNoLungs // one field across the middle
		}
		side, outer := 0, p.minX
		if p.x > mid {
			side, outer = 1, p.maxX
		}
		switch {
		case len(sides[side]) == 0 && p.area >= smallest:
			wall[side] = outer
		case len(sides[side]) == 0 || p.area < smallest && max(outer-wall[side], wall[side]-outer) > besideWall:
			continue
		}
		f.parts++
		sides[side] = append(sides[side], p.label)
	}
	if len(sides[0]) == 0 || len(sides[1]) == 0 {
		return sides, ErrNoLungs
	}
	return sides, nil
}

// middle returns an x between the lungs: midway between the inner edges of
// the largest part on either side of the body's centre.
func (f *film) middle(list []piece) float64 {
	centre := f.bodyCentre()
	right, left := -1, -1
	for i := len(list) - 1; i >= 0; i-- { // the largest comes last
		if list[i].x < centre {
			right = i
		} else {
			left = i
		}
	}
	if right < 0 || left < 0 {
		return centre
	}
	return float64(list[right].maxX+list[left].minX) / 2
}

func (f *film) bodyCentre() float64 {
	var n, sum float64
	for y := f.grey.h / 4; y < f.grey.h*3/4; y++ {
		for x, out := range f.outside.row(y) {
			if out == 0 {
				n, sum = n+1, sum+float64(x)
			}
		}
	}
	return sum / max(n, 1)
}

// fill makes the field's mask from its closed parts.
func (l *field) fill(parts, dark plane, side int) {
	l.mask = parts.hull().convex(side == 0).hull().grow(edge, 255)
	l.top, l.bottom = l.mask.h, 0
	for y := range l.mask.h {
		if first, last := span(l.mask.row(y)); first <= last {
			l.top, l.bottom = min(l.top, y), y
		}
	}
	for i, v := range l.mask.pix {
		if v != 0 && dark.pix[i] == 0 {
			l.filled++
		}
	}
}
