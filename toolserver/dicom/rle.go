package dicom

import "encoding/binary"

// unpackRLE expands the byte planes of an RLE frame (PS3.5 annex G), each of n
// bytes.
func unpackRLE(data []byte, planes, n int) ([][]byte, error) {
	const head = 64 // the number of segments and 15 offsets
	if len(data) < head {
		return nil, refuse(Truncated, "the RLE frame has %d bytes, its head alone %d: copy the file again", len(data), head)
	}
	if got := binary.LittleEndian.Uint32(data); got != uint32(planes) {
		return nil, refuse(Damaged, "%d RLE segments, want %d", got, planes)
	}
	out := make([][]byte, planes)
	for i := range out {
		start := int64(binary.LittleEndian.Uint32(data[4+4*i:]))
		end := int64(len(data))
		if i+1 < planes {
			end = int64(binary.LittleEndian.Uint32(data[8+4*i:]))
		}
		if start < head || start > end || end > int64(len(data)) {
			return nil, refuse(Truncated, "RLE segment %d lies at bytes %d to %d of %d: the file is truncated or damaged", i+1, start, end, len(data))
		}
		var err error
		if out[i], err = unpackBits(data[start:end], n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// unpackBits expands one segment: a control byte, then as many literal bytes or
// one byte to repeat.
func unpackBits(src []byte, n int) ([]byte, error) {
	if n > 128*len(src) { // two bytes become at most 128
		return nil, refuse(Truncated, "an RLE segment of %d bytes cannot hold %d: the file is truncated or damaged", len(src), n)
	}
	out := make([]byte, 0, n)
	for len(out) < n {
		if len(src) < 2 {
			return nil, refuse(Truncated, "an RLE segment ends after %d of %d bytes: the file is truncated, copy it again", len(out), n)
		}
		control := int(int8(src[0]))
		src = src[1:]
		switch {
		case control >= 0:
			k := min(control+1, len(src), n-len(out))
			out, src = append(out, src[:k]...), src[min(control+1, len(src)):]
		case control > -128:
			for range min(1-control, n-len(out)) {
				out = append(out, src[0])
			}
			src = src[1:]
		}
	}
	return out, nil
}
