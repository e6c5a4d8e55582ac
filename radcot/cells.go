package radcot

import (
	"fmt"
	"hash/fnv"
	"image"
	"math"
	"math/rand/v2"
	"slices"

	"xragent/chat"
	"xragent/dataset/phantom"
	"xragent/rollout"
	"xragent/trainer/batch"
)

// CellsASide is how many cells a view is cut into each way: one for each token
// that the vision tower of the small policy makes of it.
const CellsASide = 4

// What a cell holds, the foremost first.
var cellWords = [...]string{"smooth", "spiculated", "tip", "tube", "line", "fluid", "scar", "opaque", "heart", "lung", "wall"}

const (
	cellSmooth = iota
	cellSpiculated
	cellTip
	cellTube
	cellLine
	cellFluid
	cellScar
	cellOpaque
	cellHeart
	cellLung
	cellWall
)

// least is how many source pixels make a finding count in a cell.
const least = 10

// An Atlas says what lies where on a frontal phantom, from its masks and
// findings: within a pixel or two of what the generator draws.
type Atlas struct {
	truth        phantom.Truth
	lungs        [2]phantom.Mask // right, left
	heart        phantom.Mask
	outer, floor [2][]int // of each lung, by row and by column; -1: none
	carina       image.Point
}

// NewAtlas draws the masks of a frontal phantom.
func NewAtlas(t phantom.Truth) *Atlas {
	m := t.Masks()
	a := &Atlas{truth: t, lungs: [2]phantom.Mask{m.RightLung, m.LeftLung}, heart: m.Heart}
	inner := [2][]int{}
	for side, lung := range a.lungs {
		a.outer[side], inner[side], a.floor[side] = edges(lung, side)
	}
	top := phantom.Size
	for y := range phantom.Size {
		if a.outer[0][y] >= 0 {
			top = y
			break
		}
	}
	const carinaBelow = 92 // pixels, where the generator puts it; the masks do not show it
	y := min(top+carinaBelow, phantom.Size-1)
	if inner[0][y] >= 0 && inner[1][y] >= 0 {
		a.carina = image.Pt((inner[0][y]+inner[1][y])/2, y)
	}
	return a
}

// edges returns a lung's outermost and innermost column in each row and its
// lowest row in each column.
func edges(lung phantom.Mask, side int) (outer, inner, floor []int) {
	outer, inner, floor = make([]int, phantom.Size), make([]int, phantom.Size), make([]int, phantom.Size)
	for i := range outer {
		outer[i], inner[i], floor[i] = -1, -1, -1
	}
	for y := range phantom.Size {
		for i := range phantom.Size {
			x := i // from the outside in: the right lung lies on the image's left
			if side == 1 {
				x = phantom.Size - 1 - i
			}
			if lung.Pix[y*lung.Stride+x] == 0 {
				continue
			}
			if outer[y] < 0 {
				outer[y] = x
			}
			inner[y], floor[x] = x, y
		}
	}
	return outer, inner, floor
}

// Window draws a square as large as a crop shows, half of the time around a
// part of a finding.
func (a *Atlas) Window(rng *rand.Rand) image.Rectangle {
	const side = phantom.Size / 4
	at := image.Pt(rng.IntN(phantom.Size), 40+rng.IntN(phantom.Size-80))
	if n := len(a.truth.Findings); n > 0 && rng.IntN(2) == 0 {
		if seen := a.points(a.truth.Findings[rng.IntN(n)]); len(seen) > 0 {
			at = seen[rng.IntN(len(seen))].Add(image.Pt(rng.IntN(side)-side/2, rng.IntN(side)-side/2))
		}
	}
	x, y := max(0, min(phantom.Size-side, at.X-side/2)), max(0, min(phantom.Size-side, at.Y-side/2))
	return image.Rect(x, y, x+side, y+side)
}

// points returns pixels at which a finding shows.
func (a *Atlas) points(f phantom.Finding) []image.Point {
	const step = 3
	var out []image.Point
	for y := 0; y < phantom.Size; y += step {
		for x := 0; x < phantom.Size; x += step {
			if a.finding(f, x, y) >= 0 {
				out = append(out, image.Pt(x, y))
			}
		}
	}
	return out
}

// Cells returns a word for each cell of a window, row by row. The view of the
// whole film shows large findings only, a window of it all.
func (a *Atlas) Cells(window image.Rectangle) []string {
	whole := window.Dx() >= phantom.Size
	var out []string
	for row := range CellsASide {
		for col := range CellsASide {
			cell := image.Rect(window.Min.X+window.Dx()*col/CellsASide, window.Min.Y+window.Dy()*row/CellsASide,
				window.Min.X+window.Dx()*(col+1)/CellsASide, window.Min.Y+window.Dy()*(row+1)/CellsASide)
			out = append(out, cellWords[a.cell(cell, whole)])
		}
	}
	return out
}

func (a *Atlas) cell(r image.Rectangle, whole bool) int {
	var n [len(cellWords)]int
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			n[a.tissue(x, y)]++
			for _, f := range a.truth.Findings {
				if whole && !f.Large() && f.Name != "tube" {
					continue
				}
				if word := a.finding(f, x, y); word >= 0 {
					n[word]++
				}
			}
		}
	}
	for word := range cellHeart {
		if n[word] >= least {
			return word
		}
	}
	most := cellHeart
	for word := cellHeart; word < len(n); word++ {
		if n[word] > n[most] {
			most = word
		}
	}
	return most
}

func (a *Atlas) tissue(x, y int) int {
	at := y*phantom.Size + x
	switch {
	case a.lungs[0].Pix[at] > 0 || a.lungs[1].Pix[at] > 0:
		return cellLung
	case a.heart.Pix[at] > 0:
		return cellHeart
	}
	return cellWall
}

// finding returns the word for a pixel of a finding, -1 where it shows nothing.
func (a *Atlas) finding(f phantom.Finding, x, y int) int {
	side := 0
	if f.Side == "left" {
		side = 1
	}
	switch r := f.SizeMM / phantom.SpacingMM / 2; {
	case f.Name == phantom.Nodule && math.Hypot(float64(x)-f.X, float64(y)-f.Y) < r:
		if f.Margin == "smooth" {
			return cellSmooth
		}
		return cellSpiculated
	case f.Name == phantom.Consolidation && math.Hypot((float64(x)-f.X)/1.1, (float64(y)-f.Y)/0.9) < 0.9*r:
		return cellOpaque
	case f.Name == "tube" || f.Name == phantom.TubeMalposition:
		return a.tube(f.TipMM/phantom.SpacingMM, x, y)
	case f.Name == phantom.Pneumothorax && a.lungs[side].Pix[y*phantom.Size+x] > 0:
		if depth := math.Abs(float64(x - a.outer[side][y])); math.Abs(depth-f.SizeMM/phantom.SpacingMM) < 2 {
			return cellLine
		}
	case f.Name == phantom.Effusion && a.angle(side, x, y):
		return cellFluid
	case f.Name == phantom.Scar && a.angle(side, x, y):
		return cellScar
	}
	return -1
}

// tube runs down to its tip, so many pixels below the carina; there into the
// right main bronchus.
func (a *Atlas) tube(tip float64, x, y int) int {
	if a.carina == (image.Point{}) {
		return -1
	}
	dx, dy := float64(x-a.carina.X), float64(y-a.carina.Y)
	at := 0.0 // the tube's column, from the carina's
	if dy > 0 {
		at = -0.75 * dy
	}
	switch end := max(0, tip); {
	case math.Hypot(dx+0.75*end, dy-tip) < 5:
		return cellTip
	case dy < tip && math.Abs(dx-at) < 3:
		return cellTube
	}
	return -1
}

// angle holds the outer third of a lung's lower surface.
func (a *Atlas) angle(side, x, y int) bool {
	floor := a.floor[side][x]
	if floor < 0 || y < floor-6 || y > floor+14 {
		return false
	}
	outer := a.outer[side][floor]
	width := math.Abs(float64(outer - a.carina.X))
	return math.Abs(float64(x-a.carina.X)) > 0.66*width
}

// Of the cells without a finding so many are told: there are twenty for one with.
const commonCells = 0.2

// A Grid is an image with the words of its cells.
type Grid struct {
	Use   rollout.ImageUse
	Cells []string
}

// GridRow is a row of images in which each token of the vision tower is told
// what it shows. Where one small thing decides what is said of an image, a policy
// that knows nothing finds it only after very many films; and words that name the
// cells one after another ask it to find each word's cell as well.
func GridRow(id string, grids []Grid, merge int, d DrillDeps) (batch.Row, error) {
	h := fnv.New64a()
	h.Write([]byte(id))
	rng := rand.New(rand.NewPCG(h.Sum64(), 0))
	words := d.cellIDs()
	var ids, marks []int32
	var uses []rollout.ImageUse
	for i, g := range grids {
		shown, err := chat.Expand(d.Codec.Encode(chat.ImageMark), []int{g.Use.PadTokens(merge)}, d.Codec.ImagePad())
		if err != nil {
			return batch.Row{}, fmt.Errorf("%s: image %d: %w", id, i+1, err)
		}
		next := 0
		for _, t := range shown {
			mark := int32(-1)
			if t == d.Codec.ImagePad() && next < len(g.Cells) {
				if word := g.Cells[next]; !plain(word) || rng.Float64() < commonCells {
					mark = words[word]
				}
				next++
			}
			ids, marks = append(ids, t), append(marks, mark)
		}
		uses = append(uses, g.Use)
		if next != len(g.Cells) || g.Use.PadTokens(merge) != next {
			return batch.Row{}, fmt.Errorf("%s: image %d has %d tokens, %d cells are told", id, i+1, g.Use.PadTokens(merge), len(g.Cells))
		}
	}
	return batch.FromMarks(id, ids, marks, uses), nil
}

// plain reports whether a cell's word is no finding's.
func plain(word string) bool { return slices.Contains(cellWords[cellHeart:], word) }

// cellIDs are the ids of the words, each as it stands inside a sentence; of a
// word with more than one id the first.
func (d DrillDeps) cellIDs() map[string]int32 {
	ids := map[string]int32{}
	for _, w := range cellWords {
		ids[w] = d.Codec.Encode(" " + w)[0]
	}
	return ids
}
