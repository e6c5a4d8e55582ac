package toolserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"image"
	"math"
	"math/rand/v2"
	"slices"

	"golang.org/x/image/draw"

	"xragent/rollout"
)

// ParseArgs are the arguments of region_parse.
type ParseArgs struct {
	Region string `json:"region" jsonschema:"anatomical region, the patient's side"`
	Image  int    `json:"image,omitempty" jsonschema:"which image, from 1; default 1"`
}

// A Region is what region_parse measures: neutral numbers, no diagnosis.
type Region struct {
	Name    string
	Paired  bool
	Opacity int // 0 black to 100 white, mean over the region's lung
	Other   int // the same across the midline, when Paired
	Pattern int // fine pattern: 0 none, 1 weak, 2 strong
	Spots   int // round, bright, with an edge
}

// differs is the difference of opacity that counts as a sign, in the scale of
// Region.Opacity.
const differs = 2

func parseTool(cfg Config) Tool[ParseArgs, Region] {
	return Tool[ParseArgs, Region]{
		Name: "region_parse", Description: "measure a region", Images: true,
		Version: fmt.Sprintf("v2/%g/%g", cfg.Noise.Miss, cfg.Noise.FalseAlarm),
		Run: func(ctx context.Context, s *Study, in ParseArgs) (Region, error) {
			return parseRegion(s, in, cfg.Noise)
		},
		Show: func(r Region) rollout.Observation { return rollout.Observation{Text: r.String()} },
	}
}

// String writes the region as the policy reads it.
func (r Region) String() string {
	text := fmt.Sprintf("opacity %d", r.Opacity)
	if r.Paired {
		text += fmt.Sprintf(" other side %d", r.Other)
	}
	return text + fmt.Sprintf(" pattern %s spots %d", [3]string{"none", "weak", "strong"}[r.Pattern], r.Spots)
}

func parseRegion(s *Study, in ParseArgs, noise Noise) (Region, error) {
	v, err := s.view(in.Image)
	if err != nil {
		return Region{}, err
	}
	_, name, err := v.region(in.Region)
	if err != nil {
		return Region{}, err
	}
	r := v.regions().measure(name)
	if v.domain == "phantom" {
		r.err(v.hash, noise)
	}
	return r, nil
}

// err adds the built-in errors to the two signs that are measured nearly
// without any; spots are missed and mistaken as it is. Errors depend on the
// image and the region alone, so that asking again gives the same answer.
func (r *Region) err(hash key, noise Noise) {
	k := keyOf(hash[:], []byte(r.Name))
	rng := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(k[:8]), binary.LittleEndian.Uint64(k[8:16])))
	// Every draw is made, so that one sign's outcome does not move another's.
	pattern, opacity, sign := rng.Float64(), rng.Float64(), rng.IntN(2)*2-1
	switch {
	case r.Pattern > 0 && pattern < noise.Miss:
		r.Pattern = 0
	case r.Pattern == 0 && pattern < noise.FalseAlarm:
		r.Pattern = 1
	}
	if !r.Paired {
		return
	}
	switch d := r.Opacity - r.Other; {
	case max(d, -d) >= differs && opacity < noise.Miss:
		r.Other = r.Opacity
	case max(d, -d) < differs && opacity < noise.FalseAlarm:
		r.Other = max(0, r.Opacity-sign*differs)
	}
}

// parseSize is the longer side of the image that regions are measured on.
const parseSize = 512

// A patch is a view at working size.
type patch struct {
	grey  *image.Gray
	soft  *image.Gray // mean of 5 x 5 pixels
	inner [2]*image.Alpha
	boxes lungBoxes
	mixed []int32 // running sums of mixed differences
	grain float64 // roughness of the smoothest zone
	gain  float64 // contrast of this film over that of the usual one
}

func newPatch(v *view) *patch {
	p := &patch{grey: scaled(v.gray, parseSize), boxes: v.boxes, gain: 1}
	p.soft, p.mixed = mean5(p.grey), sums(p.grey)
	if v.masks != nil {
		p.gain = v.masks.Contrast / usualContrast
		p.inner[0], p.inner[1] = v.masks.RightLung, v.masks.LeftLung
	}
	p.grain = p.leastRough()
	return p
}

// usualContrast is the grey levels between lung and soft tissue on most films.
const usualContrast = 90

// scaled returns the image with its longer side at most n pixels long.
func scaled(g *image.Gray, n int) *image.Gray {
	if longer(g.Rect) <= n {
		return g
	}
	f := float64(n) / float64(longer(g.Rect))
	out := image.NewGray(image.Rect(0, 0, max(1, int(float64(g.Rect.Dx())*f)), max(1, int(float64(g.Rect.Dy())*f))))
	draw.ApproxBiLinear.Scale(out, out.Rect, g, g.Rect, draw.Src, nil)
	return out
}

// mean5 returns the mean over 5 x 5 pixels; the border of 2 is kept as it is.
func mean5(g *image.Gray) *image.Gray {
	w, h := g.Rect.Dx(), g.Rect.Dy()
	rows, out := make([]uint16, w*h), image.NewGray(g.Rect)
	copy(out.Pix, g.Pix)
	for y := range h {
		for x := 2; x < w-2; x++ {
			sum := uint16(0)
			for _, v := range g.Pix[y*g.Stride+x-2 : y*g.Stride+x+3] {
				sum += uint16(v)
			}
			rows[y*w+x] = sum
		}
	}
	for y := 2; y < h-2; y++ {
		for x := 2; x < w-2; x++ {
			i := y*w + x
			out.Pix[y*out.Stride+x] = uint8((int(rows[i-2*w]) + int(rows[i-w]) + int(rows[i]) + int(rows[i+w]) + int(rows[i+2*w])) / 25)
		}
	}
	return out
}

// measure measures one region by its canonical name.
func (p *patch) measure(name string) Region {
	other := otherSide(name)
	r := Region{Name: name, Paired: other != ""}
	r.Opacity = p.opacity(name)
	if r.Paired {
		r.Other = p.opacity(other)
		r.Pattern = p.pattern(name)
		r.Spots = len(p.spots(name))
	}
	return r
}

// inside returns where a region's pixels are looked at: its box, and the mask
// of its lung, nil for regions outside the lungs and where there is none.
func (p *patch) inside(name string) (image.Rectangle, *image.Alpha) {
	b, _, _ := p.boxes.find(name)
	r := b.pixels(p.grey.Rect)
	switch {
	case otherSide(name) == "":
		return r, nil
	case name[0] == 'r':
		return r, p.inner[0]
	}
	return r, p.inner[1]
}

// at reports whether a pixel and its surroundings of 8 pixels lie in the mask.
func (p *patch) at(m *image.Alpha, x, y int) bool {
	if m == nil {
		return true
	}
	const rim = 8
	w, h := m.Rect.Dx(), m.Rect.Dy()
	in := func(x, y int) bool {
		x, y = x*w/p.grey.Rect.Dx(), y*h/p.grey.Rect.Dy()
		return x >= 0 && y >= 0 && x < w && y < h && m.Pix[y*m.Stride+x] != 0
	}
	return in(x-rim, y) && in(x+rim, y) && in(x, y-rim) && in(x, y+rim)
}

// each calls f for every step-th pixel of the region.
func (p *patch) each(name string, step int, f func(x, y int)) {
	r, m := p.inside(name)
	for y := r.Min.Y; y < r.Max.Y; y += step {
		for x := r.Min.X; x < r.Max.X; x += step {
			if p.at(m, x, y) {
				f(x, y)
			}
		}
	}
}

func (p *patch) opacity(name string) int {
	sum, n := 0, 0
	p.each(name, 2, func(x, y int) { sum, n = sum+int(p.soft.Pix[y*p.soft.Stride+x]), n+1 })
	return int(math.Round(float64(sum) / float64(max(n, 1)) / 255 * 100))
}

// The strength of a fine pattern, in grey levels of its mixed differences, from
// which it counts as weak and as strong.
const (
	weakPattern   = 9
	strongPattern = 34
)

// pattern grades the fine pattern of a region, above what all zones share as
// grain: mixed differences at 2 pixels, where anatomy is smooth.
func (p *patch) pattern(name string) int {
	t, ok := p.roughness(name)
	switch {
	case !ok || t-p.grain < weakPattern:
		return 0
	case t-p.grain < strongPattern:
		return 1
	}
	return 2
}

// leastRough returns the roughness of the smoothest zone: the film's grain.
func (p *patch) leastRough() float64 {
	grain := math.Inf(1)
	for _, side := range []string{"right ", "left "} {
		for _, zone := range []string{"upper zone", "middle zone", "lower zone"} {
			if t, ok := p.roughness(side + zone); ok {
				grain = min(grain, t)
			}
		}
	}
	return grain
}

func (p *patch) roughness(name string) (mean float64, ok bool) {
	pix, w := p.grey.Pix, p.grey.Stride
	bounds := p.grey.Rect
	var tally [1024]int
	n := 0
	p.each(name, 2, func(x, y int) {
		if x+2 >= bounds.Dx() || y+2 >= bounds.Dy() {
			return
		}
		i := y*w + x
		d := int(pix[i]) - int(pix[i+2]) - int(pix[i+2*w]) + int(pix[i+2*w+2])
		tally[min(max(d, -d), 1023)]++
		n++
	})
	if n < 50 {
		return 0, false
	}
	sum := 0
	for v, c := range tally {
		sum += v * c
	}
	return float64(sum) / float64(n), true
}

// A size of spot: a disc is compared with a ring around it.
type spotSize struct {
	disc, ring int
	contrast   float64 // grey levels by which the disc stands out
}

var (
	spotSizes = []spotSize{{8, 26, 24}}
	softSpot  = spotSize{1, 11, 9} // what a small spot shares with a vessel seen end on
)

// A small spot is not brighter than vessels seen end on, but has an edge: it is
// rougher than what surrounds it.
const (
	spotHalf  = 5   // of the square that is looked at
	spotApart = 15  // of the squares around it
	spotEdge  = 6.5 // grey levels of mixed differences by which it is rougher
)

// rougher returns by how much the surroundings of a pixel are rougher than those
// next to it, as a share of what is asked for; 0 when that is not reached.
func (p *patch) rougher(x, y int) float64 {
	here, least := p.rough(x, y), spotEdge*p.gain
	if here < least {
		return 0
	}
	most := 0.
	for _, d := range [...]image.Point{{spotApart, 0}, {-spotApart, 0}, {0, spotApart}, {0, -spotApart}} {
		if most = max(most, p.rough(x+d.X, y+d.Y)); here-most < least {
			return 0
		}
	}
	return (here - most) / least
}

// rough returns the mean mixed difference in the square around a pixel.
func (p *patch) rough(x, y int) float64 {
	w, h := p.grey.Rect.Dx(), p.grey.Rect.Dy()
	x0, y0, x1, y1 := max(x-spotHalf, 0), max(y-spotHalf, 0), min(x+spotHalf+1, w), min(y+spotHalf+1, h)
	if x0 >= x1 || y0 >= y1 {
		return 0
	}
	at := func(x, y int) int { return int(p.mixed[y*(w+1)+x]) }
	return float64(at(x1, y1)-at(x0, y1)-at(x1, y0)+at(x0, y0)) / float64((x1-x0)*(y1-y0))
}

// sums returns the running sums of the mixed differences at 2 pixels: entry
// (x, y) of w+1 columns holds the sum over all pixels above and left of it.
func sums(g *image.Gray) []int32 {
	w, h := g.Rect.Dx(), g.Rect.Dy()
	out := make([]int32, (w+1)*(h+1))
	for y := range h {
		row := int32(0)
		for x := range w {
			if x > 0 && y > 0 && x < w-1 && y < h-1 {
				i := (y-1)*g.Stride + x - 1
				d := int32(g.Pix[i]) - int32(g.Pix[i+2]) - int32(g.Pix[i+2*g.Stride]) + int32(g.Pix[i+2*g.Stride+2])
				row += max(d, -d)
			}
			out[(y+1)*(w+1)+x+1] = out[y*(w+1)+x+1] + row
		}
	}
	return out
}

// spots returns where round bright spots lie in a region, strongest first.
func (p *patch) spots(name string) []image.Point {
	type found struct {
		at    image.Point
		score float64
		reach int
	}
	var all []found
	hilum := p.hilum(name)
	for _, size := range spotSizes {
		p.each(name, max(1, size.disc/4), func(x, y int) {
			if image.Pt(x, y).In(hilum) {
				return // vessels seen end on look like spots there
			}
			if s := p.stands(x, y, size); s > 0 {
				all = append(all, found{image.Pt(x, y), s, size.ring + size.disc})
			}
		})
	}
	p.each(name, 2, func(x, y int) {
		if s := p.rougher(x, y); s > 0 && !image.Pt(x, y).In(hilum) && p.stands(x, y, softSpot) > 0 {
			all = append(all, found{image.Pt(x, y), s, 2 * spotApart})
		}
	})
	slices.SortStableFunc(all, func(a, b found) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	var kept []found
	for _, f := range all {
		near := slices.ContainsFunc(kept, func(k found) bool {
			d := k.at.Sub(f.at)
			r := max(k.reach, f.reach)
			return d.X*d.X+d.Y*d.Y < r*r
		})
		if !near {
			kept = append(kept, f)
		}
	}
	points := make([]image.Point, len(kept))
	for i, f := range kept {
		points[i] = f.at
	}
	return points
}

// stands returns by how much a disc stands out from its ring, as a share of
// what is asked for; 0 when that is not reached. What counts of the ring is the
// brightest pair of opposite points, each pair as bright as its darker point:
// lines and ribs go on through the ring, and so do not stand out.
func (p *patch) stands(x, y int, size spotSize) float64 {
	if x < size.ring+2 || y < size.ring+2 || x >= p.soft.Rect.Dx()-size.ring-2 || y >= p.soft.Rect.Dy()-size.ring-2 {
		return 0
	}
	disc, least := p.disc(x, y, size.disc), size.contrast*p.gain
	through := 0.
	for i := range 8 {
		pair := min(p.ring(x, y, size.ring, i), p.ring(x, y, size.ring, i+8))
		if through = max(through, float64(pair)); disc-through <= least {
			return 0
		}
	}
	return (disc - through) / least
}

// ring returns the brightness at distance r in direction i.
func (p *patch) ring(x, y, r, i int) uint8 {
	return p.soft.Pix[(y+ringY[i]*r/64)*p.soft.Stride+x+ringX[i]*r/64]
}

// hilumPart is the hilum in the box of the right lung as displayed.
var hilumPart = box{0.64, 0.27, 1.05, 0.57}

// hilum returns the part of a region's lung where vessels are thickest.
func (p *patch) hilum(name string) image.Rectangle {
	b := hilumPart.in(p.boxes.right)
	if name[0] == 'l' {
		b = mirror(hilumPart).in(p.boxes.left)
	}
	b, _ = b.clamp()
	return b.pixels(p.grey.Rect)
}

func (p *patch) disc(x, y, r int) float64 {
	if r <= 1 {
		return float64(p.soft.Pix[y*p.soft.Stride+x])
	}
	at := func(dx, dy int) float64 { return float64(p.soft.Pix[(y+dy)*p.soft.Stride+x+dx]) }
	return min(at(0, 0), at(r, 0), at(-r, 0), at(0, r), at(0, -r))
}

// ringX and ringY are 16 directions, 64 long.
var ringX, ringY = directions()

func directions() (xs, ys [16]int) {
	for i := range xs {
		sin, cos := math.Sincos(float64(i) * math.Pi / 8)
		xs[i], ys[i] = int(math.Round(64*cos)), int(math.Round(64*sin))
	}
	return xs, ys
}
