package certify

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
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

// ofView reports whether the answer follows from the view by right: which one
// it is, and that it shows nothing of what is asked. Such questions say nothing
// about leaks.
func (s *study) ofView() bool {
	return s.question.Template == "projection" || s.answer == phantom.CannotTell
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
func (w *world) coarse(s *study) []uint8 { return phantom.Coarse(phantom.Render(s.truth)).Pix }

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
