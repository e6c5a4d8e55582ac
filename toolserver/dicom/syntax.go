package dicom

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"io"
	"slices"
	"strings"
)

// A coding says how pixels are packed.
type coding int

const (
	native coding = iota
	rle
	jpegDCT
	jpegLossless
	jpegLS
	jpeg2000
	otherCoding
)

// A syntax is a transfer syntax (PS3.5 annex A).
type syntax struct {
	name     string
	order    binary.ByteOrder
	implicit bool
	deflated bool
	coding   coding
}

var (
	implicitLittle = syntax{name: "implicit little endian", order: binary.LittleEndian, implicit: true}
	explicitLittle = syntax{name: "explicit little endian", order: binary.LittleEndian}
	explicitBig    = syntax{name: "explicit big endian", order: binary.BigEndian}
)

// syntaxes by the part of the UID behind 1.2.840.10008.1.2.
var syntaxes = map[string]syntax{
	"":      implicitLittle,
	".1":    explicitLittle,
	".1.99": {name: "deflated explicit little endian", order: binary.LittleEndian, deflated: true},
	".2":    explicitBig,
	".5":    packed("RLE", rle),
	".4.50": packed("JPEG baseline", jpegDCT),
	".4.51": packed("JPEG extended", jpegDCT),
	".4.57": packed("JPEG lossless", jpegLossless),
	".4.70": packed("JPEG lossless, first-order prediction", jpegLossless),
	".4.80": packed("JPEG-LS lossless", jpegLS),
	".4.81": packed("JPEG-LS near-lossless", jpegLS),
	".4.90": packed("JPEG 2000 lossless", jpeg2000),
	".4.91": packed("JPEG 2000", jpeg2000),
}

func packed(name string, c coding) syntax {
	return syntax{name: name, order: binary.LittleEndian, coding: c}
}

const syntaxRoot = "1.2.840.10008.1.2"

func syntaxByUID(uid string) (syntax, error) {
	tail, ok := strings.CutPrefix(uid, syntaxRoot)
	s, known := syntaxes[tail]
	switch {
	case ok && known:
		return s, nil
	case ok && strings.HasPrefix(tail, ".4.10"):
		return s, refuse(Unsupported, "video transfer syntax: give a single radiograph")
	case strings.Trim(uid, "0123456789.") != "":
		return s, refuse(Damaged, "the transfer syntax is no UID: the file is damaged")
	}
	return s, refuse(Unsupported, "transfer syntax %s is not supported: convert the file, e.g. to explicit little endian", uid)
}

const magicAt = 128

func hasMagic(file []byte) bool {
	return len(file) >= magicAt+4 && string(file[magicAt:magicAt+4]) == "DICM"
}

// startsBare recognises a file without preamble: it starts with an element of
// group 2 or 8 whose length is plausible.
func startsBare(file []byte) bool {
	if len(file) < 8 {
		return false
	}
	little, big := binary.LittleEndian.Uint16(file), binary.BigEndian.Uint16(file)
	switch {
	case little == 2 || little == 8:
		return isVR(file[4:6]) || binary.LittleEndian.Uint32(file[4:]) < 1<<16
	case big == 8:
		return isVR(file[4:6])
	}
	return false
}

var vrs = []string{"AE", "AS", "AT", "CS", "DA", "DS", "DT", "FD", "FL", "IS", "LO", "LT", "OB", "OD", "OF", "OL", "OV", "OW",
	"PN", "SH", "SL", "SQ", "SS", "ST", "SV", "TM", "UC", "UI", "UL", "UN", "UR", "US", "UT", "UV"}

func isVR(b []byte) bool { return slices.Contains(vrs, string(b)) }

// open finds the data set: it reads the file meta group where there is one, and
// returns what follows with its transfer syntax.
func open(file []byte, limit int) (data []byte, s syntax, err error) {
	if len(file) > limit {
		return nil, s, refuse(TooLarge, "%d bytes, limit %d", len(file), limit)
	}
	switch {
	case hasMagic(file):
		file = file[magicAt+4:]
	case !startsBare(file):
		return nil, s, refuse(NotDICOM, "neither the magic word DICM nor a first element: not a DICOM file")
	}
	if len(file) >= 2 && binary.LittleEndian.Uint16(file) != 2 {
		return file, sniff(file), nil
	}
	uid, rest, err := readMeta(file)
	if err != nil {
		return nil, s, err
	}
	if uid == "" {
		return rest, sniff(rest), nil
	}
	if s, err = syntaxByUID(uid); err != nil {
		return nil, s, err
	}
	if s.deflated {
		rest, err = inflate(rest, limit)
	}
	if got := sniff(rest); err == nil && !s.deflated && s.coding == native && got.name != s.name {
		s = got // some writers name one syntax and use another
	}
	return rest, s, err
}

// readMeta reads group 2, which is explicit little endian, and returns the
// transfer syntax's UID and what follows the group.
func readMeta(file []byte) (uid string, rest []byte, err error) {
	r := &reader{data: file, syntax: explicitLittle}
	for r.left() >= 2 && explicitLittle.order.Uint16(r.data[r.at:]) == 2 {
		e, err := r.element()
		if err != nil {
			return "", nil, err
		}
		if e.tag == tagSyntax {
			uid = trimText(e.value)
		}
	}
	return uid, file[r.at:], nil
}

// sniff tells the encoding of an uncompressed data set from its first element.
func sniff(data []byte) syntax {
	switch {
	case len(data) < 6 || !isVR(data[4:6]):
		return implicitLittle
	case data[0] == 0 && data[1] != 0:
		return explicitBig
	}
	return explicitLittle
}

func inflate(data []byte, limit int) ([]byte, error) {
	out, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data)), int64(limit)+1))
	switch {
	case len(out) > limit:
		return nil, refuse(TooLarge, "the data set inflates to more than %d bytes", limit)
	case err != nil:
		return nil, refuse(Truncated, "the deflated data set ends early or is damaged (after %d bytes): copy the file again", len(out))
	}
	return out, nil
}
