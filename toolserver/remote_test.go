package toolserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xragent/dataset"
	"xragent/toolserver/backend"
	"xragent/toolserver/measure"
	"xragent/toolserver/segment"
)

// plainFilm returns a sound frontal phantom as if it were a radiograph.
func plainFilm(t *testing.T) (images [][]byte, meta []dataset.Image, gray *image.Gray) {
	t.Helper()
	for i := range 50 {
		if s, images, meta := film(t, i); s.Truth.View == "PA" && s.Truth.Fault == "" && len(s.Truth.Findings) == 0 {
			meta[0].Domain = "radiograph"
			return images, meta, s.Image
		}
	}
	t.Fatal("no plain film among 50")
	return nil, nil, nil
}

// found are the embedded network's masks, by the wire's names.
func found(t *testing.T, img *image.Gray) map[string]image.Image {
	t.Helper()
	m, err := segment.Embedded().Segment(img)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]image.Image{"right_lung": grey(m.RightLung), "left_lung": grey(m.LeftLung), "heart": grey(m.Heart)}
}

func grey(m *image.Alpha) *image.Gray { return &image.Gray{Pix: m.Pix, Stride: m.Stride, Rect: m.Rect} }

// maskReply is what a server says of an image.
func maskReply(t testing.TB, masks map[string]image.Image) string {
	t.Helper()
	files := map[string][]byte{} // base64 in JSON
	for name, m := range masks {
		files[name] = encode(t, m)
	}
	data, err := json.Marshal(map[string]any{"masks": files})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// remoteOf returns a segmenter whose server answers with reply, whatever it is
// asked.
func remoteOf(t *testing.T, reply string) segment.Segmenter {
	t.Helper()
	s, err := OpenRadiograph("remote", backend.Config{URL: modelServer(t, map[string]string{segmenterName: reply}).URL})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRemoteFaults holds that what a server does wrong is an error that says
// what, and is told apart from an image that shows no lungs.
func TestRemoteFaults(t *testing.T) {
	_, _, img := plainFilm(t)
	sound := found(t, img)
	with := func(name string, m image.Image) string {
		masks := map[string]image.Image{}
		for k, v := range sound {
			masks[k] = v
		}
		if masks[name] = m; m == nil {
			delete(masks, name)
		}
		return maskReply(t, masks)
	}
	small, blank := image.NewGray(image.Rect(0, 0, 7, 5)), image.NewGray(img.Rect)
	for name, tt := range map[string]struct {
		reply, want string
		failed      bool
	}{
		"no JSON":       {`<html>`, "not JSON", true},
		"its own error": {`{"error":"out of memory"}`, `"out of memory"`, true},
		"nothing":       {`{}`, "without right_lung, with 0 other structures", true},
		"no heart":      {with("heart", nil), "without heart, with 2 other structures", true},
		"another size":  {with("heart", small), fmt.Sprintf("heart: a mask of 7 x 5 pixels, the image has %d x %d", img.Rect.Dx(), img.Rect.Dy()), true},
		"no PNG":        {`{"masks":{"heart":"AAAA"}}`, "no PNG file", true},
		"cut short":     {cutShort(t, sound), "heart: damaged PNG file", true},
		"empty lung":    {with("left_lung", blank), segment.ErrNoLungs.Error(), false},
		"all is heart":  {with("heart", grey(full(img.Rect))), segment.ErrNoLungs.Error(), false},
	} {
		_, err := remoteOf(t, tt.reply).Segment(img)
		if err == nil || !strings.Contains(err.Error(), tt.want) || ServerFailed(err) != tt.failed {
			t.Errorf("%s: error %v, a server's failure: %v; want %q, %v", name, err, ServerFailed(err), tt.want, tt.failed)
		}
	}
	m, err := remoteOf(t, with("heart", blank)).Segment(img)
	if err != nil || !segment.Bounds(m.Heart).Empty() || m.Heart.Rect != img.Rect {
		t.Errorf("a heart that was not found: %v, %v", m.Heart, err)
	}
}

// cutShort is a reply whose heart ends in the middle of its pixels.
func cutShort(t *testing.T, masks map[string]image.Image) string {
	t.Helper()
	files := map[string][]byte{} // base64 in JSON
	for name, m := range masks {
		files[name] = encode(t, m)
	}
	files["heart"] = files["heart"][:len(files["heart"])/2]
	data, err := json.Marshal(map[string]any{"masks": files})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func full(r image.Rectangle) *image.Alpha {
	m := image.NewAlpha(r)
	for i := range m.Pix {
		m.Pix[i] = 255
	}
	return m
}

// TestRemoteMasks holds that masks arrive as they were sent, further structures
// by their names, specks and what lies in the heart apart.
func TestRemoteMasks(t *testing.T) {
	_, _, img := plainFilm(t)
	sent := found(t, img)
	lung := sent["right_lung"].(*image.Gray)
	want := bytes.Clone(lung.Pix)
	lung.Pix[0] = 255 // a speck
	heart := sent["heart"].(*image.Gray)
	for i, v := range heart.Pix {
		lung.Pix[i] = max(lung.Pix[i], v) // drawn through the heart
	}
	sent["spine"], sent["aorta"] = grey(full(img.Rect)), heart
	m, err := remoteOf(t, maskReply(t, sent)).Segment(img)
	if err != nil || !bytes.Equal(m.RightLung.Pix, want) || !bytes.Equal(m.Heart.Pix, heart.Pix) {
		t.Fatalf("masks differ from those sent, error %v", err)
	}
	s := StructuresOf(&m)
	if s.Spine == nil || s.Trachea != nil || s.Mediastinum != nil || s.Spine.Rect != img.Rect {
		t.Errorf("spine %v, trachea %v, mediastinum %v", s.Spine, s.Trachea, s.Mediastinum)
	}
}

// TestRemoteLargeFilm holds that a film beyond the wire's size is sent smaller,
// and its masks come back at its own size, in its place.
func TestRemoteLargeFilm(t *testing.T) {
	img := image.NewGray(image.Rect(0, 0, 2*modelSide, modelSide))
	half := image.NewGray(image.Rect(0, 0, modelSide, modelSide/2))
	at := func(x0, x1 int) image.Image {
		m := image.NewGray(half.Rect)
		for y := range half.Rect.Dy() {
			for x := x0; x < x1; x++ {
				m.Pix[y*m.Stride+x] = 255
			}
		}
		return m
	}
	m, err := remoteOf(t, maskReply(t, map[string]image.Image{"right_lung": at(100, 300), "left_lung": at(600, 800), "heart": at(300, 500)})).Segment(img)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := segment.Bounds(m.RightLung), image.Rect(200, 0, 600, modelSide); got != want || m.RightLung.Rect != img.Rect {
		t.Errorf("lung at %v of %v, want %v", got, m.RightLung.Rect, want)
	}
}

// TestRemoteSecondLook holds that the server's masks are compared with the
// embedded network's: equal ones admit, others withhold by agreement.
func TestRemoteSecondLook(t *testing.T) {
	images, meta, img := plainFilm(t)
	same, moved := found(t, img), found(t, img)
	moved["heart"], moved["left_lung"] = moved["left_lung"], moved["heart"]
	for name, tt := range map[string]struct {
		masks map[string]image.Image
		agree bool
	}{"equal": {same, true}, "others": {moved, false}} {
		s := serverFor(t, func(c *Config) {
			c.Backends = map[string]backend.Config{segmenterName: {URL: modelServer(t, map[string]string{segmenterName: maskReply(t, tt.masks)}).URL}}
		})
		b, err := s.Measure(context.Background(), images, meta)
		if err != nil || !anyComputed(b) || slices.Contains(b.Reasons, "agreement") == tt.agree {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
}

// TestRemoteFailureIsNotKept holds that a server's failure withholds, stops
// nothing, and is not remembered.
func TestRemoteFailureIsNotKept(t *testing.T) {
	images, meta, img := plainFilm(t)
	var well atomic.Bool
	reply := maskReply(t, found(t, img))
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(reply))
	}))
	t.Cleanup(h.Close)
	for _, network := range []string{"", "remote"} {
		well.Store(false)
		s := extended(t, func(c *Config) {
			c.Network, c.Gate = network, measure.PerMeasurement
			c.Backends = map[string]backend.Config{segmenterName: {URL: h.URL}}
		})
		b, err := s.Measure(context.Background(), images, meta)
		if err != nil || anyComputed(b) || !slices.Contains(b.Reasons, "lungs_found") {
			t.Errorf("network %q, server ill: %+v, %v", network, b, err)
		}
		if obs := call(t, s, segmentName, `{}`, images, meta); !strings.Contains(obs.Error, "HTTP 500") {
			t.Errorf("network %q, server ill: %+v", network, said(obs))
		}
		well.Store(true)
		if b, err := s.Measure(context.Background(), images, meta); err != nil || !anyComputed(b) {
			t.Errorf("network %q, server well again: %+v, %v", network, b, err)
		}
		if obs := call(t, s, segmentName, `{}`, images, meta); obs.Error != "" {
			t.Errorf("network %q, server well again: %+v", network, said(obs))
		}
	}
}

// TestRemoteHangs holds that a server has its time and no more.
func TestRemoteHangs(t *testing.T) {
	done := make(chan struct{})
	h := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	t.Cleanup(h.Close)
	t.Cleanup(func() { close(done) })
	s, err := OpenRadiograph("remote", backend.Config{URL: h.URL, Timeout: 50 * time.Millisecond, Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Segment(image.NewGray(image.Rect(0, 0, 64, 64))); !ServerFailed(err) || !strings.Contains(err.Error(), "50ms") {
		t.Errorf("error %v, want one that names the time", err)
	}
}

func TestRemoteConfig(t *testing.T) {
	server := map[string]backend.Config{segmenterName: {URL: "http://127.0.0.1:1"}}
	for want, change := range map[string]func(*Config){
		"no server is configured": func(c *Config) { c.Network = "remote" },
		"set network to remote":   func(c *Config) { c.Network, c.Backends = "none", server },
		"has no effect":           func(c *Config) { c.Segmenter, c.Backends = "none", server },
		"want at most deadline": func(c *Config) {
			c.Backends = map[string]backend.Config{segmenterName: {URL: "http://h", Timeout: 2 * c.Deadline}}
		},
		"gives text only": func(c *Config) {
			c.Backends = map[string]backend.Config{segmenterName: {URL: "http://h", Wire: "openai", Model: "m"}}
		},
	} {
		c := Default()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// startModel runs learner/model_server.py and returns its address.
func startModel(t *testing.T, args ...string) string {
	t.Helper()
	python := os.Getenv("XRAGENT_PYTHON")
	if python == "" {
		t.Skip("XRAGENT_PYTHON is not set: learner/model_server.py was not asked")
	}
	cmd := exec.Command(python, append([]string{"../learner/model_server.py", "--listen", "127.0.0.1:0"}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); { // packages print, too
		if _, address, ok := strings.Cut(lines.Text(), "listens on "); ok {
			address, _, _ = strings.Cut(address, ",")
			return "http://" + address
		}
	}
	t.Fatalf("model_server.py did not start: %s", errs.String())
	return ""
}

// TestPythonServer holds that the Python server, serving the embedded network,
// gives the masks that Go computes: pixels, sides and sizes survive the way.
func TestPythonServer(t *testing.T) {
	s, err := OpenRadiograph("remote", backend.Config{URL: startModel(t, "--model", "xragent", "--weights", "segment/network/model.safetensors")})
	if err != nil {
		t.Fatal(err)
	}
	_, _, img := plainFilm(t)
	for _, img := range []*image.Gray{img, img.SubImage(image.Rect(40, 0, 440, 512)).(*image.Gray)} {
		img = copied(img)
		got, err := s.Segment(img)
		if err != nil {
			t.Fatal(err)
		}
		want, err := segment.Embedded().Segment(img)
		if err != nil {
			t.Fatal(err)
		}
		for i, pair := range [][2]*image.Alpha{{got.RightLung, want.RightLung}, {got.LeftLung, want.LeftLung}, {got.Heart, want.Heart}} {
			if n := differing(pair[0], pair[1]); n > segment.Area(pair[1])/500 {
				t.Errorf("%v, %s: %d pixels differ from Go's", img.Rect, sought[i], n)
			}
		}
	}
	for body, want := range map[string]string{`{}`: "400", `{"images":[{"png":"AAAA"}]}`: "422", `[`: "400", `{"arguments":[]}`: "400"} {
		res, err := http.Post(s.(*remote).cfg.URL, "application/json", strings.NewReader(body))
		if err != nil || !strings.HasPrefix(res.Status, want) {
			t.Errorf("%s: %v, %v, want %s", body, res, err, want)
		}
		if err == nil {
			_ = res.Body.Close()
		}
	}
}

func copied(img *image.Gray) *image.Gray {
	out := image.NewGray(image.Rectangle{Max: img.Rect.Size()})
	for y := range out.Rect.Dy() {
		copy(out.Pix[y*out.Stride:(y+1)*out.Stride], img.Pix[y*img.Stride:])
	}
	return out
}

func differing(a, b *image.Alpha) int {
	n := 0
	for i, v := range a.Pix {
		if v != b.Pix[i] {
			n++
		}
	}
	return n
}

// TestPythonModels holds that TorchXRayVision's PSPNet and CXAS are loaded by
// their packages' own code and answer by name, twice alike, with masks of the
// film's size. Their weights are random here: what they outline means nothing.
func TestPythonModels(t *testing.T) {
	if testing.Short() {
		t.Skip("two large untrained networks were not asked")
	}
	img := image.NewGray(image.Rect(0, 0, 120, 90))
	for i := range img.Pix {
		img.Pix[i] = uint8(i * 7)
	}
	for model, tt := range map[string]struct{ pkg, beside string }{"pspnet": {"torchxrayvision", "aorta"}, "cxas": {"cxas", "aortic_arch"}} {
		t.Run(model, func(t *testing.T) {
			if python := os.Getenv("XRAGENT_PYTHON"); python != "" && exec.Command(python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('"+tt.pkg+"') is None)").Run() != nil {
				t.Skipf("no package %s: %s was not asked", tt.pkg, model)
			}
			c, err := backend.New(backend.Config{URL: startModel(t, "--model", model, "--random-weights", "1"), Timeout: 10 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			ask := func() map[string][]byte {
				out, err := c.Ask(context.Background(), backend.Request{Tool: segmenterName,
					Arguments: json.RawMessage(`{"structures":["right_lung","left_lung","heart","` + tt.beside + `","wing"]}`), Images: []backend.Image{{PNG: encode(t, img)}}})
				if err != nil || len(out.Masks) != 4 {
					t.Fatalf("%d masks, want 4: %v", len(out.Masks), err)
				}
				return out.Masks
			}
			first, second := ask(), ask()
			for _, name := range []string{"right_lung", "left_lung", "heart", tt.beside} {
				m, err := png.Decode(bytes.NewReader(first[name]))
				if err != nil || m.Bounds() != img.Rect || !bytes.Equal(first[name], second[name]) {
					t.Errorf("%s: %v, equal twice %v", name, err, bytes.Equal(first[name], second[name]))
				}
			}
		})
	}
}

// TestPythonRefusesWeights holds that weights that are not there, or another
// model's, stop the server with a word.
func TestPythonRefusesWeights(t *testing.T) {
	python := os.Getenv("XRAGENT_PYTHON")
	if python == "" {
		t.Skip("XRAGENT_PYTHON is not set: learner/model_server.py was not started")
	}
	for _, tt := range []struct{ weights, want string }{{"no/such/file", "no such file"}, {"../policy/embedded/testdata/golden/tied/model.safetensors", "not a file that segment.py export wrote"}} {
		out, err := exec.Command(python, "../learner/model_server.py", "--model", "xragent", "--weights", tt.weights, "--listen", "127.0.0.1:0").CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v, %s", tt.weights, err, out)
		}
	}
}
