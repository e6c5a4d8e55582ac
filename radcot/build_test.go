package radcot

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/reward"
	"xragent/rollout"
)

func config() Config {
	c := Default()
	c.Samples, c.Seed = 200, 1
	return c
}

func build(t *testing.T, cfg Config, src Sources) ([]Record, Report) {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	var records []Record
	report, err := Build(t.Context(), cfg, src, func(r Record) error { records = append(records, r); return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return records, report
}

// Every record of a phantom corpus would earn the full reward but for its
// calls, and every number in it was shown.
func TestRecordsEarnTheReward(t *testing.T) {
	records, report := build(t, config(), phantoms(studies))
	if len(records) == 0 || report.Kept() != len(records) {
		t.Fatalf("%d records, the report counts %d", len(records), report.Kept())
	}
	for _, r := range records {
		traj := rollout.Trajectory{Sample: r.Sample.ID, Stop: rollout.Answered, Calls: r.Calls, Bundle: r.Bundle,
			Turns: []rollout.Turn{{Text: r.Turn1}, {Text: r.Turn2}}}
		got, err := reward.Default().Score(traj, r.Sample)
		if err != nil {
			t.Fatal(err)
		}
		if r.Sample.Reference != "" {
			t.Errorf("%s carries the reference findings", r.Sample.ID)
		}
		if got.Format != 1 || got.Accuracy != 1 || got.CXR != 1 || got.Fabricated != 0 {
			t.Errorf("%s: %+v\n%s\n%s", r.Sample.ID, got, r.Turn1, r.Turn2)
		}
	}
}

func TestTurnsAreTerse(t *testing.T) {
	records, _ := build(t, config(), phantoms(studies))
	for _, r := range records {
		n1, n2 := words(r.Turn1), words(r.Turn2)
		if n1 > 20+10*len(r.Calls) {
			t.Errorf("turn 1 of %s has %d words:\n%s", r.Sample.ID, n1, r.Turn1)
		}
		limit := 80
		if r.Sample.Prompt.Kind == dataset.Report {
			limit = 125
		}
		if n2 > limit {
			t.Errorf("turn 2 of %s has %d words, want at most %d:\n%s", r.Sample.ID, n2, limit, r.Turn2)
		}
	}
}

// Turn 1 and its calls are the same whatever the answer is: they are drawn from
// the question and the coarse view.
func TestRoutingDoesNotKnowTheAnswer(t *testing.T) {
	src := phantoms(studies)
	before, _ := build(t, config(), src)
	for i := range src.Samples {
		s := &src.Samples[i]
		switch s.Prompt.Kind {
		case dataset.MultipleChoice:
			s.Answer = dataset.Letter((int(s.Answer[0]-'A') + 1) % len(s.Prompt.Options))
		case dataset.Binary:
			s.Answer = map[string]string{"yes": "no", "no": "yes"}[s.Answer]
		case dataset.Closed:
			s.Answer = "other"
		case dataset.Report:
			s.Positive, s.Critical = nil, nil
		}
	}
	after, _ := build(t, config(), src)
	turn1 := map[string]string{}
	for _, r := range before {
		turn1[r.Sample.ID] = r.Turn1
	}
	same := 0
	for _, r := range after {
		if want, ok := turn1[r.Sample.ID]; ok {
			same++
			if r.Turn1 != want {
				t.Errorf("%s: another answer, another turn 1:\n%s\n%s", r.Sample.ID, want, r.Turn1)
			}
		}
	}
	if same < 100 {
		t.Errorf("only %d records were compared", same)
	}
}

func TestSuboptimalShare(t *testing.T) {
	share := func(suboptimal float64) float64 {
		cfg := config()
		cfg.Suboptimal = suboptimal
		worse, all := 0, 0
		for cfg.Seed = range 20 {
			for _, s := range phantoms(studies).Samples {
				if l := plan(s, []string{"pa view"}, cfg); !slices.Equal(l.asks, l.right) {
					worse++
				}
				all++
			}
		}
		return float64(worse) / float64(all)
	}
	if got := share(Default().Suboptimal); got < 0.30 || got > 0.40 {
		t.Errorf("%.3f of the records are routed worse on purpose, want 0.30 to 0.40", got)
	}
	if got := share(0); got != 0 {
		t.Errorf("%.3f of the records are routed worse although none should be", got)
	}
	records, report := build(t, config(), phantoms(studies))
	n := 0
	for _, r := range records {
		if r.Suboptimal {
			n++
		}
	}
	if n == 0 || report.Suboptimal != n {
		t.Errorf("the report counts %d suboptimal records of %d", report.Suboptimal, n)
	}
}

// Equal inputs give equal bytes, however many records are made at once.
func TestDeterminism(t *testing.T) {
	var want string
	for _, parallel := range []int{1, 2, 7} {
		cfg := config()
		cfg.Parallel = parallel
		var b bytes.Buffer
		w := NewWriter(&b)
		src := phantoms(studies)
		report, err := Build(t.Context(), cfg, src, w.Write, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m := NewManifest(cfg, src, report, w); m.SHA256 != digest(b.Bytes()) || m.Records != report.Kept() || m.Sources[0] != "phantom/"+phantom.Version {
			t.Errorf("manifest %+v", m)
		}
		if want == "" {
			want = w.SHA256()
		}
		if w.SHA256() != want {
			t.Errorf("parallel %d gives other bytes", parallel)
		}
	}
}

func TestWriteAndRead(t *testing.T) {
	records, _ := build(t, config(), phantoms(studies))
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	text := b.String()
	i := 0
	for r, err := range Read(strings.NewReader(text)) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Sample.ID != records[i].Sample.ID || r.Turn2 != records[i].Turn2 || !slices.Equal(r.Images(), records[i].Images()) {
			t.Fatalf("record %d changed", i)
		}
		i++
	}
	if i != len(records) {
		t.Errorf("%d records read of %d", i, len(records))
	}
	for want, bad := range map[string]string{
		"line 2: json: unknown field":        "{}",
		"line 2: sample without id":          "",
		"line 2: unexpected EOF":             "",
		"which is not attached":              "",
		"turn 1 does not start":              "",
		"has other bytes than its hash says": "",
	} {
		line := strings.SplitAfter(text, "\n")[slices.IndexFunc(records, func(r Record) bool { return len(r.Attachments) > 0 })]
		switch {
		case strings.Contains(want, "unknown"):
			bad = `{"sampel": 1}`
		case strings.Contains(want, "without id"):
			bad = `{}`
		case strings.Contains(want, "EOF"):
			bad = line[:len(line)/2]
		case strings.Contains(want, "not attached"):
			bad = strings.Replace(line, `"attachments":`, `"attachments":[],"attachments":`, 1)
			bad = bad[:strings.Index(bad, `,"attachments":[{`)] + "}"
		case strings.Contains(want, "does not start"):
			bad = strings.Replace(line, "<assess>", "", 1)
		default:
			bad = strings.Replace(line, `"png":"`, `"png":"AAAA`, 1)
		}
		var last error
		for _, err := range Read(strings.NewReader(line + bad + "\n")) {
			last = err
		}
		if last == nil || !strings.Contains(last.Error(), want) {
			t.Errorf("got %v, want an error with %q", last, want)
		}
	}
}

// A real image has no truth: the teacher says what the tags say, asks by the
// question's words, and reasons from what the tools return.
func TestRealImages(t *testing.T) {
	sample := dataset.Sample{
		ID: "vqa/1", Source: "vqarad/v1", Split: dataset.Train, Study: "x", Answer: "yes",
		Prompt: dataset.Prompt{Kind: dataset.Binary, Question: "Is there a pneumothorax on the left?", Images: []dataset.Image{{SHA256: "9", View: "PA", Domain: "radiograph"}}},
	}
	cfg := config()
	cfg.Samples, cfg.Size, cfg.Suboptimal = 0, Size{Binary: 1}, 0
	src := Sources{Samples: []dataset.Sample{sample}, Images: fakeImages{}, Tools: &fakeTools{}, Truth: func(string) (phantom.Truth, bool) {
		t.Error("the truth of a real image was asked for")
		return phantom.Truth{}, false
	}}
	records, _ := build(t, cfg, src)
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	r := records[0]
	if r.Turn1 != "<assess>chest film, pa view</assess>\n"+rollout.FormatCall(cropTool, []byte(`{"region": "left apex"}`)) {
		t.Errorf("turn 1:\n%s", r.Turn1)
	}
	if r.Turn2 != "<think>Crop of left apex seen. So yes.</think>\n<answer>yes</answer>" {
		t.Errorf("turn 2:\n%s", r.Turn2)
	}
}

func TestBuildErrors(t *testing.T) {
	src := phantoms(60)
	change := func(f func(*Sources)) Sources {
		out := src
		out.Samples = slices.Clone(src.Samples)
		f(&out)
		return out
	}
	for want, bad := range map[string]Sources{
		"is of the test split": change(func(s *Sources) { s.Samples[0].Split = dataset.Test }),
		"occurs twice":         change(func(s *Sources) { s.Samples[1] = s.Samples[0] }),
		"field question":       change(func(s *Sources) { s.Samples[2].Prompt.Question = "" }),
		"connection refused":   change(func(s *Sources) { s.Tools = &fakeTools{down: true} }),
	} {
		_, err := Build(t.Context(), config(), bad, func(Record) error { return nil }, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	full := errors.New("disk full")
	if _, err := Build(t.Context(), config(), src, func(Record) error { return full }, nil); !errors.Is(err, full) {
		t.Errorf("the writer's error is lost: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, config(), src, func(Record) error { return nil }, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled build: %v", err)
	}
}

func TestSizes(t *testing.T) {
	if got := Default().Sizes(); got != recipe || got.Total() != 7715 {
		t.Errorf("the recipe is %+v", got)
	}
	for _, n := range []int{1, 10, 100, 771, 7715, 20000} {
		c := Default()
		c.Samples = n
		s := c.Sizes()
		if s.Total() != n || s.MultipleChoice < 0 || s.Report < s.MultipleChoice {
			t.Errorf("%d samples split into %+v", n, s)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"samples is -1":      func(c *Config) { c.Samples = -1 },
		"size.closed is -2":  func(c *Config) { c.Size.Closed = -2 },
		"ask for no record":  func(c *Config) { c.Size = Size{} },
		"candidates is 0.5":  func(c *Config) { c.Candidates = 0.5 },
		"suboptimal is 1":    func(c *Config) { c.Suboptimal = 1 },
		"k_max is -1":        func(c *Config) { c.KMax = -1 },
		"parallel is 0":      func(c *Config) { c.Parallel = 0 },
		"call_timeout is 0s": func(c *Config) { c.Timeout = 0 },
		"min_words is 5":     func(c *Config) { c.Filters.MinWords, c.Filters.MaxWords = 5, 4 },
		"similarity is 1.2":  func(c *Config) { c.Filters.Similarity = 1.2 },
		"shared_run is 0":    func(c *Config) { c.Filters.SharedRun = 0 },
	} {
		c := Default()
		edit(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
