package jsonl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // users' films
	"image/png"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"xragent/dataset"
	"xragent/internal/picture"
	"xragent/rollout"
	"xragent/toolserver/dicom"
)

// The bounds of what is read from outside.
const (
	maxRow    = 1 << 20  // bytes of a line
	maxImage  = 64 << 20 // bytes of an encoded image
	maxPixels = 64 << 20
	maxAspect = 200 // of the longer side to the shorter; the policy's patches cannot show more
)

var splits = []dataset.Split{dataset.Train, dataset.Validation, dataset.Test, dataset.OOD}

// Read reads and checks the data set in dir.
func Read(dir string) (*Set, error) {
	path := filepath.Join(dir, samplesFile)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: no such file: a data set has one sample a line there", path)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file: a data set has one sample a line there", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	samples, err := decode(path, bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	if err != nil {
		return nil, err
	}
	set := &Set{Samples: samples, files: map[string]string{}}
	if err := set.loadImages(dir, path); err != nil {
		return nil, err
	}
	set.Manifest, err = readManifest(dir, samples, digest(data))
	return set, err
}

// readManifest reads the manifest and holds it against the samples; without a
// file it makes one.
func readManifest(dir string, samples []dataset.Sample, sha string) (dataset.Manifest, error) {
	path := filepath.Join(dir, manifestFile)
	made := dataset.Manifest{Name: filepath.Base(dir), Source: "jsonl", Counts: counts(samples), SHA256: sha}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return made, nil
	} else if err != nil {
		return made, err
	}
	var m dataset.Manifest
	if err := strict(data, &m); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	if m.SHA256 != "" && m.SHA256 != sha {
		return m, fmt.Errorf("%s: field sha256 is %.12s but %s has %.12s: the samples changed; remove the manifest if that was meant",
			path, m.SHA256, samplesFile, sha)
	}
	return m, nil
}

func counts(samples []dataset.Sample) map[string]int {
	n := map[string]int{}
	for _, s := range samples {
		n[string(s.Split)]++
	}
	return n
}

// strict decodes one JSON value without unknown fields or anything after it.
func strict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return explain(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value: write one object a line")
	}
	return nil
}

// explain words the decoder's errors with field and remedy.
func explain(err error) error {
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("field %s is unknown: correct or remove it", name)
	}
	if e := new(json.UnmarshalTypeError); errors.As(err, &e) {
		if e.Field == "" {
			return fmt.Errorf("a JSON %s, want an object", e.Value)
		}
		return fmt.Errorf("field %s is a JSON %s, want a %s", e.Field, e.Value, e.Type)
	}
	return fmt.Errorf("not a JSON object: %w", err)
}

// decode reads the rows of a samples file.
func decode(path string, r io.Reader) ([]dataset.Sample, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxRow)
	var samples []dataset.Sample
	rows := map[string]int{}
	for row := 1; lines.Scan(); row++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			return nil, fmt.Errorf("%s: row %d is empty: remove it", path, row)
		}
		s, err := decodeRow(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s: row %d: %w", path, row, err)
		}
		if first, ok := rows[s.ID]; ok {
			return nil, fmt.Errorf("%s: row %d: field id: %q is also the id of row %d: ids must be unique", path, row, s.ID, first)
		}
		rows[s.ID] = row
		samples = append(samples, s)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: row %d: %w (a row may have %d bytes)", path, len(samples)+1, err, maxRow)
	}
	if len(samples) == 0 {
		return nil, fmt.Errorf("%s: no rows: write one sample a line", path)
	}
	return samples, nil
}

func decodeRow(line []byte) (dataset.Sample, error) {
	var s dataset.Sample
	if err := strict(line, &s); err != nil {
		return s, err
	}
	if s.Source == "" {
		s.Source = "jsonl"
	}
	if !slices.Contains(splits, s.Split) {
		return s, fmt.Errorf("sample %s: field split is %q, want one of %v", s.ID, s.Split, splits)
	}
	if err := s.Validate(); err != nil {
		return s, fmt.Errorf("%w: correct the row or remove it", err)
	}
	for _, name := range s.Relevant {
		if !slices.Contains(rollout.Measurements, name) {
			return s, fmt.Errorf("sample %s: field relevant has %q, want some of %v", s.ID, name, rollout.Measurements)
		}
	}
	for i, img := range s.Prompt.Images {
		if img.SHA256 == "" && img.Path == "" {
			return s, fmt.Errorf("sample %s: field prompt.images[%d]: neither path nor sha256: give a path relative to the directory", s.ID, i)
		}
	}
	return s, nil
}

// loadImages checks every image and fills in hash and size. Rows are numbered
// as in the file: one sample a row.
func (s *Set) loadImages(dir, path string) error {
	type place struct {
		path string
		row  int
	}
	var order []place
	seen := map[string]*loaded{}
	for i := range s.Samples {
		for _, img := range s.Samples[i].Prompt.Images {
			if key := fileOf(img); seen[key] == nil {
				seen[key] = new(loaded)
				order = append(order, place{key, i + 1})
			}
		}
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, o := range order {
		g.Go(func() error { // errors are reported below, the first row first
			*seen[o.path] = load(dir, o.path)
			return nil
		})
	}
	_ = g.Wait() // no function above returns an error
	for _, o := range order {
		if err := seen[o.path].err; err != nil {
			return fmt.Errorf("%s: row %d: field prompt.images: %w", path, o.row, err)
		}
	}
	return s.fill(path, seen)
}

func (s *Set) fill(path string, seen map[string]*loaded) error {
	for i := range s.Samples {
		for j := range s.Samples[i].Prompt.Images {
			img := &s.Samples[i].Prompt.Images[j]
			got := seen[fileOf(*img)]
			if img.SHA256 != "" && img.SHA256 != got.source {
				return fmt.Errorf("%s: row %d: field prompt.images[%d].sha256 is %.12s, the file %s has %.12s: restore the file or correct the hash",
					path, i+1, j, img.SHA256, fileOf(*img), got.source)
			}
			*img = img.Completed(got.about)
			img.SHA256, img.Width, img.Height = got.sha, got.about.Width, got.about.Height
			s.files[got.sha] = got.path
		}
	}
	return nil
}

// fileOf returns where the image lies, relative to the data set.
func fileOf(img dataset.Image) string {
	if img.Path != "" {
		return img.Path
	}
	return imagePath("", img.SHA256)
}

// loaded is what is known of an image file. sha is the content's that the data
// set serves; source, the file's. They differ where [served] makes a picture.
type loaded struct {
	path, sha, source string
	about             dataset.Image
	err               error
}

// load reads and decodes an image, so that a truncated file is found now and
// not in the middle of a run. A file that is named by its own hash is whole.
func load(dir, name string) loaded {
	if !filepath.IsLocal(name) {
		return loaded{err: fmt.Errorf("path %q leads out of the data set: use a path inside it", name)}
	}
	l := loaded{path: filepath.Join(dir, name)}
	data, err := readBounded(l.path)
	if err != nil {
		l.err = err
		return l
	}
	l.source = digest(data)
	if dicom.Is(data) {
		return l.serve(data)
	}
	l.sha = l.source
	cfg, format, err := image.DecodeConfig(bytes.NewReader(data))
	switch {
	case err != nil:
		l.err = fmt.Errorf("%s: not a PNG, JPEG or DICOM image: %w", l.path, err)
	case cfg.Width*cfg.Height > maxPixels:
		l.err = fmt.Errorf("%s: %d × %d pixels, at most %d: make it smaller", l.path, cfg.Width, cfg.Height, maxPixels)
	case max(cfg.Width, cfg.Height) > maxAspect*min(cfg.Width, cfg.Height):
		l.err = fmt.Errorf("%s: %d × %d pixels, sides may differ by %d times: cut it", l.path, cfg.Width, cfg.Height, maxAspect)
	case picture.Upright(data) != nil:
		l.err = fmt.Errorf("%s: %w", l.path, picture.Upright(data))
	case cfg.ColorModel == color.Gray16Model:
		return l.serve(data)
	case filepath.Base(name) != l.sha+".png":
		if _, _, err := image.Decode(bytes.NewReader(data)); err != nil {
			l.err = fmt.Errorf("%s: damaged or truncated %s of %d bytes: %w: copy the file again", l.path, format, len(data), err)
		}
	}
	l.about.Width, l.about.Height = cfg.Width, cfg.Height
	return l
}

// serve replaces a file by what the data set serves of it.
func (l loaded) serve(data []byte) loaded {
	film, about, err := served(data)
	if err != nil {
		l.err = fmt.Errorf("%s: %w", l.path, err)
	}
	l.sha, l.about = digest(film), about
	return l
}

// served returns what the data set serves of a file, with what the file says of
// it: of DICOM and of 16-bit grey a PNG of 8 bits as it is displayed, so that a
// policy, an engine and the tools see one film (Pillow, which engines use,
// clips 16 bits at 255); of others the file.
func served(data []byte) ([]byte, dataset.Image, error) {
	if !dicom.Is(data) {
		return servedPicture(data)
	}
	m, err := dicom.Decode(data, dicom.Limits{Bytes: maxImage, Pixels: maxPixels})
	if err != nil {
		return nil, dataset.Image{}, err
	}
	film, err := m.PNG()
	return film, m.About(), err
}

func servedPicture(data []byte) ([]byte, dataset.Image, error) {
	cfg, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || cfg.ColorModel != color.Gray16Model {
		return data, dataset.Image{}, nil // whoever decodes it says what is wrong
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, dataset.Image{}, fmt.Errorf("damaged or truncated picture of 16 bits: %w: copy the file again", err)
	}
	var b bytes.Buffer
	err = png.Encode(&b, picture.Grey(img))
	return b.Bytes(), dataset.Image{Width: cfg.Width, Height: cfg.Height}, err
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: no such file: add it or correct the path", path)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file: correct the path", path)
	case info.Size() > maxImage:
		return nil, fmt.Errorf("%s: %d bytes, at most %d: make it smaller", path, info.Size(), maxImage)
	}
	return os.ReadFile(path)
}
