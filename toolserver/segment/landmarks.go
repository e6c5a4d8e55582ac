package segment

import (
	"math"
	"slices"
)

// findMidline finds the spine: the bright bar between the lungs, and the lungs'
// edges seen from it.
func (f *film) findMidline() {
	lowest := max(f.lung[0].bottom, f.lung[1].bottom)
	profile := make([]float64, f.soft.w)
	for y := f.top; y < f.soft.h; y++ {
		if y > lowest-40 && y < lowest { // the diaphragm's slope
			continue
		}
		for x, v := range f.soft.row(y) {
			profile[x] += float64(v)
		}
	}
	low, high := f.betweenLungs()
	f.spine = bar(profile, low, high, spineHalf, 6)
	for side := range f.lung {
		f.lung[side].edges(f.spine, side)
	}
}

// betweenLungs returns the columns in which the spine may lie.
func (f *film) betweenLungs() (low, high int) {
	low, high = f.soft.w, 0
	for y := f.top + 60; y < f.top+150 && y < f.soft.h; y++ {
		_, right := span(f.lung[0].mask.row(y))
		left, _ := span(f.lung[1].mask.row(y))
		if right > 0 && left < f.soft.w && right < left {
			low, high = min(low, right), max(high, left)
		}
	}
	return max(low, 0), min(high, f.soft.w-1)
}

// bar returns the centre, to a fraction of a pixel, of the bar 2·half+1 wide
// that is brighter than both stripes beside it by the most.
func bar(profile []float64, low, high, half, beside int) float64 {
	sum := make([]float64, len(profile)+1)
	for i, v := range profile {
		sum[i+1] = sum[i] + v
	}
	mean := func(from, to int) float64 { // [from, to)
		from, to = max(from, 0), min(to, len(profile))
		if from >= to {
			return math.Inf(1)
		}
		return (sum[to] - sum[from]) / float64(to-from)
	}
	score := func(x int) float64 {
		in := mean(x-half, x+half+1)
		return in - max(mean(x-half-beside, x-half), mean(x+half+1, x+half+1+beside))
	}
	best, at := math.Inf(-1), (low+high)/2
	for x := low; x <= high; x++ {
		if s := score(x); s > best {
			best, at = s, x
		}
	}
	return float64(at) + vertex(score(at-1), best, score(at+1))
}

// vertex returns where the parabola through three neighbours peaks, from -0.5 to 0.5.
func vertex(a, b, c float64) float64 {
	d := a - 2*b + c
	if d >= 0 || math.IsInf(d, 0) || math.IsNaN(d) {
		return 0
	}
	return max(-0.5, min(0.5, (a-c)/(2*d)))
}

// edges fills in each row's inner and outer edge.
func (l *field) edges(spine float64, side int) {
	l.medial, l.lateral = make([]int, l.mask.h), make([]int, l.mask.h)
	for y := range l.mask.h {
		first, last := span(l.mask.row(y))
		l.medial[y], l.lateral[y] = -1, -1
		if last < first {
			continue
		}
		inner, outer := float64(last+1), first
		if side == 1 {
			inner, outer = float64(first), last
		}
		l.medial[y], l.lateral[y] = max(0, int(math.Round(math.Abs(inner-spine-0.5)))), outer
	}
}

// findHeart measures the heart's borders from the lungs' inner edges, and
// draws the silhouette between them.
func (f *film) findHeart() Masks {
	m := Masks{Spine: f.spine, Trachea: f.mediastinum(), Airway: f.airway()}
	var dist, seen [2]float64
	for side := range f.lung {
		var row int
		dist[side], row, seen[side] = f.border(side)
		m.Step = max(m.Step, f.lung[side].step(f.top+carinaBelow, row))
	}
	m.HeartRight, m.HeartLeft, m.HeartRightSeen, m.HeartLeftSeen = dist[0], dist[1], seen[0], seen[1]
	f.drawHeart()
	return m
}

// border returns the greatest distance of the heart's border on one side, its
// row, and 1 where the border is vertical there, as it is at its bulge. The
// lateral recess, whose inner edge is the diaphragm, widens all the way, and so
// does a border that dips into fluid: then the widest row before the edge leaps
// is returned, with 0.
func (f *film) border(side int) (distance float64, row int, seen float64) {
	const reach = 6
	l := &f.lung[side]
	least := bulge * f.mediastinalWidth() / 2 // less is the mediastinum, or a hilum
	for y := f.top + carinaBelow + reach; y+reach <= l.bottom; y++ {
		above, d, below := l.medial[y-reach], float64(l.medial[y]), l.medial[y+reach]
		if above >= 0 && below >= 0 && d >= least && d > distance && max(above-below, below-above) <= 2 {
			distance, row, seen = d, y, 1
		}
	}
	if seen == 1 {
		return distance, row, seen
	}
	for y := f.top + carinaBelow; y <= l.bottom && l.medial[y] >= 0 && l.medial[y] <= l.medial[y-1]+leap; y++ {
		if d := float64(l.medial[y]); d >= distance {
			distance, row = d, y
		}
	}
	return distance, row, 0
}

// step returns the greatest change of the inner edge over 3 rows: either way
// above a row, and inwards below it, where the diaphragm may leap outwards.
func (l *field) step(from, row int) float64 {
	most := 0
	for y := max(from, l.top); y+3 <= min(row+40, l.bottom); y++ {
		a, b := l.medial[y], l.medial[y+3]
		if a < 0 || b < 0 {
			continue
		}
		if most = max(most, a-b); y+3 <= row {
			most = max(most, b-a)
		}
	}
	return float64(most)
}

// drawHeart fills the space between the lungs where it is wider than the
// mediastinum above it.
func (f *film) drawHeart() {
	f.heart = newPlane(f.soft.w, f.soft.h)
	upper := f.mediastinalWidth()
	for y := f.top + 100; y < f.soft.h; y++ {
		right, left := f.lung[0].medial[y], f.lung[1].medial[y]
		if right < 0 || left < 0 || float64(right+left) < 1.1*upper {
			continue
		}
		for x := max(0, int(f.spine)-right+1); x < min(f.soft.w, int(f.spine)+left); x++ {
			if i := y*f.soft.w + x; f.lung[0].mask.pix[i] == 0 && f.lung[1].mask.pix[i] == 0 {
				f.heart.pix[i] = 255
			}
		}
	}
}

// mediastinum returns the centre of the upper mediastinum at the carina's
// level: midway between the lungs' inner edges.
func (f *film) mediastinum() float64 {
	var shifts []float64
	for y := f.top + carinaBelow - 16; y < f.top+carinaBelow+16 && y < f.soft.h; y++ {
		right, left := f.lung[0].medial[y], f.lung[1].medial[y]
		if right >= 0 && left >= 0 {
			shifts = append(shifts, float64(left-right)/2)
		}
	}
	return f.spine + median(shifts)
}

func (f *film) mediastinalWidth() float64 {
	var widths []float64
	for y := f.top + 70; y < f.top+120 && y < f.soft.h; y++ {
		if right, left := f.lung[0].medial[y], f.lung[1].medial[y]; right >= 0 && left >= 0 {
			widths = append(widths, float64(right+left))
		}
	}
	return median(widths)
}

// median returns the middle value; NaN of none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// airway returns the x of the trachea's dark bar just above the carina.
func (f *film) airway() float64 {
	profile := make([]float64, f.soft.w)
	for y := f.top + carinaBelow - 36; y < f.top+carinaBelow-6 && y < f.soft.h; y++ {
		for x, v := range f.soft.row(y) {
			profile[x] -= float64(v)
		}
	}
	centre := f.mediastinum()
	if math.IsNaN(centre) {
		return centre
	}
	return bar(profile, max(0, int(centre)-10), min(f.soft.w-1, int(centre)+10), 7, 5)
}

// findClavicles finds the medial ends of both clavicles: two bright ends of
// equal height, as far from each other as on any film, with less between them.
func (f *film) findClavicles(m *Masks) {
	ridge := func(x, y int) float64 { return f.patch(x, y) - (f.patch(x, y-15)+f.patch(x, y+15))/2 }
	best := math.Inf(-1)
	for y := f.top - 8; y <= f.top+48; y++ {
		for off := -44; off <= 44; off++ {
			x := int(math.Round(f.spine)) + off
			ends := min(ridge(x-medialGap-1, y), ridge(x+medialGap+1, y))
			gap := max(ridge(x-medialGap+14, y), ridge(x+medialGap-14, y))
			if s := ends - gap; s > best {
				best, m.Clavicle, m.Level = s, f.spine+float64(off), float64(y-f.top)
			}
		}
	}
}

// patch returns the mean of a few pixels around (x, y).
func (f *film) patch(x, y int) float64 {
	x, y = min(max(x, 2), f.soft.w-3), min(max(y, 2), f.soft.h-3)
	i := y*f.soft.w + x
	return (float64(f.soft.pix[i-2]) + float64(f.soft.pix[i]) + float64(f.soft.pix[i+2]) +
		float64(f.soft.pix[i-2*f.soft.w]) + float64(f.soft.pix[i+2*f.soft.w])) / 5
}

// rest fills in what is counted rather than found.
func (f *film) rest(m *Masks) {
	area := 0
	for side := range f.lung {
		for _, v := range f.lung[side].mask.pix {
			area += int(v / 255)
		}
	}
	m.Parts, m.Contrast = float64(f.parts), f.contrast
	m.Filled = float64(f.lung[0].filled+f.lung[1].filled) / float64(max(area, 1))
	m.Dense = f.dense()
	m.Ribs = float64(max(f.lung[0].bottom-f.lung[0].top, f.lung[1].bottom-f.lung[1].top)) / ribSpace
	m.RightMargin, m.LeftMargin = f.margin(0), f.margin(1)
}

// dense returns the share of the heart beside the spine that is much brighter
// than its middle tone: a device, or something lying on the film.
func (f *film) dense() float64 {
	var tones [256]int
	n := 0
	for y := f.top + 150; y < f.soft.h; y++ {
		for x, in := range f.heart.row(y) {
			if in != 0 && math.Abs(float64(x)-f.spine) > spineHalf+4 {
				tones[f.soft.row(y)[x]]++
				n++
			}
		}
	}
	mid, bright, sum := 0, 0, 0
	for v, c := range tones {
		if sum += c; sum <= n/2 {
			mid = v
		}
	}
	for v, c := range tones {
		if float64(v) > float64(mid)+0.45*f.contrast {
			bright += c
		}
	}
	return float64(bright) / float64(max(n, 1))
}

// margin returns the least breadth of chest wall beside a lung: from its outer
// edge to the outside, over the middle of its height.
func (f *film) margin(side int) float64 {
	l, step := &f.lung[side], 1
	if side == 0 {
		step = -1
	}
	var walls []float64
	for y := l.top + (l.bottom-l.top)*3/10; y < l.bottom-(l.bottom-l.top)/5; y++ {
		if l.lateral[y] < 0 {
			continue
		}
		x := l.lateral[y]
		for x >= 0 && x < f.soft.w && f.outside.row(y)[x] == 0 {
			x += step
		}
		walls = append(walls, math.Abs(float64(x-l.lateral[y])))
	}
	if len(walls) == 0 {
		return 0
	}
	slices.Sort(walls)
	return walls[len(walls)/10] // not the least of all, which one grain decides
}
