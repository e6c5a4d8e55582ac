// Package vqarad reads the chest questions of VQA-RAD (Lau et al. 2018).
//
// VQA-RAD circulates in two schemas that contain each other's questions: the
// public file, and train and test files that add template questions. A run
// reads one of them, never both. The official split shares images between
// train and test, so the reader splits again, by image and, where the schema
// tells it, by case; the rephrasings of a question go with their image.
//
// Questions and answers reach nothing but the samples: no error and no note
// quotes them.
package vqarad

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"xragent/dataset"
)

// A Schema is one of the two forms in which VQA-RAD circulates.
type Schema string

// The schemas.
const (
	Public     Schema = "public" // vqa_rad_dataset_public.json
	SplitFiles Schema = "split"  // trainset.json and testset.json
)

// A Config says what to read. Zero fields have the defaults given.
type Config struct {
	Schema     Schema  // one a run, since they share questions; public
	Questions  string  // directory of the JSON files below the root; vqa/vqa_rad
	Images     string  // directory of the images below the root; cxr/vqa_rad
	Seed       uint64  // of the split by image
	Validation float64 // share of the images; 0.1
	Test       float64 // share of the images; 0.25
}

func (c Config) withDefaults() Config {
	c.Schema = cmp.Or(c.Schema, Public)
	c.Questions = cmp.Or(c.Questions, "vqa/vqa_rad")
	c.Images = cmp.Or(c.Images, "cxr/vqa_rad")
	c.Validation, c.Test = cmp.Or(c.Validation, 0.1), cmp.Or(c.Test, 0.25)
	return c
}

// Validate reports the first field that makes c unusable.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Schema != SplitFiles && c.Schema != Public:
		return fmt.Errorf("vqarad: schema is %q, want %s or %s: one of them a run, since they share questions", c.Schema, Public, SplitFiles)
	case !(c.Validation > 0 && c.Test > 0 && c.Validation+c.Test < 1):
		return fmt.Errorf("vqarad: shares of validation and test are %v and %v: want both above 0 and their sum below 1", c.Validation, c.Test)
	}
	return nil
}

// A Set is the chest part of VQA-RAD.
type Set struct {
	Manifest dataset.Manifest
	Samples  []dataset.Sample
	Notice   string // what was left out or done otherwise than officially, for people

	files map[string]string // path by image hash
}

// Image returns the encoded file with that hash.
func (s *Set) Image(sha string) ([]byte, error) {
	path, ok := s.files[sha]
	if !ok {
		return nil, fmt.Errorf("data set vqarad: no image with sha256 %.12s", sha)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("data set vqarad: %w", err)
	}
	return data, nil
}

// Read reads, checks and splits the data below root.
func Read(root string, cfg Config) (*Set, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	rows, sum, err := readRows(filepath.Join(root, cfg.Questions), cfg.Schema)
	if err != nil {
		return nil, err
	}
	set := &Set{files: map[string]string{}}
	rows = set.choose(rows)
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s: no chest question with a short answer: is this VQA-RAD?", filepath.Join(root, cfg.Questions))
	}
	images, err := set.loadImages(filepath.Join(root, cfg.Images), rows)
	if err != nil {
		return nil, err
	}
	set.noteOverlap(rows)
	unit := units(rows, images)
	part := split(cfg, rows, unit)
	for _, r := range rows {
		u := unit[r.ImageName]
		set.Samples = append(set.Samples, r.sample(cfg.Schema, images[r.ImageName], u, part[u]))
	}
	set.describe(cfg, sum)
	return set, nil
}

// choose keeps chest questions with short answers and notes what it drops.
func (s *Set) choose(rows []row) []row {
	var kept []row
	organs, long := 0, 0
	for _, r := range rows {
		switch {
		case !r.chest():
			organs++
		case r.long():
			long++
		default:
			kept = append(kept, r)
		}
	}
	s.note(organs, "questions about other organs than the chest left out")
	s.note(long, "questions left out whose answer has more than %d words", maxWords)
	return kept
}

func (s *Set) note(n int, format string, args ...any) {
	if n == 0 {
		return
	}
	if s.Notice != "" {
		s.Notice += "; "
	}
	s.Notice += fmt.Sprintf("%d ", n) + fmt.Sprintf(format, args...)
}

// noteOverlap says how many images the official split has on both sides.
func (s *Set) noteOverlap(rows []row) {
	side := map[string][2]bool{}
	for _, r := range rows {
		at := side[r.ImageName]
		at[r.officialTest] = true
		side[r.ImageName] = at
	}
	both := 0
	for _, at := range side {
		if at[0] && at[1] {
			both++
		}
	}
	s.note(both, "images are in both train and test of the official split: split again by image")
}

// units maps each image to what may not be divided between splits: the images
// that share a file or, where the schema names it, a case. One image occurs
// under several cases, so the relation is closed transitively.
func units(rows []row, images map[string]dataset.Image) map[string]string {
	parent := map[string]string{}
	root := func(k string) string {
		for parent[k] != "" && parent[k] != k {
			k = parent[k]
		}
		return k
	}
	for _, r := range rows {
		img := "image-" + images[r.ImageName].SHA256[:16]
		if r.Case != "" {
			a, b := root(img), root("case-"+digest([]byte(r.Case))[:16])
			parent[max(a, b)] = min(a, b) // the smallest name is the root, in any order
		}
	}
	unit := map[string]string{}
	for _, r := range rows {
		unit[r.ImageName] = root("image-" + images[r.ImageName].SHA256[:16])
	}
	return unit
}

// split assigns every unit to a split.
func split(cfg Config, rows []row, unit map[string]string) map[string]dataset.Split {
	seen := map[string]bool{}
	var units []string
	for _, r := range rows {
		if u := unit[r.ImageName]; !seen[u] {
			seen[u] = true
			units = append(units, u)
		}
	}
	slices.Sort(units)
	rng := rand.New(rand.NewPCG(cfg.Seed, 0x76716172))
	rng.Shuffle(len(units), func(i, j int) { units[i], units[j] = units[j], units[i] })
	n := float64(len(units))
	test := max(1, int(n*cfg.Test+0.5))
	validation := test + int(n*cfg.Validation+0.5)
	part := map[string]dataset.Split{}
	for i, u := range units {
		switch {
		case i < test:
			part[u] = dataset.Test
		case i < validation:
			part[u] = dataset.Validation
		default:
			part[u] = dataset.Train
		}
	}
	return part
}

func (s *Set) describe(cfg Config, sum string) {
	slices.SortStableFunc(s.Samples, func(a, b dataset.Sample) int { return cmp.Compare(a.ID, b.ID) })
	n := map[string]int{}
	for _, q := range s.Samples {
		n[string(q.Split)]++
	}
	s.Manifest = dataset.Manifest{
		Name: "vqa-rad", Source: source(cfg.Schema), Seed: cfg.Seed, Counts: n, SHA256: sum, Licence: "CC0-1.0",
	}
}

func source(schema Schema) string { return "vqarad/" + string(schema) }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
