package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/dataset/jsonl"
	"xragent/dataset/phantom"
	"xragent/dataset/vqarad"
)

// What the phantom command writes is read back by this program's own readers,
// and the other layouts hold what their names promise.
func TestPhantomFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "world")
	cfg := phantom.Config{Seed: 4, Train: 3, Validation: 2, Test: 8, OOD: 1}
	if err := phantomOut(t.Context(), dir, cfg, true, newProgress(&bytes.Buffer{}, "phantoms")); err != nil {
		t.Fatal(err)
	}
	set, err := jsonl.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	short := 0
	for _, s := range set.Samples {
		if s.Prompt.Kind != dataset.Report && s.Split != dataset.OOD && answerText(s) != phantom.CannotTell {
			short++
		}
	}
	for _, schema := range []vqarad.Schema{vqarad.Public, vqarad.SplitFiles} {
		got, err := vqarad.Read(filepath.Join(dir, "layouts", "vqa-rad"), vqarad.Config{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Samples) != short || short == 0 {
			t.Errorf("schema %s: %d questions, want %d", schema, len(got.Samples), short)
		}
		if _, err := got.Image(got.Samples[0].Prompt.Images[0].SHA256); err != nil {
			t.Error(err)
		}
	}
	checkMIMIC(t, filepath.Join(dir, "layouts", "mimic-cxr-jpg"), 13)
	checkMIMIC(t, filepath.Join(dir, "layouts", "ood", "mimic-cxr-jpg"), 1)
	checkSLAKE(t, filepath.Join(dir, "layouts", "slake"))
	checkBench(t, filepath.Join(dir, "layouts", "chest-agent-bench"))
	for _, l := range []string{"", "layouts/mimic-cxr-jpg", "layouts/vqa-rad", "layouts/slake", "layouts/chest-agent-bench", "layouts/ood/slake"} {
		var m dataset.Manifest
		unmarshalFile(t, filepath.Join(dir, l, "manifest.json"), &m)
		if m.Generator != phantom.Hash() || m.Seed != cfg.Seed || len(m.SHA256) != 64 {
			t.Errorf("%q: manifest %+v", l, m)
		}
	}
	for _, name := range []string{"sheet.png", "sheet-coarse.png"} {
		if img := decoded(t, filepath.Join(dir, name)); img.Dx() < 4*phantom.Size/4 {
			t.Errorf("%s is %v", name, img)
		}
	}
}

func answerText(s dataset.Sample) string {
	if s.Prompt.Kind == dataset.MultipleChoice {
		return s.Prompt.Options[s.Answer[0]-'A']
	}
	return s.Answer
}

func unmarshalFile(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func decoded(t *testing.T, path string) image.Rectangle {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return img.Bounds()
}

// table reads a table of MIMIC-CXR-JPG as one map a row.
func table(t *testing.T, dir, name string) []map[string]string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "mimic-cxr-2.0.0-"+name+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, column := range lines[0] {
			row[column] = line[i]
		}
		out = append(out, row)
	}
	return out
}

func checkMIMIC(t *testing.T, dir string, studies int) {
	t.Helper()
	metadata, split := table(t, dir, "metadata"), table(t, dir, "split")
	labels := map[string]map[string]string{}
	for _, r := range table(t, dir, "chexpert") {
		labels[r["study_id"]] = r
	}
	if len(metadata) != studies || len(split) != studies || len(labels) != studies || len(table(t, dir, "negbio")) != studies {
		t.Fatalf("%s: %d rows of metadata, %d of split, %d of labels, want %d each", dir, len(metadata), len(split), len(labels), studies)
	}
	for i, r := range metadata {
		folder := filepath.Join(dir, "files", "p"+r["subject_id"][:2], "p"+r["subject_id"])
		if got := decoded(t, filepath.Join(folder, "s"+r["study_id"], r["dicom_id"]+".jpg")); got.Dx() != phantom.Size {
			t.Errorf("image of study %s is %v", r["study_id"], got)
		}
		report, err := os.ReadFile(filepath.Join(folder, "s"+r["study_id"]+".txt"))
		if err != nil || !bytes.Contains(report, []byte("\n FINDINGS:")) {
			t.Errorf("report of study %s: %v\n%s", r["study_id"], err, report)
		}
		for line := range strings.Lines(string(report)) {
			if len(line) > 80 {
				t.Errorf("report of study %s: a line of %d characters", r["study_id"], len(line)-1)
			}
		}
		if s := split[i]; s["dicom_id"] != r["dicom_id"] || !strings.Contains("train validate test", s["split"]) {
			t.Errorf("row %d of split: %v", i, s)
		}
		fluid := strings.Contains(strings.Join(strings.Fields(string(report)), " "), "pleural effusion")
		if l := labels[r["study_id"]]["Pleural Effusion"]; fluid != (l == "1.0") {
			t.Errorf("study %s: label of effusion %q beside the report\n%s", r["study_id"], l, report)
		}
	}
}

func checkSLAKE(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"train", "validate", "test"} {
		var rows []map[string]any
		unmarshalFile(t, filepath.Join(dir, name+".json"), &rows)
		for _, r := range rows {
			img := filepath.Join(dir, "imgs", r["img_name"].(string))
			decoded(t, img)
			if got := decoded(t, filepath.Join(filepath.Dir(img), "mask.png")); got.Dx() != phantom.Size {
				t.Errorf("mask of %s is %v", img, got)
			}
			if r["q_lang"] != "en" || r["modality"] != "X-Ray" || r["answer"] == "" {
				t.Errorf("%s: %v", name, r)
			}
		}
		if len(rows) == 0 {
			t.Errorf("%s.json has no rows", name)
		}
	}
}

func checkBench(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "metadata.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(data) {
		var r struct {
			Answer, Type, Categories, Question string
			Images                             []string
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		n++
		if len(r.Answer) != 1 || !strings.Contains(r.Question, "\n"+r.Answer+") ") || len(strings.Split(r.Categories, ",")) != 4 ||
			r.Type != "multiple choice (A/B/C/D/E/F)" || len(r.Images) != 1 {
			t.Errorf("row %d: %+v", n, r)
		}
		decoded(t, filepath.Join(dir, r.Images[0]))
	}
	if n == 0 {
		t.Error("no row")
	}
}
