package segment

import (
	"bytes"
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"math"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// golden is what PyTorch makes of testdata/network.png with the embedded
// weights: learner/segment.py export wrote it with them.
type golden struct {
	Input         []float64    // every 16th pixel and row from the 4th
	Probabilities []float64    // every 8th from the 3rd, of 4 classes
	Areas         [classes]int // of the enlarged classes
}

func readGolden(t *testing.T) (*image.Gray, golden) {
	t.Helper()
	file, err := os.ReadFile("testdata/network.png")
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var want golden
	text, err := os.ReadFile("testdata/network.json")
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img.(*image.Gray), want
}

func TestNetworkEqualsPyTorch(t *testing.T) {
	img, want := readGolden(t)
	x := squeezed(img, inputSide)
	normalise(x.data)
	for i, v := range want.Input {
		if got := x.data[(4+i/16*16)*inputSide+4+i%16*16]; math.Abs(float64(got)-v) > 1e-4 {
			t.Fatalf("input %d is %v, want %v", i, got, v)
		}
	}
	logits := Embedded().net.forward(x)
	greatest := 0.0
	for i := range len(want.Probabilities) / classes {
		at := ((3+i/16*8)*logits.side + 3 + i%16*8) * classes
		for c, p := range softmax([classes]float32(logits.data[at:])) {
			greatest = max(greatest, math.Abs(p-want.Probabilities[i*classes+c]))
		}
	}
	if greatest > 1e-4 {
		t.Errorf("a probability differs by %.2g, want at most 1e-4", greatest)
	}
	roundHeart(logits)
	var areas [classes]int
	for _, c := range enlarged(logits, inputSide, img.Rect.Dx(), img.Rect.Dy()).pix {
		areas[c]++
	}
	for c, n := range want.Areas {
		if d := areas[c] - n; max(d, -d) > len(img.Pix)/10_000 {
			t.Errorf("class %d has %d pixels, want %d", c, areas[c], n)
		}
	}
}

func softmax(v [classes]float32) (p [classes]float64) {
	sum := 0.0
	for i, x := range v {
		p[i] = math.Exp(float64(x))
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// TestConvolution compares with the definition.
func TestConvolution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		side := 2 * rapid.IntRange(1, 12).Draw(t, "half the side")
		in, out := rapid.IntRange(1, 5).Draw(t, "in"), rapid.IntRange(1, 20).Draw(t, "out")
		kernel, stride := rapid.SampledFrom([]int{1, 3}).Draw(t, "kernel"), 1
		if kernel == 3 {
			stride = rapid.IntRange(1, 2).Draw(t, "stride")
		}
		value := rapid.Custom(func(t *rapid.T) float32 { return float32(rapid.IntRange(-8, 8).Draw(t, "v")) / 4 })
		draw := func(n int, name string) []float32 { return rapid.SliceOfN(value, n, n).Draw(t, name) }
		x := tensor{side, in, draw(side*side*in, "x")}
		weights, bias := draw(out*in*kernel*kernel, "weights"), draw(out, "bias")
		got := newLayer(out, in, kernel, weights, bias).apply(x, stride, true)
		for i, v := range got.data {
			o, at := i%out, i/out
			if want := max(defined(x, weights, kernel, stride, at/got.side, at%got.side, o)+bias[o], 0); v != want {
				t.Fatalf("pixel %d, %d, channel %d is %v, want %v", at%got.side, at/got.side, o, v, want)
			}
		}
	})
}

// defined is one output of a convolution, without bias.
func defined(x tensor, weights []float32, kernel, stride, row, column, o int) (sum float32) {
	for c := range x.channels {
		for t := range kernel * kernel {
			i, j := row*stride+t/kernel-kernel/2, column*stride+t%kernel-kernel/2
			if i >= 0 && j >= 0 && i < x.side && j < x.side {
				sum += x.data[(i*x.side+j)*x.channels+c] * weights[(o*x.channels+c)*kernel*kernel+t]
			}
		}
	}
	return sum
}

// TestEnlarged compares with interpolation everywhere.
func TestEnlarged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		side := rapid.IntRange(1, 6).Draw(t, "side")
		w, h := rapid.IntRange(1, 30).Draw(t, "w"), rapid.IntRange(1, 30).Draw(t, "h")
		logits := tensor{side, classes, make([]float32, side*side*classes)}
		for i := range logits.data {
			logits.data[i] = float32(rapid.IntRange(-100, 100).Draw(t, "logit")) + float32(i%classes)/10 // no two alike
		}
		seen := rapid.IntRange(1, inputSide).Draw(t, "seen")
		got := enlarged(logits, seen, w, h)
		for y, v := range between(side, seen, h) {
			for x, u := range between(side, seen, w) {
				if c := classAt(logits, u, v); got.row(y)[x] != c {
					t.Fatalf("class at %d, %d is %d, want %d", x, y, got.row(y)[x], c)
				}
			}
		}
	})
}

// TestStructure compares with a flood from every pixel.
func TestStructure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		labels := newPlane(rapid.IntRange(1, 12).Draw(t, "w"), rapid.IntRange(1, 12).Draw(t, "h"))
		for i := range labels.pix {
			labels.pix[i] = uint8(rapid.IntRange(0, 1).Draw(t, "label"))
		}
		got := structure(labels, 1)
		largest, total := 0, 0
		for i, v := range labels.pix {
			total += int(v)
			largest = max(largest, len(flooded(labels, i)))
		}
		for i, v := range got.Pix {
			piece := len(flooded(labels, i))
			want := piece == largest && piece > 0 || float64(largest) < wholeShare*float64(total) && piece > 0
			if want != (v != 0) {
				t.Fatalf("pixel %d is %d; its piece has %d pixels, the largest %d, all %d", i, v, piece, largest, total)
			}
		}
	})
}

// flooded returns the pixels that are connected to one; nil where it is not set.
func flooded(p plane, from int) map[int]bool {
	if p.pix[from] == 0 {
		return nil
	}
	seen, queue := map[int]bool{from: true}, []int{from}
	for ; len(queue) > 0; queue = queue[1:] {
		x, y := queue[0]%p.w, queue[0]/p.w
		for _, d := range [4][2]int{{1, 0}, {-1, 0}, {0, 1}, {0, -1}} {
			u, v := x+d[0], y+d[1]
			if u >= 0 && v >= 0 && u < p.w && v < p.h && p.row(v)[u] != 0 && !seen[v*p.w+u] {
				seen[v*p.w+u] = true
				queue = append(queue, v*p.w+u)
			}
		}
	}
	return seen
}

func TestHalf(t *testing.T) {
	for bits, want := range map[uint16]float32{0x0000: 0, 0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0001: 5.9604645e-08, 0x3555: 0.33325195} {
		if got := half(bits); got != want {
			t.Errorf("half %#04x is %v, want %v", bits, got, want)
		}
	}
}

// TestRoundHeart holds that a round heart keeps its shape and loses a thin tail
// to what lies beneath.
func TestRoundHeart(t *testing.T) {
	logits := newTensor(inputSide/2, classes)
	at := func(x, y int) []float32 { return logits.data[(y*logits.side+x)*classes:] }
	for y := range logits.side {
		for x := range logits.side {
			at(x, y)[leftLung] = 1
			if (x-60)*(x-60)+(y-70)*(y-70) <= 20*20 || x > 60 && x < 110 && y >= 84 && y < 88 {
				at(x, y)[heart] = 3
			}
		}
	}
	roundHeart(logits)
	for _, p := range []struct {
		x, y int
		want uint8
	}{{60, 70, heart}, {41, 70, heart}, {79, 70, heart}, {60, 89, heart}, {100, 86, leftLung}, {81, 86, leftLung}} {
		if got := largest(logits).row(p.y)[p.x]; got != p.want {
			t.Errorf("pixel %d, %d has class %d, want %d", p.x, p.y, got, p.want)
		}
	}
}

// TestFrames holds that an edge a quarter into the film comes out there, in
// whichever frame the network saw the film.
func TestFrames(t *testing.T) {
	const side, w, h = inputSide / 2, 800, 70
	for _, seen := range []int{inputSide, againSide} {
		edge := (float32(inputSide-seen)/2 + float32(seen)/4) * side / inputSide
		logits := newTensor(side, classes)
		for i := range side * side {
			logits.data[i*classes+rightLung] = edge - (float32(i%side) + 0.5)
		}
		labels := enlarged(logits, seen, w, h)
		for y := range h {
			line := labels.row(y)
			if line[w/4-2] != rightLung || line[w/4+2] != nothing {
				t.Fatalf("seen at %d, row %d: the edge is not at %d", seen, y, w/4)
			}
		}
	}
}

func TestNetworkRefuses(t *testing.T) {
	grey := image.NewGray(image.Rect(0, 0, 200, 300))
	if _, err := Embedded().Segment(grey); !errors.Is(err, ErrNoLungs) {
		t.Errorf("one grey level: error %v, want ErrNoLungs", err)
	}
	if _, err := Embedded().Segment(image.NewGray(image.Rect(0, 0, 63, 300))); err == nil {
		t.Error("an image 63 pixels wide was segmented")
	}
}

// TestNetworkAnyPixels holds that no image takes the network down, and that its
// masks have the image's size.
func TestNetworkAnyPixels(t *testing.T) {
	for i, size := range []image.Point{{64, 64}, {65, 900}, {1500, 70}, {257, 255}} {
		img := image.NewGray(image.Rectangle{Max: size})
		for j := range img.Pix {
			img.Pix[j] = uint8(j * j >> i)
		}
		m, err := Embedded().Segment(img)
		if err == nil && (m.RightLung.Rect != img.Rect || m.LeftLung.Rect != img.Rect || m.Heart.Rect != img.Rect) {
			t.Errorf("%v: masks of %v, %v, %v", size, m.RightLung.Rect, m.LeftLung.Rect, m.Heart.Rect)
		}
	}
}

func TestNetworkIsDeterministic(t *testing.T) {
	img, _ := readGolden(t)
	a, errA := Embedded().Segment(img)
	b, errB := Embedded().Segment(img)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if !bytes.Equal(a.Heart.Pix, b.Heart.Pix) || !bytes.Equal(a.LeftLung.Pix, b.LeftLung.Pix) || a.Contrast != b.Contrast {
		t.Error("the same pixels gave different masks")
	}
}

func TestWeightsRefused(t *testing.T) {
	for name, file := range map[string][]byte{
		"empty":         {},
		"short header":  {200, 0, 0, 0, 0, 0, 0, 0, '{'},
		"no JSON":       {1, 0, 0, 0, 0, 0, 0, 0, 'x'},
		"no tensors":    {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
		"cut short":     weightsFile[:len(weightsFile)-1],
		"another shape": bytes.Replace(weightsFile, []byte("[4,16,1,1]"), []byte("[4,8,2,1] "), 1),
		"another type":  bytes.Replace(weightsFile, []byte(`"F16"`), []byte(`"I16"`), 1),
	} {
		if _, err := newNet(file); err == nil {
			t.Errorf("%s: read", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

func FuzzWeights(f *testing.F) {
	f.Add(weightsFile[:3000])
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		_, _ = newNet(file) // may fail, may not panic
	})
}

// BenchmarkNetwork segments a film of 1024 × 1024 pixels.
func BenchmarkNetwork(b *testing.B) {
	img := image.NewGray(image.Rect(0, 0, 1024, 1024))
	for i := range img.Pix {
		x, y := float64(i%1024)/1024, float64(i/1024)/1024
		img.Pix[i] = uint8(128 + 100*math.Sin(9*x)*math.Cos(7*y))
	}
	for b.Loop() {
		if _, err := Embedded().Segment(img); err != nil && !errors.Is(err, ErrNoLungs) {
			b.Fatal(err)
		}
	}
}
