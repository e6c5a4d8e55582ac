package phantom

import (
	"image"
	"image/png"
	"os"
	"testing"
)

var testConfig = Config{Seed: 1, Train: 100, Validation: 100, Test: 100, OOD: 100}

// TestSheet writes a contact sheet for a person to look at when PHANTOM_SHEET
// names a file.
func TestSheet(t *testing.T) {
	path := os.Getenv("PHANTOM_SHEET")
	if path == "" {
		t.Skip("PHANTOM_SHEET is not set: no contact sheet written")
	}
	var images []*image.Gray
	for i := range 12 {
		images = append(images, Generate(testConfig, i).Image)
	}
	for name, sheet := range map[string]*image.Gray{path + ".png": Sheet(images, 4, 1), path + ".coarse.png": Sheet(images, 6, 4)} {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := png.Encode(f, sheet); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	for i := range b.N {
		Generate(testConfig, i%100)
	}
}

func BenchmarkEncodePNG(b *testing.B) {
	s := Generate(testConfig, 0)
	for range b.N {
		if data, _ := s.EncodePNG(); b.N == 1 {
			b.ReportMetric(float64(len(data)), "bytes")
		}
	}
}

func BenchmarkDescribe(b *testing.B) {
	for i := range b.N {
		Describe(testConfig, i%100)
	}
}
