package layout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"xragent/dataset"
)

// bench is ChestAgentBench (Fallahpour et al. 2025): one line a multiple-choice
// question of the test split, options inside the question, and a folder of
// figures a case.
type bench struct {
	lines bytes.Buffer
	n     int
}

type benchRow struct {
	Answer      string   `json:"answer"`
	Case        string   `json:"case_id"`
	Categories  string   `json:"categories"`
	Explanation string   `json:"explanation"`
	FullID      string   `json:"full_question_id"`
	URLs        []string `json:"image_source_urls"`
	Images      []string `json:"images"`
	Question    string   `json:"question"`
	ID          string   `json:"question_id"`
	Sections    string   `json:"sections"`
	Type        string   `json:"type"`
}

// categories are the benchmark's five types of question, each a set of
// capabilities: that of the type which a capability stands for.
var categories = map[string]string{
	"detection":        "detection,localization,characterization,reasoning",
	"localization":     "detection,localization,characterization,reasoning",
	"relationship":     "detection,classification,relationship,reasoning",
	"comparison":       "localization,comparison,relationship,reasoning",
	"classification":   "classification,comparison,diagnosis,reasoning",
	"characterization": "classification,characterization,diagnosis,reasoning",
	"diagnosis":        "classification,characterization,diagnosis,reasoning",
}

func (b *bench) add(dir string, f film) error {
	if part(f.Split) != string(dataset.Test) {
		return nil
	}
	name := fmt.Sprint(10000 + f.number)
	figure := "figures/" + name + "/figure_1.jpg"
	asked := false
	for i, s := range f.Samples {
		if s.Prompt.Kind != dataset.MultipleChoice {
			continue
		}
		asked = true
		id := fmt.Sprintf("%s%08d", name, i)
		row, err := json.Marshal(benchRow{
			Answer: s.Answer, Case: name, Categories: categories[s.Capability], Explanation: s.Reference, FullID: name + "_" + id,
			URLs: []string{}, Images: []string{figure}, Question: inline(s.Prompt), ID: id, Sections: "history,image_finding,figures",
			Type: "multiple choice (" + strings.Join(s.Prompt.Letters(), "/") + ")",
		})
		if err != nil {
			return err
		}
		b.lines.Write(append(row, '\n'))
		b.n++
	}
	if !asked {
		return nil
	}
	return write(filepath.Join(dir, filepath.FromSlash(figure)), f.jpg)
}

// inline writes a question as the benchmark does: with its options below it.
func inline(p dataset.Prompt) string {
	text := "In the chest X-ray of Figure 1: " + p.Question
	for i, o := range p.Options {
		text += "\n" + dataset.Letter(i) + ") " + o
	}
	return text
}

func (b *bench) finish(dir string) (string, map[string]int, error) {
	const table = "metadata.jsonl"
	return table, map[string]int{string(dataset.Test): b.n}, write(filepath.Join(dir, table), b.lines.Bytes())
}
