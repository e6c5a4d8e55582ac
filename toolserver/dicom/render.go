package dicom

import (
	"image"
	"math"
	"slices"
)

// render makes the grey values: modality LUT or rescaling, then VOI LUT or
// window, then the photometric interpretation (PS3.3 C.11.1 and C.11.2, PS3.4
// N.2). Every stored value has one grey value, so that they are made once.
func (m *Image) render(h *header, f *frame) {
	low, high := f.span(h, m.stored.values)
	toUnits := rescaling(h, f)
	toGrey, shown := m.display(h, f, low, high, toUnits)
	m.Shown = shown
	inverted := m.Photometric == "MONOCHROME1"
	least, most := slices.Min(m.stored.values), slices.Max(m.stored.values)
	greys := make([]uint8, most-least+1)
	for i := range greys {
		g := min(max(toGrey(toUnits(float64(least)+float64(i))), 0), 1)
		if inverted {
			g = 1 - g
		}
		greys[i] = uint8(math.Round(255 * g))
	}
	m.Gray = image.NewGray(image.Rect(0, 0, f.columns, f.rows))
	for i, v := range m.stored.values {
		m.Gray.Pix[i] = greys[v-least]
	}
}

// span returns the least and greatest stored value, padding left out.
func (f *frame) span(h *header, values []int32) (low, high int32) {
	from, to, padded := f.padding(h)
	low, high = math.MaxInt32, math.MinInt32
	for _, v := range values {
		if padded && v >= from && v <= to {
			continue
		}
		low, high = min(low, v), max(high, v)
	}
	if low > high { // nothing but padding
		return from, to
	}
	return low, high
}

func (f *frame) padding(h *header) (from, to int32, ok bool) {
	p, ok := h.number(tagPadding)
	if !ok {
		return 0, 0, false
	}
	q, ranged := h.number(tagPaddingLimit)
	if !ranged {
		q = p
	}
	from, to = f.value(uint16(p)), f.value(uint16(q))
	return min(from, to), max(from, to), true
}

// rescaling returns the map from stored values to modality units.
func rescaling(h *header, f *frame) func(float64) float64 {
	if t := lutOf(h.item(tagModalityLUT), f.signed); t != nil {
		return t.at
	}
	slope, intercept := h.decimals(tagSlope), h.decimals(tagIntercept)
	if len(slope) != 1 || len(intercept) != 1 || slope[0] == 0 {
		return func(v float64) float64 { return v }
	}
	return func(v float64) float64 { return slope[0]*v + intercept[0] }
}

// display returns the map from modality units to 0 … 1, and its name: the first
// VOI LUT, else the first usable window, else all of what 8 bits hold, else the
// range from the least to the greatest value.
func (m *Image) display(h *header, f *frame, low, high int32, toUnits func(float64) float64) (func(float64) float64, string) {
	if t := lutOf(h.item(tagVOILUT), toUnits(float64(low)) < 0); t != nil {
		top := float64(int(1)<<t.bits - 1)
		return func(v float64) float64 { return t.at(v) / top }, "voi_lut"
	}
	if w, ok := m.window(h); ok {
		return w, "window"
	}
	a, b := toUnits(float64(low)), toUnits(float64(high))
	shown := "range"
	if f.stored <= 8 && !f.signed {
		a, b, shown = toUnits(0), toUnits(float64(int(1)<<f.stored-1)), "full_range"
	}
	if a > b {
		a, b = b, a
	}
	return func(v float64) float64 { return (v - a) / max(b-a, 1e-9) }, shown
}

// window returns the first pair of centre and width that can be used.
func (m *Image) window(h *header) (func(float64) float64, bool) {
	centres, widths := h.decimals(tagCentre), h.decimals(tagWidth)
	function := h.term(tagVOIFunction)
	for i := range min(len(centres), len(widths)) {
		c, w := centres[i], widths[i]
		switch {
		case function == "SIGMOID" && w > 0:
			return func(v float64) float64 { return 1 / (1 + math.Exp(-4*(v-c)/w)) }, true
		case function == "LINEAR_EXACT" && w > 0:
			return func(v float64) float64 { return (v-c)/w + 0.5 }, true
		case w == 1:
			return func(v float64) float64 { return step(v > c-0.5) }, true
		case w > 1:
			return func(v float64) float64 { return (v-(c-0.5))/(w-1) + 0.5 }, true
		}
	}
	if len(centres)+len(widths) > 0 {
		m.Notes = append(m.Notes, "no window is usable: it was left out")
	}
	return nil, false
}

func step(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// A lut maps whole numbers from first on.
type lut struct {
	first  float64
	bits   int
	values []float64
}

// lutOf reads a look-up table (PS3.3 C.11.1.1): descriptor of entries, first
// input and bits, then the data. nil: none that can be used.
func lutOf(item *header, signed bool) *lut {
	if item == nil {
		return nil
	}
	d, data := item.values[tagLUTShape].value, item.values[tagLUTData].value
	if len(d) < 6 {
		return nil
	}
	o := item.syntax.order
	n, bits := int(o.Uint16(d)), int(o.Uint16(d[4:]))
	if n == 0 {
		n = 1 << 16
	}
	t := &lut{first: float64(o.Uint16(d[2:])), bits: bits, values: make([]float64, n)}
	if signed || item.values[tagLUTShape].vr == "SS" {
		t.first = float64(int16(o.Uint16(d[2:])))
	}
	if bits < 8 || bits > 16 || !t.fill(data, o.Uint16) {
		return nil
	}
	return t
}

// fill takes entries of 16 bits, or packed ones of 8.
func (t *lut) fill(data []byte, at func([]byte) uint16) bool {
	for i := range t.values {
		switch n := len(t.values); {
		case len(data) >= 2*n:
			t.values[i] = float64(at(data[2*i:]))
		case len(data) >= n && t.bits == 8:
			t.values[i] = float64(data[i])
		default:
			return false
		}
	}
	return true
}

func (t *lut) at(v float64) float64 {
	i := math.Round(v - t.first)
	return t.values[int(min(max(i, 0), float64(len(t.values)-1)))]
}
