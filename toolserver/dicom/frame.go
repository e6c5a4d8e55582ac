package dicom

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"image/jpeg"
)

// A frame is the pixel module's description of the one image in a file.
type frame struct {
	rows, columns     int
	samples           int // 1, or 3 colours
	allocated, stored int // bits
	highBit           int
	signed            bool
	planar            bool
	data              []byte // native pixels, or the code stream of the one frame
}

// stored is an image's values as they stand in the file; bits are those used.
type stored struct {
	values []int32 // of colours, their luminance
}

// frame reads and checks the description; nothing is decoded or allocated yet.
func (h *header) frame(limits Limits) (*frame, error) {
	f := &frame{samples: 1, planar: h.flag(tagPlanar), signed: h.flag(tagSigned)}
	if h.pixels.tag == 0 {
		return nil, refuse(NoPixels, "no pixel data: a header only, or another kind of object")
	}
	var err error
	for _, field := range []struct {
		tag  tag
		into *int
		name string
	}{{tagRows, &f.rows, "rows"}, {tagColumns, &f.columns, "columns"}, {tagAllocated, &f.allocated, "bits allocated"}, {tagStored, &f.stored, "bits stored"}} {
		n, ok := h.number(field.tag)
		if !ok || n == 0 {
			return nil, refuse(Damaged, "field %s %v is missing or 0: the file is damaged", field.name, field.tag)
		}
		*field.into = n
	}
	f.highBit = f.stored - 1
	if n, ok := h.number(tagHighBit); ok {
		f.highBit = n
	}
	if n, ok := h.number(tagSamples); ok {
		f.samples = n
	}
	if err = f.check(h, limits); err != nil {
		return nil, err
	}
	f.data, err = h.pixelData()
	return f, err
}

func (h *header) flag(t tag) bool {
	n, _ := h.number(t)
	return n == 1
}

func (f *frame) check(h *header, limits Limits) error {
	if n := h.decimals(tagFrames); len(n) > 0 && n[0] > 1 {
		return refuse(Frames, "%.0f frames, want one: export the radiograph alone", n[0])
	}
	switch {
	case f.columns > limits.Pixels/f.rows:
		return refuse(TooLarge, "%d x %d pixels, limit %d in all", f.columns, f.rows, limits.Pixels)
	case f.allocated != 8 && f.allocated != 16:
		return refuse(Unsupported, "%d bits allocated, want 8 or 16", f.allocated)
	case f.stored > f.allocated || f.highBit >= f.allocated || f.highBit+1 < f.stored:
		return refuse(Damaged, "%d bits stored up to bit %d in %d allocated: the file is damaged", f.stored, f.highBit, f.allocated)
	case f.samples != 1 && (f.samples != 3 || f.allocated != 8):
		return refuse(Unsupported, "%d samples of %d bits a pixel, want 1, or 3 of 8 bits", f.samples, f.allocated)
	}
	switch p := h.term(tagPhotometric); p {
	case "MONOCHROME1", "MONOCHROME2", "RGB", "YBR_FULL", "YBR_FULL_422":
		if (f.samples == 1) != (p[0] == 'M') {
			return refuse(Damaged, "photometric interpretation %s with %d samples a pixel: the file is damaged", p, f.samples)
		}
	default:
		return refuse(Unsupported, "photometric interpretation is none of MONOCHROME1, MONOCHROME2, RGB, YBR_FULL: convert the file")
	}
	return nil
}

// pixelData returns native pixels as they stand, or joins the fragments of the
// one frame behind the offset table.
func (h *header) pixelData() ([]byte, error) {
	if h.syntax.coding == native {
		if h.pixels.open {
			return nil, refuse(Damaged, "fragments of compressed pixels in an uncompressed transfer syntax: the file is damaged")
		}
		return h.pixels.value, nil
	}
	if !h.pixels.open {
		return nil, refuse(Damaged, "compressed pixels that are not in fragments: the file is damaged")
	}
	r := &reader{data: h.pixels.value, syntax: h.syntax}
	var fragments [][]byte
	for r.left() > 0 {
		_, _, n, err := r.tagAndLength() // upToDelimiter has walked over these items
		if err != nil {
			return nil, err
		}
		item, err := r.take(int(n), tagPixels)
		if err != nil {
			return nil, err
		}
		fragments = append(fragments, item)
	}
	switch {
	case len(fragments) < 2:
		return nil, refuse(NoPixels, "the pixel data holds no fragment")
	case len(fragments) == 2:
		return fragments[1], nil
	case h.syntax.coding == rle:
		return nil, refuse(Frames, "%d RLE fragments, want one a frame", len(fragments)-1)
	}
	return bytes.Join(fragments[1:], nil), nil
}

// decode returns the stored values.
func (f *frame) decode(h *header) (stored, error) {
	switch h.syntax.coding {
	case rle:
		planes, err := unpackRLE(f.data, f.samples*f.allocated/8, f.rows*f.columns)
		if err != nil {
			return stored{}, err
		}
		return f.fromPlanes(planes, h), nil
	case jpegDCT, jpegLossless:
		return f.decodeJPEG()
	case jpegLS:
		return f.decodeBy(decodeJPEGLS)
	case jpeg2000:
		return f.decodeBy(decodeJPEG2000)
	}
	return f.decodeNative(h)
}

func (f *frame) decodeNative(h *header) (stored, error) {
	n := f.rows * f.columns
	switch want := n * f.samples * f.allocated / 8; {
	case len(f.data) < want:
		return stored{}, refuse(Truncated, "%d bytes of pixels, %d x %d need %d: the file is truncated, copy it again", len(f.data), f.columns, f.rows, want)
	case len(f.data) >= 2*want: // less is padding
		return stored{}, refuse(Damaged, "%d bytes of pixels, %d x %d need %d: rows and columns are not those of the pixels", len(f.data), f.columns, f.rows, want)
	}
	out := make([]int32, n)
	switch {
	case f.samples == 3:
		return stored{f.luminance(func(i, c int) byte { return f.data[f.colourAt(i, c)] }, h)}, nil
	case f.allocated == 16:
		for i := range out {
			out[i] = f.value(h.syntax.order.Uint16(f.data[2*i:]))
		}
	case h.syntax.order == binary.ByteOrder(binary.BigEndian) && h.pixels.vr == "OW": // bytes are swapped in pairs
		for i := range out {
			out[i] = f.value(uint16(f.data[min(i^1, len(f.data)-1)]))
		}
	default:
		for i := range out {
			out[i] = f.value(uint16(f.data[i]))
		}
	}
	return stored{values: out}, nil
}

// colourAt returns where sample c of pixel i lies.
func (f *frame) colourAt(i, c int) int {
	if f.planar {
		return c*f.rows*f.columns + i
	}
	return 3*i + c
}

// luminance reduces colours to grey: a photographed or scanned film.
func (f *frame) luminance(at func(i, c int) byte, h *header) []int32 {
	out := make([]int32, f.rows*f.columns)
	rgb := h.term(tagPhotometric) == "RGB"
	for i := range out {
		out[i] = int32(at(i, 0)) // Y
		if rgb {
			out[i] = int32(color.GrayModel.Convert(color.RGBA{at(i, 0), at(i, 1), at(i, 2), 255}).(color.Gray).Y)
		}
	}
	return out
}

// value takes the stored bits out of a cell, with their sign.
func (f *frame) value(cell uint16) int32 {
	v := int32(cell) >> (f.highBit + 1 - f.stored) & (1<<f.stored - 1)
	if f.signed && v >= 1<<(f.stored-1) {
		v -= 1 << f.stored
	}
	return v
}

// fromPlanes joins RLE's byte planes, the most significant first.
func (f *frame) fromPlanes(planes [][]byte, h *header) stored {
	if f.samples == 3 {
		return stored{f.luminance(func(i, c int) byte { return planes[c][i] }, h)}
	}
	out := make([]int32, f.rows*f.columns)
	for i := range out {
		cell := uint16(planes[0][i])
		if len(planes) == 2 {
			cell = cell<<8 | uint16(planes[1][i])
		}
		out[i] = f.value(cell)
	}
	return stored{values: out}
}

// decodeJPEG decodes 8-bit DCT frames with the standard library and the others
// with this package's decoder.
func (f *frame) decodeJPEG() (stored, error) {
	j, err := readJPEG(f.data)
	if err != nil {
		return stored{}, err
	}
	if err := f.fits(j.width, j.height); err != nil {
		return stored{}, err
	}
	if j.precision == 8 && !j.lossless() {
		img, err := jpeg.Decode(bytes.NewReader(f.data))
		if err != nil {
			return stored{}, refuse(Damaged, "the JPEG frame is truncated or damaged: copy the file again")
		}
		return f.fromGoImage(img), nil
	}
	cells, err := j.decode()
	if err != nil {
		return stored{}, err
	}
	return f.fromCells(cells), nil
}

func (f *frame) fits(width, height int) error {
	if width != f.columns || height != f.rows {
		return refuse(Damaged, "the compressed frame has %d x %d pixels, the header says %d x %d", width, height, f.columns, f.rows)
	}
	return nil
}

func (f *frame) fromCells(cells []uint16) stored {
	out := make([]int32, len(cells))
	for i, c := range cells {
		out[i] = f.value(c)
	}
	return stored{values: out}
}

// fromGoImage takes an image's luminance.
func (f *frame) fromGoImage(img image.Image) stored {
	cells := make([]uint16, f.rows*f.columns)
	for i := range cells {
		x, y := i%f.columns, i/f.columns
		switch img := img.(type) {
		case *image.Gray:
			cells[i] = uint16(img.Pix[y*img.Stride+x])
		case *image.YCbCr:
			cells[i] = uint16(img.Y[y*img.YStride+x])
		default:
			cells[i] = uint16(color.GrayModel.Convert(img.At(x, y)).(color.Gray).Y)
		}
	}
	return f.fromCells(cells)
}

// decodeBy decodes with a library that the program may be built with.
func (f *frame) decodeBy(codec func(data []byte, f *frame) ([]uint16, error)) (stored, error) {
	if f.samples != 1 {
		return stored{}, refuse(Unsupported, "colours in JPEG-LS or JPEG 2000: convert the file to explicit little endian")
	}
	cells, err := codec(f.data, f)
	if err != nil {
		return stored{}, err
	}
	return f.fromCells(cells), nil
}
