package measure

import (
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset/phantom"
)

// box fills rectangles of a mask of 512 × 512 pixels.
func box(rects ...image.Rectangle) *image.Alpha { return boxIn(512, rects...) }

func boxIn(size int, rects ...image.Rectangle) *image.Alpha {
	m := image.NewAlpha(image.Rect(0, 0, size, size))
	for _, r := range rects {
		for y := r.Min.Y; y < r.Max.Y; y++ {
			for x := r.Min.X; x < r.Max.X; x++ {
				m.Pix[y*m.Stride+x] = 255
			}
		}
	}
	return m
}

// chest has lungs that are wider below, a heart whose right and left borders are
// farthest out on different rows, and a mediastinum 4 pixels left of the middle.
func chest() Structures {
	return Structures{
		RightLung: box(image.Rect(100, 50, 200, 250), image.Rect(80, 250, 190, 450)),
		LeftLung:  box(image.Rect(308, 50, 400, 250), image.Rect(330, 250, 420, 450)),
		Heart:     box(image.Rect(190, 300, 300, 350), image.Rect(230, 350, 330, 400)),
	}
}

func TestVariants(t *testing.T) {
	for variant, want := range map[string]float64{
		ColumnExtent: 140. / 340, // columns 190 to 330 of 80 to 420
		WidestRow:    140. / 340,
		HeartRow:     110. / 340, // 190 to 300 on the rows where lungs are 80 to 420
	} {
		n, err := CTR(chest(), variant, 0.5)
		if err != nil || n.Value != want || n.Variant != variant {
			t.Errorf("%s: %+v, %v, want %v", variant, n, err, want)
		}
		if last := n.Lines[len(n.Lines)-1]; last.Name != "chest" || last.MM != 170 {
			t.Errorf("%s: chest %+v, want 170 mm", variant, last)
		}
	}
	s := chest() // the widest extents of the lungs lie on different rows
	s.LeftLung = box(image.Rect(308, 50, 440, 250), image.Rect(330, 250, 420, 450))
	a, errA := CTR(s, ColumnExtent, 0)
	b, errB := CTR(s, WidestRow, 0)
	if errA != nil || errB != nil || a.Value != 140./360 || b.Value != 140./340 {
		t.Errorf("column extent %v, widest row %v; want 140/360 and 140/340", a.Value, b.Value)
	}
}

func TestWhatCannotBeMeasured(t *testing.T) {
	swapped := chest()
	swapped.RightLung, swapped.LeftLung = swapped.LeftLung, swapped.RightLung
	empty, missing, small := chest(), chest(), chest()
	empty.LeftLung, missing.Heart, small.Heart = box(), nil, image.NewAlpha(image.Rect(0, 0, 10, 10))
	for _, c := range []struct {
		s    Structures
		want error
	}{{swapped, ErrSides}, {empty, ErrEmpty}, {missing, ErrMissing}, {small, ErrSize}} {
		if _, err := CTR(c.s, ColumnExtent, 0); !errors.Is(err, c.want) {
			t.Errorf("error %v, want %v", err, c.want)
		}
	}
	if _, err := CTR(chest(), "other", 0); err == nil {
		t.Error("an unknown variant is no error")
	}
	if _, err := Carina(chest()); !errors.Is(err, ErrMissing) {
		t.Errorf("carina without trachea: %v", err)
	}
}

func TestAsymmetryAndShift(t *testing.T) {
	n, err := Asymmetry(chest(), Reference{Name: "r", Intercept: 0.1, Slope: 0.5, SD: 0.05}, 0.4)
	want := math.Log((100*200 + 110*200.) / (92*200 + 90*200.))
	if err != nil || n.Value != want || math.Abs(n.Z-(want-0.3)/0.05) > 1e-12 {
		t.Errorf("%+v, %v; want %v", n, err, want)
	}
	// Between the lungs' inner edges the middle is 254, between the walls 250.
	n, err = Shift(chest(), 0.5)
	if err != nil || n.Value != 4./340 || n.Variant != "mediastinum_walls" || n.Lines[1].MM != 2 {
		t.Errorf("%+v, %v; want 4/340 to the left", n, err)
	}
	s := chest()
	s.Trachea, s.Spine = box(image.Rect(230, 40, 240, 200)), box(image.Rect(240, 0, 280, 512))
	if n, err = Shift(s, 0); err != nil || n.Value != -25./340 || n.Variant != "trachea_spine" {
		t.Errorf("%+v, %v; want 25/340 to the right", n, err)
	}
	if n, err = UpperMediastinum(s, 0.5); err != nil || n.Value != 108./340 || n.Lines[0].MM != 54 {
		t.Errorf("mediastinum %+v, %v; want 108/340", n, err)
	}
}

func TestClavicles(t *testing.T) {
	s := chest()
	if !math.IsNaN(s.claviclesOff()) {
		t.Error("clavicles that are not known are off the spine")
	}
	s.Spine = box(image.Rect(240, 0, 280, 512))
	s.RightClavicle, s.LeftClavicle = box(image.Rect(120, 60, 240, 80)), box(image.Rect(290, 60, 400, 80))
	if got := s.claviclesOff(); got != 5 {
		t.Errorf("clavicles' middle at 265, spine at 260: %v off, want 5", got)
	}
}

// TestCarina draws bronchi of a known angle.
func TestCarina(t *testing.T) {
	for _, c := range []struct{ right, left float64 }{{30, 30}, {25, 45}, {20, 20}, {35, 40}} {
		m := box(image.Rect(246, 100, 266, 200))
		for y := 200; y < 300; y++ {
			for _, b := range []struct{ side, degrees float64 }{{-1, c.right}, {1, c.left}} {
				inner := b.side * float64(y-200) * math.Tan(b.degrees*math.Pi/180)
				lo, hi := int(math.Round(256+inner-16)), int(math.Round(256+inner))
				if b.side > 0 {
					lo, hi = int(math.Round(256+inner)), int(math.Round(256+inner+16))
				}
				for x := lo; x < hi; x++ {
					m.Pix[y*m.Stride+x] = 255
				}
			}
		}
		n, err := Carina(Structures{Trachea: m})
		if err != nil || math.Abs(n.Value-c.right-c.left) > 3 {
			t.Errorf("%v and %v degrees: %+v, %v", c.right, c.left, n, err)
		}
	}
	if _, err := Carina(Structures{Trachea: box(image.Rect(246, 100, 266, 300))}); err == nil {
		t.Error("a trachea without bronchi has an angle")
	}
}

// TestMirror holds that mirroring an image keeps the ratios and turns the
// asymmetry and the shift round.
func TestMirror(t *testing.T) {
	const size = 128
	mirror := func(m *image.Alpha) *image.Alpha {
		out := image.NewAlpha(m.Rect)
		for i, v := range m.Pix {
			out.Pix[i/size*size+size-1-i%size] = v
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		edge := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, name) }
		s := Structures{
			RightLung: boxIn(size, image.Rect(edge("r0", 5, 25), edge("top", 5, 22), edge("r1", 38, 55), edge("bottom", 88, 120))),
			LeftLung:  boxIn(size, image.Rect(edge("l0", 70, 82), edge("ltop", 5, 22), edge("l1", 100, 122), edge("lbottom", 88, 120))),
			Heart:     boxIn(size, image.Rect(edge("h0", 38, 60), 62, edge("h1", 65, 95), 100)),
		}
		m := Structures{RightLung: mirror(s.LeftLung), LeftLung: mirror(s.RightLung), Heart: mirror(s.Heart)}
		for _, variant := range Variants {
			a, errA := CTR(s, variant, 0)
			b, errB := CTR(m, variant, 0)
			if fmt.Sprint(errA) != fmt.Sprint(errB) || math.Abs(a.Value-b.Value) > 1e-12 {
				t.Fatalf("%s: %v and mirrored %v, %v %v", variant, a.Value, b.Value, errA, errB)
			}
		}
		la, _ := Asymmetry(s, Reference{}, 0)
		lb, _ := Asymmetry(m, Reference{}, 0)
		sa, errA := Shift(s, 0)
		sb, errB := Shift(m, 0)
		if math.Abs(la.Value+lb.Value) > 1e-12 || errA != nil || errB != nil || math.Abs(sa.Value+sb.Value) > 1e-9 {
			t.Fatalf("asymmetry %v and %v, shift %v and %v", la.Value, lb.Value, sa.Value, sb.Value)
		}
	})
}

// TestPhantoms holds numbers from the true masks against the generator's own. A
// mask's extent is that of the pixels whose centres lie inside, each of its ends
// within half a pixel of the true one. So the heart's extent and the chest's are
// each within one pixel of the analytic ones and the ratio, in pixels of the
// chest's width, within one and the ratio. An area is within half a pixel along
// its outline, and the shift within half a pixel at the mediastinum and at the
// spine.
func TestPhantoms(t *testing.T) {
	cfg := phantom.Config{Seed: 5, Train: *analytic}
	var ratio, area worst
	for i := range cfg.Studies() {
		truth := phantom.Describe(cfg, i).Truth
		if truth.View == phantom.Lateral {
			continue
		}
		s := structuresOf(truth)
		ctr, err := CTR(s, ColumnExtent, 0)
		if err != nil {
			t.Errorf("%s: %v", truth.ID, err)
			continue
		}
		chest := ctr.Lines[1].width()
		if off := math.Abs(ctr.Value-truth.Apparent.CTR) * chest; ratio.add(off, 1+ctr.Value) {
			t.Logf("%s (%s): ratio %.4f, analytic %.4f: %.2f pixels apart", truth.ID, truth.Fault, ctr.Value, truth.Apparent.CTR, off)
		}
		ln, err := Asymmetry(s, Reference{}, 0)
		if most := 0.5 * (outline(s.RightLung) + outline(s.LeftLung)); err != nil || area.add(math.Abs(ln.Value-truth.Apparent.Asymmetry)/most, 1) {
			t.Logf("%s (%s): asymmetry %.4f, analytic %.4f, want within %.4f", truth.ID, truth.Fault, ln.Value, truth.Apparent.Asymmetry, most)
		}
	}
	for _, w := range []struct {
		what string
		worst
	}{{"ratio, in pixels", ratio}, {"asymmetry, of half a pixel along the outlines", area}} {
		t.Logf("%s: %v", w.what, w.worst)
		if w.beyond*100 > w.n || w.n == 0 {
			t.Errorf("%s: %d of %d films are further off than explained", w.what, w.beyond, w.n)
		}
	}
}

var analytic = flag.Int("phantoms", 15, "synthetic films whose numbers are compared with the analytic ones")

// structuresOf are the true masks of a film.
func structuresOf(truth phantom.Truth) Structures {
	alpha := func(m phantom.Mask) *image.Alpha { return &image.Alpha{Pix: m.Pix, Stride: m.Stride, Rect: m.Rect} }
	m := truth.Masks()
	s := Structures{RightLung: alpha(m.RightLung), LeftLung: alpha(m.LeftLung), Heart: alpha(m.Heart)}
	return s
}

// worst keeps the greatest of some distances, how many are above 1, and how many
// beyond their own bound.
type worst struct {
	n, above, beyond int
	most, mean       float64
}

// add reports whether a distance is beyond its bound.
func (w *worst) add(v, bound float64) bool {
	w.mean = (w.mean*float64(w.n) + v) / float64(w.n+1)
	w.n, w.most = w.n+1, max(w.most, v)
	if v > 1 {
		w.above++
	}
	if v > bound {
		w.beyond++
	}
	return v > bound
}

func (w worst) String() string {
	return fmt.Sprintf("%d films, mean %.2f, at most %.2f, above one %d, beyond what is explained %d", w.n, w.mean, w.most, w.above, w.beyond)
}

// outline returns a mask's outline over its area.
func outline(m *image.Alpha) float64 {
	edge, area := 0, 0
	for i, v := range m.Pix {
		if v == 0 {
			continue
		}
		area++
		if i == 0 || i+m.Stride >= len(m.Pix) || i < m.Stride || m.Pix[i-1] == 0 || m.Pix[i+1] == 0 || m.Pix[i-m.Stride] == 0 || m.Pix[i+m.Stride] == 0 {
			edge++
		}
	}
	return float64(edge) / float64(area)
}

const shared = "../../../shared/data"

// readMask reads a mask of the shared data.
func readMask(t testing.TB, name string) *image.Alpha {
	t.Helper()
	f, err := os.Open(filepath.Join(shared, "masks", name+".png"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	g, ok := img.(*image.Gray)
	if !ok {
		t.Fatalf("%s: %T, want 8-bit grey", name, img)
	}
	return &image.Alpha{Pix: g.Pix, Stride: g.Stride, Rect: g.Rect}
}

// published are the published cardiothoracic ratios by image.
func published(t testing.TB) (names []string, ctr map[string]float64) {
	t.Helper()
	f, err := os.Open(filepath.Join(shared, "meta", "wingspan_ctr.csv"))
	if err != nil {
		t.Skipf("not checked: published cardiothoracic ratios of ../shared/data: %v", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	ctr = map[string]float64{}
	for _, r := range rows[1:] {
		v, err := strconv.ParseFloat(r[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		ctr[r[0]] = v
		names = append(names, r[0])
	}
	return names, ctr
}

func wingspan(t testing.TB, name string) Structures {
	t.Helper()
	of := func(part string) *image.Alpha { return readMask(t, "wingspan/"+name+"_"+part) }
	return Structures{RightLung: of("right_lung"), LeftLung: of("left_lung"), Heart: of("heart")}
}

// TestPublishedRatios holds the variants on people's masks against the
// published ratios. The default must reproduce them.
func TestPublishedRatios(t *testing.T) {
	names, want := published(t)
	masks := map[string]Structures{}
	for _, name := range names {
		masks[name] = wingspan(t, name)
	}
	for _, variant := range Variants {
		var errs []float64
		bias := 0.0
		for _, name := range names {
			n, err := CTR(masks[name], variant, 0)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			errs = append(errs, math.Abs(n.Value-want[name]))
			bias += (n.Value - want[name]) / float64(len(names))
		}
		slices.Sort(errs)
		mean := 0.0
		for _, e := range errs {
			mean += e / float64(len(errs))
		}
		summary := fmt.Sprintf("mean |error| %.4f, bias %+.4f, median %.4f, greatest %.4f", mean, bias, errs[len(errs)/2], errs[len(errs)-1])
		t.Logf("%s: %d films: %s", variant, len(errs), summary)
		if variant == ColumnExtent && mean > 0.002 {
			t.Errorf("%s: %s; want at most 0.002", variant, summary)
		}
	}
}
