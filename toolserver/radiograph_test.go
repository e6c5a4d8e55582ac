package toolserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/rollout"
	"xragent/toolserver/measure"
)

// sharedFilms are real films that the repository does not hold.
const sharedFilms = "../../shared/data/cxr"

var (
	realFaults = flag.Bool("radiographs", false, "segment all real films, and what faults make of them")
	foldsDir   = flag.String("folds", "", "folder of fold0.safetensors and so on: films are segmented by the network that was not trained on them")
)

// TestRadiographSegmented holds that a film without given masks is measured by
// the embedded network, and with one that was given a name by that.
func TestRadiographSegmented(t *testing.T) {
	s, images, meta := serverFor(t, nil), [][]byte(nil), []dataset.Image(nil)
	for i := 0; images == nil; i++ {
		study, file, about := film(t, i)
		if study.Truth.View == "PA" && study.Truth.Fault == "" && len(study.Truth.Findings) == 0 {
			images, meta = file, about
		}
	}
	meta[0].Domain = "radiograph"
	b, err := s.Measure(context.Background(), images, meta)
	if err != nil || !anyComputed(b) || slices.Contains(b.Reasons, "segmenter_domain") {
		t.Fatalf("%+v, %v", b, err)
	}
	if obs := call(t, extended(t, nil), segmentName, `{"organs":["heart"]}`, images, meta); !strings.HasPrefix(obs.Text, "heart: area ") {
		t.Errorf("%+v", said(obs))
	}
	for name, change := range map[string]func(*Config){
		"no network": func(c *Config) { c.Network = "none" }, "no segmenter": func(c *Config) { c.Segmenter = "none" },
	} {
		b, err := serverFor(t, change).Measure(context.Background(), images, meta)
		if err != nil || anyComputed(b) || !slices.Contains(b.Reasons, "segmenter_domain") {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
}

// TestPhantomsKeepTheirSegmenter holds that a network changes nothing on
// phantoms, names of results in caches included.
func TestPhantomsKeepTheirSegmenter(t *testing.T) {
	_, images, meta := film(t, 1)
	with, without := serverFor(t, nil), serverFor(t, func(c *Config) { c.Network = "none" })
	if a, b := with.segmenterKey(meta), without.segmenterKey(meta); string(a) != "phantom/v1" || !bytes.Equal(a, b) {
		t.Errorf("keys %q and %q, want phantom/v1", a, b)
	}
	a, errA := with.Measure(context.Background(), images, meta)
	b, errB := without.Measure(context.Background(), images, meta)
	if errA != nil || errB != nil || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("%+v, %v; without the network %+v, %v", a, errA, b, errB)
	}
}

// A spoiling is a fault made of a film's pixels; what it spoils must not be shown.
type spoiling struct {
	name   string
	spoils []string
	make   func(a, b *image.Gray) *image.Gray
}

var (
	ofSides = []string{rollout.Asymmetry, rollout.Shift}
	ofAreas = []string{rollout.CTR, rollout.Asymmetry}
)

// spoilings are the eight faults of a film; those with two forms count for each.
var spoilings = []spoiling{
	{"mirrored", ofSides, func(a, _ *image.Gray) *image.Gray {
		return moved(a, a.Rect.Dx(), a.Rect.Dy(), func(x, y float64) (float64, float64) { return 1 - x, y })
	}},
	{"inverted", rollout.Measurements, func(a, _ *image.Gray) *image.Gray {
		out := image.NewGray(a.Rect)
		for i, v := range a.Pix {
			out.Pix[i] = 255 - v
		}
		return out
	}},
	{"cropped right", ofAreas, func(a, _ *image.Gray) *image.Gray { return part(a, 0.28, 0, 1, 1) }},
	{"cropped left", ofAreas, func(a, _ *image.Gray) *image.Gray { return part(a, 0, 0, 0.72, 1) }},
	{"cropped below", ofAreas, func(a, _ *image.Gray) *image.Gray { return part(a, 0, 0, 1, 0.5) }},
	{"rotated 90", rollout.Measurements, func(a, _ *image.Gray) *image.Gray { return turned(a, 90) }},
	{"rotated 15", rollout.Measurements, func(a, _ *image.Gray) *image.Gray { return turned(a, 15) }},
	{"rotated -15", rollout.Measurements, func(a, _ *image.Gray) *image.Gray { return turned(a, -15) }},
	{"two panels", rollout.Measurements, func(a, b *image.Gray) *image.Gray {
		w, h := a.Rect.Dx(), a.Rect.Dy()
		out := image.NewGray(image.Rect(0, 0, w, h))
		right := moved(b, w-w/2, h, func(x, y float64) (float64, float64) { return x, y })
		draw.Draw(out, image.Rect(0, 0, w/2, h), moved(a, w/2, h, func(x, y float64) (float64, float64) { return x, y }), image.Point{}, draw.Src)
		draw.Draw(out, image.Rect(w/2, 0, w, h), right, image.Point{}, draw.Src)
		return out
	}},
	{"squeezed in width", rollout.Measurements, func(a, _ *image.Gray) *image.Gray {
		return moved(a, a.Rect.Dx()*6/10, a.Rect.Dy(), func(x, y float64) (float64, float64) { return x, y })
	}},
	{"squeezed in height", rollout.Measurements, func(a, _ *image.Gray) *image.Gray {
		return moved(a, a.Rect.Dx(), a.Rect.Dy()*6/10, func(x, y float64) (float64, float64) { return x, y })
	}},
	{"covered white", ofAreas, func(a, _ *image.Gray) *image.Gray { return covered(a, 250) }},
	{"covered grey", ofAreas, func(a, _ *image.Gray) *image.Gray { return covered(a, 128) }},
	{"covered black", ofAreas, func(a, _ *image.Gray) *image.Gray { return covered(a, 0) }},
}

// moved makes a film of w × h: from says where in the source each place, in
// shares, comes from; outside it is black.
func moved(a *image.Gray, w, h int, from func(x, y float64) (float64, float64)) *image.Gray {
	out := image.NewGray(image.Rect(0, 0, w, h))
	for i := range out.Pix {
		x, y := from((float64(i%w)+0.5)/float64(w), (float64(i/w)+0.5)/float64(h))
		if x >= 0 && x < 1 && y >= 0 && y < 1 {
			out.Pix[i] = a.Pix[int(y*float64(a.Rect.Dy()))*a.Stride+int(x*float64(a.Rect.Dx()))]
		}
	}
	return out
}

func part(a *image.Gray, x0, y0, x1, y1 float64) *image.Gray {
	w, h := (x1-x0)*float64(a.Rect.Dx()), (y1-y0)*float64(a.Rect.Dy())
	return moved(a, int(w), int(h), func(x, y float64) (float64, float64) { return x0 + x*(x1-x0), y0 + y*(y1-y0) })
}

func turned(a *image.Gray, degrees float64) *image.Gray {
	sin, cos := math.Sincos(degrees * math.Pi / 180)
	return moved(a, a.Rect.Dx(), a.Rect.Dy(), func(x, y float64) (float64, float64) {
		return 0.5 + cos*(x-0.5) + sin*(y-0.5), 0.5 - sin*(x-0.5) + cos*(y-0.5)
	})
}

// covered lays a box of one grey level over the lower part of the left lung of
// an ordinary film.
func covered(a *image.Gray, level uint8) *image.Gray {
	out := image.NewGray(a.Rect)
	draw.Draw(out, out.Rect, a, a.Rect.Min, draw.Src)
	w, h := a.Rect.Dx(), a.Rect.Dy()
	draw.Draw(out, image.Rect(w*55/100, h*25/100, w*92/100, h*75/100), image.NewUniform(color.Gray{Y: level}), image.Point{}, draw.Src)
	return out
}

// segmenters returns one server a fold, or one for all films.
func foldServers(t *testing.T) []*Server {
	if *foldsDir == "" {
		t.Log("in sample: the embedded network was trained on wingspan; -folds gives one that was not")
		return []*Server{serverFor(t, func(c *Config) { c.Gate = measure.PerMeasurement })}
	}
	var list []*Server
	for k := range 5 {
		list = append(list, serverFor(t, func(c *Config) {
			c.Gate, c.Network = measure.PerMeasurement, filepath.Join(*foldsDir, fmt.Sprintf("fold%d.safetensors", k))
		}))
	}
	return list
}

// foldOf deals names out as learner/segment.py does.
func foldOf(names []string, folds int) map[string]int {
	order := slices.Clone(names)
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Compare(fmt.Sprintf("%x", sha256.Sum256([]byte(a))), fmt.Sprintf("%x", sha256.Sum256([]byte(b))))
	})
	out := map[string]int{}
	for i, n := range order {
		out[n] = i % folds
	}
	return out
}

// TestGateOnRadiographs counts what the gate admits of real films that a network
// segments, and of faults made of their pixels.
func TestGateOnRadiographs(t *testing.T) {
	if !*realFaults {
		t.Skip("not checked: the gate on real films that the network segments; -radiographs checks it")
	}
	films, names := readFilms(t, "wingspan")
	servers := foldServers(t)
	fold := foldOf(names, len(servers))
	judge := func(f spoiling) (shown, wrong int) {
		by := map[string]int{}
		for i, name := range names {
			img := f.make(films[i], films[(i+7)%len(films)])
			b, err := servers[fold[name]].Measure(context.Background(), [][]byte{encode(t, img)}, []dataset.Image{{Domain: "radiograph", View: "PA", ViewFrom: "label"}})
			if err != nil {
				t.Fatal(err)
			}
			spoilt, all := false, true
			for _, m := range b.Measurements {
				spoilt = spoilt || m.Admitted && slices.Contains(f.spoils, m.Name)
				all = all && m.Admitted
			}
			if all {
				shown++
			}
			if spoilt {
				wrong++
				t.Logf("%s, %s: %v", f.name, name, b.Measurements)
			}
			for _, r := range b.Reasons {
				by[r]++
			}
		}
		t.Logf("%-20s %d films: all three shown %d, spoilt shown %d; withheld by %v", f.name, len(names), shown, wrong, by)
		return shown, wrong
	}
	sound, _ := judge(spoiling{"sound", nil, func(a, _ *image.Gray) *image.Gray { return a }})
	total, wrong := 0, 0
	for _, f := range spoilings {
		_, bad := judge(f)
		total, wrong = total+len(names), wrong+bad
	}
	t.Logf("sound films shown %d of %d; spoilt measurements shown on %d of %d", sound, len(names), wrong, total)
	if wrong*100 > total*2 {
		t.Errorf("spoilt measurements shown on %d of %d, want at most 2 %%", wrong, total)
	}
}

// readFilms reads the films of a set, in the order of their names.
func readFilms(t *testing.T, set string) (films []*image.Gray, names []string) {
	paths, _ := filepath.Glob(filepath.Join(sharedFilms, set, "*"))
	if len(paths) == 0 {
		t.Skipf("not checked: real films; %s is not here", sharedFilms)
	}
	for _, path := range paths {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := ReadFilm(file, 64<<20, 32<<20)
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Base(path)
		films, names = append(films, f.Gray), append(names, strings.TrimSuffix(base, filepath.Ext(base)))
	}
	return films, names
}

// BenchmarkRadiograph decodes, segments, judges and measures a film of
// 1024 × 1024 pixels.
func BenchmarkRadiograph(b *testing.B) {
	_, images, _ := film(b, 0)
	f, err := ReadFilm(images[0], 64<<20, 32<<20)
	if err != nil {
		b.Fatal(err)
	}
	file := encode(b, moved(f.Gray, 1024, 1024, func(x, y float64) (float64, float64) { return x, y }))
	meta := []dataset.Image{{Domain: "radiograph", View: "PA", ViewFrom: "label"}}
	for b.Loop() {
		s := serverFor(b, func(c *Config) { c.Cache = 0 })
		if _, err := s.Measure(context.Background(), [][]byte{file}, meta); err != nil {
			b.Fatal(err)
		}
	}
}
