package masks

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRLE(t *testing.T) {
	m, err := RLE("2 2 7 3", image.Pt(5, 2))
	if err != nil {
		t.Fatal(err)
	}
	if want := []uint8{0, 255, 255, 0, 0, 0, 255, 255, 255, 0}; !bytes.Equal(m.Pix, want) {
		t.Errorf("pixels %v, want %v", m.Pix, want)
	}
	for text, want := range map[string]string{
		"":          "empty",
		"3":         "cut short",
		"0 1":       "begins at pixel 0",
		"3 2 4 1":   "begins at pixel 4, but the one before ends at 4",
		"9 3":       "pixel 9 to 11, the image 10",
		"1 0":       "pixel 1 to 0",
		"1 -1":      "pixel 1 to -1",
		"1 x":       `"x"`,
		"1 1e3":     "whole number",
		"11 1":      "the image 10",
		"5 9999999": "the image 10",
		fmt.Sprint(math.MaxInt, " ", math.MaxInt): "the image 10",
		fmt.Sprint(math.MinInt, " 1"):             "begins at pixel",
	} {
		if _, err := RLE(text, image.Pt(5, 2)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	if _, err := RLE("1 1", image.Pt(1<<40, 1<<40)); err == nil {
		t.Error("an absurd size was accepted")
	}
}

// TestEncodeRoundTrip holds that run lengths are a mask, whatever its shape.
func TestEncodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(1, 20).Draw(t, "w"), rapid.IntRange(1, 20).Draw(t, "h")
		m := image.NewAlpha(image.Rect(0, 0, w, h))
		for i := range m.Pix {
			if rapid.Bool().Draw(t, "inside") {
				m.Pix[i] = 255
			}
		}
		back, err := RLE(Encode(m), image.Pt(w, h))
		if errors.Is(err, ErrEmpty) && !slices.Contains(m.Pix, 255) {
			return
		}
		if err != nil || !bytes.Equal(back.Pix, m.Pix) {
			t.Fatalf("%v became %v, %v", m.Pix, back, err)
		}
	})
}

func encoded(t testing.TB, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestPNG(t *testing.T) {
	gray := image.NewGray(image.Rect(0, 0, 3, 1))
	gray.Pix = []uint8{127, 128, 255}
	deep := image.NewGray16(image.Rect(0, 0, 3, 1))
	deep.SetGray16(2, 0, color.Gray16{Y: 0x9000})
	colours := image.NewPaletted(image.Rect(0, 0, 3, 1), color.Palette{color.Black, color.RGBA{R: 255, A: 255}})
	colours.Pix = []uint8{1, 0, 0}
	ones := image.NewGray(image.Rect(0, 0, 3, 1))
	ones.Pix = []uint8{1, 1, 0}
	for want, img := range map[string]image.Image{"[0 255 255]": gray, "[0 0 255]": deep, "[255 0 0]": colours, "[255 255 0]": ones} {
		m, err := PNG(encoded(t, img), image.Pt(3, 1))
		if err != nil || fmt.Sprint(m.Pix) != want {
			t.Errorf("%v, %v, want %s", m, err, want)
		}
	}
	file := encoded(t, gray)
	labels, full := image.NewGray(gray.Rect), image.NewGray(gray.Rect)
	labels.Pix, full.Pix = []uint8{0, 1, 2}, []uint8{1, 1, 1}
	for name, tt := range map[string]struct {
		file []byte
		size image.Point
		want string
	}{
		"another size": {file, image.Pt(3, 2), "3 x 1 pixels, the image has 3 x 2"},
		"no PNG":       {[]byte("x"), image.Pt(3, 1), "not a PNG"},
		"cut short":    {file[:len(file)-20], image.Pt(3, 1), "damaged"},
		"labels":       {encoded(t, labels), image.Pt(3, 1), "want 0 outside and 255 inside"},
		"one dim tone": {encoded(t, full), image.Pt(3, 1), "want 0 outside and 255 inside"},
		"empty":        {encoded(t, image.NewGray(gray.Rect)), image.Pt(3, 1), "empty"},
	} {
		if _, err := PNG(tt.file, tt.size); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
}

const small = "Image Index,Dice RCA (Mean),Left Lung,Right Lung,Heart,Height,Width\n" +
	"a.png,0.81,3 1,1 1,2 1,1,4\nsub/b.png,0.5,3 1,1 1,,1,4\n"

func TestTable(t *testing.T) {
	tb, err := ReadTable(strings.NewReader(small), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, found, err := tb.Find("some/folder/a.dcm", image.Pt(4, 1))
	if err != nil || !found || s.Quality != 0.81 || s.RightLung.Pix[0] != 255 || s.LeftLung.Pix[2] != 255 || s.Heart.Pix[1] != 255 {
		t.Errorf("%+v, %v, %v", s, found, err)
	}
	if _, found, err := tb.Find("c.png", image.Pt(4, 1)); found || err != nil {
		t.Errorf("an image that is not there: %v, %v", found, err)
	}
	if _, _, err := tb.Find("a.png", image.Pt(8, 2)); err == nil || !strings.Contains(err.Error(), "4 x 1 pixels, the image has 8 x 2") {
		t.Errorf("a mask of another size: error %v", err)
	}
	if _, found, err := tb.Find("x/sub/b.png", image.Pt(4, 1)); !found || !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty mask: %v, %v", found, err)
	}
	if tb, err := ReadTable(strings.NewReader(small), func(id string) bool { return id == "a" }); err != nil || tb.Len() != 1 {
		t.Errorf("%d rows wanted, %v", tb.Len(), err)
	}
}

func TestTableErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"nothing":   {"", "header"},
		"no id":     {"Left Lung,Right Lung,Heart\n", "name the image"},
		"no heart":  {"Path,Left Lung,Right Lung\n", `"Heart"`},
		"cut short": {small[:len(small)-12], "line 3"},
		"height":    {"Path,Left Lung,Right Lung,Heart,Height,Width\na,1 1,1 1,1 1,x,1\n", "line 2: column Height"},
		"twice":     {"Path,Left Lung,Right Lung,Heart\na.png,1 1,1 1,1 1\na.jpg,1 1,1 1,1 1\n", "line 2 as well"},
	} {
		if _, err := ReadTable(strings.NewReader(tt.text), nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
}

// TestSharedTables reads real rows, and holds that sides are the patient's.
func TestSharedTables(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/data/meta/chexmask_*.csv")
	if len(files) == 0 {
		t.Skip("../shared/data/meta is not here: no real CheXmask rows were read")
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		tb, err := ReadTable(f, nil)
		_ = f.Close()
		if err != nil || tb.Len() == 0 {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for id := range tb.rows {
			s, _, err := tb.Find(id, image.Pt(1024, 1024))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if meanX(s.RightLung) >= meanX(s.LeftLung) {
				t.Errorf("%s: %s: the right lung lies on the image's right", name, id)
			}
		}
	}
}

func meanX(m *image.Alpha) float64 {
	sum, n := 0, 0
	for i, v := range m.Pix {
		if v != 0 {
			sum, n = sum+i%m.Stride, n+1
		}
	}
	return float64(sum) / float64(n)
}

func FuzzRLE(f *testing.F) {
	f.Add("2 2 7 3", 5, 2)
	f.Add("1 9999999999999999999", 3, 3)
	f.Fuzz(func(t *testing.T, text string, w, h int) {
		if w > 1000 || h > 1000 {
			t.Skip("memory of the fuzzer")
		}
		m, err := RLE(text, image.Pt(w, h))
		if err == nil && (len(m.Pix) != w*h || Encode(m) == "") {
			t.Errorf("%q: %d pixels of %d x %d", text, len(m.Pix), w, h)
		}
	})
}

func FuzzPNG(f *testing.F) {
	f.Add(encoded(f, image.NewGray(image.Rect(0, 0, 3, 2))), 3, 2)
	f.Add(encoded(f, image.NewNRGBA64(image.Rect(0, 0, 1, 1))), 1, 1)
	f.Fuzz(func(t *testing.T, file []byte, w, h int) {
		if w > 1000 || h > 1000 {
			t.Skip("memory of the fuzzer")
		}
		if m, err := PNG(file, image.Pt(w, h)); err == nil && !slices.Contains(m.Pix, 255) {
			t.Error("an empty mask was let through")
		}
	})
}

func FuzzTable(f *testing.F) {
	f.Add(small)
	f.Fuzz(func(t *testing.T, text string) {
		tb, err := ReadTable(strings.NewReader(text), nil)
		if err != nil {
			return
		}
		for id := range tb.rows {
			_, _, _ = tb.Find(id, image.Pt(4, 1))
		}
	})
}
