package layout

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"path/filepath"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

// slake is SLAKE (Liu et al. 2021): three lists of questions, and a folder an
// image with the film, its masks, its findings' boxes and its questions.
type slake struct {
	rows map[dataset.Split][]slakeRow
	n    int
}

type slakeRow struct {
	ImageID     int       `json:"img_id"`
	ImageName   string    `json:"img_name"`
	Question    string    `json:"question"`
	Answer      string    `json:"answer"`
	Language    string    `json:"q_lang"`
	Location    string    `json:"location"`
	Modality    string    `json:"modality"`
	AnswerType  string    `json:"answer_type"`
	BaseType    string    `json:"base_type"`
	ContentType string    `json:"content_type"`
	Triple      [3]string `json:"triple"`
	QID         int       `json:"qid"`
}

var contentTypes = map[string]string{
	"detection": "Abnormality", "classification": "Plane", "localization": "Position", "comparison": "Size",
	"relationship": "Position", "characterization": "Shape", "diagnosis": "Abnormality",
}

func (s *slake) add(dir string, f film) error {
	folder := fmt.Sprintf("xmlab%d", f.number)
	split := dataset.Split(part(f.Split))
	rows := []slakeRow{}
	for _, q := range f.Samples {
		answer, ok := words(q)
		if !ok {
			continue
		}
		r := slakeRow{
			ImageID: f.number, ImageName: folder + "/source.jpg", Question: q.Prompt.Question, Answer: answer, Language: "en",
			Location: "Lung", Modality: "X-Ray", AnswerType: answerType(q), BaseType: "vqa", ContentType: contentTypes[q.Capability],
			Triple: [3]string{"vhead", "_", "_"}, QID: s.n,
		}
		if q.Need == string(phantom.NeedLookup) {
			r.BaseType = "kvqa"
		}
		s.n++
		rows = append(rows, r)
	}
	s.rows[split] = append(s.rows[split], rows...)
	at := filepath.Join(dir, "imgs", folder)
	mask, err := masks(f.Truth)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(at, "mask.png"), mask); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(at, "detection.json"), boxes(f.Truth)); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(at, "question.json"), rows); err != nil {
		return err
	}
	return write(filepath.Join(at, "source.jpg"), f.jpg)
}

// masks draws the right lung as 1, the left as 2, the heart as 3.
func masks(t phantom.Truth) ([]byte, error) {
	m := t.Masks()
	out := image.NewGray(m.Heart.Rect)
	for value, mask := range []phantom.Mask{m.RightLung, m.LeftLung, m.Heart} {
		for i, v := range mask.Pix {
			if v != 0 {
				out.Pix[i] = uint8(value + 1)
			}
		}
	}
	var b bytes.Buffer
	err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&b, out)
	return b.Bytes(), err
}

// boxes lists the findings that have a place: name to x, y, width, height.
func boxes(t phantom.Truth) []map[string][4]float64 {
	out := []map[string][4]float64{}
	for _, f := range t.Findings {
		if size := f.SizeMM / phantom.SpacingMM; f.X != 0 && size > 0 {
			out = append(out, map[string][4]float64{f.Name: {f.X - size/2, f.Y - size/2, size, size}})
		}
	}
	return out
}

func (s *slake) finish(dir string) (string, map[string]int, error) {
	counts := map[string]int{}
	for _, split := range []dataset.Split{dataset.Train, dataset.Validation, dataset.Test} {
		rows := s.rows[split]
		if rows == nil {
			rows = []slakeRow{}
		}
		counts[string(split)] = len(rows)
		if err := writeJSON(filepath.Join(dir, string(split)+".json"), rows); err != nil {
			return "", nil, err
		}
	}
	return "test.json", counts, nil
}
