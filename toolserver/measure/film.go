package measure

import (
	"image"
	"math"
	"slices"
)

// filmSide is the longer side, in pixels, at which a film is looked at: what is
// judged here is coarse, and so costs the same at any resolution.
const filmSide = 256

// film holds what view_check and mask quality read off a radiograph and its
// masks. Lengths are shares of the chest's width, of the lungs' height or of the
// field; angles are in degrees; grey levels are shares of the film's range.
type film struct {
	pattern float64 // likeness to two dark lungs beside a bright middle, -1 to 1

	contrast   float64    // middle over lungs
	heartLow   float64    // heart's centre below the lungs' top
	heartLeft  float64    // heart's centre left of the chest's middle
	tilt       float64    // of the body, clockwise
	proportion float64    // chest's width over the lungs' height, in pixels
	share      float64    // chest's width of the field's
	contact    float64    // greatest length along which lungs touch an edge of the field
	heartTall  float64    // heart's height of the lungs'
	offset     float64    // upper mediastinum left of the middle of the chest's walls
	clavicles  float64    // middle of the clavicles' ends left of the spine; NaN when not known
	area       [2]float64 // of the field
	narrow     float64    // narrower lung over wider
	short      float64    // lower lung over higher
	whole      float64    // least share of a structure that is its largest piece
	overlap    float64    // share of the heart that is lung
	filled     float64    // heart's width of the gap between the lungs, on its middle rows
	convex     float64    // heart's share of its convex hull
	flat       float64    // greatest share of a lung without any texture
	dense      float64    // greatest share of a lung that is brighter than the middle
}

// newFilm looks at a film. The masks are known to be measurable.
func newFilm(gray *image.Gray, s Structures) *film {
	p, s := reduced(gray, s)
	field := fieldOf(p)
	right, left, _ := s.lungs()
	heart := bounds(s.Heart)
	chest := float64(left.Max.X - right.Min.X)
	both := right.Union(left)
	f := &film{pattern: chestPattern(p)}
	c := centroid(s.Heart)
	f.heartLow = (c.Y - float64(both.Min.Y)) / float64(both.Dy())
	f.heartLeft = (c.X - float64(right.Min.X+left.Max.X)/2) / chest
	f.tilt = tilt(s, right, left)
	top, bottom := max(right.Min.Y, left.Min.Y), min(right.Max.Y, left.Max.Y)
	f.proportion = chest / float64(max(bottom-top, 1))
	f.share = chest / float64(field.Dx())
	f.contact = max(contact(s.RightLung, field), contact(s.LeftLung, field))
	f.heartTall = float64(heart.Dy()) / float64(both.Dy())
	y0, y1 := s.upperRows()
	if x, _ := s.airway(y0, y1); !math.IsNaN(x) {
		f.offset = (x - s.wallsBetween(y0, y1)) / chest
	}
	f.clavicles = s.claviclesOff() / chest
	f.lungs(s, right, left, field)
	f.grey(p, s)
	return f
}

// lungs compares the lungs with each other and with the field.
func (f *film) lungs(s Structures, right, left, field image.Rectangle) {
	ratio := func(a, b int) float64 { return float64(min(a, b)) / float64(max(a, b, 1)) }
	f.narrow, f.short = ratio(right.Dx(), left.Dx()), ratio(right.Dy(), left.Dy())
	f.whole = 1
	for i, m := range []*image.Alpha{s.RightLung, s.LeftLung, s.Heart} {
		largest, area := largestPiece(m)
		f.whole = min(f.whole, float64(largest)/float64(area))
		if i < 2 {
			f.area[i] = float64(area) / float64(field.Dx()*field.Dy())
		}
	}
	f.overlap = overlapOf(s)
	f.filled = heartInGap(s)
	f.convex = convexity(s.Heart)
}

// convexity returns a mask's area over that of its convex hull. A bay or a horn
// in a border makes it small.
func convexity(m *image.Alpha) float64 {
	var right, left []image.Point // borders of the hull, from the top down
	r, area := bounds(m), 0
	for y := r.Min.Y; y < r.Max.Y; y++ {
		first, end, ok := row(m, y)
		if !ok {
			continue
		}
		for _, v := range m.Pix[y*m.Stride+first : y*m.Stride+end] {
			if v != 0 {
				area++
			}
		}
		for _, corner := range []int{y, y + 1} {
			right, left = bent(right, image.Pt(first, corner), -1), bent(left, image.Pt(end, corner), 1)
		}
	}
	if area == 0 {
		return math.NaN()
	}
	return float64(area) / (enclosed(left) - enclosed(right))
}

// bent adds the next point of a hull's border, on the way down the image: side is
// -1 for the border on its left and 1 for that on its right.
func bent(border []image.Point, p image.Point, side int) []image.Point {
	for len(border) >= 2 {
		a, b := border[len(border)-2], border[len(border)-1]
		u, v := b.Sub(a), p.Sub(b)
		if side*(u.X*v.Y-u.Y*v.X) > 0 {
			break
		}
		border = border[:len(border)-1]
	}
	return append(border, p)
}

// enclosed returns the area between a border and the image's left edge.
func enclosed(border []image.Point) float64 {
	area := 0
	for i := 1; i < len(border); i++ {
		area += (border[i].X + border[i-1].X) * (border[i].Y - border[i-1].Y)
	}
	return float64(area) / 2
}

// heartInGap returns how much of the gap between the lungs the heart takes: the
// median over the middle half of its rows. It is 1 where it borders on both
// lungs; NaN where no row has both.
func heartInGap(s Structures) float64 {
	r := bounds(s.Heart)
	var shares []float64
	for y := r.Min.Y + r.Dy()/4; y < r.Max.Y-r.Dy()/4; y++ {
		a, b, ok := s.gap(y)
		first, end, isHeart := row(s.Heart, y)
		if ok && isHeart && b > a {
			shares = append(shares, float64(end-first)/(b-a))
		}
	}
	if len(shares) == 0 {
		return math.NaN()
	}
	slices.Sort(shares)
	return shares[len(shares)/2]
}

func overlapOf(s Structures) float64 {
	both, heart := 0, 0
	for i, v := range s.Heart.Pix {
		if v == 0 {
			continue
		}
		heart++
		if s.RightLung.Pix[i] != 0 || s.LeftLung.Pix[i] != 0 {
			both++
		}
	}
	return float64(both) / float64(max(heart, 1))
}

// grey reads contrast and texture. The middle is what lies between the lungs,
// with the heart.
func (f *film) grey(p *image.Gray, s Structures) {
	var lung, middle, all histogram
	for y := range p.Rect.Dy() {
		a, b, between := s.gap(y)
		for x := range p.Rect.Dx() {
			i := y*p.Stride + x
			v := p.Pix[i]
			all.add(v)
			switch {
			case s.RightLung.Pix[i] != 0 || s.LeftLung.Pix[i] != 0:
				lung.add(v)
			case s.Heart.Pix[i] != 0 || between && float64(x) >= a && float64(x) < b:
				middle.add(v)
			}
		}
	}
	span := float64(max(all.quantile(0.99)-all.quantile(0.01), 1))
	f.contrast = float64(middle.quantile(0.5)-lung.quantile(0.5)) / span
	level := middle.quantile(0.5)
	for _, m := range []*image.Alpha{s.RightLung, s.LeftLung} {
		flat, dense := texture(p, m, level)
		f.flat, f.dense = max(f.flat, flat), max(f.dense, dense)
	}
}

// texture returns the share of a lung that lies in areas of one grey level, and
// the share that is brighter than a level.
func texture(p *image.Gray, m *image.Alpha, level int) (flat, dense float64) {
	n := 0.0
	for y := 2; y < p.Rect.Dy()-2; y++ {
		for x := 2; x < p.Rect.Dx()-2; x++ {
			if m.Pix[y*m.Stride+x] == 0 {
				continue
			}
			n++
			if isFlat(p, x, y) {
				flat++
			}
			if int(p.Pix[y*p.Stride+x]) > level {
				dense++
			}
		}
	}
	return flat / max(n, 1), dense / max(n, 1)
}

// isFlat reports whether 5 × 5 pixels differ by one grey level at most.
func isFlat(p *image.Gray, x, y int) bool {
	low, high := uint8(255), uint8(0)
	for j := y - 2; j <= y+2; j++ {
		for _, v := range p.Pix[j*p.Stride+x-2 : j*p.Stride+x+3] {
			low, high = min(low, v), max(high, v)
		}
	}
	return high-low <= 1
}

// histogram counts grey levels.
type histogram struct {
	counts [256]int
	n      int
}

func (h *histogram) add(v uint8) { h.counts[v]++; h.n++ }

// quantile returns the level below which a share of the counted lies.
func (h *histogram) quantile(q float64) int {
	seen, want := 0, int(q*float64(h.n))
	for v, n := range h.counts {
		if seen += n; seen > want {
			return v
		}
	}
	return 255
}

// fieldOf returns the exposed part of a film: lines of one grey level along the
// edges, as padding and collimation leave them, are cut off.
func fieldOf(p *image.Gray) image.Rectangle {
	r := p.Rect
	for r.Dy() > 1 && uniform(p, image.Rect(r.Min.X, r.Min.Y, r.Max.X, r.Min.Y+1)) {
		r.Min.Y++
	}
	for r.Dy() > 1 && uniform(p, image.Rect(r.Min.X, r.Max.Y-1, r.Max.X, r.Max.Y)) {
		r.Max.Y--
	}
	for r.Dx() > 1 && uniform(p, image.Rect(r.Min.X, r.Min.Y, r.Min.X+1, r.Max.Y)) {
		r.Min.X++
	}
	for r.Dx() > 1 && uniform(p, image.Rect(r.Max.X-1, r.Min.Y, r.Max.X, r.Max.Y)) {
		r.Max.X--
	}
	return r
}

// uniform reports whether a line's grey levels lie within a few of each other.
func uniform(p *image.Gray, r image.Rectangle) bool {
	low, high := uint8(255), uint8(0)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			v := p.Pix[y*p.Stride+x]
			low, high = min(low, v), max(high, v)
		}
	}
	return high-low <= 3
}

// contact returns the greatest length along which a mask touches an edge of the
// field, as a share of that edge.
func contact(m *image.Alpha, field image.Rectangle) float64 {
	var top, bottom, left, right float64
	for x := field.Min.X; x < field.Max.X; x++ {
		top += step(m, x, field.Min.Y)
		bottom += step(m, x, field.Max.Y-1)
	}
	for y := field.Min.Y; y < field.Max.Y; y++ {
		left += step(m, field.Min.X, y)
		right += step(m, field.Max.X-1, y)
	}
	return max(max(top, bottom)/float64(field.Dx()), max(left, right)/float64(field.Dy()))
}

func step(m *image.Alpha, x, y int) float64 {
	if m.Pix[y*m.Stride+x] != 0 {
		return 1
	}
	return 0
}

// tilt returns how far the body is turned in the image's plane, clockwise: the
// mean of three estimates, from the line between the lungs' centres (which in an
// upright body falls to the right lung by some degrees), between their apices,
// and from their long axes, which lean towards each other alike.
func tilt(s Structures, right, left image.Rectangle) float64 {
	const degrees = 180 / math.Pi
	a, b := centroid(s.RightLung), centroid(s.LeftLung)
	centres := math.Atan2(b.Y-a.Y, b.X-a.X)*degrees + 2.3
	ax, bx := rowsCentre(s.RightLung, right.Min.Y, right.Min.Y+1), rowsCentre(s.LeftLung, left.Min.Y, left.Min.Y+1)
	apices := math.Atan2(float64(left.Min.Y-right.Min.Y), bx-ax) * degrees
	axes := -(axis(s.RightLung, a) + axis(s.LeftLung, b)) / 2 * degrees
	return (centres + apices + axes) / 3
}

// axis returns the angle of a mask's long axis from the vertical, in radians,
// positive where its lower end lies to the right.
func axis(m *image.Alpha, c Point) float64 {
	var xx, xy, yy float64
	for j := range m.Rect.Dy() {
		for i, v := range m.Pix[j*m.Stride : j*m.Stride+m.Rect.Dx()] {
			if v != 0 {
				dx, dy := float64(i)+0.5-c.X, float64(j)+0.5-c.Y
				xx, xy, yy = xx+dx*dx, xy+dx*dy, yy+dy*dy
			}
		}
	}
	return math.Atan2(2*xy, yy-xx) / 2
}

// largestPiece returns the area of the largest connected part of a mask, and of
// all of it.
func largestPiece(m *image.Alpha) (largest, area int) {
	seen := make([]bool, len(m.Pix))
	var stack []int
	visit := func(i int) {
		if m.Pix[i] != 0 && !seen[i] {
			seen[i] = true
			stack = append(stack, i)
		}
	}
	w := m.Stride
	for i := range m.Pix {
		visit(i)
		size := 0
		for len(stack) > 0 {
			j := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			size++
			if j%w > 0 {
				visit(j - 1)
			}
			if j%w < w-1 {
				visit(j + 1)
			}
			if j >= w {
				visit(j - w)
			}
			if j+w < len(m.Pix) {
				visit(j + w)
			}
		}
		largest, area = max(largest, size), area+size
	}
	return largest, area
}

// reduced returns film and masks with the longer side at filmSide at most, grey
// levels averaged and masks taken at the pixels' middles.
func reduced(gray *image.Gray, s Structures) (*image.Gray, Structures) {
	w, h := gray.Rect.Dx(), gray.Rect.Dy()
	if longer := max(w, h); longer > filmSide {
		w, h = max(w*filmSide/longer, 8), max(h*filmSide/longer, 8)
	}
	shrink := func(m *image.Alpha) *image.Alpha {
		if m == nil {
			return nil
		}
		out := image.NewAlpha(image.Rect(0, 0, w, h))
		for i := range out.Pix {
			x, y := (2*(i%w)+1)*m.Rect.Dx()/(2*w), (2*(i/w)+1)*m.Rect.Dy()/(2*h)
			out.Pix[i] = m.Pix[y*m.Stride+x]
		}
		return out
	}
	return averaged(gray, w, h), Structures{shrink(s.RightLung), shrink(s.LeftLung), shrink(s.Heart),
		shrink(s.Trachea), shrink(s.Mediastinum), shrink(s.Spine), shrink(s.RightClavicle), shrink(s.LeftClavicle)}
}

// averaged returns gray at w × h pixels, each the mean of those under it.
func averaged(gray *image.Gray, w, h int) *image.Gray {
	out := image.NewGray(image.Rect(0, 0, w, h))
	b := gray.Rect
	for y := range h {
		y0, y1 := y*b.Dy()/h, max((y+1)*b.Dy()/h, y*b.Dy()/h+1)
		for x := range w {
			x0, x1 := x*b.Dx()/w, max((x+1)*b.Dx()/w, x*b.Dx()/w+1)
			sum := 0
			for yy := y0; yy < y1; yy++ {
				for _, v := range gray.Pix[yy*gray.Stride+x0 : yy*gray.Stride+x1] {
					sum += int(v)
				}
			}
			out.Pix[y*w+x] = uint8(sum / ((y1 - y0) * (x1 - x0)))
		}
	}
	return out
}

// patternSide is the pattern's side in samples.
const patternSide = 32

// pattern is the plainest frontal chest: two dark ellipses in a brighter box,
// with a middle that widens downwards. It has mean 0 and length 1.
var pattern = func() [patternSide * patternSide]float64 {
	var p [patternSide * patternSide]float64
	for i := range p {
		x, y := (float64(i%patternSide)+0.5)/patternSide, (float64(i/patternSide)+0.5)/patternSide
		lung := func(cx float64) bool { return math.Hypot((x-cx)/0.20, (y-0.50)/0.42) < 1 }
		middle := 0.055
		if y > 0.5 {
			middle = 0.145
		}
		switch {
		case math.Abs(x-0.5) < middle:
			p[i] = 1
		case lung(0.26) || lung(0.74):
			p[i] = -1
		case x < 0.04 || x > 0.96 || y > 0.95:
			p[i] = 0.5
		}
	}
	normalise(p[:])
	return p
}()

// normalise subtracts the mean and divides by the length.
func normalise(v []float64) {
	mean, length := 0.0, 0.0
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for i := range v {
		v[i] -= mean
		length += v[i] * v[i]
	}
	for i := range v {
		v[i] /= math.Sqrt(length)
	}
}

// chestPattern returns the greatest correlation of the pattern with any window
// of the film about its middle. Inverted, lying and several films in one image,
// and other parts of the body, have little.
func chestPattern(p *image.Gray) float64 {
	const side = 64
	small := averaged(p, side, side)
	best := -1.0
	for _, w := range []float64{0.55, 0.65, 0.75, 0.85, 0.95} {
		for _, h := range []float64{0.5, 0.6, 0.7, 0.8, 0.9, 1} {
			for cx := 0.35; cx < 0.66; cx += 0.05 {
				for cy := 0.30; cy < 0.71; cy += 0.05 {
					if x0, y0 := cx-w/2, cy-h/2; x0 >= -0.08 && x0+w <= 1.08 && y0 >= -0.1 && y0+h <= 1.1 {
						best = max(best, correlate(small, x0, y0, w, h))
					}
				}
			}
		}
	}
	return best
}

// correlate correlates a window, given in shares of the film, with the pattern,
// in one pass: the pattern has mean 0 and length 1.
func correlate(p *image.Gray, x0, y0, w, h float64) float64 {
	n := p.Rect.Dx()
	var columns [patternSide]int
	for i := range columns {
		columns[i] = min(max(int((x0+(float64(i)+0.5)/patternSide*w)*float64(n)), 0), n-1)
	}
	var dot float64
	var sum, squares int
	for j := range patternSide {
		y := min(max(int((y0+(float64(j)+0.5)/patternSide*h)*float64(n)), 0), n-1)
		line := p.Pix[y*p.Stride : y*p.Stride+n]
		for i, x := range columns {
			v := int(line[x])
			sum, squares = sum+v, squares+v*v
			dot += float64(v) * pattern[j*patternSide+i]
		}
	}
	const samples = patternSide * patternSide
	spread := float64(squares) - float64(sum)*float64(sum)/samples
	if spread < 1 {
		return 0
	}
	return dot / math.Sqrt(spread)
}
