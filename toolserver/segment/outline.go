package segment

import (
	"image"
)

// enlarged returns the class of each pixel of an image of w × h that the network
// saw at side × side in the middle of its input: the largest of the logits,
// interpolated between the four around it. Where all four have the same largest,
// so has what lies between.
func enlarged(logits tensor, side, w, h int) plane {
	best := largest(logits)
	across, down := between(logits.side, side, w), between(logits.side, side, h)
	out := newPlane(w, h)
	for y, v := range down {
		top, bottom := best.row(v.first), best.row(v.second)
		line := out.row(y)
		for x, u := range across {
			c := top[u.first]
			if top[u.second] != c || bottom[u.first] != c || bottom[u.second] != c {
				c = classAt(logits, u, v)
			}
			line[x] = c
		}
	}
	return out
}

// discRadius is the radius, in the logits' pixels, of the disc that a heart is
// rounded with: it moves the cardiothoracic ratio of hearts drawn by people by
// 0.0014 on average (learner/segment.py discs).
const discRadius = 4

// roundHeart gives the heart's thin parts, which no disc inside it reaches, to
// the class beneath. Drawn hearts have none; on logits they run along the
// diaphragm, and the cardiothoracic ratio goes by the outermost columns.
func roundHeart(logits tensor) {
	isHeart := largest(logits)
	for i, c := range isHeart.pix {
		isHeart.pix[i] = c / heart // 1 for the heart, the last class
	}
	core := newPlane(isHeart.w, isHeart.h)
	for i, v := range isHeart.pix {
		if v != 0 && discWithin(isHeart, i%isHeart.w, i/isHeart.w, true) {
			core.pix[i] = 1
		}
	}
	for i, v := range isHeart.pix {
		if v != 0 && !discWithin(core, i%core.w, i/core.w, false) {
			pixel := logits.data[i*classes : (i+1)*classes]
			pixel[heart] = 2*max(pixel[nothing], pixel[rightLung], pixel[leftLung]) - pixel[heart]
		}
	}
}

// discWithin reports whether all pixels of the disc about a pixel are set or, if
// not all are asked for, any is. Outside the plane none is.
func discWithin(p plane, x, y int, all bool) bool {
	for dy := -discRadius; dy <= discRadius; dy++ {
		for dx := -discRadius; dx <= discRadius; dx++ {
			if dx*dx+dy*dy > discRadius*discRadius {
				continue
			}
			u, v := x+dx, y+dy
			if set := u >= 0 && v >= 0 && u < p.w && v < p.h && p.row(v)[u] != 0; set != all {
				return set
			}
		}
	}
	return all
}

// largest returns the class of each of the logits' pixels.
func largest(logits tensor) plane {
	p := newPlane(logits.side, logits.side)
	for i := range p.pix {
		p.pix[i] = argmax([classes]float32(logits.data[i*classes:]))
	}
	return p
}

func argmax(v [classes]float32) uint8 {
	best := nothing
	for c := rightLung; c < classes; c++ {
		if v[c] > v[best] {
			best = c
		}
	}
	return uint8(best)
}

// A blend is a place between two pixels: share of the second.
type blend struct {
	first, second int
	share         float32
}

// between returns where m pixels lie among n of the logits, which span the
// input; the pixels span side of it, in the middle.
func between(n, side, m int) []blend {
	step, margin := float32(n)/inputSide, float32(inputSide-side)/2
	out := make([]blend, m)
	for i := range out {
		at := max(((float32(i)+0.5)*float32(side)/float32(m)+margin)*step-0.5, 0)
		first := min(int(at), n-1)
		out[i] = blend{first, min(first+1, n-1), at - float32(first)}
	}
	return out
}

func classAt(logits tensor, u, v blend) uint8 {
	pixel := func(x, y int) *[classes]float32 {
		return (*[classes]float32)(logits.data[(y*logits.side+x)*classes:])
	}
	a, b := pixel(u.first, v.first), pixel(u.second, v.first)
	c, d := pixel(u.first, v.second), pixel(u.second, v.second)
	var sum [classes]float32
	for i := range sum {
		top := a[i] + (b[i]-a[i])*u.share
		bottom := c[i] + (d[i]-c[i])*u.share
		sum[i] = top + (bottom-top)*v.share
	}
	return argmax(sum)
}

// wholeShare is the share of a class that its largest piece has at least when
// the others are specks to be left out. What falls apart more is kept as it is,
// for mask quality to see.
const wholeShare = 0.90

// Whole returns a mask without its specks, where its largest piece is nearly all
// of it, as a network's masks are left here.
func Whole(m *image.Alpha) *image.Alpha {
	return structure(plane{w: m.Rect.Dx(), h: m.Rect.Dy(), pix: m.Pix}, 255)
}

// structure returns one class as a mask.
func structure(labels plane, class uint8) *image.Alpha {
	runs := runsOf(labels, class)
	joinRuns(runs)
	area, total := make([]int, len(runs)), 0
	best := 0
	for i, r := range runs {
		root := rootOf(runs, i)
		area[root] += r.end - r.first
		total += r.end - r.first
		if area[root] > area[best] {
			best = root
		}
	}
	m := image.NewAlpha(image.Rect(0, 0, labels.w, labels.h))
	for i, r := range runs {
		if rootOf(runs, i) == best || float64(area[best]) < wholeShare*float64(total) {
			line := m.Pix[r.y*m.Stride+r.first : r.y*m.Stride+r.end]
			for j := range line {
				line[j] = 255
			}
		}
	}
	return m
}

// A run is neighbouring pixels of one class in one row. Runs that touch, over a
// side, point to one root.
type run struct {
	y, first, end int
	parent        int
}

func runsOf(labels plane, class uint8) []run {
	var runs []run
	for y := range labels.h {
		line := labels.row(y)
		for x := 0; x < len(line); x++ {
			if line[x] != class {
				continue
			}
			first := x
			for x < len(line) && line[x] == class {
				x++
			}
			runs = append(runs, run{y, first, x, len(runs)})
		}
	}
	return runs
}

// joinRuns joins each run with those above it.
func joinRuns(runs []run) {
	above := 0
	for i, r := range runs {
		for above < i && (runs[above].y < r.y-1 || runs[above].y == r.y-1 && runs[above].end <= r.first) {
			above++
		}
		for j := above; j < i && runs[j].y == r.y-1 && runs[j].first < r.end; j++ {
			a, b := rootOf(runs, i), rootOf(runs, j)
			runs[max(a, b)].parent = min(a, b)
		}
	}
}

func rootOf(runs []run, i int) int {
	for runs[i].parent != i {
		runs[i].parent = runs[runs[i].parent].parent
		i = runs[i].parent
	}
	return i
}
