package toolserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xragent/rollout"
	"xragent/toolserver/backend"
	"xragent/toolserver/masks"
)

// said is an observation without its picture's bytes.
func said(o rollout.Observation) string {
	return fmt.Sprintf("text %q, error %q, picture of %d bytes, invalid %v", o.Text, o.Error, len(o.PNG), o.Invalid)
}

// TestRecipeIsUntouched holds that the tools beyond the recipe are none of the
// policy's: neither in its prompt nor to be called.
func TestRecipeIsUntouched(t *testing.T) {
	s := serverFor(t, nil)
	want := `[{"name":"region_parse","description":"measure a region","parameters":{"properties":{"region":{"type":"string"}}}} ` +
		`{"name":"roi_crop","description":"magnify a region","parameters":{"properties":{"region":{"type":"string"},"box":{"type":"array"}}}} ` +
		`{"name":"evidence_lookup","description":"look up knowledge","parameters":{"properties":{"query":{"type":"string"}}}}]`
	if got := fmt.Sprintf("%s", s.Schemas()); got != want {
		t.Errorf("schemas %s, want %s", got, want)
	}
	if obs := call(t, s, classifyName, `{}`, nil, nil); obs.Text != "unknown tool; use region_parse, roi_crop, evidence_lookup" {
		t.Errorf("%+v", said(obs))
	}
}

// modelServer answers on the json wire by the tool's name.
func modelServer(t *testing.T, replies map[string]string) *httptest.Server {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req backend.Request
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		for _, m := range req.Images {
			if _, err := png.Decode(bytes.NewReader(m.PNG)); err != nil {
				t.Errorf("%s was sent no PNG: %v", req.Tool, err)
			}
		}
		_, _ = w.Write([]byte(replies[req.Tool]))
	}))
	t.Cleanup(h.Close)
	return h
}

func TestModelTools(t *testing.T) {
	picture := base64.StdEncoding.EncodeToString(encode(t, image.NewGray(image.Rect(0, 0, 64, 64))))
	h := modelServer(t, map[string]string{
		classifyName: `{"labels":{"Mass":0.1,"Effusion":0.8,"Edema":0.1}}`,
		groundName:   `{"boxes":[{"phrase":"effusion","box":[0,0.5,0.25,1],"score":0.5}]}`,
		reportName:   `{"text":"FINDINGS: none"}`,
		questionName: `{"error":"out of memory"}`,
		generateName: `{"png":"` + picture + `"}`,
	})
	servers := map[string]backend.Config{}
	for _, name := range []string{classifyName, groundName, reportName, questionName, generateName} {
		servers[name] = backend.Config{URL: h.URL}
	}
	with, without := extended(t, func(c *Config) { c.Backends = servers }), extended(t, nil)
	_, images, meta := film(t, 0)
	for _, tt := range []struct {
		tool, args, text string
		picture          bool
	}{
		{classifyName, `{}`, "Effusion 0.80\nEdema 0.10\nMass 0.10", false},
		{groundName, `{"phrase":"effusion"}`, "left top right bottom as shares:\neffusion 0.000 0.500 0.250 1.000 score 0.50", true},
		{reportName, `{}`, "FINDINGS: none", false},
		{questionName, `{"prompt":"any effusion?"}`, `the server of chest_xray_expert: "out of memory"`, false},
		{generateName, `{"prompt":"effusion","width":64,"height":64}`, "a synthetic film: it shows no patient", true},
	} {
		obs := call(t, with, tt.tool, tt.args, images, meta)
		if obs.Text+obs.Error != tt.text || (obs.PNG != nil) != tt.picture || obs.Invalid {
			t.Errorf("%s: %+v", tt.tool, said(obs))
		}
		if obs := call(t, without, tt.tool, tt.args, images, meta); obs.Error != fmt.Sprintf("no server is configured for %s: set backends.%s.url", tt.tool, tt.tool) {
			t.Errorf("%s without a server: %+v", tt.tool, said(obs))
		}
	}
	for tool, args := range map[string]string{groundName: `{"phrase":""}`, questionName: `{"prompt":" "}`, generateName: `{"prompt":"x","width":9000}`, classifyName: `{"image":3}`} {
		if obs := call(t, with, tool, args, images, meta); !obs.Invalid {
			t.Errorf("%s %s: %+v", tool, args, said(obs))
		}
	}
}

// TestModelFailureIsNotRemembered holds that a server which failed is asked
// again, and one that answered is not.
func TestModelFailureIsNotRemembered(t *testing.T) {
	var asked atomic.Int32
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(`{"text":"here"}`))
	}))
	defer h.Close()
	s := extended(t, func(c *Config) { c.Backends = map[string]backend.Config{reportName: {URL: h.URL}} })
	_, images, meta := film(t, 0)
	first, second, third := call(t, s, reportName, `{}`, images, meta), call(t, s, reportName, `{}`, images, meta), call(t, s, reportName, `{}`, images, meta)
	if !strings.Contains(first.Error, "HTTP 500") || second.Text != "here" || !third.CacheHit || asked.Load() != 2 {
		t.Errorf("%+v, then %+v, then %+v, after %d requests", first, second, third, asked.Load())
	}
}

// TestHangingModel holds that a server that does not answer is an observation,
// and that its calls take no slot from the tools that compute here.
func TestHangingModel(t *testing.T) {
	hang := make(chan struct{})
	taken := make(chan struct{}, 8)
	h := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		taken <- struct{}{}
		<-hang
	}))
	t.Cleanup(h.Close)
	s := extended(t, func(c *Config) {
		c.Concurrency = 1
		c.Backends = map[string]backend.Config{reportName: {URL: h.URL}, questionName: {URL: h.URL, Timeout: time.Millisecond}}
	})
	_, images, meta := film(t, 0)
	ctx, leave := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, reportName, json.RawMessage(`{}`), images, meta)
		gone <- err
	}()
	<-taken
	if obs := call(t, s, "region_parse", `{"region":"heart"}`, images, meta); obs.Text == "" {
		t.Errorf("beside a server that hangs: %+v", said(obs))
	}
	if obs := call(t, s, questionName, `{"prompt":"x"}`, images, meta); !strings.Contains(obs.Error, "no answer within 1ms") {
		t.Errorf("a server that hangs: %+v", said(obs))
	}
	leave()
	<-gone
	close(hang)
}

// TestLookupServer holds that a server is asked for knowledge, and never sees
// the answers of a question.
func TestLookupServer(t *testing.T) {
	var sent string
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		sent = body.String()
		_, _ = w.Write([]byte(`{"choices":[{"message":{"content":"` + strings.Repeat("word ", 50) + `"}}]}`))
	}))
	defer h.Close()
	s := serverFor(t, func(c *Config) {
		c.Backends = map[string]backend.Config{lookupName: {URL: h.URL + "/v1", Wire: backend.OpenAI, Model: "m"}}
	})
	obs := call(t, s, lookupName, `{"query":"signs of effusion? (A) lung clear (B) blunted angle"}`, nil, nil)
	if len(strings.Fields(obs.Text)) != 40 || !strings.Contains(sent, "signs of effusion?") || strings.Contains(sent, "blunted") {
		t.Errorf("%+v after %s", obs, sent)
	}
	if obs := call(t, s, lookupName, `{"query":"Options: A. yes B. no"}`, nil, nil); !obs.Invalid {
		t.Errorf("answers alone: %+v", said(obs))
	}
	if obs := call(t, s, lookupName, `{"query":"protocol P-0007"}`, nil, nil); strings.HasPrefix(obs.Text, "word") || obs.Text == "" {
		t.Errorf("a site's protocol was looked up elsewhere: %+v", said(obs))
	}
	for query, want := range map[string]string{
		"vitamin A. deficiency": "vitamin A. deficiency", "which? a) one b) two": "which?",
		"hepatitis B: signs": "hepatitis B: signs", "size. Answer options: big, small": "size.",
	} {
		if got := withoutOptions(query); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

func TestCropInPixels(t *testing.T) {
	_, images, meta := film(t, 0)
	s := serverFor(t, nil)
	w, h := float64(meta[0].Width), float64(meta[0].Height)
	shares := call(t, s, "roi_crop", `{"box":[0.25,0.5,0.5,0.75]}`, images, meta)
	pixels := call(t, s, "roi_crop", fmt.Sprintf(`{"box":[%g,%g,%g,%g]}`, 0.25*w, 0.5*h, 0.5*w, 0.75*h), images, meta)
	if !reflect.DeepEqual(shares, pixels) {
		t.Errorf("%q in shares, %q in pixels", shares.Text, pixels.Text)
	}
	if obs := call(t, s, "roi_crop", fmt.Sprintf(`{"box":[%g,0,%g,%g]}`, 0.9*w, 3*w, 0.1*h), images, meta); !strings.HasSuffix(obs.Text, "clamped to the image") {
		t.Errorf("%+v", said(obs))
	}
	if obs := call(t, s, "roi_crop", fmt.Sprintf(`{"box":[%g,0,%g,10]}`, 2*w, 3*w), images, meta); !obs.Invalid {
		t.Errorf("beside the image: %+v", said(obs))
	}
}

func TestSegmentationTool(t *testing.T) {
	_, images, meta := film(t, 0)
	s := extended(t, nil)
	obs := call(t, s, segmentName, `{"organs":["Heart","left_lung"]}`, images, meta)
	lines := strings.Split(obs.Text, "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "heart: area ") || !strings.HasPrefix(lines[1], "left lung: area ") || obs.PNG == nil {
		t.Errorf("%+v", said(obs))
	}
	if obs := call(t, s, segmentName, `{"organs":["spleen"]}`, images, meta); !obs.Invalid {
		t.Errorf("%+v", said(obs))
	}
	meta[0].Domain = "radiograph"
	s = extended(t, func(c *Config) { c.Network = "none" })
	if obs := call(t, s, segmentName, `{}`, images, meta); !strings.Contains(obs.Error, `no segmenter for images of domain "radiograph"`) {
		t.Errorf("%+v", said(obs))
	}
}

func TestOrganNumbers(t *testing.T) {
	m, gray := image.NewAlpha(image.Rect(0, 0, 20, 10)), image.NewGray(image.Rect(0, 0, 20, 10))
	for _, p := range []image.Point{{2, 2}, {3, 2}, {2, 3}, {3, 3}, {10, 8}} {
		m.Pix[p.Y*m.Stride+p.X], gray.Pix[p.Y*gray.Stride+p.X] = 255, 100
	}
	gray.Pix[8*gray.Stride+10] = 200
	want := Organ{Name: "heart", Area: 5, AreaCM2: 0.2, Share: 0.025, Centre: [2]float64{4.5 / 20, 4.1 / 10}, Box: [4]float64{0.1, 0.2, 0.55, 0.9}, Mean: 120, Std: 40, Parts: 2}
	got := organOf("heart", m, gray, 2)
	if fmt.Sprintf("%.6f", []any{got.Centre, got.AreaCM2, got.Box, got.Mean, got.Std, got.Share}) != fmt.Sprintf("%.6f", []any{want.Centre, want.AreaCM2, want.Box, want.Mean, want.Std, want.Share}) ||
		got.Area != want.Area || got.Parts != want.Parts {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := organOf("heart", image.NewAlpha(gray.Rect), gray, 0).String(); got != "heart: not found" {
		t.Errorf("an empty mask: %s", got)
	}
}

func TestPictures(t *testing.T) {
	_, images, meta := film(t, 0)
	s := extended(t, nil)
	plain := call(t, s, pictureName, `{}`, images, meta)
	for _, args := range []string{`{"masks":true}`, `{"lines":true}`, `{"invert":true}`, `{"title":"a title"}`} {
		if obs := call(t, s, pictureName, args, images, meta); obs.PNG == nil || bytes.Equal(obs.PNG, plain.PNG) {
			t.Errorf("%s: %d bytes (%s%s), the plain picture has %d", args, len(obs.PNG), obs.Text, obs.Error, len(plain.PNG))
		}
	}
	if obs := call(t, s, pictureName, `{"title":"\u0007"}`, images, meta); !obs.Invalid {
		t.Errorf("%+v", said(obs))
	}
}

func TestDICOMTool(t *testing.T) {
	file, err := os.ReadFile("dicom/testdata/implicit.dcm")
	if err != nil {
		t.Fatal(err)
	}
	_, _, meta := film(t, 0)
	s := extended(t, nil)
	own := call(t, s, dicomName, `{}`, [][]byte{file}, meta)
	if !strings.HasPrefix(own.Text, "modality ") || !strings.Contains(own.Text, "grey values by ") || own.PNG == nil {
		t.Errorf("%+v", said(own))
	}
	asked := call(t, s, dicomName, `{"window_center":10,"window_width":2}`, [][]byte{file}, meta)
	if !strings.Contains(asked.Text, "window as asked") || bytes.Equal(asked.PNG, own.PNG) {
		t.Errorf("%+v", said(asked))
	}
	_, images, _ := film(t, 0)
	for _, tt := range []struct {
		args string
		file []byte
	}{{`{"window_center":10}`, file}, {`{"window_center":10,"window_width":0}`, file}, {`{}`, images[0]}, {`{"image":2}`, file}} {
		if obs := call(t, s, dicomName, tt.args, [][]byte{tt.file}, meta); !obs.Invalid {
			t.Errorf("%s: %+v", tt.args, said(obs))
		}
	}
}

// TestDiskCache holds that results outlive a server, that a file cut short or
// changed is computed again, and that the folder stays within its bound.
func TestDiskCache(t *testing.T) {
	dir := t.TempDir()
	_, images, meta := film(t, 0)
	fresh := func() *Server { return extended(t, func(c *Config) { c.CacheDir, c.CacheDisk = dir, 1 }) }
	want := call(t, fresh(), "roi_crop", `{"region":"heart"}`, images, meta)
	again := call(t, fresh(), "roi_crop", `{"region":"heart"}`, images, meta)
	if !again.CacheHit || want.CacheHit || !bytes.Equal(want.PNG, again.PNG) {
		t.Errorf("the second server: hit %v, the first %v", again.CacheHit, want.CacheHit)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(files) != 1 {
		t.Fatalf("files %v", files)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range [][]byte{whole[:len(whole)/2], nil, append(bytes.Clone(whole[:40]), "nonsense"...)} {
		if err := os.WriteFile(files[0], damage, 0o600); err != nil {
			t.Fatal(err)
		}
		if obs := call(t, fresh(), "roi_crop", `{"region":"heart"}`, images, meta); obs.CacheHit || !bytes.Equal(obs.PNG, want.PNG) {
			t.Errorf("a file of %d bytes for %d: %+v", len(damage), len(whole), obs.Text)
		}
		if repaired, _ := os.ReadFile(files[0]); !bytes.Equal(repaired, whole) {
			t.Errorf("a file of %d bytes was not written anew", len(damage))
		}
	}
}

func TestDiskIsBounded(t *testing.T) {
	d, err := openDisk(t.TempDir(), 4000)
	if err != nil {
		t.Fatal(err)
	}
	obs := invalid(strings.Repeat("x", 500))
	for i := range 50 {
		d.put(keyOf([]byte{byte(i)}), obs)
	}
	entries, _ := os.ReadDir(d.dir)
	total := int64(0)
	for _, e := range entries {
		info, _ := e.Info()
		total += info.Size()
	}
	if total > 4000 || total != d.used || total < 2000 {
		t.Errorf("%d bytes on disk, %d counted, limit 4000", total, d.used)
	}
	if again, err := openDisk(d.dir, 1000); err != nil || again.used > 1000 {
		t.Errorf("opened with a lower limit: %d bytes, %v", again.used, err)
	}
}

// TestDiskIsShared holds that processes with one folder keep its bound together,
// and that what a killed one was writing is removed.
func TestDiskIsShared(t *testing.T) {
	dir := t.TempDir()
	old, young := filepath.Join(dir, unfinished+"1"), filepath.Join(dir, unfinished+"2")
	long := time.Now().Add(-2 * abandoned)
	if err := errors.Join(os.WriteFile(old, nil, 0o600), os.WriteFile(young, nil, 0o600), os.Chtimes(old, long, long)); err != nil {
		t.Fatal(err)
	}
	var disks []*disk
	for range 4 {
		d, err := openDisk(dir, 16000)
		if err != nil {
			t.Fatal(err)
		}
		disks = append(disks, d)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("what a killed process was writing is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("what another process may be writing was removed: %v", err)
	}
	for i := range 200 {
		disks[i%4].put(keyOf([]byte{byte(i)}), invalid(strings.Repeat("x", 500)))
	}
	entries, _ := os.ReadDir(dir)
	total := int64(0)
	for _, e := range entries {
		info, _ := e.Info()
		total += info.Size()
	}
	if total > 16000*5/4 { // each may have written a sixteenth that the others have not seen
		t.Errorf("%d bytes on disk, limit 16000 and a quarter", total)
	}
}

// TestStoredMasks holds that stored masks are measured on, and that bad ones
// are said to be bad instead of being replaced.
func TestStoredMasks(t *testing.T) {
	study, images, meta := film(t, 0)
	size := study.Image.Bounds().Size()
	m := func(x0, x1 int) *image.Alpha {
		a := image.NewAlpha(image.Rectangle{Max: size})
		for y := size.Y / 4; y < size.Y*3/4; y++ {
			for x := x0; x < x1; x++ {
				a.Pix[y*a.Stride+x] = 255
			}
		}
		return a
	}
	right, left, heart := m(size.X/8, size.X*3/8), m(size.X*5/8, size.X*7/8), m(size.X*3/8, size.X*5/8)
	meta[0].Domain, meta[0].Path = "radiograph", "films/one.png"
	for name, tt := range map[string]struct {
		quality string
		height  int
		want    string
	}{
		"good": {"0.9", size.Y, "right lung: area"}, "poor": {"0.5", size.Y, "quality 0.50"}, "another size": {"0.9", size.Y + 1, "use the table of the original resolution"},
	} {
		table := filepath.Join(t.TempDir(), "masks.csv")
		err := os.WriteFile(table, fmt.Appendf(nil, "Image Index,Dice RCA (Mean),Right Lung,Left Lung,Heart,Height,Width\none.png,%s,%s,%s,%s,%d,%d\n",
			tt.quality, masks.Encode(right), masks.Encode(left), masks.Encode(heart), tt.height, size.X), 0o600)
		if err != nil {
			t.Fatal(err)
		}
		s := extended(t, func(c *Config) { c.MasksFrom = table })
		obs := call(t, s, segmentName, `{}`, images, meta)
		if !strings.Contains(obs.Text+obs.Error, tt.want) {
			t.Errorf("%s: %+v", name, said(obs))
		}
		b, err := s.Measure(context.Background(), images, meta)
		if err != nil || anyComputed(b) != (name == "good") {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
	dir := t.TempDir()
	for i, a := range []*image.Alpha{right, left, heart} {
		if err := os.WriteFile(filepath.Join(dir, "one_"+masks.Parts[i]+".png"), encode(t, &image.Gray{Pix: a.Pix, Stride: a.Stride, Rect: a.Rect}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := extended(t, func(c *Config) { c.MasksFrom = dir })
	if obs := call(t, s, segmentName, `{}`, images, meta); !strings.Contains(obs.Text, "right lung: area") {
		t.Errorf("a folder: %+v", said(obs))
	}
	if err := os.Remove(filepath.Join(dir, "one_heart.png")); err != nil {
		t.Fatal(err)
	}
	s = extended(t, func(c *Config) { c.MasksFrom = dir })
	if obs := call(t, s, segmentName, `{}`, images, meta); !strings.Contains(obs.Error, "one_heart.png") {
		t.Errorf("a folder without the heart: %+v", said(obs))
	}
}

func TestExtendedConfig(t *testing.T) {
	for _, from := range []string{"no/such/place", "extended_test.go"} {
		c := Default()
		c.MasksFrom = from
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "masks_from") {
			t.Errorf("masks from %s: error %v", from, err)
		}
	}
	for _, network := range []string{"no/such/file", "extended_test.go"} {
		c := Default()
		c.Network = network
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "field network: ") || !strings.Contains(err.Error(), network) {
			t.Errorf("network %s: error %v", network, err)
		}
	}
	for want, change := range map[string]func(*Config){
		`names "roi_crop"`:         func(c *Config) { c.Backends = map[string]backend.Config{"roi_crop": {URL: "http://h"}} },
		`backends.chest_xray_clas`: func(c *Config) { c.Backends = map[string]backend.Config{classifyName: {}} },
		"gives text only": func(c *Config) {
			c.Backends = map[string]backend.Config{classifyName: {URL: "http://h", Wire: "openai", Model: "m"}}
		},
		"both or neither": func(c *Config) { c.CacheDir = "x" },
	} {
		c := Default()
		c.Extended = true
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	c := Default()
	c.Backends = map[string]backend.Config{classifyName: {URL: "http://h"}}
	if err := c.Validate(); err == nil {
		t.Error("a server without effect was taken")
	}
}

// FuzzArguments holds that no arguments take a tool down, and that what is
// refused says so.
func FuzzArguments(f *testing.F) {
	_, images, meta := film(f, 0)
	s := extended(f, func(c *Config) { c.Cache = 1 })
	for _, args := range []string{`{"region":"heart"}`, `{"box":[0,0,1,1]}`, `{"box":[1e308,-1,0,1]}`, `{"query":"ctr"}`, `{"organs":["heart"],"image":1}`, `{"prompt":"x","width":64}`, `{"window_center":1,"window_width":2}`, `null`} {
		f.Add(uint8(0), args)
	}
	f.Fuzz(func(t *testing.T, which uint8, args string) {
		tool := s.names[int(which)%len(s.names)]
		obs, err := s.Call(context.Background(), tool, json.RawMessage(args), images, meta)
		if err != nil || obs.Error == "tool failed" {
			t.Errorf("%s %q: %+v, %v", tool, args, obs, err)
		}
		if obs.Invalid && obs.Text == "" {
			t.Errorf("%s %q: refused without a word", tool, args)
		}
	})
}
