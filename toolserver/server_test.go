package toolserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
	"xragent/rollout/loop"
)

var (
	_ loop.Tools = (*Server)(nil)
	_ loop.Tools = (*Client)(nil)
)

var world = phantom.Config{Seed: 5, Train: 3000}

// films remembers those that a test has drawn.
var films sync.Map

type drawn struct {
	study phantom.Study
	file  []byte
}

// film returns a study's image and metadata as a worker has them.
func film(t testing.TB, i int) (phantom.Study, [][]byte, []dataset.Image) {
	t.Helper()
	known, ok := films.Load(i)
	if !ok {
		s := phantom.Generate(world, i)
		known = drawn{s, encode(t, s.Image)}
		films.Store(i, known)
	}
	d := known.(drawn)
	return d.study, [][]byte{d.file}, slices.Clone(d.study.Samples[0].Prompt.Images)
}

func encode(t testing.TB, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func serverFor(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	cfg := Default()
	cfg.Protocols, cfg.Deadline = phantom.Protocol, time.Hour // a loaded machine stalls a call for many seconds
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func call(t testing.TB, tools loop.Tools, tool, args string, images [][]byte, meta []dataset.Image) rollout.Observation {
	t.Helper()
	obs, err := tools.Call(context.Background(), tool, json.RawMessage(args), images, meta)
	if err != nil {
		t.Fatalf("%s %s: %v", tool, args, err)
	}
	return obs
}

func TestInvalidCalls(t *testing.T) {
	_, images, meta := film(t, 0)
	s := serverFor(t, nil)
	tests := []struct{ tool, args, want string }{
		{"biopsy", `{}`, "region_parse"},
		{"region_parse", `{}`, "region: string"},
		{"region_parse", `[]`, "JSON object"},
		{"region_parse", `{"region":"left kidney"}`, "lower zone"},
		{"region_parse", `{"region":7}`, "region: string"},
		{"region_parse", `{"region":"heart","depth":2}`, "region: string"},
		{"region_parse", `{"region":"heart","image":2}`, "image 2 of 1"},
		{"roi_crop", `{}`, "give a region"},
		{"roi_crop", `{"box":[0,0,1]}`, "4 numbers"},
		{"roi_crop", `{"box":[0.5,0,0.2,1]}`, "left < right"},
		{"roi_crop", `{"box":[0,0,1,1],"region":"heart"}`, "not both"},
		{"evidence_lookup", `{"query":""}`, "want 1 to"},
		{"evidence_lookup", `{"query":"` + strings.Repeat("x", 5000) + `"}`, "limit"},
		{"evidence_lookup", ``, "JSON object"},
	}
	for _, tt := range tests {
		obs := call(t, s, tt.tool, tt.args, images, meta)
		if !obs.Invalid || !strings.Contains(obs.Text, tt.want) {
			t.Errorf("%s %.40s: %+v, want invalid with %q", tt.tool, tt.args, obs, tt.want)
		}
	}
}

func TestCrop(t *testing.T) {
	_, images, meta := film(t, 0)
	s := serverFor(t, nil)
	for args, want := range map[string]string{
		`{"region":"left lower zone"}`:     "left lower zone",
		`{"region":"Left_Lower"}`:          "left lower zone",
		`{"box":[0.5,0.5,0.6,0.6]}`:        "box 4.0x",
		`{"box":[-1,0.5,0.1,0.6]}`:         "box 4.0x clamped to the image",
		`{"box":[0,0,1,1]}`:                "box 1.0x",
		`{"region":"heart","image":1}`:     "heart",
		`{"region":"heart","image":1.0}`:   "heart",
		`{"region":"right mid zone"}`:      "right middle zone",
		`{"region":"left lung", "box":[]}`: "left lung",
	} {
		obs := call(t, s, "roi_crop", args, images, meta)
		if !strings.HasPrefix(obs.Text, want) {
			t.Errorf("%s: text %q, want %q", args, obs.Text, want)
		}
		if obs.Invalid {
			continue
		}
		img, err := png.Decode(bytes.NewReader(obs.PNG))
		if err != nil || img.Bounds() != image.Rect(0, 0, 128, 128) {
			t.Errorf("%s: %v, %v; want 128 x 128 pixels", args, img, err)
		}
	}
}

// TestCropShowsTheSource holds that a crop at four times the scale is the
// source's own pixels.
func TestCropShowsTheSource(t *testing.T) {
	s, images, meta := film(t, 0)
	obs := call(t, serverFor(t, nil), "roi_crop", `{"box":[0.25,0.5,0.5,0.75]}`, images, meta)
	img, err := png.Decode(bytes.NewReader(obs.PNG))
	if err != nil {
		t.Fatal(err)
	}
	crop := img.(*image.Gray)
	for y := 1; y < 127; y++ {
		for x := 1; x < 127; x++ {
			if got, want := crop.GrayAt(x, y), s.Image.GrayAt(128+x, 256+y); got != want {
				t.Fatalf("pixel (%d, %d) is %v, the source has %v", x, y, got, want)
			}
		}
	}
}

func TestLookup(t *testing.T) {
	s := serverFor(t, nil)
	text, _ := phantom.Protocol("P-0042")
	for query, want := range map[string]string{
		"P-0042":                               text,
		"Protocol p-0042: when is follow-up?":  text,
		"cardiothoracic ratio normal limit":    "widest heart",
		"what does a pneumothorax look like":   "visceral pleural line",
		"endotracheal tube tip":                "above the carina",
		"pulmonary edema":                      "edistribution",
		"deep sulcus":                          "costophrenic angle",
		"zzzz":                                 "no entry",
		"P-9":                                  "no entry",
		"blunted costophrenic angle, meniscus": "Pleural effusion",
	} {
		obs := call(t, s, "evidence_lookup", fmt.Sprintf(`{"query":%q}`, query), nil, nil)
		if !strings.Contains(obs.Text, want) || len(strings.Fields(obs.Text)) > 40 {
			t.Errorf("%q: %q, want at most 40 words with %q", query, obs.Text, want)
		}
	}
}

func TestKnowledgeBase(t *testing.T) {
	k, err := readKnowledge(knowledgeFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(k.entries) < 60 {
		t.Errorf("%d entries, want at least 60", len(k.entries))
	}
	for _, e := range k.entries {
		if got := k.best(e.Title); got.Title != e.Title {
			t.Errorf("asked for %q: found %q", e.Title, got.Title)
		}
	}
	for _, bad := range []string{`[{"title":"a","text":"b"}]`, `{`, `[{"title":"a","source":"s","text":"` + strings.Repeat("w ", 41) + `"}]`} {
		if _, err := readKnowledge([]byte(bad)); err == nil {
			t.Errorf("read %.30s", bad)
		}
	}
}

func TestRegionNames(t *testing.T) {
	l := lungBoxes{usualRight, usualLeft}
	for _, name := range Regions {
		b, canonical, ok := l.find(name)
		if !ok || canonical != name || b.X0 >= b.X1 || b.Y0 >= b.Y1 || b.X0 < 0 || b.Y1 > 1 {
			t.Errorf("%s: %v %q %v", name, b, canonical, ok)
		}
		if o := otherSide(name); o != "" {
			if m, _, _ := l.find(o); math.Abs(m.X0-(1-b.X1)) > 1e-9 || m.Y0 != b.Y0 {
				t.Errorf("%s at %v is not the mirror of %s at %v", o, m, name, b)
			}
		}
	}
	if r, _, _ := l.find("right lung"); r.X1 > 0.5 {
		t.Error("the patient's right lung is not on the image's left")
	}
}

// TestSchemas holds the prompt's budget and that the terse form is JSON.
func TestSchemas(t *testing.T) {
	var names []string
	total := 0
	for _, raw := range serverFor(t, nil).Schemas() {
		var s struct {
			Name, Description string
			Parameters        struct {
				Properties map[string]struct{ Type string }
			}
		}
		if err := json.Unmarshal(raw, &s); err != nil || s.Description == "" || len(s.Parameters.Properties) == 0 {
			t.Fatalf("%s: %v", raw, err)
		}
		names = append(names, s.Name)
		total += len(raw)
	}
	if !reflect.DeepEqual(names, toolNames) {
		t.Errorf("tools %v, want %v", names, toolNames)
	}
	if total > 400 {
		t.Errorf("terse schemas have %d bytes, want at most 400", total)
	}
	full := serverFor(t, func(c *Config) { c.Schemas = "full" }).Schemas()
	if !bytes.Contains(full[0], []byte("costophrenic angle")) {
		t.Error("the full schema does not list the regions")
	}
}

func TestMeasurePhantoms(t *testing.T) {
	t.Parallel()
	s := serverFor(t, nil)
	for i := range 12 {
		study, images, meta := film(t, i)
		b, err := s.Measure(context.Background(), images, meta)
		if err != nil {
			t.Fatal(err)
		}
		faulty := study.Truth.Fault != phantom.NoFault || study.Truth.View == phantom.Lateral
		if faulty && b.Image >= 0 && study.Truth.Fault != phantom.PoorInspiration {
			t.Errorf("study %d (%s %s): admitted", i, study.Truth.View, study.Truth.Fault)
		}
		if b.Image < 0 {
			continue
		}
		if m, _ := b.Find(rollout.CTR); math.Abs(m.Value-study.Truth.Apparent.CTR) > 0.02 {
			t.Errorf("study %d: ctr %.3f, truth %.3f", i, m.Value, study.Truth.Apparent.CTR)
		}
	}
}

func TestMeasureOtherDomain(t *testing.T) {
	_, images, meta := film(t, 0)
	meta[0].Domain = "ultrasound"
	b, err := serverFor(t, nil).Measure(context.Background(), images, meta)
	if err != nil || b.Image != -1 || len(b.Reasons) == 0 || b.Reasons[0] != "segmenter_domain" {
		t.Errorf("%+v, %v; want everything withheld by segmenter_domain", b, err)
	}
	for _, m := range b.Measurements {
		if m.Computed || m.Admitted {
			t.Errorf("%s was computed out of domain", m.Name)
		}
	}
}

// TestSecondImage holds that each image is gated for itself.
func TestSecondImage(t *testing.T) {
	s := serverFor(t, nil)
	var images [][]byte
	var meta []dataset.Image
	for i := range 40 {
		truth := phantom.Describe(world, i).Truth
		good := truth.View == phantom.PA && truth.Fault == phantom.NoFault && len(truth.Findings) == 0
		if lateral := truth.View == phantom.Lateral; len(images) == 0 && lateral || len(images) == 1 && good {
			_, file, m := film(t, i)
			images, meta = append(images, file...), append(meta, m...)
		}
	}
	if len(images) != 2 {
		t.Fatal("no lateral film followed by a good one among the first 40")
	}
	b, err := s.Measure(context.Background(), images, meta)
	if err != nil || b.Image != 1 {
		t.Errorf("image %d, %v; want the second", b.Image, err)
	}
}

// TestDeterministic holds that two servers give the same bytes, in whatever
// order and however often they are asked. It is also what "deleting the truth
// changes nothing" comes to: a server is given no truth, by its types.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	calls := []struct{ tool, args string }{
		{"region_parse", `{"region":"right lung"}`}, {"region_parse", `{"region":"left lower zone"}`},
		{"roi_crop", `{"region":"heart"}`}, {"evidence_lookup", `{"query":"rotation"}`},
	}
	a, b := serverFor(t, nil), serverFor(t, func(c *Config) { c.Cache = 0 })
	for i := range 2 {
		_, images, meta := film(t, i)
		want := make([]rollout.Observation, len(calls))
		for j, c := range calls {
			want[j] = call(t, a, c.tool, c.args, images, meta)
		}
		for j := len(calls) - 1; j >= 0; j-- {
			want[j].CacheHit = false
			if got := call(t, b, calls[j].tool, calls[j].args, images, meta); !reflect.DeepEqual(got, want[j]) {
				t.Errorf("study %d, %s: %+v and %+v", i, calls[j].tool, got, want[j])
			}
		}
		x, _ := a.Measure(context.Background(), images, meta)
		y, _ := b.Measure(context.Background(), images, meta)
		if !reflect.DeepEqual(x, y) {
			t.Errorf("study %d: bundles differ", i)
		}
	}
}

func TestCacheAndRecords(t *testing.T) {
	_, images, meta := film(t, 0)
	var mu sync.Mutex
	var records []Record
	s := serverFor(t, func(c *Config) {
		c.Observe = func(r Record) { mu.Lock(); records = append(records, r); mu.Unlock() }
	})
	first := call(t, s, "region_parse", `{"region":"heart"}`, images, meta)
	again := call(t, s, "region_parse", `{ "region" : "heart" }`, images, meta)
	if first.CacheHit || !again.CacheHit {
		t.Errorf("cache hits %v and %v, want false and true", first.CacheHit, again.CacheHit)
	}
	meta[0].View = "LATERAL" // film 0 is none
	if call(t, s, "region_parse", `{"region":"heart"}`, images, meta).CacheHit {
		t.Error("other metadata hit the cache")
	}
	call(t, s, "secret words", `{}`, images, meta)
	if len(records) != 4 || records[1].Status != "ok" || !records[1].CacheHit || records[3].Tool != "unknown" {
		t.Errorf("records %+v", records)
	}
	if st := s.Stats("region_parse"); st.Calls != 3 || st.CacheHits != 1 || st.ByStatus["ok"] != 3 {
		t.Errorf("stats %+v", st)
	}
}

func TestCacheIsBounded(t *testing.T) {
	c := newCache[int](10 * (32 + 100))
	for i := range 100 {
		c.put(keyOf([]byte{byte(i)}), i, 100)
	}
	if c.used > c.limit || len(c.items) != 10 {
		t.Errorf("%d bytes in %d items, limit %d", c.used, len(c.items), c.limit)
	}
	if _, ok := c.get(keyOf([]byte{99})); !ok {
		t.Error("the newest is gone")
	}
	c.put(keyOf([]byte("huge")), 0, 1<<20)
	if _, ok := c.get(keyOf([]byte("huge"))); ok {
		t.Error("a value larger than the cache was kept")
	}
}

// withTool returns a server with one more tool that runs f.
func withTool(t *testing.T, change func(*Config), f func(context.Context) (string, error)) *Server {
	t.Helper()
	s := serverFor(t, change)
	err := addTool(s, Tool[LookupArgs, string]{
		Name: "evidence_lookup", Description: "d",
		Run:  func(ctx context.Context, _ *Study, _ LookupArgs) (string, error) { return f(ctx) },
		Show: func(text string) rollout.Observation { return rollout.Observation{Text: text} },
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPanicIsTheToolsError(t *testing.T) {
	var stack string
	s := withTool(t, func(c *Config) { c.Observe = func(r Record) { stack = r.Stack } },
		func(context.Context) (string, error) { panic("boom") })
	obs := call(t, s, "evidence_lookup", `{"query":"x"}`, nil, nil)
	if obs.Error == "" || strings.Contains(obs.Error, "boom") {
		t.Errorf("%+v, want an error without the panic's words", obs)
	}
	if !strings.Contains(stack, "server_test.go") {
		t.Error("the record does not say where the tool panicked")
	}
}

func TestOwnErrorIsAnObservation(t *testing.T) {
	s := withTool(t, nil, func(context.Context) (string, error) { return "", errors.New("model is loading") })
	if obs := call(t, s, "evidence_lookup", `{"query":"x"}`, nil, nil); obs.Error != "model is loading" {
		t.Errorf("%+v", obs)
	}
}

func TestDeadline(t *testing.T) {
	s := withTool(t, func(c *Config) {
		c.Deadlines = map[string]time.Duration{"evidence_lookup": 20 * time.Millisecond}
	}, func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() })
	_, err := s.Call(context.Background(), "evidence_lookup", json.RawMessage(`{"query":"x"}`), nil, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want a deadline", err)
	}
}

func TestOneComputationForManyCallers(t *testing.T) {
	var mu sync.Mutex
	runs := 0
	s := withTool(t, nil, func(context.Context) (string, error) {
		mu.Lock()
		runs++
		mu.Unlock()
		time.Sleep(30 * time.Millisecond)
		return "done", nil
	})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { call(t, s, "evidence_lookup", `{"query":"x"}`, nil, nil) })
	}
	wg.Wait()
	if runs != 1 {
		t.Errorf("computed %d times", runs)
	}
}

func TestBadImages(t *testing.T) {
	_, images, meta := film(t, 0)
	s := serverFor(t, func(c *Config) { c.ImageBytes, c.ImagePixels = 1<<20, 600*600 })
	for name, file := range map[string][]byte{
		"truncated": images[0][:len(images[0])/2],
		"not one":   []byte("hello"),
		"empty":     nil,
		"large":     encode(t, image.NewGray(image.Rect(0, 0, 601, 600))),
		"heavy":     make([]byte, 1<<20+1),
	} {
		_, err := s.Measure(context.Background(), [][]byte{file}, meta)
		e, ok := errors.AsType[*ImageError](err)
		if !ok || e.Index != 0 || !e.Poison() {
			t.Errorf("%s: error %v, want an ImageError", name, err)
		}
	}
	if _, err := s.Measure(context.Background(), images, nil); err == nil {
		t.Error("images without metadata were measured")
	}
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"segmenter":   func(c *Config) { c.Segmenter = "magic" },
		"gate":        func(c *Config) { c.Gate = "some" },
		"deadline":    func(c *Config) { c.Deadline = 0 },
		"deadlines":   func(c *Config) { c.Deadlines = map[string]time.Duration{"roi_corp": time.Second} },
		"concurrency": func(c *Config) { c.Concurrency = 0 },
		"crop":        func(c *Config) { c.Crop = 1 },
		"schemas":     func(c *Config) { c.Schemas = "" },
		"noise":       func(c *Config) { c.Noise.Miss = math.NaN() },
	} {
		cfg := Default()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want one that names the field", name, err)
		}
	}
}

func FuzzCall(f *testing.F) {
	s := phantom.Generate(world, 0)
	var b bytes.Buffer
	if err := png.Encode(&b, s.Image); err != nil {
		f.Fatal(err)
	}
	srv := serverFor(f, nil)
	for _, args := range []string{`{"region":"heart"}`, `{"box":[0,0,1,1]}`, `{"box":[1e308,-1,NaN,1]}`, `{"query":"ctr"}`, `{"Region":"heart"}`, `null`} {
		f.Add("roi_crop", args)
		f.Add("region_parse", args)
		f.Add("evidence_lookup", args)
	}
	f.Fuzz(func(t *testing.T, tool, args string) {
		obs, err := srv.Call(context.Background(), tool, json.RawMessage(args), [][]byte{b.Bytes()}, s.Samples[0].Prompt.Images)
		if err != nil || obs.Error != "" {
			t.Errorf("%q %q: %+v, %v", tool, args, obs, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	img := image.NewGray(image.Rect(0, 0, 8, 8))
	file := encode(f, img)
	f.Add(file)
	f.Add(file[:len(file)/2])
	f.Fuzz(func(t *testing.T, file []byte) {
		film, err := ReadFilm(file, 1<<16, 1<<16)
		if err != nil {
			return
		}
		if g := film.Gray; g.Rect.Dx()*g.Rect.Dy() > 1<<16 || len(g.Pix) < g.Rect.Dx()*g.Rect.Dy() {
			t.Errorf("%v from %d bytes", g.Rect, len(file))
		}
	})
}
