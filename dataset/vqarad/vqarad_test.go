package vqarad

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"xragent/dataset"
)

const sharedData = "../../../shared/data"

// question writes one row of the train and test files.
func question(qid int, image, answer string) string {
	return fmt.Sprintf(`{"qid":%d,"image_name":%q,"image_organ":"CHEST","question":"Is  it there?","question_type":"PRES","phrase_type":"freeform","answer":%s}`,
		qid, image, answer)
}

// write makes a directory with the given rows and images a.jpg, b.jpg, c.jpg.
func write(t *testing.T, train, test, public []string) (string, Config) {
	t.Helper()
	root, cfg := t.TempDir(), Config{Schema: SplitFiles}.withDefaults()
	put := func(dir, name string, data []byte) {
		path := filepath.Join(root, dir)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, name), data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"a.jpg", "b.jpg", "c.jpg"} {
		var b bytes.Buffer
		img := image.NewGray(image.Rect(0, 0, 16+i, 16))
		if err := jpeg.Encode(&b, img, nil); err != nil {
			t.Fatal(err)
		}
		put(cfg.Images, name, b.Bytes())
		if i == 0 {
			put(cfg.Images, "cut.jpg", b.Bytes()[:b.Len()/2])
		}
	}
	list := func(rows []string) []byte { return []byte("[" + strings.Join(rows, ",") + "]") }
	put(cfg.Questions, "trainset.json", list(train))
	put(cfg.Questions, "testset.json", list(test))
	if public != nil {
		put(cfg.Questions, "vqa_rad_dataset_public.json", list(public))
	}
	return root, cfg
}

func TestReadNormalisesAnswers(t *testing.T) {
	root, cfg := write(t, []string{
		question(1, "a.jpg", `" Yes "`), question(2, "b.jpg", `"NO"`), question(3, "c.jpg", `3`),
		question(4, "c.jpg", `"Right  Upper lobe"`), question(5, "c.jpg", `"a b c d e"`),
		strings.Replace(question(6, "c.jpg", `"x"`), "CHEST", "HEAD", 1),
	}, []string{question(7, "a.jpg", `true`)}, nil)
	set, err := Read(root, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Read(root, cfg); err != nil || !cmp.Equal(set, again, cmp.AllowUnexported(Set{})) {
		t.Errorf("two readings differ: %v", err)
	}
	got := map[string]string{}
	for _, s := range set.Samples {
		got[s.ID] = string(s.Prompt.Kind) + " " + s.Answer
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
		if s.Prompt.Question != "Is it there?" || s.Template != "PRES" || s.Prompt.Images[0].Domain != "radiograph" {
			t.Errorf("sample %+v", s)
		}
	}
	want := map[string]string{
		"vqarad-split-1": "binary yes", "vqarad-split-2": "binary no", "vqarad-split-3": "closed 3",
		"vqarad-split-4": "closed right upper lobe", "vqarad-split-7": "closed true",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("answers differ:\n%s", d)
	}
	for _, want := range []string{"1 questions about other organs", "1 questions left out whose answer", "1 images are in both"} {
		if !strings.Contains(set.Notice, want) {
			t.Errorf("notice %q does not say %q", set.Notice, want)
		}
	}
}

func TestPublicSchemaKeepsCasesTogether(t *testing.T) {
	row := func(qid int, image, url string) string {
		return strings.Replace(question(qid, image, `"yes"`), `{`, fmt.Sprintf(`{"image_case_url":%q,`, url), 1)
	}
	for seed := range uint64(20) {
		root, cfg := write(t, nil, nil, []string{row(1, "a.jpg", "u/1"), row(2, "b.jpg", "u/1"), row(3, "c.jpg", "u/2"), row(4, "b.jpg", "u/3")})
		cfg.Schema, cfg.Seed = Public, seed
		set, err := Read(root, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if set.Samples[0].Split != set.Samples[1].Split || set.Samples[0].Patient != set.Samples[1].Patient {
			t.Fatalf("seed %d divides a case: %s, %s", seed, set.Samples[0].Split, set.Samples[1].Split)
		}
		if strings.Contains(set.Samples[0].Patient, "u/1") {
			t.Errorf("patient %q names the case", set.Samples[0].Patient)
		}
	}
}

func TestReadNamesWhatIsWrong(t *testing.T) {
	secret := "Secret finding"
	for _, c := range []struct {
		name string
		row  string
		want []string
	}{
		{"no answer", question(1, "a.jpg", `""`), []string{"trainset.json: row 1: field answer is empty"}},
		{"null answer", question(1, "a.jpg", `null`), []string{"field answer is empty"}},
		{"answer missing", strings.Replace(question(1, "a.jpg", `"`+secret+`"`), `"answer"`, `"reply"`, 1), []string{"field answer is missing"}},
		{"list answer", question(1, "a.jpg", `["`+secret+`"]`), []string{"neither text nor a number"}},
		{"no image name", question(1, " ", `"yes"`), []string{"field image_name is empty"}},
		{"missing image", question(1, "gone.jpg", `"yes"`), []string{"question 1: field image_name", "gone.jpg: no such file"}},
		{"truncated image", question(1, "cut.jpg", `"yes"`), []string{"cut.jpg: damaged or truncated"}},
		{"escape", question(1, "../a.jpg", `"yes"`), []string{"leads out of"}},
		{"duplicate", question(1, "a.jpg", `"yes"`) + "," + question(1, "b.jpg", `"no"`), []string{"field qid: 1 occurs twice"}},
		{"not JSON", `{`, []string{"trainset.json: not a JSON list"}},
	} {
		root, cfg := write(t, []string{c.row}, nil, nil)
		_, err := Read(root, cfg)
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: error quotes the answer: %q", c.name, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{Schema: "both"}, `schema is "both"`},
		{Config{Test: 0.6, Validation: 0.4}, "sum below 1"},
		{Config{Test: -1}, "above 0"},
	} {
		if err := c.cfg.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %q", c.cfg, err, c.want)
		}
	}
}

func TestRealData(t *testing.T) {
	if _, err := os.Stat(sharedData); err != nil {
		t.Skip("no VQA-RAD at " + sharedData + ": reading real files is not checked")
	}
	for schema, want := range map[Schema]int{SplitFiles: 682, Public: 437} {
		set, err := Read(sharedData, Config{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		checkReal(t, schema, set, want)
	}
}

// checkReal holds a set of `rows` source rows against what is known of it.
func checkReal(t *testing.T, schema Schema, set *Set, rows int) {
	t.Helper()
	if n := len(set.Samples); n < rows*8/10 || n > rows {
		t.Errorf("%s: %d samples of %d rows", schema, n, rows)
	}
	train := dataset.BySplit(set.Samples, dataset.Train)
	held := append(dataset.BySplit(set.Samples, dataset.Validation), dataset.BySplit(set.Samples, dataset.Test)...)
	if leaks := dataset.Leaks(train, held); len(leaks) > 0 {
		t.Errorf("%s: %d leaks, first: %v", schema, len(leaks), leaks[0])
	}
	kinds := map[dataset.Kind]int{}
	for _, s := range set.Samples {
		kinds[s.Prompt.Kind]++
		if err := s.Validate(); err != nil || s.Capability == "" {
			t.Errorf("%s: sample %s: %v, capability %q", schema, s.ID, err, s.Capability)
		}
		if _, err := set.Image(s.Prompt.Images[0].SHA256); err != nil {
			t.Error(err)
		}
	}
	if kinds[dataset.Binary] == 0 || kinds[dataset.Closed] == 0 {
		t.Errorf("%s: kinds %v", schema, kinds)
	}
	if !strings.Contains(set.Notice, "official split") {
		t.Errorf("%s: the notice does not say that the official split shares images: %q", schema, set.Notice)
	}
	t.Logf("%s: %v, kinds %v, notice %q", schema, set.Manifest.Counts, kinds, set.Notice)
}

func TestParseSkipsByteOrderMark(t *testing.T) {
	rows, err := parse([]byte("\ufeff["+question(1, "a.jpg", `"yes"`)+"]"), 0)
	if err != nil || len(rows) != 1 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("[" + question(1, "a.jpg", `"yes"`) + "]"))
	f.Add([]byte(`[{"qid":"x","answer":1e999}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := parse(data, 0)
		if err != nil {
			return
		}
		for _, r := range rows {
			if r.id() == "" || r.answer == "" || !filepath.IsLocal(r.ImageName) {
				t.Errorf("parse accepted a row without id or answer, or with an image outside: %+v", r)
			}
		}
	})
}
