package measure

import (
	"fmt"
	"math"

	"xragent/dataset"
	"xragent/rollout"
)

// The names of measurements beside those of the bundle.
const (
	CarinalAngle     = "carinal_angle"     // degrees, between the main bronchi's lower walls
	MediastinalRatio = "mediastinal_ratio" // upper mediastinum over the chest's width
)

// The variants of the cardiothoracic ratio. They differ by several points on
// the same masks, so that a ratio always bears its variant's name.
const (
	// ColumnExtent is the heart's widest horizontal extent over the lungs', each
	// wherever it is widest: the bounding-box form used on segmentations.
	ColumnExtent = "column_extent"
	// WidestRow is the sum of the heart's greatest distances to either side of a
	// midline over the widest single row of the chest: the form of the textbooks.
	WidestRow = "widest_row"
	// HeartRow takes both widths on the heart's widest row.
	HeartRow = "heart_row"
)

// Variants lists the cardiothoracic ratio's variants, the default first.
var Variants = []string{ColumnExtent, WidestRow, HeartRow}

// A Number is a measurement with what it was made from.
type Number struct {
	Name    string  `json:"name"`
	Variant string  `json:"variant,omitempty"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit,omitempty"` // "" for ratios
	// Z is the distance from a reference in its standard deviations; Reference
	// names it and is empty where there is none.
	Z         float64 `json:"z,omitempty"`
	Reference string  `json:"reference,omitempty"`
	Lines     []Line  `json:"lines,omitempty"`
	Points    []Point `json:"points,omitempty"`
}

// scaled fills in millimetres where the spacing, of square pixels, is known.
func (n Number) scaled(spacingMM float64) Number {
	for i, l := range n.Lines {
		n.Lines[i].MM = spacingMM * math.Hypot(l.B.X-l.A.X, l.B.Y-l.A.Y)
	}
	return n
}

// Numbers returns every measurement that the masks allow, in a fixed order; what
// they do not allow is left out, and so are angles where pixels may not be
// square. Millimetres stand where meta knows the spacing.
func Numbers(s Structures, variant string, meta dataset.Image) []Number {
	spacingMM := meta.SpacingMM
	var list []Number
	keep := func(n Number, err error) {
		if err == nil && !math.IsNaN(n.Value) && !math.IsInf(n.Value, 0) {
			list = append(list, n)
		}
	}
	ctr, err := CTR(s, variant, spacingMM)
	keep(ctr, err)
	ref := people
	if err != nil {
		ref = Reference{}
	}
	keep(Asymmetry(s, ref, ctr.Value))
	keep(Shift(s, spacingMM))
	keep(UpperMediastinum(s, spacingMM))
	if meta.SquarePx {
		keep(Carina(s))
	}
	return list
}

// CTR returns the cardiothoracic ratio in one of the variants.
func CTR(s Structures, variant string, spacingMM float64) (Number, error) {
	right, left, err := s.lungs()
	if err == nil {
		err = s.need("right lung", "left lung", "heart")
	}
	if err != nil {
		return Number{}, fmt.Errorf("cardiothoracic ratio: %w", err)
	}
	var heart, chest Line
	switch variant {
	case ColumnExtent:
		heart = columns("heart", s.Heart).level()
		chest = Line{Name: "chest", A: Point{float64(right.Min.X), rowOf(s.RightLung, right, true)}, B: Point{float64(left.Max.X), rowOf(s.LeftLung, left, false)}}.level()
	case WidestRow:
		heart = columns("heart", s.Heart)
		chest = widest("chest", s.chestRow, right.Union(left).Min.Y, right.Union(left).Max.Y)
	case HeartRow:
		r := bounds(s.Heart)
		heart = widest("heart", func(y int) (int, int, bool) { return row(s.Heart, y) }, r.Min.Y, r.Max.Y)
		y := int(heart.A.Y)
		first, end, ok := s.chestRow(y)
		if !ok {
			return Number{}, fmt.Errorf("cardiothoracic ratio, %s: no lung on both sides of row %d, where the heart is widest", variant, y)
		}
		chest = Line{Name: "chest", A: Point{float64(first), heart.A.Y}, B: Point{float64(end), heart.A.Y}}
	default:
		return Number{}, fmt.Errorf("cardiothoracic ratio: variant is %q, want one of %v", variant, Variants)
	}
	n := Number{Name: rollout.CTR, Variant: variant, Value: heart.width() / chest.width(), Lines: []Line{heart, chest}}
	if variant == WidestRow {
		n = s.fromMidline(n, heart)
	}
	return n.scaled(spacingMM), nil
}

// fromMidline draws the heart's width as its two parts; their sum is the width
// wherever the midline lies within the heart.
func (s Structures) fromMidline(n Number, heart Line) Number {
	x := min(max(s.midline(), heart.A.X), heart.B.X)
	n.Lines = []Line{
		{Name: "heart, right of the midline", A: heart.A, B: Point{x, heart.A.Y}},
		{Name: "heart, left of the midline", A: Point{x, heart.B.Y}, B: heart.B},
		n.Lines[1],
	}
	return n
}

// chestRow returns the chest's extent on a row that has both lungs.
func (s Structures) chestRow(y int) (first, end int, ok bool) {
	first, _, a := row(s.RightLung, y)
	_, end, b := row(s.LeftLung, y)
	return first, end, a && b && first < end
}

// widest returns the widest row, the first of equal ones.
func widest(name string, at func(y int) (int, int, bool), from, to int) Line {
	best := Line{Name: name}
	for y := from; y < to; y++ {
		if first, end, ok := at(y); ok && float64(end-first) > best.width() {
			best.A, best.B = Point{float64(first), float64(y) + 0.5}, Point{float64(end), float64(y) + 0.5}
		}
	}
	return best
}

// midline returns the spine's x where it is known, else the middle between the
// chest's outer walls.
func (s Structures) midline() float64 {
	if s.need("spine") == nil {
		return centre(s.Spine)
	}
	right, left, _ := s.lungs()
	return float64(right.Min.X+left.Max.X) / 2
}

// A Reference is what healthy lungs' ln(A_R/A_L) is with one kind of masks. It
// grows with the heart, which stands on the left lung's side, where the heart is
// cut out of the lungs.
type Reference struct {
	Name      string
	Intercept float64 // at a cardiothoracic ratio of 0
	Slope     float64 // by the ratio
	SD        float64
}

// Asymmetry returns ln(A_R/A_L), A being the lungs' areas, with its distance
// from a reference; ctr is the ratio on the same masks.
func Asymmetry(s Structures, ref Reference, ctr float64) (Number, error) {
	if _, _, err := s.lungs(); err != nil {
		return Number{}, fmt.Errorf("lung asymmetry: %w", err)
	}
	_, right := extent(s.RightLung)
	_, left := extent(s.LeftLung)
	n := Number{Name: rollout.Asymmetry, Variant: "ln_area_ratio", Value: math.Log(float64(right) / float64(left)),
		Points: []Point{centroid(s.RightLung), centroid(s.LeftLung)}}
	if ref.SD > 0 {
		n.Z, n.Reference = (n.Value-ref.Intercept-ref.Slope*ctr)/ref.SD, ref.Name
	}
	return n, nil
}

// Shift returns how far the trachea, or without it the upper mediastinum, lies
// from the spine, or without it from the middle between the chest's walls, as a
// share of the chest's width. Positive is to the patient's left. The heart's
// place is not used: a large heart would look like a shift.
func Shift(s Structures, spacingMM float64) (Number, error) {
	right, left, err := s.lungs()
	if err != nil {
		return Number{}, fmt.Errorf("thoracic shift: %w", err)
	}
	y0, y1 := s.upperRows()
	from, what := s.airway(y0, y1)
	to, against := s.wallsBetween(y0, y1), "walls"
	if s.need("spine") == nil {
		to, against = rowsCentre(s.Spine, y0, y1), "spine"
	}
	if math.IsNaN(from) || math.IsNaN(to) {
		return Number{}, fmt.Errorf("thoracic shift: no %s or %s in rows %d to %d, between the lungs' upper parts", what, against, y0, y1)
	}
	y := float64(y0+y1) / 2
	n := Number{Name: rollout.Shift, Variant: what + "_" + against, Value: (from - to) / float64(left.Max.X-right.Min.X),
		Lines: []Line{{Name: against, A: Point{to, float64(y0)}, B: Point{to, float64(y1)}}, {Name: "shift", A: Point{to, y}, B: Point{from, y}}}}
	return n.scaled(spacingMM), nil
}

// upperRows are the rows of the upper mediastinum: 20 to 40 % of the height
// that both lungs share, from the apices.
func (s Structures) upperRows() (from, to int) {
	right, left, _ := s.lungs()
	top, height := max(right.Min.Y, left.Min.Y), min(right.Max.Y, left.Max.Y)-max(right.Min.Y, left.Min.Y)
	return top + height/5, top + 2*height/5
}

// airway returns the x of the trachea, else of the mediastinum, else of the
// middle between the lungs' inner edges, and which.
func (s Structures) airway(y0, y1 int) (x float64, what string) {
	switch {
	case s.need("trachea") == nil:
		return rowsCentre(s.Trachea, y0, y1), "trachea"
	case s.need("mediastinum") == nil:
		return rowsCentre(s.Mediastinum, y0, y1), "mediastinum"
	}
	return rowsMean(y0, y1, func(y int) (float64, bool) {
		first, end, ok := s.gap(y)
		return (first + end) / 2, ok
	}), "mediastinum"
}

// wallsBetween returns the middle between the chest's outer walls.
func (s Structures) wallsBetween(y0, y1 int) float64 {
	return rowsMean(y0, y1, func(y int) (float64, bool) {
		first, end, ok := s.chestRow(y)
		return float64(first+end) / 2, ok
	})
}

// gap returns the extent between the lungs' inner edges on a row.
func (s Structures) gap(y int) (first, end float64, ok bool) {
	_, a, okA := row(s.RightLung, y)
	b, _, okB := row(s.LeftLung, y)
	return float64(a), float64(b), okA && okB && a <= b
}

// UpperMediastinum returns the width of the upper mediastinum over the chest's:
// the mask's widest row, or without a mask the median gap between the lungs.
func UpperMediastinum(s Structures, spacingMM float64) (Number, error) {
	right, left, err := s.lungs()
	if err != nil {
		return Number{}, fmt.Errorf("mediastinal ratio: %w", err)
	}
	chest := float64(left.Max.X - right.Min.X)
	y0, y1 := s.upperRows()
	n := Number{Name: MediastinalRatio, Variant: "lung_gap"}
	var line Line
	if s.need("mediastinum") == nil {
		n.Variant = "mask"
		line = widest("mediastinum", func(y int) (int, int, bool) { return row(s.Mediastinum, y) }, 0, s.Mediastinum.Rect.Dy())
	} else {
		line = s.medianGap(y0, y1)
	}
	if line.width() <= 0 {
		return Number{}, fmt.Errorf("mediastinal ratio: no rows with both lungs between %d and %d", y0, y1)
	}
	n.Value, n.Lines = line.width()/chest, []Line{line}
	return n.scaled(spacingMM), nil
}
