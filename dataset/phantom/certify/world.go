package certify

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"math"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/dataset/phantom/certify/internal/cnn"
	"xragent/internal/simd"
)

// A world is what is examined: studies by split, in order. Films are rendered
// when they are first asked for.
type world struct {
	cfg         phantom.Config
	train, test []*study
}

// A study is one with its question.
type study struct {
	index    int
	truth    phantom.Truth
	question dataset.Sample // the first; a report-style one where there is no other
	answer   string         // as text
}

func (s *study) report() bool { return s.question.Prompt.Kind == dataset.Report }

// tool reports whether an auxiliary tool is the least evidence.
func (s *study) tool() bool {
	n := phantom.Need(s.question.Need)
	return n == phantom.NeedCrop || n == phantom.NeedParse || n == phantom.NeedLookup
}

func (s *study) need() phantom.Need { return phantom.Need(s.question.Need) }

// describe draws the studies, without films.
func (e *examination) describe(ctx context.Context) error {
	w := &world{cfg: phantom.Config{Seed: e.Seed, Train: e.Texts / 4 * 3, Test: e.Texts / 4}}
	all := make([]*study, w.cfg.Studies())
	simd.For(e.Threads, len(all), func(lo, hi int) {
		for i := lo; i < hi && ctx.Err() == nil; i++ {
			all[i] = newStudy(w.cfg, i)
		}
	})
	w.train, w.test = all[:w.cfg.Train], all[w.cfg.Train:]
	e.world = w
	return ctx.Err()
}

func newStudy(cfg phantom.Config, index int) *study {
	d := phantom.Describe(cfg, index)
	s := &study{index: index, truth: d.Truth, question: d.Samples[0]}
	s.answer = answerText(s.question)
	return s
}

// answerText returns the right answer in words.
func answerText(s dataset.Sample) string {
	if s.Prompt.Kind != dataset.MultipleChoice {
		return s.Answer
	}
	return s.Prompt.Options[slices.Index(s.Prompt.Letters(), s.Answer)]
}

// asked returns the studies with a question that has one right answer.
func asked(all []*study) []*study {
	var out []*study
	for _, s := range all {
		if !s.report() {
			out = append(out, s)
		}
	}
	return out
}

// film renders a study and returns its file and the image's description.
func (w *world) film(s *study) ([]byte, dataset.Image, error) {
	g := phantom.Generate(w.cfg, s.index)
	data, err := g.EncodePNG()
	return data, g.Samples[0].Prompt.Images[0], err
}

// coarse renders a study as the policy sees it.
func (w *world) coarse(s *study) []uint8 { return thinned(phantom.Render(s.truth)) }

// ratio is how many source pixels make one of the coarse view, in each direction.
const ratio = phantom.Size / cnn.Side

// taps are the weights of the source pixels around a coarse one: the cubic
// convolution kernel of Keys 1981 with a = -0.5, widened by the ratio against
// aliasing, as image processors resize.
var taps = func() (w [4 * ratio]float32) {
	sum := 0.0
	var v [4 * ratio]float64
	for i := range v {
		x := math.Abs((float64(i)+0.5)/ratio - 2)
		switch {
		case x < 1:
			v[i] = 1.5*x*x*x - 2.5*x*x + 1
		case x < 2:
			v[i] = -0.5*x*x*x + 2.5*x*x - 4*x + 2
		}
		sum += v[i]
	}
	for i := range w {
		w[i] = float32(v[i] / sum)
	}
	return w
}()

// thinned resizes a film to the coarse view; beyond its border the film repeats
// its edge.
func thinned(film *image.Gray) []uint8 {
	rows := make([]float32, cnn.Side*phantom.Size)
	line := make([]float32, phantom.Size+4*ratio)
	for y := range phantom.Size {
		for x := range line {
			line[x] = float32(film.Pix[y*film.Stride+min(max(x-lead, 0), phantom.Size-1)])
		}
		for x := range cnn.Side {
			rows[y*cnn.Side+x] = simd.Dot(taps[:], line[x*ratio:x*ratio+len(taps)])
		}
	}
	out := make([]uint8, cnn.Side*cnn.Side)
	sums := make([]float32, cnn.Side)
	for y := range cnn.Side {
		clear(sums)
		for i, w := range taps {
			from := min(max(y*ratio-lead+i, 0), phantom.Size-1) * cnn.Side
			simd.Axpy(w, rows[from:from+cnn.Side], sums)
		}
		for x, v := range sums {
			out[y*cnn.Side+x] = uint8(min(max(v+0.5, 0), 255))
		}
	}
	return out
}

// lead is how far the taps reach before the first source pixel of a coarse one.
const lead = (len(taps) - ratio) / 2

// decode returns the grey levels of a crop.
func decode(file []byte) ([]uint8, error) {
	img, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	g, ok := img.(*image.Gray)
	if !ok || g.Rect.Dx() != cnn.Side || g.Rect.Dy() != cnn.Side {
		return nil, fmt.Errorf("is %T of %v, want a grey one of %d × %d: set the tools' crop to that", img, img.Bounds().Size(), cnn.Side, cnn.Side)
	}
	return g.Pix, nil
}

// places returns the words of place in a question: two questions of a template
// that differ in them ask about different places.
func places(question string) string {
	var out []string
	for word := range strings.FieldsFuncSeq(strings.ToLower(question), notLetter) {
		if slices.Contains(placeWords, word) {
			out = append(out, word)
		}
	}
	return strings.Join(out, " ")
}

var placeWords = []string{"right", "left", "upper", "middle", "lower"}

func notLetter(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }
