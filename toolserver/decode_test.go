package toolserver

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/rollout"
	"xragent/toolserver/measure"
)

func dicomFilm(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("dicom", "testdata", name+".dcm"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestDICOMThroughTheDoor holds that a DICOM film is measured as a PNG is, with
// what its tags say, and that one that is refused is the sample's fault.
func TestDICOMThroughTheDoor(t *testing.T) {
	s := serverFor(t, nil)
	film := dicomFilm(t, "lossless1")
	ctx, meta := context.Background(), []dataset.Image{{Domain: "radiograph"}}
	b, err := s.Measure(ctx, [][]byte{film}, meta)
	if err != nil || b.Image != -1 || !slices.Contains(b.Reasons, "lungs_found") || !slices.Contains(b.Reasons, "chest_pattern") {
		t.Errorf("bundle %+v, %v", b, err)
	}
	if obs := call(t, s, "roi_crop", `{"box":[0,0,1,1]}`, [][]byte{film}, meta); len(obs.PNG) == 0 || obs.Error != "" {
		t.Errorf("crop: %+v", obs)
	}
	_, err = s.Measure(ctx, [][]byte{film[:len(film)-40]}, meta)
	if e, ok := errors.AsType[*ImageError](err); !ok || !strings.Contains(e.Reason, "truncated") {
		t.Errorf("cut film: %v", err)
	}
}

func TestSixteenBits(t *testing.T) {
	for _, c := range []struct {
		top  uint16
		want uint8
	}{{0xffff, 0xff}, {0x0fff, 0xff}, {0x03ff, 0xff}, {0x00ff, 0xff}, {0x0800, 0x80}} {
		img := image.NewGray16(image.Rect(0, 0, 2, 1))
		img.SetGray16(1, 0, color.Gray16{Y: c.top})
		film, err := ReadFilm(encode(t, img), 1<<20, 1<<10)
		if err != nil || film.Format != "png" || film.Gray.Pix[0] != 0 || film.Gray.Pix[1] != c.want {
			t.Errorf("brightest of %#x: %v, %v; want %#x", c.top, film.Gray, err, c.want)
		}
	}
}

// TestTurnedFilmIsRefused holds that a film which only some programs would
// mirror is measured by none.
func TestTurnedFilmIsRefused(t *testing.T) {
	var plain bytes.Buffer
	if err := jpeg.Encode(&plain, image.NewGray(image.Rect(0, 0, 64, 64)), nil); err != nil {
		t.Fatal(err)
	}
	const exif = "\xff\xd8\xff\xe1\x00\x22Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00"
	if _, err := ReadFilm(append([]byte(exif), plain.Bytes()[2:]...), 1<<20, 1<<20); err == nil || !strings.Contains(err.Error(), "EXIF orientation 2") {
		t.Errorf("error %v, want one that names the orientation", err)
	}
}

// TestSeveralImages holds the rule for several images of one question: the first
// admitted one is reported, and none when none is.
func TestSeveralImages(t *testing.T) {
	s := serverFor(t, func(c *Config) { c.Gate = measure.PerMeasurement })
	_, images, meta := film(t, 0)
	b, err := s.Measure(context.Background(), [][]byte{dicomFilm(t, "lossless1"), images[0]}, []dataset.Image{{Domain: "radiograph"}, meta[0]})
	alone, errAlone := s.Measure(context.Background(), images, meta)
	if err != nil || errAlone != nil {
		t.Fatal(err, errAlone)
	}
	want := -1
	if alone.Image == 0 {
		want = 1
	}
	if m, _ := b.Find(rollout.CTR); b.Image != want || !m.Computed {
		t.Errorf("image %d, want %d: %+v", b.Image, want, b)
	}
}

func TestOverlay(t *testing.T) {
	gray, m := image.NewGray(image.Rect(0, 0, 120, 80)), image.NewAlpha(image.Rect(0, 0, 120, 80))
	for y := 30; y < 50; y++ {
		for x := 40; x < 60; x++ {
			m.Pix[y*m.Stride+x] = 255
		}
	}
	n := measure.Number{Lines: []measure.Line{{A: measure.Point{X: 70, Y: 40}, B: measure.Point{X: 90, Y: 40}}}, Points: []measure.Point{{X: 100, Y: 60}}}
	out := Overlay(gray, measure.Structures{Heart: m}, []measure.Number{n}, []string{"ctr"})
	for at, want := range map[image.Point]color.RGBA{{40, 35}: heartColour, {50, 40}: {0, 0, 0, 0xff}, {80, 40}: lineColour, {100, 60}: pointColour} {
		if got := out.RGBAAt(at.X, at.Y); got != want {
			t.Errorf("pixel %v is %v, want %v", at, got, want)
		}
	}
	if bytes.ContainsFunc(gray.Pix, func(r rune) bool { return r != 0 }) {
		t.Error("the film was drawn on")
	}
}
