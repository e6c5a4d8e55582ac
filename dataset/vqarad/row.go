package vqarad

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	_ "image/jpeg" // the format of VQA-RAD
	_ "image/png"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"xragent/dataset"
	"xragent/internal/picture"
)

const (
	maxWords  = 4        // of a closed answer
	maxPixels = 64 << 20 // of an image
)

// A row is one question as either schema has it; other fields are ignored.
type row struct {
	QID          json.RawMessage `json:"qid"`
	PhraseType   string          `json:"phrase_type"`
	Case         string          `json:"image_case_url"` // public schema only
	ImageName    string          `json:"image_name"`
	Organ        string          `json:"image_organ"`
	Question     string          `json:"question"`
	QuestionType string          `json:"question_type"`
	RawAnswer    json.RawMessage `json:"answer"`

	answer       string // normalised
	officialTest int    // 1: in the official test split
}

// readRows reads the files of a schema and returns a hash over them.
func readRows(dir string, schema Schema) ([]row, string, error) {
	names := []string{"trainset.json", "testset.json"}
	if schema == Public {
		names = []string{"vqa_rad_dataset_public.json"}
	}
	var rows []row
	var all bytes.Buffer
	for i, name := range names {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("%s: no such file: schema %s needs it", path, schema)
		} else if err != nil {
			return nil, "", err
		}
		all.Write(data)
		part, err := parse(data, i)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", path, err)
		}
		rows = append(rows, part...)
	}
	if err := unique(rows); err != nil {
		return nil, "", fmt.Errorf("%s: %w", dir, err)
	}
	return rows, digest(all.Bytes()), nil
}

// parse reads one file; official is 1 for the official test file.
func parse(data []byte, official int) ([]row, error) {
	var rows []row
	if err := json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &rows); err != nil {
		return nil, fmt.Errorf("not a JSON list of questions: %w", err)
	}
	for i := range rows {
		r := &rows[i]
		r.officialTest = official
		if strings.HasPrefix(r.PhraseType, "test_") {
			r.officialTest = 1
		}
		r.Case = strings.TrimSpace(r.Case)
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
	}
	return rows, nil
}

// check normalises the row and reports the first field that is unusable.
func (r *row) check() error {
	var err error
	if r.answer, err = scalar(r.RawAnswer); err != nil {
		return fmt.Errorf("field answer %w: correct the row or remove it", err)
	}
	if _, err := scalar(r.QID); err != nil {
		return fmt.Errorf("field qid %w", err)
	}
	for _, f := range []struct{ name, value string }{
		{"image_name", r.ImageName}, {"question", r.Question}, {"question_type", r.QuestionType},
	} {
		if strings.TrimSpace(f.value) == "" {
			return fmt.Errorf("field %s is empty: correct the row or remove it", f.name)
		}
	}
	if !filepath.IsLocal(r.ImageName) {
		return fmt.Errorf("field image_name leads out of the image directory")
	}
	return nil
}

// scalar returns a string, number or boolean as lower-case text with single
// spaces: answers come with stray spaces and case, and not always as strings.
func scalar(raw json.RawMessage) (string, error) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return "", errors.New("is missing")
	}
	text := ""
	switch v := v.(type) {
	case string, json.Number, bool:
		text = strings.ToLower(strings.Join(strings.Fields(fmt.Sprint(v)), " "))
	case nil:
	default:
		return "", errors.New("is neither text nor a number")
	}
	if text == "" {
		return "", errors.New("is empty")
	}
	return text, nil
}

func unique(rows []row) error {
	seen := map[string]bool{}
	for _, r := range rows {
		if id := r.id(); seen[id] {
			return fmt.Errorf("field qid: %s occurs twice: ids must be unique", id)
		} else {
			seen[id] = true
		}
	}
	return nil
}

func (r row) id() string {
	id, _ := scalar(r.QID) // checked on reading
	return id
}

func (r row) chest() bool { return strings.EqualFold(strings.TrimSpace(r.Organ), "chest") }

func (r row) long() bool { return len(strings.Fields(r.answer)) > maxWords }

// The capability of each question type.
var capabilities = map[string]string{
	"PRES": "detection", "ABN": "detection", "COUNT": "detection", "POS": "localization",
	"SIZE": "comparison", "ATTRIB": "characterization", "COLOR": "characterization",
	"MODALITY": "classification", "PLANE": "classification", "ORGAN": "classification", "OTHER": "diagnosis",
}

// questionType returns the first of the row's types, as the paper spells it.
func (r row) questionType() string {
	first, _, _ := strings.Cut(r.QuestionType, ",")
	switch t := strings.ToUpper(strings.TrimSpace(first)); t {
	case "ATRIB":
		return "ATTRIB"
	default:
		return t
	}
}

func (r row) sample(schema Schema, img dataset.Image, patient string, part dataset.Split) dataset.Sample {
	s := dataset.Sample{
		ID: "vqarad-" + string(schema) + "-" + r.id(), Source: source(schema), Split: part,
		Study: "image-" + img.SHA256[:16], Patient: patient,
		Prompt: dataset.Prompt{Kind: dataset.Closed, Question: strings.Join(strings.Fields(r.Question), " "), Images: []dataset.Image{img}},
		Answer: r.answer, Template: r.questionType(), Capability: capabilities[r.questionType()],
	}
	if r.answer == "yes" || r.answer == "no" {
		s.Prompt.Kind = dataset.Binary
	}
	return s
}

// loadImages reads and decodes every image once.
func (s *Set) loadImages(dir string, rows []row) (map[string]dataset.Image, error) {
	images := map[string]dataset.Image{}
	for _, r := range rows {
		if _, ok := images[r.ImageName]; ok {
			continue
		}
		path := filepath.Join(dir, r.ImageName)
		img, err := load(path)
		if err != nil {
			return nil, fmt.Errorf("question %s: field image_name: %w", r.id(), err)
		}
		img.Path = r.ImageName // the same wherever the data lies
		images[r.ImageName] = img
		s.files[img.SHA256] = path
	}
	return images, nil
}

func load(path string) (dataset.Image, error) {
	img := dataset.Image{Domain: "radiograph"}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return img, fmt.Errorf("%s: no such file: add it or correct the root of the data", path)
	} else if err != nil {
		return img, err
	}
	cfg, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err == nil && cfg.Width*cfg.Height > maxPixels {
		return img, fmt.Errorf("%s: %d × %d pixels, at most %d", path, cfg.Width, cfg.Height, maxPixels)
	}
	if err := picture.Upright(data); err != nil {
		return img, fmt.Errorf("%s: %w", path, err)
	}
	if err == nil {
		_, _, err = image.Decode(bytes.NewReader(data))
	}
	if err != nil {
		return img, fmt.Errorf("%s: damaged or truncated image: %w: copy the file again", path, err)
	}
	img.SHA256, img.Width, img.Height = digest(data), cfg.Width, cfg.Height
	return img, nil
}
