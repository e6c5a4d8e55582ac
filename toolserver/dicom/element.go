package dicom

import (
	"fmt"
	"strconv"
	"strings"
)

// A tag is group and element number.
type tag uint32

func (t tag) String() string { return fmt.Sprintf("(%04X,%04X)", uint32(t)>>16, uint32(t)&0xffff) }

// The tags that are read; no other value is looked at.
const (
	tagSyntax       tag = 0x0002_0010
	tagSOPClass     tag = 0x0008_0016
	tagModality     tag = 0x0008_0060
	tagAge          tag = 0x0010_1010
	tagBodyPart     tag = 0x0018_0015
	tagProtocol     tag = 0x0018_1030 // searched for a view, never returned
	tagMagnified    tag = 0x0018_1114 // estimated radiographic magnification factor
	tagImagerSpace  tag = 0x0018_1164
	tagViewPosition tag = 0x0018_5101
	tagViewCode     tag = 0x0054_0220
	tagOrientation  tag = 0x0020_0020
	tagSamples      tag = 0x0028_0002
	tagPhotometric  tag = 0x0028_0004
	tagPlanar       tag = 0x0028_0006
	tagFrames       tag = 0x0028_0008
	tagRows         tag = 0x0028_0010
	tagColumns      tag = 0x0028_0011
	tagPixelSpacing tag = 0x0028_0030
	tagAspect       tag = 0x0028_0034
	tagAllocated    tag = 0x0028_0100
	tagStored       tag = 0x0028_0101
	tagHighBit      tag = 0x0028_0102
	tagSigned       tag = 0x0028_0103
	tagPadding      tag = 0x0028_0120
	tagPaddingLimit tag = 0x0028_0121
	tagBurntIn      tag = 0x0028_0301
	tagSpacingFrom  tag = 0x0028_0A02 // pixel spacing calibration type
	tagCentre       tag = 0x0028_1050
	tagWidth        tag = 0x0028_1051
	tagIntercept    tag = 0x0028_1052
	tagSlope        tag = 0x0028_1053
	tagVOIFunction  tag = 0x0028_1056
	tagModalityLUT  tag = 0x0028_3000
	tagVOILUT       tag = 0x0028_3010
	tagPixels       tag = 0x7FE0_0010

	// Inside the sequences above.
	tagLUTShape    tag = 0x0028_3002
	tagLUTData     tag = 0x0028_3006
	tagCode        tag = 0x0008_0100
	tagCodeMeaning tag = 0x0008_0104

	tagItem        tag = 0xFFFE_E000
	tagItemEnd     tag = 0xFFFE_E00D
	tagSequenceEnd tag = 0xFFFE_E0DD
)

// allowed is the allow-list of the data set's top level.
var allowed = map[tag]bool{
	tagSOPClass: true, tagModality: true, tagAge: true, tagBodyPart: true, tagProtocol: true, tagMagnified: true, tagImagerSpace: true,
	tagViewPosition: true, tagViewCode: true, tagOrientation: true, tagSamples: true, tagPhotometric: true, tagPlanar: true, tagFrames: true, tagRows: true,
	tagColumns: true, tagPixelSpacing: true, tagAspect: true, tagAllocated: true, tagStored: true, tagHighBit: true, tagSigned: true,
	tagPadding: true, tagPaddingLimit: true, tagBurntIn: true, tagSpacingFrom: true, tagCentre: true, tagWidth: true, tagIntercept: true,
	tagSlope: true, tagVOIFunction: true, tagModalityLUT: true, tagVOILUT: true,
}

// An element is one tag with its value, a part of the file.
type element struct {
	tag    tag
	vr     string // "" in implicit syntaxes
	value  []byte
	nested bool // a sequence; value holds its items
	open   bool // of undefined length
}

// undefined is the length that says: up to the delimiter.
const undefined = 0xffffffff

// maxDepth bounds nested sequences.
const maxDepth = 16

// A reader walks over elements. It allocates nothing: values are parts of data.
type reader struct {
	data   []byte
	at     int
	syntax syntax
	depth  int
}

func (r *reader) left() int { return len(r.data) - r.at }

// take returns the next n bytes.
func (r *reader) take(n int, of tag) ([]byte, error) {
	if n > r.left() {
		return nil, refuse(Truncated, "element %v needs %d bytes, %d are left: the file is truncated, copy it again", of, n, r.left())
	}
	b := r.data[r.at : r.at+n]
	r.at += n
	return b, nil
}

// tagAndLength reads an element's head.
func (r *reader) tagAndLength() (t tag, vr string, n uint32, err error) {
	head, err := r.take(8, 0)
	if err != nil {
		return 0, "", 0, err
	}
	o := r.syntax.order
	t = tag(o.Uint16(head))<<16 | tag(o.Uint16(head[2:]))
	if r.syntax.implicit || t>>16 == 0xfffe {
		return t, "", o.Uint32(head[4:]), nil
	}
	if vr = string(head[4:6]); !isVR(head[4:6]) {
		return t, "", 0, refuse(Damaged, "element %v has no value representation: the file is damaged", t)
	}
	switch vr {
	case "OB", "OD", "OF", "OL", "OV", "OW", "SQ", "SV", "UC", "UN", "UR", "UT", "UV":
		long, err := r.take(4, t)
		if err != nil {
			return t, vr, 0, err
		}
		return t, vr, o.Uint32(long), nil
	}
	return t, vr, uint32(o.Uint16(head[6:])), nil
}

// element reads one element whole; one of undefined length up to its delimiter.
func (r *reader) element() (element, error) {
	t, vr, n, err := r.tagAndLength()
	e := element{tag: t, vr: vr, nested: vr == "SQ" || n == undefined, open: n == undefined}
	switch {
	case err != nil:
		return e, err
	case n == undefined:
		e.value, err = r.upToDelimiter(t, vr)
	default:
		e.value, err = r.take(int(n), t)
	}
	return e, err
}

// upToDelimiter returns the items of a sequence of undefined length. Inside an
// element of unknown representation items are implicit little endian (PS3.5,
// 6.2.2).
func (r *reader) upToDelimiter(t tag, vr string) ([]byte, error) {
	if r.depth >= maxDepth {
		return nil, refuse(Damaged, "element %v nests deeper than %d sequences", t, maxDepth)
	}
	sub := &reader{data: r.data, at: r.at, syntax: r.syntax, depth: r.depth + 1}
	if vr == "UN" {
		sub.syntax = implicitLittle
	}
	start := r.at
	for {
		end := sub.at
		item, _, n, err := sub.tagAndLength()
		switch {
		case err != nil:
			return nil, err
		case item == tagSequenceEnd:
			r.at = sub.at
			return r.data[start:end], nil
		case item != tagItem:
			return nil, refuse(Damaged, "element %v holds %v where an item should stand: the file is damaged", t, item)
		case n != undefined:
			_, err = sub.take(int(n), t)
		default:
			err = sub.skipItem()
		}
		if err != nil {
			return nil, err
		}
	}
}

// skipItem passes over the elements of an item of undefined length.
func (r *reader) skipItem() error {
	for {
		if r.left() >= 8 && r.peek() == tagItemEnd {
			_, err := r.take(8, tagItemEnd)
			return err
		}
		if _, err := r.element(); err != nil {
			return err
		}
	}
}

func (r *reader) peek() tag {
	o := r.syntax.order
	return tag(o.Uint16(r.data[r.at:]))<<16 | tag(o.Uint16(r.data[r.at+2:]))
}

// A header is the allowed part of a data set.
type header struct {
	syntax syntax
	values map[tag]element
	pixels element
}

// readHeader walks the data set up to its pixels.
func readHeader(file []byte, limits Limits) (*header, error) {
	data, s, err := open(file, limits.Bytes)
	if err != nil {
		return nil, err
	}
	h := &header{syntax: s, values: map[tag]element{}}
	r := &reader{data: data, syntax: s}
	for r.left() > 0 {
		e, err := r.element()
		switch {
		case err != nil:
			return h, err
		case e.tag == tagPixels:
			h.pixels = e
			return h, nil
		case allowed[e.tag]:
			h.values[e.tag] = e
		}
	}
	return h, nil
}

// text returns a value as text without its padding; "" when absent.
func (h *header) text(t tag) string { return trimText(h.values[t].value) }

func trimText(b []byte) string { return strings.Trim(string(b), " \x00") }

// term returns a coded string in capitals where it has the form of one.
func (h *header) term(t tag) string {
	s := strings.ToUpper(h.text(t))
	if len(s) > 16 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ ") != "" {
		return ""
	}
	return s
}

// number returns an unsigned 16-bit value, and whether it is there.
func (h *header) number(t tag) (int, bool) {
	if v := h.values[t].value; len(v) >= 2 {
		return int(h.syntax.order.Uint16(v)), true
	}
	return 0, false
}

// decimals returns the numbers of a decimal or integer string.
func (h *header) decimals(t tag) []float64 {
	var list []float64
	for s := range strings.SplitSeq(h.text(t), `\`) {
		v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || v != v || v > 1e12 || v < -1e12 {
			return list
		}
		list = append(list, v)
	}
	return list
}

// item returns the first item of a sequence; nil when there is none.
func (h *header) item(t tag) *header {
	e, ok := h.values[t]
	if !ok || !e.nested && !h.syntax.implicit && e.vr != "UN" {
		return nil
	}
	s := h.syntax
	if e.vr == "UN" {
		s = implicitLittle
	}
	r := &reader{data: e.value, syntax: s, depth: 1}
	first, _, n, err := r.tagAndLength()
	if err != nil || first != tagItem {
		return nil
	}
	if n != undefined && int64(n) <= int64(r.left()) {
		r.data = r.data[:r.at+int(n)]
	}
	sub := &header{syntax: s, values: map[tag]element{}}
	for r.left() >= 8 && r.peek() != tagItemEnd {
		e, err := r.element()
		if err != nil {
			return sub
		}
		switch e.tag {
		case tagLUTShape, tagLUTData, tagCode, tagCodeMeaning:
			sub.values[e.tag] = e
		}
	}
	return sub
}
