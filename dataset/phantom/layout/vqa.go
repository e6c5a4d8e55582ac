package layout

import (
	"fmt"
	"path/filepath"

	"xragent/dataset"
)

// vqa is VQA-RAD (Lau et al. 2018) in both its schemas: the public file, and
// train and test files. Questions lie in vqa/vqa_rad, images in cxr/vqa_rad.
type vqa struct {
	rows   []vqaRow
	test   []bool
	counts map[string]int
}

type vqaRow struct {
	QID          int    `json:"qid"`
	PhraseType   string `json:"phrase_type"`
	Linked       string `json:"qid_linked_id"`
	Case         string `json:"image_case_url"`
	ImageName    string `json:"image_name"`
	Organ        string `json:"image_organ"`
	Evaluation   string `json:"evaluation"`
	Question     string `json:"question"`
	Rephrase     string `json:"question_rephrase"`
	Relation     string `json:"question_relation"`
	Frame        string `json:"question_frame"`
	QuestionType string `json:"question_type"`
	Answer       string `json:"answer"`
	AnswerType   string `json:"answer_type"`
}

// questionTypes are VQA-RAD's names for what a question is about.
var questionTypes = map[string]string{
	"detection": "PRES", "classification": "PLANE", "localization": "POS", "comparison": "SIZE",
	"relationship": "POS", "characterization": "ATTRIB", "diagnosis": "OTHER",
}

func (v *vqa) add(dir string, f film) error {
	if v.counts == nil {
		v.counts = map[string]int{}
	}
	test := part(f.Split) == string(dataset.Test)
	image := f.ID + ".jpg"
	for _, s := range f.Samples {
		answer, ok := words(s)
		if !ok {
			continue
		}
		r := vqaRow{
			QID: len(v.rows), PhraseType: "freeform", Linked: s.ID, Case: "phantom/" + f.ID, ImageName: image, Organ: "CHEST",
			Evaluation: "evaluated", Question: s.Prompt.Question, Rephrase: "NULL", Relation: "NULL", Frame: "NULL",
			QuestionType: questionTypes[s.Capability], Answer: answer, AnswerType: answerType(s),
		}
		if test {
			r.PhraseType = "test_freeform"
		}
		v.rows, v.test = append(v.rows, r), append(v.test, test)
		v.counts[part(f.Split)]++
	}
	return write(filepath.Join(dir, "cxr", "vqa_rad", image), f.jpg)
}

// answerType is OPEN for free answers, CLOSED for a choice of few.
func answerType(s dataset.Sample) string {
	if s.Prompt.Kind == dataset.MultipleChoice {
		return "OPEN"
	}
	return "CLOSED"
}

func (v *vqa) finish(dir string) (string, map[string]int, error) {
	train, test := []vqaRow{}, []vqaRow{}
	for i, r := range v.rows {
		if v.test[i] {
			test = append(test, r)
		} else {
			train = append(train, r)
		}
	}
	folder := filepath.Join("vqa", "vqa_rad")
	public := filepath.Join(folder, "vqa_rad_dataset_public.json")
	for name, rows := range map[string][]vqaRow{
		public: v.rows, filepath.Join(folder, "trainset.json"): train, filepath.Join(folder, "testset.json"): test,
	} {
		if err := writeJSON(filepath.Join(dir, name), rows); err != nil {
			return "", nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return public, v.counts, nil
}
