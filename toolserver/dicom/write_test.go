package dicom

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"testing"
)

// A field is an element to write: a string, numbers of 16 bits, bytes, or the
// items of a sequence.
type field struct {
	tag   tag
	vr    string
	value any
}

type items [][]field

// film is the least radiograph: 4 x 2 pixels of 12 bits, 0 to 700 in hundreds.
func film(more ...field) []field {
	list := []field{
		{tagSOPClass, "UI", "1.2.840.10008.5.1.4.1.1.1.1"}, {tagModality, "CS", "DX"}, {tagBodyPart, "CS", "CHEST"},
		{tagSamples, "US", []int{1}}, {tagPhotometric, "CS", "MONOCHROME2"}, {tagRows, "US", []int{2}}, {tagColumns, "US", []int{4}},
		{tagAllocated, "US", []int{16}}, {tagStored, "US", []int{12}}, {tagHighBit, "US", []int{11}}, {tagSigned, "US", []int{0}},
		{tagPixels, "OW", []int{0, 100, 200, 300, 400, 500, 600, 700}},
	}
	return with(list, more...)
}

// with replaces fields or puts new ones in their place in the order of tags; a
// field without a value is removed.
func with(list []field, more ...field) []field {
	for _, m := range more {
		at := 0
		for at < len(list) && list[at].tag < m.tag {
			at++
		}
		tail := list[at:]
		if len(tail) > 0 && tail[0].tag == m.tag {
			tail = tail[1:]
		}
		list = append([]field(nil), list[:at]...)
		if m.value != nil {
			list = append(list, m)
		}
		list = append(list, tail...)
	}
	return list
}

func appender(s syntax) binary.AppendByteOrder {
	if s.name == explicitBig.name {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// encoded encodes fields without preamble.
func encoded(s syntax, fields []field) []byte {
	var b bytes.Buffer
	for _, f := range fields {
		value := f.bytes(s)
		if len(value)%2 == 1 {
			value = append(value, ' ')
		}
		head := appender(s).AppendUint16(nil, uint16(f.tag>>16))
		head = appender(s).AppendUint16(head, uint16(f.tag))
		switch {
		case s.implicit:
			head = appender(s).AppendUint32(head, uint32(len(value)))
		case f.vr == "OW" || f.vr == "OB" || f.vr == "SQ" || f.vr == "UN":
			head = appender(s).AppendUint32(append(head, f.vr[0], f.vr[1], 0, 0), uint32(len(value)))
		default:
			head = appender(s).AppendUint16(append(head, f.vr[0], f.vr[1]), uint16(len(value)))
		}
		b.Write(append(head, value...))
	}
	return b.Bytes()
}

func (f field) bytes(s syntax) []byte {
	switch v := f.value.(type) {
	case string:
		return []byte(v)
	case []byte:
		return bytes.Clone(v)
	case []int:
		var b []byte
		for _, n := range v {
			b = appender(s).AppendUint16(b, uint16(n))
		}
		return b
	case items:
		var b []byte
		for _, item := range v {
			body := encoded(s, item)
			b = appender(s).AppendUint16(b, 0xfffe)
			b = appender(s).AppendUint16(b, 0xe000)
			b = append(appender(s).AppendUint32(b, uint32(len(body))), body...)
		}
		return b
	}
	panic("no such value")
}

// part10 puts preamble and file meta group before a data set.
func part10(uid string, data []byte) []byte {
	file := append(make([]byte, magicAt), "DICM"...)
	file = append(file, encoded(explicitLittle, []field{{tagSyntax, "UI", uid}})...)
	return append(file, data...)
}

// file is a Part 10 file in explicit little endian.
func file(more ...field) []byte {
	return part10(syntaxRoot+".1", encoded(explicitLittle, film(more...)))
}

func deflated(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// fragments encloses code streams as pixel data of undefined length.
func fragments(list ...[]byte) []byte {
	o := binary.LittleEndian
	var b []byte
	for _, f := range append([][]byte{nil}, list...) {
		b = append(b, 0xfe, 0xff, 0x00, 0xe0)
		b = append(o.AppendUint32(b, uint32(len(f))), f...)
	}
	return append(b, 0xfe, 0xff, 0xdd, 0xe0, 0, 0, 0, 0)
}

// packedFile is a Part 10 file with compressed pixels.
func packedFile(uid string, pixels []byte, more ...field) []byte {
	data := encoded(explicitLittle, with(film(more...), field{tagPixels, "", nil}))
	head := append([]byte{0xe0, 0x7f, 0x10, 0x00, 'O', 'B', 0, 0}, 0xff, 0xff, 0xff, 0xff)
	return part10(uid, append(append(data, head...), pixels...))
}
