package dicom

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustDecode(t testing.TB, file []byte) *Image {
	t.Helper()
	m, err := Decode(file, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var hundreds = []int32{0, 100, 200, 300, 400, 500, 600, 700}

func TestEncodings(t *testing.T) {
	fields := film()
	for name, data := range map[string][]byte{
		"implicit little endian":          part10(syntaxRoot, encoded(implicitLittle, fields)),
		"explicit little endian":          part10(syntaxRoot+".1", encoded(explicitLittle, fields)),
		"explicit big endian":             part10(syntaxRoot+".2", encoded(explicitBig, fields)),
		"deflated explicit little endian": part10(syntaxRoot+".1.99", deflated(t, encoded(explicitLittle, fields))),
		"RLE":                             packedFile(syntaxRoot+".5", fragments(rleOf(hundreds))),
	} {
		m := mustDecode(t, data)
		if !slices.Equal(m.Stored(), hundreds) || m.Syntax != name {
			t.Errorf("%s: stored %v in %s", name, m.Stored(), m.Syntax)
		}
	}
	for name, data := range map[string][]byte{
		"bare implicit":              encoded(implicitLittle, fields),
		"bare explicit":              encoded(explicitLittle, fields),
		"bare big endian":            encoded(explicitBig, fields),
		"meta without preamble":      part10(syntaxRoot+".2", encoded(explicitBig, fields))[magicAt+4:],
		"says implicit, is explicit": part10(syntaxRoot, encoded(explicitLittle, fields)),
		"says explicit, is implicit": part10(syntaxRoot+".1", encoded(implicitLittle, fields)),
	} {
		if m := mustDecode(t, data); !slices.Equal(m.Stored(), hundreds) || !Is(data) {
			t.Errorf("%s: stored %v", name, m.Stored())
		}
	}
}

// rleOf packs 16-bit values as two literal segments.
func rleOf(values []int32) []byte {
	var high, low []byte
	for _, v := range values {
		high, low = append(high, byte(v>>8)), append(low, byte(v))
	}
	head := make([]byte, 64)
	o := binary.LittleEndian
	o.PutUint32(head, 2)
	o.PutUint32(head[4:], 64)
	o.PutUint32(head[8:], uint32(64+1+len(high)))
	head = append(append(head, byte(len(high)-1)), high...)
	return append(append(head, byte(len(low)-1)), low...)
}

func TestStoredValues(t *testing.T) {
	bytesOf := func(v ...byte) field { return field{tagPixels, "OW", v} }
	bits := func(allocated, stored, high, signed int) []field {
		return []field{{tagAllocated, "US", []int{allocated}}, {tagStored, "US", []int{stored}}, {tagHighBit, "US", []int{high}}, {tagSigned, "US", []int{signed}}}
	}
	for name, c := range map[string]struct {
		fields []field
		want   []int32
	}{
		"8 bits":          {append(bits(8, 8, 7, 0), bytesOf(0, 1, 2, 3, 252, 253, 254, 255)), []int32{0, 1, 2, 3, 252, 253, 254, 255}},
		"signed":          {append(bits(16, 12, 11, 1), field{tagPixels, "OW", []int{0, 1, 2047, 0x0fff, 0x0800, 0xffff, 0xf800, 5}}), []int32{0, 1, 2047, -1, -2048, -1, -2048, 5}},
		"overlay bits":    {append(bits(16, 12, 11, 0), field{tagPixels, "OW", []int{0xf000, 0xf064, 200, 300, 400, 500, 600, 0x12bc}}), hundreds},
		"high bits":       {append(bits(16, 12, 15, 0), field{tagPixels, "OW", []int{0, 1600, 3200, 4800, 6400, 8000, 9600, 11200}}), hundreds},
		"16 bits":         {append(bits(16, 16, 15, 0), field{tagPixels, "OW", []int{0, 65535, 2, 3, 4, 5, 6, 7}}), []int32{0, 65535, 2, 3, 4, 5, 6, 7}},
		"padding at last": {append(bits(16, 12, 11, 0), field{tagPixels, "OW", []int{0, 100, 200, 300, 400, 500, 600, 700, 9, 9}}), hundreds},
	} {
		if m := mustDecode(t, file(c.fields...)); !slices.Equal(m.Stored(), c.want) {
			t.Errorf("%s: %v, want %v", name, m.Stored(), c.want)
		}
	}
}

func TestBigEndianBytes(t *testing.T) {
	fields := film(field{tagAllocated, "US", []int{8}}, field{tagStored, "US", []int{8}}, field{tagHighBit, "US", []int{7}},
		field{tagPixels, "OW", []byte{1, 0, 3, 2, 5, 4, 7, 6}})
	if m := mustDecode(t, part10(syntaxRoot+".2", encoded(explicitBig, fields))); !slices.Equal(m.Stored(), []int32{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("words of two bytes: %v", m.Stored())
	}
}

func lutItem(first, bits int, values ...int) field {
	return field{0, "SQ", items{{{tagLUTShape, "US", []int{len(values), first, bits}}, {tagLUTData, "OW", values}}}}
}

func TestDisplay(t *testing.T) {
	at := func(f field, t tag) field { f.tag = t; return f }
	text := func(t tag, s string) field { return field{t, "DS", s} }
	window := []field{text(tagCentre, "350.5"), text(tagWidth, "701")}
	for _, c := range []struct {
		name   string
		fields []field
		shown  string
		want   []uint8
	}{
		{"range", nil, "range", []uint8{0, 36, 73, 109, 146, 182, 219, 255}},
		{"inverted", []field{{tagPhotometric, "CS", "MONOCHROME1"}}, "range", []uint8{255, 219, 182, 146, 109, 73, 36, 0}},
		{"window", window, "window", []uint8{0, 36, 73, 109, 146, 182, 219, 255}},
		{"several windows", []field{text(tagCentre, `350.5\100`), text(tagWidth, `701\2`)}, "window", []uint8{0, 36, 73, 109, 146, 182, 219, 255}},
		{"width 0", []field{text(tagCentre, "350"), text(tagWidth, "0")}, "range", []uint8{0, 36, 73, 109, 146, 182, 219, 255}},
		{"narrow", []field{text(tagCentre, "300"), text(tagWidth, "1")}, "window", []uint8{0, 0, 0, 255, 255, 255, 255, 255}},
		{"exact", []field{text(tagCentre, "350"), text(tagWidth, "700"), {tagVOIFunction, "CS", "LINEAR_EXACT"}}, "window", []uint8{0, 36, 73, 109, 146, 182, 219, 255}},
		{"sigmoid", []field{text(tagCentre, "350"), text(tagWidth, "700"), {tagVOIFunction, "CS", "SIGMOID"}}, "window", []uint8{30, 49, 76, 109, 146, 179, 206, 225}},
		{"rescaled", []field{text(tagSlope, "2"), text(tagIntercept, "-100"), text(tagCentre, "600.5"), text(tagWidth, "1401")}, "window", []uint8{0, 36, 73, 109, 146, 182, 219, 255}},
		{"negative slope", []field{text(tagSlope, "-1"), text(tagIntercept, "700")}, "range", []uint8{255, 219, 182, 146, 109, 73, 36, 0}},
		{"modality LUT", []field{at(lutItem(100, 16, slices.Repeat([]int{9}, 700)...), tagModalityLUT), text(tagCentre, "9.5"), text(tagWidth, "3")}, "window", slices.Repeat([]uint8{128}, 8)},
		{"VOI LUT before window", append(window, at(lutItem(699, 8, 0, 255), tagVOILUT)), "voi_lut", []uint8{0, 0, 0, 0, 0, 0, 0, 255}},
		{"padding", []field{{tagPadding, "US", []int{700}}}, "range", []uint8{0, 43, 85, 128, 170, 213, 255, 255}},
		{"constant", []field{{tagPixels, "OW", []int{5, 5, 5, 5, 5, 5, 5, 5}}}, "range", make([]uint8, 8)},
	} {
		m := mustDecode(t, file(c.fields...))
		if m.Shown != c.shown || !slices.Equal(m.Gray.Pix, c.want) {
			t.Errorf("%s: %v by %s, want %v by %s", c.name, m.Gray.Pix, m.Shown, c.want, c.shown)
		}
	}
}

func TestView(t *testing.T) {
	code := func(code, meaning string) field {
		return field{tagViewCode, "SQ", items{{{tagCode, "SH", code}, {tagCodeMeaning, "LO", meaning}}}}
	}
	position := func(s string) field { return field{tagViewPosition, "CS", s} }
	protocol := func(s string) field { return field{tagProtocol, "LO", s} }
	for _, c := range []struct {
		fields []field
		view   View
		from   string
	}{
		{nil, Unknown, ""},
		{[]field{position("PA")}, PA, "view_position"},
		{[]field{position("AP"), code("272479007", "postero-anterior"), protocol("CHEST PA")}, AP, "view_position"},
		{[]field{position("LL")}, Lateral, "view_position"},
		{[]field{position("LLD")}, Other, "view_position"},
		{[]field{position(""), code("R-10214", ""), protocol("CHEST AP")}, PA, "view_code"},
		{[]field{code("x", "antero-posterior")}, AP, "view_code"},
		{[]field{code("x", "left lateral")}, Lateral, "view_code"},
		{[]field{code("x", "y"), protocol("Chest P.A. erect")}, PA, "protocol_name"},
		{[]field{protocol("Thorax ap bed")}, AP, "protocol_name"},
		{[]field{protocol("CHEST PA + LAT")}, Unknown, "protocol_name"},
		{[]field{position(`LAT\PA`), protocol("CHEST")}, Unknown, "view_position"},
		{[]field{position("PA/LAT"), protocol("CHEST AP")}, AP, "protocol_name"},
		{[]field{position("XTABLE LATERAL")}, Lateral, "view_position"},
		{[]field{position("AXIAL")}, Other, "view_position"},
		{[]field{position("FRONTAL")}, Unknown, ""},
		{[]field{protocol("CHEST LEFT LATERAL DECUBITUS AP")}, Other, "protocol_name"},
		{[]field{protocol("RIBS RAO")}, Other, "protocol_name"},
		{[]field{protocol("CHEST DECUBITUS")}, Other, "protocol_name"},
		{[]field{protocol("PAPER")}, Unknown, ""},
	} {
		m := mustDecode(t, file(c.fields...))
		if m.View != c.view || m.ViewFrom != c.from {
			t.Errorf("%v: view %q from %q, want %q from %q", c.fields, m.View, m.ViewFrom, c.view, c.from)
		}
	}
}

func TestSpacing(t *testing.T) {
	ds := func(t tag, s string) field { return field{t, "DS", s} }
	for _, c := range []struct {
		fields []field
		want   Spacing
	}{
		{nil, Spacing{Square: true}},
		{[]field{ds(tagPixelSpacing, `0.2\0.1`)}, Spacing{0.2, 0.1, "pixel_spacing", false}},
		{[]field{ds(tagImagerSpace, `0.14\0.14`)}, Spacing{0.14, 0.14, "imager_spacing", true}},
		{[]field{ds(tagImagerSpace, `0.14\0.14`), ds(tagPixelSpacing, `0.14\0.14`)}, Spacing{0.14, 0.14, "imager_spacing", true}},
		{[]field{ds(tagImagerSpace, `0.14\0.14`), ds(tagPixelSpacing, `0.1\0.1`)}, Spacing{0.1, 0.1, "calibrated_spacing", true}},
		{[]field{ds(tagPixelSpacing, `0.1\0.1`), {tagSpacingFrom, "CS", "FIDUCIAL"}}, Spacing{0.1, 0.1, "calibrated_spacing", true}},
		{[]field{ds(tagImagerSpace, `0.25\0.25`), ds(tagMagnified, "1.25")}, Spacing{0.2, 0.2, "imager_spacing_corrected", true}},
		{[]field{ds(tagPixelSpacing, `0\0`)}, Spacing{Square: true}},
		{[]field{ds(tagPixelSpacing, `NaN\1`)}, Spacing{Square: true}},
		{[]field{{tagAspect, "IS", `4\3`}}, Spacing{}},
	} {
		if m := mustDecode(t, file(c.fields...)); m.Spacing != c.want {
			t.Errorf("%v: %+v, want %+v", c.fields, m.Spacing, c.want)
		}
	}
}

func TestFacts(t *testing.T) {
	for s, want := range map[string]float64{"058Y": 58, "006M": 0.5, "095Y": 90, "000Y": 1 / 365.25, "005y": 5, "1.5Y": 1.5, "005X": 0, "NaNY": 0, "": 0, "Y": 0, "abcY": 0, "058": 0, "014D": 14 / 365.25} {
		m := mustDecode(t, file(field{tagAge, "AS", s}))
		if math.Abs(m.AgeYears-want) > 1e-9 {
			t.Errorf("age %q: %v, want %v", s, m.AgeYears, want)
		}
	}
	for s, want := range map[string]Risk{"YES": BurntInYes, "no": BurntInNo, "": BurntInUnknown} {
		if m := mustDecode(t, file(field{tagBurntIn, "CS", s})); m.BurntIn != want {
			t.Errorf("burnt in %q: %v", s, m.BurntIn)
		}
	}
	if m := mustDecode(t, file(field{tagBodyPart, "CS", "JOHN DOE"})); m.BodyPart != "OTHER" {
		t.Errorf("body part %q leaves the reader", m.BodyPart)
	}
}

// TestAbout holds which films a data set is told are no usual frontal chests.
func TestAbout(t *testing.T) {
	view := field{tagViewPosition, "CS", "PA"}
	for _, c := range []struct {
		fields     []field
		view, from string
		mm         float64
	}{
		{[]field{view}, "PA", "view_position", 0},
		{[]field{view, {tagBodyPart, "CS", "HAND"}}, "OTHER", "body_part", 0},
		{[]field{view, {tagOrientation, "CS", `R\F`}}, "OTHER", "patient_orientation", 0},
		{[]field{view, {tagOrientation, "CS", `L\H`}}, "OTHER", "patient_orientation", 0},
		{[]field{view, {tagOrientation, "CS", `A\F`}}, "LATERAL", "patient_orientation", 0},
		{[]field{view, {tagOrientation, "CS", `LP\F`}}, "PA", "view_position", 0},
		{[]field{view, {tagOrientation, "CS", `L\F`}, {tagPixelSpacing, "DS", `0.2\0.2`}}, "PA", "view_position", 0.2},
		{[]field{view, {tagPixelSpacing, "DS", `0.2\0.1`}}, "PA", "view_position", 0},
	} {
		a := mustDecode(t, file(c.fields...)).About()
		if a.View != c.view || a.ViewFrom != c.from || a.SpacingMM != c.mm {
			t.Errorf("%v: %+v", c.fields, a)
		}
	}
}

func TestRefusals(t *testing.T) {
	number := func(t tag, n int) field { return field{t, "US", []int{n}} }
	whole := file()
	limits := DefaultLimits
	limits.Bytes = 1 << 20
	bomb := part10(syntaxRoot+".1.99", deflated(t, make([]byte, limits.Bytes+1)))
	noisy := packedFile(syntaxRoot+".5", fragments(make([]byte, 70)))
	for _, c := range []struct {
		name, reason, says string
		file               []byte
	}{
		{"text", NotDICOM, "DICM", []byte("this is no radiograph at all")},
		{"empty", NotDICOM, "DICM", nil},
		{"CT", NotRadiograph, "CT", file(field{tagModality, "CS", "CT"})},
		{"ultrasound", NotRadiograph, "US", file(field{tagModality, "CS", "US"})},
		{"no defined modality", NotRadiograph, "of another kind", file(field{tagModality, "CS", "SMITH JANE"})},
		{"CT by class", NotRadiograph, "CT", file(field{tagModality, "CS", "OT"}, field{tagSOPClass, "UI", "1.2.840.10008.5.1.4.1.1.2"})},
		{"no pixels", NoPixels, "no pixel data", file(field{tagPixels, "", nil})},
		{"cut in the pixels", Truncated, "needs 16 bytes", whole[:len(whole)-3]},
		{"cut before the pixels", Truncated, "truncated", whole[:magicAt+80]},
		{"too few pixels", Truncated, "8 bytes of pixels", file(field{tagPixels, "OW", []int{1, 2, 3, 4}})},
		{"another film's size", Damaged, "16 bytes of pixels, 4 x 1 need 8", file(number(tagRows, 1))},
		{"frames", Frames, "3 frames", file(field{tagFrames, "IS", "3"})},
		{"absurd size", TooLarge, "65535 x 65535", file(number(tagRows, 65535), number(tagColumns, 65535))},
		{"no rows", Damaged, "rows", file(number(tagRows, 0))},
		{"32 bits", Unsupported, "32 bits", file(number(tagAllocated, 32))},
		{"bits", Damaged, "14 bits stored", file(number(tagStored, 14))},
		{"palette", Unsupported, "photometric", file(field{tagPhotometric, "CS", "PALETTE COLOR"})},
		{"deflate bomb", TooLarge, "inflates", bomb},
		{"deflated, cut", Truncated, "ends early", part10(syntaxRoot+".1.99", deflated(t, encoded(explicitLittle, film()))[:60])},
		{"video", Unsupported, "video", packedFile(syntaxRoot+".4.102", fragments(nil))},
		{"unknown syntax", Unsupported, "1.2.3", part10("1.2.3", encoded(explicitLittle, film()))},
		{"fragments in native", Damaged, "uncompressed", packedFile(syntaxRoot+".1", fragments([]byte{1, 2}))},
		{"no fragments", NoPixels, "no fragment", packedFile(syntaxRoot+".5", fragments())},
		{"RLE segments", Damaged, "segments", noisy},
		{"open end", Truncated, "truncated", noisy[:len(noisy)-8]},
		{"no JPEG", Damaged, "JPEG", packedFile(syntaxRoot+".4.70", fragments([]byte("not a JPEG at all!")))},
	} {
		m, err := Decode(c.file, limits)
		if m != nil || ReasonOf(err) != c.reason || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %q, %v; want %q naming %q", c.name, ReasonOf(err), err, c.reason, c.says)
		}
	}
}

// TestEveryPrefixIsRefused holds that a file cut anywhere is refused, and that
// no cut reads as a smaller film.
func TestEveryPrefixIsRefused(t *testing.T) {
	for name, whole := range map[string][]byte{
		"native": file(),
		"RLE":    packedFile(syntaxRoot+".5", fragments(rleOf(hundreds))),
	} {
		for n := range whole {
			if _, err := Decode(whole[:n], DefaultLimits); ReasonOf(err) == "" {
				t.Fatalf("%s: the first %d of %d bytes: %v", name, n, len(whole), err)
			}
		}
	}
}

// TestNothingIdentifies holds that no value outside the allow-list, and no free
// text, is in what is returned or in an error.
func TestNothingIdentifies(t *testing.T) {
	const secret = "SMITH^JANE"
	private := []field{{0x0008_0080, "LO", secret}, {0x0010_0010, "PN", secret}, {0x0010_0020, "LO", secret}, {0x0010_0030, "DA", secret},
		{0x0009_1001, "LO", secret}, {tagProtocol, "LO", secret + " PA"}, {tagBodyPart, "CS", secret}, {tagViewPosition, "CS", secret},
		{tagBurntIn, "CS", secret}, {tagAge, "AS", secret}, {tagModality, "CS", secret}}
	whole := file(private...)
	m := mustDecode(t, whole)
	if text := fmt.Sprintf("%+v", m); strings.Contains(text, "SMITH") || strings.Contains(text, "JANE") {
		t.Errorf("a name leaves the reader: %s", text)
	}
	for _, f := range [][]field{{{tagPhotometric, "CS", secret}}, {{tagModality, "CS", "SMITH JANE"}}, {{tagFrames, "IS", secret}}, {{tagAllocated, "US", []int{32}}}} {
		_, err := Decode(file(append(private, f...)...), DefaultLimits)
		if err != nil && strings.Contains(err.Error(), "SMITH") {
			t.Errorf("an error quotes a name: %v", err)
		}
	}
	for n := range whole {
		if _, err := Decode(whole[:n], DefaultLimits); err != nil && strings.Contains(err.Error(), "SMITH") {
			t.Fatalf("cut at %d: an error quotes a name: %v", n, err)
		}
	}
}

// TestNestedSequences holds that what stands in sequences is passed over,
// whatever form they have, and that depth is bounded.
func TestNestedSequences(t *testing.T) {
	open := func(inner []byte) []byte { // a private sequence and an item, both of undefined length
		b := []byte{0x09, 0x00, 0x01, 0x10, 'S', 'Q', 0, 0, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xff, 0x00, 0xe0, 0xff, 0xff, 0xff, 0xff}
		b = append(b, inner...)
		return append(b, 0xfe, 0xff, 0x0d, 0xe0, 0, 0, 0, 0, 0xfe, 0xff, 0xdd, 0xe0, 0, 0, 0, 0)
	}
	inner := encoded(explicitLittle, []field{{tagModality, "CS", "US"}, {tagRows, "US", []int{9}}})
	for range 3 {
		inner = open(inner)
	}
	if m := mustDecode(t, part10(syntaxRoot+".1", append(bytes.Clone(inner), encoded(explicitLittle, film())...))); !slices.Equal(m.Stored(), hundreds) {
		t.Errorf("stored %v", m.Stored())
	}
	for range 40 {
		inner = open(inner)
	}
	if _, err := Decode(part10(syntaxRoot+".1", inner), DefaultLimits); ReasonOf(err) != Damaged {
		t.Errorf("43 sequences deep: %v", err)
	}
}

// TestColours holds that a photographed film in colours is reduced to its luminance.
func TestColours(t *testing.T) {
	colour := []field{{tagSamples, "US", []int{3}}, {tagPhotometric, "CS", "RGB"}, {tagPlanar, "US", []int{0}}, {tagAllocated, "US", []int{8}},
		{tagStored, "US", []int{8}}, {tagHighBit, "US", []int{7}}, {tagPixels, "OB", []byte{255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255}}}
	if m := mustDecode(t, file(colour...)); !slices.Equal(m.Gray.Pix, []uint8{76, 150, 29, 9, 0, 0, 0, 255}) {
		t.Errorf("luminance %v", m.Gray.Pix)
	}
}

// TestAnyPixels holds the round trip through every uncompressed encoding.
func TestAnyPixels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, h, bits := rapid.IntRange(1, 9).Draw(t, "w"), rapid.IntRange(1, 9).Draw(t, "h"), rapid.IntRange(9, 16).Draw(t, "bits")
		values := rapid.SliceOfN(rapid.IntRange(0, 1<<bits-1), w*h, w*h).Draw(t, "values")
		fields := film(field{tagRows, "US", []int{h}}, field{tagColumns, "US", []int{w}}, field{tagStored, "US", []int{bits}},
			field{tagHighBit, "US", []int{bits - 1}}, field{tagPixels, "OW", values})
		for uid, s := range map[string]syntax{"": implicitLittle, ".1": explicitLittle, ".2": explicitBig} {
			m, err := Decode(part10(syntaxRoot+uid, encoded(s, fields)), DefaultLimits)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range m.Stored() {
				if int(v) != values[i] {
					t.Fatalf("%s: value %d is %d, want %d", s.name, i, v, values[i])
				}
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(file())
	f.Add(part10(syntaxRoot+".2", encoded(explicitBig, film())))
	f.Add(part10(syntaxRoot+".1.99", deflated(f, encoded(explicitLittle, film()))))
	f.Add(packedFile(syntaxRoot+".5", fragments(rleOf(hundreds))))
	for _, data := range packedFilms(f) {
		f.Add(data)
	}
	limits := Limits{Bytes: 1 << 20, Pixels: 1 << 16}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode(data, limits)
		if err == nil && len(m.Gray.Pix) != len(m.Stored()) {
			t.Errorf("%d grey values of %d stored ones", len(m.Gray.Pix), len(m.Stored()))
		}
		if err != nil && ReasonOf(err) == "" {
			t.Errorf("an error without a reason: %v", err)
		}
	})
}
