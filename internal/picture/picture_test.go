package picture

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"
)

// tiff is EXIF data that says nothing but an orientation.
func tiff(order binary.AppendByteOrder, mark string, orientation uint16) []byte {
	b := order.AppendUint16([]byte(mark), 42)
	b = order.AppendUint32(b, 8)
	b = order.AppendUint16(b, 2)
	for _, e := range [][2]uint16{{0x010f, 7}, {0x0112, orientation}} { // behind another entry
		b = order.AppendUint16(b, e[0])
		b = order.AppendUint16(b, 3)
		b = order.AppendUint32(b, 1)
		b = order.AppendUint16(b, e[1])
		b = order.AppendUint16(b, 0)
	}
	return order.AppendUint32(b, 0)
}

// long says it in 32 bits, as some writers do.
func long(o uint16) []byte {
	b := binary.LittleEndian.AppendUint32([]byte("II*\x00"), 8)
	b = append(b, 1, 0, 0x12, 1, 4, 0, 1, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, uint32(o))
}

// withXMP puts a packet of properties into a JPEG.
func withXMP(t testing.TB, packet string) []byte {
	t.Helper()
	plain, body := plainJPEG(t), "http://ns.adobe.com/xap/1.0/\x00"+packet
	b := binary.BigEndian.AppendUint16(append(append([]byte{}, plain[:2]...), 0xff, 0xe1), uint16(2+len(body)))
	return append(append(b, body...), plain[2:]...)
}

func little(o uint16) []byte { return tiff(binary.LittleEndian, "II", o) }
func big(o uint16) []byte    { return tiff(binary.BigEndian, "MM", o) }

func plainJPEG(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 9, 5)), nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func plainPNG(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 9, 5))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// inJPEG puts EXIF data behind a comment and a fill byte.
func inJPEG(t testing.TB, exif []byte) []byte {
	t.Helper()
	plain := plainJPEG(t)
	b := append([]byte{}, plain[:2]...)
	b = append(b, 0xff, 0xfe, 0, 4, 'h', 'i', 0xff)
	b = binary.BigEndian.AppendUint16(append(b, 0xff, 0xe1), uint16(2+6+len(exif)))
	b = append(append(b, "Exif\x00\x00"...), exif...)
	return append(b, plain[2:]...)
}

// inPNG puts EXIF data before the end, behind the pixels.
func inPNG(t testing.TB, exif []byte) []byte {
	t.Helper()
	plain := plainPNG(t)
	end := bytes.LastIndex(plain, []byte("IEND")) - 4
	chunk := append([]byte("eXIf"), exif...)
	b := binary.BigEndian.AppendUint32(append([]byte{}, plain[:end]...), uint32(len(exif)))
	b = binary.BigEndian.AppendUint32(append(b, chunk...), crc32.ChecksumIEEE(chunk))
	return append(b, plain[end:]...)
}

func TestOrientation(t *testing.T) {
	t.Parallel()
	for name, file := range map[string][]byte{
		"plain JPEG": plainJPEG(t), "plain PNG": plainPNG(t), "upright": inJPEG(t, little(1)), "undefined": inPNG(t, big(0)), "none": inJPEG(t, little(900)),
		"upright XMP": withXMP(t, `<x tiff:Orientation="1"/>`),
	} {
		if err := Upright(file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, file := range map[string][]byte{
		"mirrored JPEG": inJPEG(t, little(2)), "JPEG on its side": inJPEG(t, big(6)), "PNG on its head": inPNG(t, big(3)), "PNG on its side": inPNG(t, little(8)),
		"in 32 bits": inJPEG(t, long(6)), "XMP attribute": withXMP(t, `<x tiff:Orientation="2"/>`), "XMP element": withXMP(t, `<tiff:Orientation>8</tiff:Orientation>`),
	} {
		if err := Upright(file); err == nil || !strings.Contains(err.Error(), "EXIF orientation") {
			t.Errorf("%s: error %v, want one that names the orientation", name, err)
		}
	}
}

// TestGrey holds what is shown to what a viewer shows: transparent pixels white,
// few bits of many spread out.
func TestGrey(t *testing.T) {
	t.Parallel()
	clear := image.NewNRGBA(image.Rect(3, 3, 5, 4))
	clear.SetNRGBA(4, 3, color.NRGBA{R: 100, G: 100, B: 100, A: 255})
	deep := image.NewGray16(image.Rect(0, 0, 2, 1))
	deep.SetGray16(1, 0, color.Gray16{Y: 4095})
	for name, c := range map[string]struct {
		img  image.Image
		want []byte
	}{
		"transparent, and opaque": {clear, []byte{255, 100}},
		"12 bits of 16":           {deep, []byte{0, 255}},
		"part of a picture":       {image.NewGray(image.Rect(0, 0, 9, 9)).SubImage(image.Rect(4, 4, 6, 5)), []byte{0, 0}},
	} {
		if got := Grey(c.img); !bytes.Equal(got.Pix, c.want) || got.Rect.Min != (image.Point{}) {
			t.Errorf("%s: %v at %v, want %v at the origin", name, got.Pix, got.Rect.Min, c.want)
		}
	}
}

func FuzzUpright(f *testing.F) {
	for _, file := range [][]byte{plainJPEG(f), plainPNG(f), inJPEG(f, big(6)), inPNG(f, little(2))} {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		if err := Upright(file); err != nil && !bytes.Contains(file, []byte{0x12}) && !bytes.Contains(file, []byte("tiff")) {
			t.Errorf("an orientation without its tag: %v", err)
		}
		orientation(file)
	})
}
