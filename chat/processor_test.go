package chat

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"slices"
	"strings"
	"testing"
)

func encodePNG(t testing.TB, img image.Image) []byte {
	t.Helper()
	var w bytes.Buffer
	if err := png.Encode(&w, img); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

func gradient(w, h int) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		img.Pix[i] = uint8(i*7 + i/w)
	}
	return img
}

// header returns the start of a grey PNG of that size, without pixels.
func header(w, h uint32) []byte {
	chunk := append([]byte("IHDR"), binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, w), h)...)
	chunk = append(chunk, 8, 0, 0, 0, 0)
	out := append([]byte("\x89PNG\r\n\x1a\n"), 0, 0, 0, 13)
	return binary.BigEndian.AppendUint32(append(out, chunk...), crc32.ChecksumIEEE(chunk))
}

// jpegHeader returns the start of a grey JPEG of that size, without pixels.
func jpegHeader(h, w uint16) []byte {
	frame := []byte{0xff, 0xd8, 0xff, 0xc0, 0, 11, 8}
	frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, h), w)
	return append(frame, 1, 1, 0x11, 0, 0xff, 0xda, 0, 8) // and the start of a scan
}

func TestProcessRefuses(t *testing.T) {
	whole := encodePNG(t, gradient(100, 100))
	var photo bytes.Buffer
	if err := jpeg.Encode(&photo, gradient(100, 100), nil); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		encoded []byte
		want    string // part of the error
	}{
		{"mirrored when shown", append([]byte("\xff\xd8\xff\xe1\x00\x22Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00"), photo.Bytes()[2:]...), "jpeg image: EXIF orientation 2"},
		{"empty", nil, "give a whole PNG or JPEG file"},
		{"text", []byte("hello"), "unknown format"},
		{"truncated PNG", whole[:len(whole)/2], "truncated or damaged"},
		{"truncated JPEG", photo.Bytes()[:photo.Len()/2], "truncated or damaged"},
		{"header only", header(100, 100), "truncated or damaged"},
		{"huge side", header(1<<20, 4), "scale it down"},
		{"huge area", header(16000, 16000), "scale it down"},
		{"sliver", header(10, 4000), "at most 200 : 1"},
		{"aspect 1:500", header(10, 5000), "the aspect is 500 : 1"},
		{"40,000 a side", header(40000, 40000), "png image of 40000 × 40000 pixels: sides must be 1 to 16384"},
		{"no width", header(0, 100), "png image of 0 pixels"},
		{"no height", header(100, 0), "png image of 0 pixels"},
		{"no lines in a JPEG", jpegHeader(0, 100), "jpeg image of 100 × 0 pixels"},
		{"a JPEG of 40,000 a side", jpegHeader(40000, 40000), "jpeg image of 40000 × 40000 pixels: sides must be"},
	}
	for _, test := range tests {
		_, _, err := Small.Process(test.encoded)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
	}
}

// Every way to store the same grey film gives the same patches.
func TestProcessColourModels(t *testing.T) {
	grey := gradient(150, 140)
	deep := image.NewGray16(grey.Bounds())
	alpha := image.NewNRGBA(grey.Bounds())
	alpha16 := image.NewNRGBA64(grey.Bounds())
	opaque := image.NewRGBA(grey.Bounds())
	for y := range 140 {
		for x := range 150 {
			v := grey.GrayAt(x, y).Y
			deep.SetGray16(x, y, color.Gray16{Y: uint16(v)<<8 | uint16(x)})
			alpha.SetNRGBA(x, y, color.NRGBA{v, v, v, 255})
			alpha16.SetNRGBA64(x, y, color.NRGBA64{uint16(v)<<8 | 7, uint16(v) << 8, uint16(v)<<8 | uint16(y), 0xffff})
			opaque.SetRGBA(x, y, color.RGBA{v, v, v, 255})
		}
	}
	want, _, err := Small.Process(encodePNG(t, grey))
	if err != nil {
		t.Fatal(err)
	}
	alpha.SetNRGBA(3, 3, color.NRGBA{9, 9, 9, 0}) // shows white
	grey.SetGray(3, 3, color.Gray{255})
	for name, img := range map[string]image.Image{"16-bit grey": deep, "16-bit colour": alpha16, "colour": opaque} {
		if got, _, err := Small.Process(encodePNG(t, img)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: patches differ from the 8-bit grey ones (%v)", name, err)
		}
	}
	if want, _, err = Small.Process(encodePNG(t, grey)); err != nil {
		t.Fatal(err)
	}
	if got, _, err := Small.Process(encodePNG(t, alpha)); err != nil || !slices.Equal(got, want) {
		t.Errorf("a transparent pixel is not white (%v)", err)
	}
}

func TestSmartResize(t *testing.T) {
	tests := []struct {
		p    Processor
		h, w int
		want image.Point
	}{ // values of transformers' smart_resize
		{Small, 512, 512, image.Pt(128, 128)},
		{Small, 128, 128, image.Pt(128, 128)},
		{Small, 200, 180, image.Pt(96, 128)},
		{Small, 50, 41, image.Pt(128, 160)},
		{Small, 10, 1900, image.Pt(1792, 32)},
		{Base, 1024, 1024, image.Pt(1024, 1024)},
		{Base, 3000, 2500, image.Pt(928, 1120)},
		{Base, 700, 500, image.Pt(512, 704)},
		{Base, 80, 80, image.Pt(256, 256)},
	}
	for _, test := range tests {
		if got := test.p.smartResize(test.h, test.w); got != test.want {
			t.Errorf("smartResize(%d, %d) = %v, want %v", test.h, test.w, got, test.want)
		}
	}
}

func TestUse(t *testing.T) {
	encoded := encodePNG(t, gradient(512, 512))
	use, err := Small.Use(encoded, "ab")
	if err != nil || use.SHA256 != "ab" || use.Grid != [3]int{1, 8, 8} || use.Processor != Small.Hash() || use.PadTokens(Small.Merge) != 16 {
		t.Errorf("Use = %+v, %v", use, err)
	}
	if Small.Hash() == Base.Hash() {
		t.Error("two configurations have one hash")
	}
}

func TestProcessorValidate(t *testing.T) {
	for _, p := range []Processor{Small, Base} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, p := range []Processor{{}, {16, 2, 2, 0, 100000}, {16, 2, 2, 200, 100}, {16, 2, 2, 100, 1000}} {
		if p.Validate() == nil {
			t.Errorf("%+v is valid, want an error", p)
		}
	}
}

// What an export says of its processor is read back as it was; what would give
// other pixels is refused by field.
func TestParseProcessor(t *testing.T) {
	c := codec(t)
	for _, want := range []Processor{Small, Base} {
		var config []byte
		for _, f := range c.Files(want) {
			if f.Name == "preprocessor_config.json" {
				config = f.Data
			}
		}
		nested := []byte(`{"image_processor": ` + string(config) + `, "processor_class": "Qwen3VLProcessor"}`)
		for _, data := range [][]byte{config, nested} {
			if got, err := ParseProcessor(data); err != nil || got != want {
				t.Errorf("%+v came back as %+v, %v", want, got, err)
			}
		}
	}
	const published = `{"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
		"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "image_processor_type": "Qwen2VLImageProcessorFast"}`
	if got, err := ParseProcessor([]byte(published)); err != nil || got != (Processor{16, 2, 2, 65536, 16777216}) {
		t.Errorf("the published configuration gives %+v, %v", got, err)
	}
	for field, change := range map[string][2]string{
		"image_processor_type": {"Qwen2VLImageProcessorFast", "CLIPImageProcessor"},
		"image_mean":           {`"image_mean": [0.5, 0.5, 0.5]`, `"image_mean": [0.48, 0.46, 0.41]`},
		"resample":             {`{"size"`, `{"resample": 2, "size"`},
		"rescale_factor":       {`{"size"`, `{"rescale_factor": 1, "size"`},
		"do_resize":            {`{"size"`, `{"do_resize": false, "size"`},
		"patch_size":           {`"patch_size": 16, `, ``},
		"min_pixels":           {"65536", "0"},
	} {
		_, err := ParseProcessor([]byte(strings.Replace(published, change[0], change[1], 1)))
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v does not name it", field, err)
		}
	}
}

func BenchmarkProcess(b *testing.B) {
	encoded := encodePNG(b, gradient(512, 512))
	for b.Loop() {
		if _, _, err := Small.Process(encoded); err != nil {
			b.Fatal(err)
		}
	}
}

// Whatever the bytes are, Process ends with an error or with patches of its grid.
func FuzzProcess(f *testing.F) {
	f.Add(encodePNG(f, gradient(40, 30)))
	f.Add(header(1<<31-1, 1<<31-1))
	f.Add([]byte("\xff\xd8\xff"))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		if len(encoded) > 1<<16 {
			return
		}
		patches, grid, err := Small.Process(encoded)
		if err == nil && len(patches) != grid[0]*grid[1]*grid[2]*Small.Row() {
			t.Fatalf("%d values for grid %v", len(patches), grid)
		}
	})
}
