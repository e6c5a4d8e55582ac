package segment

import (
	"bytes"
	"errors"
	"image"
	"math"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset/phantom"
)

func films(t testing.TB, n int, want func(phantom.Truth) bool) []phantom.Study {
	t.Helper()
	cfg := phantom.Config{Seed: 21, Train: 400}
	var list []phantom.Study
	for i := 0; i < 400 && len(list) < n; i++ {
		if s := phantom.Describe(cfg, i); want(s.Truth) {
			list = append(list, phantom.Generate(cfg, i))
		}
	}
	if len(list) < n {
		t.Fatalf("found %d films, want %d", len(list), n)
	}
	return list
}

func clean(t phantom.Truth) bool {
	return t.View != phantom.Lateral && t.Fault == phantom.NoFault && len(t.Findings) == 0
}

func overlap(a *image.Alpha, b *image.Gray) float64 {
	both, either := 0, 0
	for i := range a.Pix {
		x, y := a.Pix[i] != 0, b.Pix[i] != 0
		if x && y {
			both++
		}
		if x || y {
			either++
		}
	}
	return float64(both) / float64(max(either, 1))
}

func TestCleanFilms(t *testing.T) {
	for _, s := range films(t, 12, clean) {
		m, err := Phantom{}.Segment(s.Image)
		if err != nil {
			t.Fatalf("%s: %v", s.ID, err)
		}
		truth := s.Truth.Masks()
		if r, l := overlap(m.RightLung, truth.RightLung), overlap(m.LeftLung, truth.LeftLung); r < 0.93 || l < 0.93 {
			t.Errorf("%s: lungs overlap their truth by %.2f and %.2f, want at least 0.93", s.ID, r, l)
		}
		width := float64(Bounds(m.LeftLung).Max.X - Bounds(m.RightLung).Min.X)
		if got, want := (m.HeartRight+m.HeartLeft)/width, s.Truth.Apparent.CTR; math.Abs(got-want) > 0.015 {
			t.Errorf("%s: heart over thorax %.3f, truth %.3f", s.ID, got, want)
		}
		if m.HeartRightSeen != 1 || m.HeartLeftSeen != 1 {
			t.Errorf("%s: a heart border was not seen", s.ID)
		}
		if got, want := (m.Trachea-m.Spine)/width, s.Truth.Apparent.Shift; math.Abs(got-want) > 0.012 {
			t.Errorf("%s: shift %.3f, truth %.3f", s.ID, got, want)
		}
	}
}

func TestLateralHasNoLungs(t *testing.T) {
	for _, s := range films(t, 5, func(t phantom.Truth) bool { return t.View == phantom.Lateral }) {
		if _, err := (Phantom{}).Segment(s.Image); !errors.Is(err, ErrNoLungs) {
			t.Errorf("%s: error %v, want ErrNoLungs", s.ID, err)
		}
	}
}

func TestHardImages(t *testing.T) {
	white := image.NewGray(image.Rect(0, 0, 300, 200))
	for i := range white.Pix {
		white.Pix[i] = 250
	}
	for name, img := range map[string]*image.Gray{
		"black": image.NewGray(image.Rect(0, 0, 200, 300)),
		"white": white,
		"tiny":  image.NewGray(image.Rect(0, 0, 10, 10)),
		"strip": image.NewGray(image.Rect(0, 0, 2000, 64)),
	} {
		if _, err := (Phantom{}).Segment(img); err == nil {
			t.Errorf("%s: segmented", name)
		}
	}
}

func TestDeterministic(t *testing.T) {
	img := films(t, 1, clean)[0].Image
	a, errA := Phantom{}.Segment(img)
	b, errB := Phantom{}.Segment(img)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if !bytes.Equal(a.RightLung.Pix, b.RightLung.Pix) || !bytes.Equal(a.Heart.Pix, b.Heart.Pix) || a.HeartLeft != b.HeartLeft || a.Clavicle != b.Clavicle {
		t.Error("the same pixels gave different masks")
	}
}

// TestScale holds that lengths follow the image's size.
func TestScale(t *testing.T) {
	img := films(t, 1, clean)[0].Image
	double := image.NewGray(image.Rect(0, 0, 2*img.Rect.Dx(), 2*img.Rect.Dy()))
	for y := range double.Rect.Dy() {
		for x := range double.Rect.Dx() {
			double.Pix[y*double.Stride+x] = img.Pix[y/2*img.Stride+x/2]
		}
	}
	a, errA := Phantom{}.Segment(img)
	b, errB := Phantom{}.Segment(double)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if math.Abs(b.HeartLeft-2*a.HeartLeft) > 1 || math.Abs(b.Spine-2*a.Spine) > 1 {
		t.Errorf("at twice the size: heart %.1f and spine %.1f, want %.1f and %.1f", b.HeartLeft, b.Spine, 2*a.HeartLeft, 2*a.Spine)
	}
	if got, want := Area(b.RightLung), 4*Area(a.RightLung); got != want {
		t.Errorf("at twice the size: area %d, want %d", got, want)
	}
}

func TestAnyPixels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(1, 90).Draw(t, "w"), rapid.IntRange(1, 90).Draw(t, "h")
		img := image.NewGray(image.Rect(0, 0, w, h))
		pattern := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "pattern")
		for i := range img.Pix {
			img.Pix[i] = pattern[i*7%len(pattern)]
		}
		_, _ = Phantom{}.Segment(img) // may fail, may not panic
	})
}

func TestClosingAndHull(t *testing.T) {
	p := newPlane(30, 20)
	for _, x := range []int{5, 6, 12, 13} {
		for y := 5; y < 15; y++ {
			p.pix[y*p.w+x] = 255
		}
	}
	if got := p.closing(3).pix[10*p.w+9]; got != 255 {
		t.Error("closing left a gap narrower than twice its radius")
	}
	if got := p.closing(1).pix[10*p.w+9]; got != 0 {
		t.Error("closing filled a gap wider than twice its radius")
	}
	if got := p.hull().pix[10*p.w+9]; got != 0 {
		t.Error("the hull filled a pixel whose column is empty")
	}
}

func BenchmarkSegment(b *testing.B) {
	img := films(b, 1, clean)[0].Image
	for b.Loop() {
		if _, err := (Phantom{}).Segment(img); err != nil {
			b.Fatal(err)
		}
	}
}
