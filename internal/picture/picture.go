// Package picture reads PNG and JPEG files alike for all who need their pixels:
// the policy's processor, the tools and the readers of data sets.
package picture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/draw"
	"math"
	"math/bits"
	"regexp"
)

// Upright refuses a PNG or JPEG file with an orientation, in EXIF or XMP data,
// other than that of its pixels: some programs turn and mirror by it and others do not, and
// sides depend on it.
func Upright(file []byte) error {
	o := orientation(exif(file))
	if m := xmpOrientation.FindSubmatch(xmp(file)); m != nil && o == upright {
		o = int(m[1][0] - '0')
	}
	if o > upright && o <= 8 {
		return fmt.Errorf("EXIF orientation %d: only some programs turn or mirror by it, so that sides are unknown; save the picture as it is to be seen, with orientation 1", o)
	}
	return nil
}

// Grey returns an image's luminance in 8 bits; what is transparent shows white.
// Of 16-bit grey the eight highest bits in use are kept: detectors of 10 to 14
// bits are often stored in the low ones.
func Grey(img image.Image) *image.Gray {
	b := img.Bounds()
	switch img := img.(type) {
	case *image.Gray:
		if b.Min == (image.Point{}) && img.Stride == b.Dx() {
			return img
		}
	case *image.Gray16:
		return grey16(img)
	}
	grey := image.NewGray(image.Rect(0, 0, b.Dx(), b.Dy()))
	if o, ok := img.(interface{ Opaque() bool }); !ok || !o.Opaque() {
		draw.Draw(grey, grey.Rect, image.White, image.Point{}, draw.Src)
		draw.Draw(grey, grey.Rect, img, b.Min, draw.Over)
		return grey
	}
	draw.Draw(grey, grey.Rect, img, b.Min, draw.Src)
	return grey
}

func grey16(g *image.Gray16) *image.Gray {
	b := g.Rect
	used := 8
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			used = max(used, bits.Len16(g.Gray16At(x, y).Y))
		}
	}
	grey := image.NewGray(image.Rect(0, 0, b.Dx(), b.Dy()))
	for y := range b.Dy() {
		for x := range b.Dx() {
			grey.Pix[y*grey.Stride+x] = uint8(g.Gray16At(b.Min.X+x, b.Min.Y+y).Y >> (used - 8))
		}
	}
	return grey
}

// exif returns the TIFF structure that a JPEG or PNG carries as its EXIF data,
// nil where there is none.
func exif(file []byte) []byte {
	if bytes.HasPrefix(file, []byte("\x89PNG")) {
		return pngChunk(file, "eXIf")
	}
	return jpegSegment(file, "Exif\x00\x00")
}

var xmpOrientation = regexp.MustCompile(`tiff:Orientation(?:="|>)\s*([1-8])`)

// xmp returns the packet of properties that Adobe's programs write.
func xmp(file []byte) []byte {
	if bytes.HasPrefix(file, []byte("\x89PNG")) {
		return pngChunk(file, "iTXt")
	}
	return jpegSegment(file, "http://ns.adobe.com/xap/1.0/\x00")
}

func pngChunk(file []byte, kind string) []byte {
	const head = 8 // of a chunk: length and kind; the file's signature is as long
	for rest := file[min(head, len(file)):]; len(rest) >= head; {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n > uint64(len(rest)-head) {
			return nil
		}
		if string(rest[4:head]) == kind {
			return rest[head : head+n]
		}
		rest = rest[min(head+n+4, uint64(len(rest))):] // and the checksum
	}
	return nil
}

// jpegSegment looks for an APP1 segment with a prefix, in front of the pixels.
func jpegSegment(file []byte, prefix string) []byte {
	const scan, app1 = 0xda, 0xe1
	for rest := file[min(2, len(file)):]; len(rest) >= 4 && rest[0] == 0xff && rest[1] != scan; {
		if rest[1] == 0xff { // a fill byte
			rest = rest[1:]
			continue
		}
		n := int(binary.BigEndian.Uint16(rest[2:]))
		if n < 2 || 2+n > len(rest) {
			return nil
		}
		if body, ok := bytes.CutPrefix(rest[4:2+n], []byte(prefix)); ok && rest[1] == app1 {
			return body
		}
		rest = rest[2+n:]
	}
	return nil
}

// upright is the orientation of rows from the top and columns from the left.
const upright = 1

// orientation reads tag 0x0112 of a TIFF structure's first directory (TIFF 6.0,
// section 8); upright where there is none.
func orientation(tiff []byte) int {
	const tag, short, long, entry = 0x0112, 3, 4, 12
	var order binary.ByteOrder = binary.LittleEndian
	switch {
	case len(tiff) < 8:
		return upright
	case bytes.HasPrefix(tiff, []byte("MM")):
		order = binary.BigEndian
	}
	at := uint64(order.Uint32(tiff[4:]))
	if at+2 > uint64(len(tiff)) {
		return upright
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < entry {
			break
		}
		switch kind := order.Uint16(entries[2:]); {
		case order.Uint16(entries) != tag:
		case kind == short:
			return int(order.Uint16(entries[8:]))
		case kind == long:
			return int(min(order.Uint32(entries[8:]), math.MaxUint16))
		}
		entries = entries[entry:]
	}
	return upright
}
