package dicom

import (
	"bytes"
	"encoding/binary"
	mathbits "math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A coder writes lossless JPEG: an implementation of T.81, annex H, apart from
// the decoder's. Every category of differences has a code of 5 bits.
type coder struct {
	precision, predictor, shift, restart int

	out  bytes.Buffer
	acc  uint64
	have int
}

func (c *coder) segment(marker byte, body ...byte) {
	c.out.Write([]byte{0xff, marker})
	c.out.Write(binary.BigEndian.AppendUint16(nil, uint16(len(body)+2)))
	c.out.Write(body)
}

func (c *coder) put(value uint32, n int) {
	c.acc, c.have = c.acc<<n|uint64(value), c.have+n
	for c.have >= 8 {
		b := byte(c.acc >> (c.have - 8))
		c.have -= 8
		c.out.WriteByte(b)
		if b == 0xff {
			c.out.WriteByte(0)
		}
	}
}

func (c *coder) flush() {
	if c.have > 0 {
		c.put(1<<(8-c.have)-1, 8-c.have)
	}
}

// encode writes w × h samples, of which the lowest bits given by shift are lost.
func (c *coder) encode(pix []int, w, h int) []byte {
	c.out.Write([]byte{0xff, markerSOI})
	table := []byte{0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for i := range byte(17) {
		table = append(table, i)
	}
	c.segment(markerDHT, table...)
	if c.restart > 0 {
		c.segment(markerDRI, byte(c.restart*w>>8), byte(c.restart*w))
	}
	c.segment(markerSOF3, byte(c.precision), byte(h>>8), byte(h), byte(w>>8), byte(w), 1, 1, 0x11, 0)
	c.segment(markerSOS, 1, 1, 0, byte(c.predictor), 0, byte(c.shift))
	for y := range h {
		if c.restart > 0 && y > 0 && y%c.restart == 0 {
			c.flush()
			c.out.Write([]byte{0xff, 0xd0 + byte((y/c.restart-1)%8)})
		}
		c.line(pix, w, y)
	}
	c.flush()
	c.out.Write([]byte{0xff, markerEOI})
	return c.out.Bytes()
}

func (c *coder) line(pix []int, w, y int) {
	at := func(x, y int) int { return pix[y*w+x] >> c.shift }
	first := y == 0 || c.restart > 0 && y%c.restart == 0
	for x := range w {
		var p int
		switch {
		case first && x == 0:
			p = 1 << (c.precision - c.shift - 1)
		case first:
			p = at(x-1, y)
		case x == 0:
			p = at(0, y-1)
		default:
			a, b, d := at(x-1, y), at(x, y-1), at(x-1, y-1)
			p = []int{a, b, d, a + b - d, a + (b-d)>>1, b + (a-d)>>1, (a + b) >> 1}[c.predictor-1]
		}
		c.difference(int(int16(at(x, y) - p)))
	}
}

// difference writes a category and its bits; -32768 stands for 32768 and has none.
func (c *coder) difference(d int) {
	if d == -32768 {
		c.put(16, 5)
		return
	}
	n := mathbits.Len(uint(max(d, -d)))
	c.put(uint32(n), 5)
	if d < 0 {
		d += 1<<n - 1
	}
	c.put(uint32(d), n)
}

// TestLosslessRoundTrip holds every predictor, depth, point transform and
// restart interval against the coder.
func TestLosslessRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &coder{precision: rapid.IntRange(9, 16).Draw(t, "precision"), predictor: rapid.IntRange(1, 7).Draw(t, "predictor"),
			shift: rapid.IntRange(0, 3).Draw(t, "shift"), restart: rapid.IntRange(0, 3).Draw(t, "restart")}
		w, h := rapid.IntRange(1, 12).Draw(t, "w"), rapid.IntRange(1, 9).Draw(t, "h")
		pix := rapid.SliceOfN(rapid.IntRange(0, 1<<c.precision-1), w*h, w*h).Draw(t, "pixels")
		film := packedFile(syntaxRoot+".4.70", fragments(c.encode(pix, w, h)), field{tagRows, "US", []int{h}}, field{tagColumns, "US", []int{w}},
			field{tagStored, "US", []int{c.precision}}, field{tagHighBit, "US", []int{c.precision - 1}})
		m, err := Decode(film, DefaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range m.Stored() {
			if want := pix[i] >> c.shift << c.shift; int(v) != want {
				t.Fatalf("pixel %d is %d, want %d", i, v, want)
			}
		}
	})
}

// TestFragments holds that a frame split over several fragments is joined.
func TestFragments(t *testing.T) {
	film := packedFilms(t)["lossless1"]
	h, err := readHeader(film, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	f, err := h.frame(DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	whole, cut := mustDecode(t, film), len(f.data)/3*2
	split := packedFile(syntaxRoot+".4.70", fragments(f.data[:cut], f.data[cut:]), field{tagRows, "US", []int{23}}, field{tagColumns, "US", []int{37}})
	if got := mustDecode(t, split); !slices.Equal(got.Stored(), whole.Stored()) {
		t.Error("two fragments decode to other pixels than one")
	}
}

// FuzzFrame fuzzes code streams behind a sound header.
func FuzzFrame(f *testing.F) {
	codings := []string{".5", ".4.50", ".4.51", ".4.70", ".4.80", ".4.90"}
	for name, film := range packedFilms(f) {
		h, err := readHeader(film, DefaultLimits)
		if err != nil || h.syntax.coding == native {
			continue
		}
		frame, err := h.frame(DefaultLimits)
		if err != nil {
			f.Fatalf("%s: %v", name, err)
		}
		for i, c := range codings {
			if s, _ := syntaxByUID(syntaxRoot + c); s.coding == h.syntax.coding {
				f.Add(byte(i), byte(frame.allocated), frame.data)
				break
			}
		}
	}
	f.Fuzz(func(t *testing.T, coding, allocated byte, data []byte) {
		bits := 8 + int(allocated>>4&1)*8
		film := packedFile(syntaxRoot+codings[int(coding)%len(codings)], fragments(data), field{tagRows, "US", []int{23}}, field{tagColumns, "US", []int{37}},
			field{tagAllocated, "US", []int{bits}}, field{tagStored, "US", []int{min(bits, 12)}}, field{tagHighBit, "US", []int{min(bits, 12) - 1}})
		m, err := Decode(film, Limits{Bytes: 1 << 20, Pixels: 1 << 12})
		if err == nil && len(m.Gray.Pix) != 23*37 {
			t.Errorf("%d pixels", len(m.Gray.Pix))
		}
		if err != nil && ReasonOf(err) == "" {
			t.Errorf("an error without a reason: %v", err)
		}
	})
}
