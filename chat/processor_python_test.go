package chat

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTransformersProcesses holds 60 random images under six configurations to
// transformers' processor: the same grid, and pixel values within the rounding
// of float32.
func TestTransformersProcesses(t *testing.T) {
	python := os.Getenv("XRAGENT_PYTHON")
	if python == "" {
		t.Skip("XRAGENT_PYTHON is not set: images were not compared with transformers' processor")
	}
	dir, r, c := t.TempDir(), rand.New(rand.NewPCG(3, 1)), codec(t)
	type made struct {
		path    string
		patches []float32
		grid    [3]int
	}
	var all []made
	for i, p := range []Processor{Small, Base, {14, 2, 2, 28 * 28, 300 * 300}, {16, 2, 2, 65536, 16777216}, {8, 1, 1, 64, 4096}, {16, 3, 2, 200 * 200, 201 * 201}} {
		folder := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range c.Files(p) {
			if f.Name == "preprocessor_config.json" {
				writeTo(t, filepath.Join(folder, f.Name), f.Data)
			}
		}
		for n := range 10 {
			encoded := encodePNG(t, randomImage(r, n))
			patches, grid, err := p.Process(encoded)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(folder, fmt.Sprintf("%d.png", n))
			writeTo(t, path, encoded)
			all = append(all, made{path, patches, grid})
		}
	}
	out, err := exec.Command(python, "../learner/check_processor.py", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	worst := 0.0
	for _, m := range all {
		want, grid := readPixels(t, m.path+".safetensors")
		if m.grid != grid || len(m.patches) != len(want) {
			t.Errorf("%s: grid %v of %d values, want %v of %d", m.path, m.grid, len(m.patches), grid, len(want))
			continue
		}
		away := 0.0
		for i, v := range want {
			away = max(away, math.Abs(float64(v-m.patches[i])))
		}
		if worst = max(worst, away); away > 1e-6 {
			t.Errorf("%s: pixel values differ by up to %.2g, want 1e-6", m.path, away)
		}
	}
	t.Logf("%d images, pixel values within %.2g of transformers %s", len(all), worst, out)
}

func writeTo(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// randomImage draws smooth fields with noise and hard edges, grey or coloured,
// of up to 700 pixels a side.
func randomImage(r *rand.Rand, n int) image.Image {
	w, h := 1+r.IntN(700), 1+r.IntN(700)
	if max(w, h) > 100*min(w, h) {
		w, h = 300, 300
	}
	fx, fy := 0.3*r.Float64(), 0.3*r.Float64()
	value := func(x, y, c int) uint8 {
		v := 128 + 100*math.Sin(fx*float64(x)+fy*float64(y)+float64(c)) + 20*r.NormFloat64()
		if x > w/3 && x < w/2 {
			v *= float64(y % 3)
		}
		return uint8(min(max(v, 0), 255))
	}
	if n%2 == 0 {
		img := image.NewGray(image.Rect(0, 0, w, h))
		for i := range img.Pix {
			img.Pix[i] = value(i%w, i/w, 0)
		}
		return img
	}
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		x, y := i%w, i/w
		img.SetNRGBA(x, y, color.NRGBA{value(x, y, 0), value(x, y, 1), value(x, y, 2), uint8(255 - n*x%128)})
	}
	return img
}

// readPixels reads what check_processor.py wrote.
func readPixels(t *testing.T, path string) (pixels []float32, grid [3]int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(data)
	var header map[string]struct {
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(data[8:8+size], &header); err != nil {
		t.Fatal(err)
	}
	floats := func(name string) (x []float32) {
		body := data[8+size:][header[name].Offsets[0]:header[name].Offsets[1]]
		for ; len(body) > 0; body = body[4:] {
			x = append(x, math.Float32frombits(binary.LittleEndian.Uint32(body)))
		}
		return x
	}
	for i, v := range floats("grid") {
		grid[i] = int(v)
	}
	return floats("pixel_values"), grid
}
