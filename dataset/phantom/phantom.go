// Package phantom makes synthetic chest radiographs with exact truth, and
// questions about them.
//
// Every study is drawn from the generator's parameters: the truth comes from
// those parameters, never from measuring the image. A study depends on the
// seed, its split and its place in that split alone, so that any study can be
// made without the others. The package reads and writes nothing. Its images
// are schematic; no result on them is a clinical claim.
//
// Sides are the patient's: the patient's right is on the image's left.
package phantom

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"image"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"strings"

	"xragent/dataset"
)

// Version names the generator. A change that alters any study is a new version.
const Version = "v2"

// Size is the width and height of an image in pixels.
const Size = 512

// SpacingMM is the size of a pixel in millimetres.
const SpacingMM = 0.75

//go:embed *.go
var sources embed.FS

// Hash returns the hex SHA-256 of the generator's sources, tests left out.
func Hash() string {
	names, err := fs.Glob(sources, "*.go")
	if err != nil {
		panic(err) // the pattern is constant
	}
	h := sha256.New()
	for _, name := range names { // Glob sorts
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // embedded files can always be read
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A Config says how many studies to make of each split.
type Config struct {
	Seed       uint64 `yaml:"seed"`
	Train      int    `yaml:"train"`
	Validation int    `yaml:"validation"`
	Test       int    `yaml:"test"`
	OOD        int    `yaml:"ood"`
}

// Validate reports the first field that makes c unusable.
func (c Config) Validate() error {
	for _, s := range c.sizes() {
		if s.n < 0 {
			return fmt.Errorf("phantom: field %s is %d, want 0 or more studies", s.field, s.n)
		}
	}
	if c.Studies() == 0 {
		return fmt.Errorf("phantom: train, validation, test and ood are all 0: set at least one")
	}
	return nil
}

type splitSize struct {
	split dataset.Split
	field string
	n     int
}

func (c Config) sizes() [4]splitSize {
	return [4]splitSize{
		{dataset.Train, "train", c.Train},
		{dataset.Validation, "validation", c.Validation},
		{dataset.Test, "test", c.Test},
		{dataset.OOD, "ood", c.OOD},
	}
}

// Studies returns the number of studies in all splits.
func (c Config) Studies() int { return c.Train + c.Validation + c.Test + c.OOD }

// locate returns the split of a study and its place in that split. It panics
// when index is outside [0, c.Studies()).
func (c Config) locate(index int) (dataset.Split, int) {
	k := index
	for _, s := range c.sizes() {
		if k >= 0 && k < s.n {
			return s.split, k
		}
		k -= s.n
	}
	panic(fmt.Sprintf("phantom: study %d of %d", index, c.Studies()))
}

// A Study is one synthetic examination: one image, its truth, its questions.
type Study struct {
	ID      string
	Split   dataset.Split
	Image   *image.Gray // Size × Size
	Truth   Truth
	Samples []dataset.Sample // images without SHA256 until EncodePNG has set it

	// What a report of the film says: its words, the positive findings in the
	// order of [Findings], and those too slight to score.
	Report           string
	Positive, Masked []string
}

// Generate makes study index of [0, cfg.Studies()): first the train split, then
// validation, test and out-of-distribution. It panics outside that range.
func Generate(cfg Config, index int) Study {
	s := Describe(cfg, index)
	s.Image = Render(s.Truth)
	return s
}

// Describe makes a study without its image; everything else is as Generate
// makes it.
func Describe(cfg Config, index int) Study {
	split, k := cfg.locate(index)
	p := newPlan(cfg.Seed, split, k)
	id := studyID(split, k)
	t := p.truth(id)
	s := Study{ID: id, Split: split, Truth: t, Samples: p.samples(id, t), Report: reference(t)}
	s.Positive, s.Masked = p.labels(t)
	return s
}

// Index returns the index of the study with that id, the inverse of Generate.
func (c Config) Index(id string) (index int, ok bool) {
	start := 0
	for _, s := range c.sizes() {
		name, found := strings.CutPrefix(id, string(s.split)+"-")
		if k, err := strconv.Atoi(name); found && err == nil && k >= 0 && k < s.n && studyID(s.split, k) == id {
			return start + k, true
		}
		start += s.n
	}
	return 0, false
}

func studyID(split dataset.Split, k int) string { return fmt.Sprintf("%s-%06d", split, k) }

// EncodePNG returns the encoded image and writes its hash into the samples. It
// fails for a study without an image, as Describe makes it.
func (s *Study) EncodePNG() ([]byte, error) {
	if s.Image == nil {
		return nil, fmt.Errorf("phantom %s: no image to encode: use Generate", s.ID)
	}
	data := encodePNG(s.Image)
	sum := sha256.Sum256(data)
	for i := range s.Samples {
		images := s.Samples[i].Prompt.Images
		for j := range images {
			images[j].SHA256 = hex.EncodeToString(sum[:])
		}
	}
	return data, nil
}

// The streams of a study's randomness. Text and pixels have a stream each, so
// that a new wording does not change an image.
const (
	streamPlan = iota + 1
	streamPixels
	streamWords
	streamStrata
)

// stream returns the generator of one stream of one study.
func stream(seed uint64, split dataset.Split, k, n int) *rand.Rand {
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%s/%d/%d", Version, seed, split, k, n))
	var a, b uint64
	for i := range 8 {
		a = a<<8 | uint64(h[i])
		b = b<<8 | uint64(h[8+i])
	}
	return rand.New(rand.NewPCG(a, b))
}
