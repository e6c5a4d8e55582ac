package dicom

import "encoding/binary"

// A jpegFrame is a JPEG code stream of one component that was read up to its
// scan (ITU-T T.81). It decodes what the standard library does not: sequential
// DCT of 12 bits (SOF1) and lossless prediction of 2 to 16 bits (SOF3).
type jpegFrame struct {
	process       byte // the SOF marker's low byte
	precision     int
	width, height int
	components    int
	quant         [4][64]uint16
	huffman       [2][4]*huffman // by class (DC or lossless, AC) and slot
	tables        int            // Huffman tables read
	restart       int            // units between restart markers; 0: none

	quantSlot, dcSlot, acSlot byte
	predictor, shift          int
	scan                      []byte
}

// JPEG markers.
const (
	markerSOF0 = 0xc0
	markerSOF1 = 0xc1
	markerSOF2 = 0xc2
	markerSOF3 = 0xc3
	markerDHT  = 0xc4
	markerSOI  = 0xd8
	markerEOI  = 0xd9
	markerSOS  = 0xda
	markerDQT  = 0xdb
	markerDRI  = 0xdd
)

// maxTables bounds the work that a list of Huffman tables can make.
const maxTables = 64

func (j *jpegFrame) lossless() bool { return j.process == markerSOF3 }

func damagedJPEG(what string) error {
	return refuse(Damaged, "the JPEG frame's %s is damaged: copy the file again", what)
}

// readJPEG reads the segments up to the first scan.
func readJPEG(data []byte) (*jpegFrame, error) {
	if len(data) < 4 || data[0] != 0xff || data[1] != markerSOI {
		return nil, damagedJPEG("start")
	}
	j := &jpegFrame{}
	for rest := data[2:]; ; {
		if len(rest) < 4 || rest[0] != 0xff {
			return nil, damagedJPEG("segment list")
		}
		marker := rest[1]
		if marker == 0xff { // fill
			rest = rest[1:]
			continue
		}
		n := int(binary.BigEndian.Uint16(rest[2:]))
		if n < 2 || len(rest) < 2+n {
			return nil, refuse(Truncated, "a JPEG segment needs %d bytes, %d are left: the file is truncated, copy it again", n, len(rest)-2)
		}
		body := rest[4 : 2+n]
		rest = rest[2+n:]
		if err := j.segment(marker, body); err != nil {
			return nil, err
		}
		if marker == markerSOS {
			j.scan = rest
			return j, j.check()
		}
	}
}

func (j *jpegFrame) segment(marker byte, body []byte) error {
	switch marker {
	case markerDHT:
		return j.readHuffman(body)
	case markerDQT:
		return j.readQuant(body)
	case markerDRI:
		if len(body) < 2 {
			return damagedJPEG("restart interval")
		}
		j.restart = int(binary.BigEndian.Uint16(body))
	case markerSOS:
		return j.readScan(body)
	case markerSOF0, markerSOF1, markerSOF2, markerSOF3:
		return j.readFrame(marker, body)
	case markerEOI:
		return refuse(NoPixels, "the JPEG frame holds no scan")
	}
	if marker > markerSOF3 && marker < 0xd0 && marker != 0xc8 && marker != 0xcc {
		return refuse(Unsupported, "JPEG process %d is not supported: convert the file to explicit little endian", marker-markerSOF0)
	}
	return nil
}

func (j *jpegFrame) readFrame(marker byte, body []byte) error {
	if len(body) < 9 {
		return damagedJPEG("frame header")
	}
	j.process, j.precision = marker, int(body[0])
	j.height, j.width = int(binary.BigEndian.Uint16(body[1:])), int(binary.BigEndian.Uint16(body[3:]))
	j.components, j.quantSlot = int(body[5]), body[8]&3
	return nil
}

func (j *jpegFrame) readScan(body []byte) error {
	if len(body) < 6 || int(body[0]) != j.components || len(body) < 4+2*j.components {
		return damagedJPEG("scan header")
	}
	j.dcSlot, j.acSlot = body[2]>>4&3, body[2]&3
	tail := body[1+2*j.components:]
	j.predictor, j.shift = int(tail[0]), int(tail[2]&15)
	return nil
}

func (j *jpegFrame) readQuant(body []byte) error {
	for len(body) > 0 {
		size := 1 + int(body[0]>>4&1)
		slot := body[0] & 3
		if len(body) < 1+64*size {
			return damagedJPEG("quantisation table")
		}
		for i := range 64 {
			v := uint16(body[1+i*size])
			if size == 2 {
				v = binary.BigEndian.Uint16(body[1+2*i:])
			}
			j.quant[slot][i] = v
		}
		body = body[1+64*size:]
	}
	return nil
}

func (j *jpegFrame) readHuffman(body []byte) error {
	for len(body) > 0 {
		if j.tables++; len(body) < 17 || j.tables > maxTables {
			return damagedJPEG("Huffman table")
		}
		h, n, err := newHuffman(body[1:17], body[17:])
		if err != nil {
			return err
		}
		j.huffman[body[0]>>4&1][body[0]&3] = h
		body = body[17+n:]
	}
	return nil
}

// check refuses what the decoders below do not know. 8-bit DCT frames are the
// standard library's to check.
func (j *jpegFrame) check() error {
	switch {
	case j.process == 0:
		return damagedJPEG("frame header")
	case j.precision == 8 && !j.lossless():
		return nil
	case j.components != 1:
		return refuse(Unsupported, "a JPEG frame of %d components and %d bits, want one: convert the file to explicit little endian", j.components, j.precision)
	case j.process == markerSOF2 || j.precision < 2 || j.precision > 16 || !j.lossless() && j.precision != 12:
		return refuse(Unsupported, "JPEG process %d of %d bits is not supported: convert the file to explicit little endian", j.process-markerSOF0, j.precision)
	case j.lossless() && (j.predictor < 1 || j.predictor > 7 || j.shift >= j.precision):
		return damagedJPEG("predictor")
	case j.huffman[0][j.dcSlot] == nil || !j.lossless() && j.huffman[1][j.acSlot] == nil:
		return damagedJPEG("list of Huffman tables")
	case j.width*j.height > 64*8*(len(j.scan)+1): // a bit a sample, or a block's two bits, is the least
		return refuse(Truncated, "a JPEG scan of %d bytes cannot hold %d x %d pixels: the file is truncated or damaged", len(j.scan), j.width, j.height)
	}
	return nil
}

func (j *jpegFrame) decode() ([]uint16, error) {
	if j.lossless() {
		return j.decodeLossless()
	}
	return j.decodeDCT()
}

// A huffman table decodes by the next 16 bits.
type huffman struct{ entries []uint16 } // length << 8 | symbol; 0: no such code

// newHuffman builds a table from the counts of codes by length (T.81, annex C),
// and returns how many symbols it used.
func newHuffman(counts, symbols []byte) (h *huffman, n int, err error) {
	h = &huffman{entries: make([]uint16, 1<<16)}
	code := 0
	for length := 1; length <= 16; length++ {
		for range counts[length-1] {
			if n >= len(symbols) || code>>length != 0 {
				return nil, 0, damagedJPEG("Huffman table")
			}
			first := code << (16 - length)
			for i := range 1 << (16 - length) {
				h.entries[first+i] = uint16(length)<<8 | uint16(symbols[n])
			}
			n++
			code++
		}
		code <<= 1
	}
	return h, n, nil
}

// bits reads a scan's bits, most significant first, without its stuffing.
type bits struct {
	src  []byte
	acc  uint64
	have uint
	pad  uint // bits made up behind the end
}

// fill makes at least 32 bits available. Behind a marker or the end zeros
// follow; pad counts them.
func (b *bits) fill() {
	for b.have <= 48 {
		v := byte(0)
		switch {
		case len(b.src) == 0, b.src[0] == 0xff && (len(b.src) < 2 || b.src[1] != 0):
			b.pad += 8
		default:
			v = b.src[0]
			step := 1
			if v == 0xff {
				step = 2
			}
			b.src = b.src[step:]
		}
		b.acc = b.acc<<8 | uint64(v)
		b.have += 8
	}
}

// symbol decodes one Huffman code.
func (b *bits) symbol(h *huffman) (byte, bool) {
	if b.have < 32 {
		b.fill()
	}
	e := h.entries[uint16(b.acc>>(b.have-16))]
	b.have -= uint(e >> 8)
	return byte(e), e != 0 && b.have >= b.pad
}

// extended reads n ≤ 16 bits as a difference (T.81, figure F.12).
func (b *bits) extended(n byte) int32 {
	if n == 0 {
		return 0
	}
	if b.have < 16 {
		b.fill()
	}
	b.have -= uint(n)
	v := int32(b.acc >> b.have & (1<<n - 1))
	if v < 1<<(n-1) {
		v -= 1<<n - 1
	}
	return v
}

// next moves to behind the restart marker.
func (b *bits) next() bool {
	b.acc, b.have, b.pad = 0, 0, 0
	for len(b.src) >= 2 && b.src[0] == 0xff && b.src[1] == 0xff {
		b.src = b.src[1:]
	}
	if len(b.src) < 2 || b.src[0] != 0xff || b.src[1]&^7 != 0xd0 {
		return false
	}
	b.src = b.src[2:]
	return true
}

func endsEarly(done, of int) error {
	return refuse(Truncated, "the JPEG scan ends or is damaged after %d of %d units: the file is truncated, copy it again", done, of)
}

// decodeLossless undoes the prediction (T.81, annex H).
func (j *jpegFrame) decodeLossless() ([]uint16, error) {
	table, in := j.huffman[0][j.dcSlot], &bits{src: j.scan}
	w, n := j.width, j.width*j.height
	out := make([]uint16, n)
	origin := uint16(1) << (j.precision - j.shift - 1)
	first := 0 // of the restart interval
	for i := range n {
		if j.restart > 0 && i > 0 && i%j.restart == 0 {
			if !in.next() {
				return nil, endsEarly(i, n)
			}
			first = i
		}
		size, ok := in.symbol(table)
		if !ok || size > 16 {
			return nil, endsEarly(i, n)
		}
		diff := int32(32768)
		if size < 16 {
			diff = in.extended(size)
		}
		out[i] = j.predict(out, i, w, first, origin) + uint16(diff)
	}
	if in.have < in.pad {
		return nil, endsEarly(n, n)
	}
	for i := range out {
		out[i] <<= j.shift
	}
	return out, nil
}

// predict returns the prediction of sample i: half the range at the start of an
// interval, the left one in its first line, the one above in the first column.
func (j *jpegFrame) predict(out []uint16, i, w, first int, origin uint16) uint16 {
	switch {
	case i == first:
		return origin
	case i < first+w && first%w == 0 || i < w:
		return out[i-1]
	case i%w == 0:
		return out[i-w]
	}
	a, b, c := int32(out[i-1]), int32(out[i-w]), int32(out[i-w-1])
	switch j.predictor {
	case 1:
		return uint16(a)
	case 2:
		return uint16(b)
	case 3:
		return uint16(c)
	case 4:
		return uint16(a + b - c)
	case 5:
		return uint16(a + (b-c)>>1)
	case 6:
		return uint16(b + (a-c)>>1)
	}
	return uint16((a + b) >> 1)
}
