package engine

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"image"
	"image/png"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xragent/chat"
	"xragent/internal/blobs"
	"xragent/rollout"
	"xragent/rollout/loop"
	"xragent/rollout/loop/looptest"
)

const (
	vocab    = 40
	pad      = 30
	stop     = 33
	merge    = 2
	markFrom = 31
	markTo   = 32
)

// A script is a server that answers as vLLM does, from a distribution over the
// next id that depends on all ids before it.
type script struct {
	mu     sync.Mutex
	calls  []string                    // paths in order
	bodies map[string]map[string]any   // the last body by path
	spoil  func(path string, a answer) // changes answers
	refuse map[string]int              // status by path
	during func(path string)           // runs while a request is answered
	shift  float32                     // added to every log-prob: other weights
}

type answer = map[string]any

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.calls = append(s.calls, r.URL.String())
	if s.bodies == nil {
		s.bodies = map[string]map[string]any{}
	}
	s.bodies[r.URL.Path] = body
	status, during := s.refuse[r.URL.Path], s.during
	s.mu.Unlock()
	if during != nil {
		during(r.URL.Path)
	}
	if status != 0 {
		http.Error(w, `{"error": {"message": "no such thing"}}`, status)
		return
	}
	a, err := s.answer(r.URL.Path, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s.spoil != nil {
		s.spoil(r.URL.Path, a)
	}
	_ = json.NewEncoder(w).Encode(a)
}

func (s *script) answer(path string, body map[string]any) (answer, error) {
	switch path {
	case "/inference/v1/generate":
		return s.generate(body)
	case "/v1/completions":
		return s.complete(body), nil
	}
	return answer{}, nil
}

func (s *script) generate(body map[string]any) (answer, error) {
	var pads []int
	parts, _ := body["content_parts"].([]any)
	for _, part := range parts {
		url := part.(map[string]any)["url"].(string)
		encoded, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(url, "data:image/png;base64,"))
		if err != nil {
			return nil, err
		}
		_, grid, err := chat.Small.Process(encoded)
		if err != nil {
			return nil, err
		}
		pads = append(pads, grid[1]*grid[2]/merge/merge)
	}
	prompt, err := chat.Expand(ints(body["token_ids"]), pads, pad)
	if err != nil {
		return nil, err
	}
	params := body["sampling_params"].(map[string]any)
	ids, logprobs, finish := s.sample(prompt, params)
	var content []any
	for i := range ids {
		content = append(content, map[string]any{"token_id": ids[i], "logprob": logprobs[i]})
	}
	a := answer{"prompt_token_ids": prompt, "choices": []any{answer{
		"token_ids": ids, "finish_reason": finish, "logprobs": answer{"content": content}}}}
	if params["prompt_logprobs"] != nil {
		a["prompt_logprobs"] = s.scored(prompt)
	}
	return a, nil
}

func (s *script) complete(body map[string]any) answer {
	prompt := ints(body["prompt"])
	ids, logprobs, finish := s.sample(prompt, body)
	c := answer{"token_ids": ids, "prompt_token_ids": prompt, "finish_reason": finish, "logprobs": answer{"token_logprobs": logprobs}}
	if body["prompt_logprobs"] != nil {
		c["prompt_logprobs"] = s.scored(prompt)
	}
	return answer{"choices": []any{c}}
}

func ints(list any) []int32 {
	var out []int32
	for _, v := range list.([]any) {
		out = append(out, int32(v.(float64)))
	}
	return out
}

// next returns how likely each id is behind ids: a third is shared out by a
// hash of them, the rest lies evenly on all but the image pad.
func (s *script) next(ids []int32) (favourite int32, logprob func(int32) float32) {
	h := fnv.New32a()
	fmt.Fprint(h, ids)
	favourite = int32(h.Sum32() % pad)
	return favourite, func(id int32) float32 {
		if id == favourite {
			return -1.1 + s.shift
		}
		return -4.1 + s.shift
	}
}

func (s *script) sample(prompt []int32, params map[string]any) (ids []int32, logprobs []float32, finish string) {
	seed, _ := params["seed"].(float64)
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	all := slices.Clone(prompt)
	for range int(params["max_tokens"].(float64)) {
		id, logprob := s.next(all)
		switch u := rng.Float64(); {
		case u < 0.1:
			id = stop
		case u < 0.6:
			id = rng.Int32N(pad)
		}
		all, ids, logprobs = append(all, id), append(ids, id), append(logprobs, logprob(id))
		if id == stop {
			return ids, logprobs, "stop"
		}
	}
	return ids, logprobs, "length"
}

func (s *script) scored(prompt []int32) []any {
	rows := []any{nil}
	for i := range prompt[1:] {
		_, logprob := s.next(prompt[:i+1])
		rows = append(rows, answer{fmt.Sprint(prompt[i+1]): answer{"logprob": logprob(prompt[i+1]), "rank": 1}})
	}
	return rows
}

// manifest returns version v with one file, and a canary as the script sees it.
func manifest(t *testing.T, store *blobs.Store, v rollout.PolicyVersion) rollout.WeightsManifest {
	t.Helper()
	data := []byte(fmt.Sprint("weights ", v))
	sha, err := store.Put(context.Background(), data)
	if err != nil {
		t.Fatal(err)
	}
	ids := []int32{1, 2, 3, 4}
	var lps []float32
	for i := range ids[1:] {
		_, logprob := (&script{}).next(ids[:i+1])
		lps = append(lps, logprob(ids[i+1]))
	}
	files := []rollout.File{{Name: "adapter_model.safetensors", SHA256: sha, Size: int64(len(data))}}
	return rollout.WeightsManifest{Run: "r", Version: v, Files: files, Digest: rollout.FilesDigest(files), Kernels: Kernels,
		Canary: rollout.Canary{IDs: ids, Logprobs: lps, Tolerance: 1e-3}}
}

type fixture struct {
	*Client
	script *script
	store  *blobs.Store
	dir    string
}

func newFixture(t *testing.T, change func(*Config)) fixture {
	t.Helper()
	store, err := blobs.Open(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{script: &script{refuse: map[string]int{}}, store: store, dir: t.TempDir()}
	server := httptest.NewServer(f.script)
	t.Cleanup(server.Close)
	cfg := Config{URL: server.URL, Model: "policy", API: Generate, Weights: WeightsLoRA, Dir: f.dir, Timeout: time.Minute}
	if change != nil {
		change(&cfg)
	}
	if f.Client, err = New(cfg, Options{Processor: chat.Small, ImagePad: pad, Files: store.Get}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f fixture) load(t *testing.T, v rollout.PolicyVersion) {
	t.Helper()
	if _, err := f.Load(context.Background(), manifest(t, f.store, v)); err != nil {
		t.Fatal(err)
	}
}

func picture(t *testing.T) []byte {
	t.Helper()
	img := image.NewGray(image.Rect(0, 0, 200, 180))
	for i := range img.Pix {
		img.Pix[i] = uint8(i * 7 % 251) // does not compress to nothing
	}
	var w bytes.Buffer
	if err := png.Encode(&w, img); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

func TestConformance(t *testing.T) {
	f := newFixture(t, nil)
	f.load(t, 3)
	looptest.TestSampler(t, looptest.Setup{
		Sampler: f.Client, Version: 3, Vocab: vocab, Merge: merge, Prompt: []int32{1, 2, 3}, Mark: []int32{markFrom, pad, markTo},
		ImagePad: pad, Image: picture(t), Stop: []int32{stop}, MaxTokens: 12,
	})
}

func request(v rollout.PolicyVersion) loop.SampleRequest {
	return loop.SampleRequest{Version: v, IDs: []int32{1, 2, 3}, Stop: []int32{stop}, Seed: 5,
		Sampling: rollout.Sampling{Temperature: 0.7, TopP: 0.9, MaxTokens: 8}}
}

func TestCompletions(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.API, c.Weights = Completions, WeightsFixed })
	f.load(t, 0)
	got, err := f.Sample(context.Background(), request(0))
	if err != nil || !slices.Equal(got.Turn.PromptIDs, []int32{1, 2, 3}) || len(got.Turn.OutputIDs) != len(got.Turn.Logprobs) {
		t.Fatalf("%+v, %v", got, err)
	}
	req := request(0)
	req.IDs, req.Images = []int32{1, pad}, [][]byte{picture(t)}
	if _, err := f.Sample(context.Background(), req); err == nil || !strings.Contains(err.Error(), "takes no images") {
		t.Errorf("an image gave %v", err)
	}
}

func TestRequestOnTheWire(t *testing.T) {
	f := newFixture(t, nil)
	f.load(t, 12)
	req := request(12)
	req.Seed = 1<<63 + 4
	if _, err := f.Sample(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	body := f.script.bodies["/inference/v1/generate"]
	params := body["sampling_params"].(map[string]any)
	for name, pair := range map[string][2]any{
		"model":               {body["model"], "policy-v12"},
		"return_token_ids":    {body["return_token_ids"], true},
		"temperature":         {params["temperature"], 0.7},
		"top_p":               {params["top_p"], 0.9},
		"max_tokens":          {params["max_tokens"], 8.0},
		"seed":                {params["seed"], float64(1<<62 + 2)},
		"skip_special_tokens": {params["skip_special_tokens"], false},
		"stop_token_ids":      {fmt.Sprint(params["stop_token_ids"]), fmt.Sprint([]int{stop})},
		"cache_salt":          {body["cache_salt"], manifest(t, f.store, 12).Digest},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %v, want %v", name, pair[0], pair[1])
		}
	}
}

// A server that keeps something to itself, or contradicts the request, is
// refused by name.
func TestRefusedAnswers(t *testing.T) {
	choice := func(a answer) answer { return a["choices"].([]any)[0].(answer) }
	tests := []struct {
		name  string
		spoil func(a answer)
		want  string
	}{
		{"no prompt ids", func(a answer) { delete(a, "prompt_token_ids") }, "no prompt_token_ids"},
		{"no ids", func(a answer) { delete(choice(a), "token_ids") }, "no token_ids"},
		{"no log-probs", func(a answer) { delete(choice(a), "logprobs") }, "no logprobs"},
		{"a log-prob short", func(a answer) {
			lp := choice(a)["logprobs"].(answer)
			lp["content"] = lp["content"].([]any)[1:]
		}, "logprob 0 belongs to id"},
		{"no log-probs inside", func(a answer) { choice(a)["logprobs"] = answer{} }, "token_ids but 0 logprobs"},
		{"expanded twice", func(a answer) { a["prompt_token_ids"] = []int32{1, 2, 2, 3} }, "differs from ours of 3 at 2"},
		{"no choice", func(a answer) { a["choices"] = []any{} }, "0 choices"},
		{"aborted", func(a answer) { choice(a)["finish_reason"] = "abort" }, `finish_reason is "abort"`},
		{"another stop", func(a answer) {
			c := choice(a)
			c["finish_reason"], c["token_ids"] = "stop", []int32{4}
			c["logprobs"] = answer{"content": []any{answer{"logprob": -1}}}
		}, "none of the stop ids"},
	}
	for _, test := range tests {
		f := newFixture(t, nil)
		f.load(t, 1)
		f.script.spoil = func(_ string, a answer) { test.spoil(a) }
		if _, err := f.Sample(context.Background(), request(1)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
	}
}

func TestServerErrors(t *testing.T) {
	f := newFixture(t, nil)
	f.load(t, 1)
	f.script.refuse["/inference/v1/generate"] = http.StatusServiceUnavailable
	if _, err := f.Sample(context.Background(), request(1)); err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("a refusing server gave %v", err)
	}
}

func TestLoadLoRA(t *testing.T) {
	f := newFixture(t, nil)
	if _, err := f.Sample(context.Background(), request(0)); err == nil || !strings.Contains(err.Error(), "proved none") {
		t.Errorf("a turn before any version gave %v", err)
	}
	proof, err := f.Load(context.Background(), manifest(t, f.store, 4))
	if err != nil {
		t.Fatal(err)
	}
	m := manifest(t, f.store, 4)
	if proof.Version != 4 || proof.Digest != m.Digest || proof.Kernels != m.Kernels || !slices.Equal(proof.Logprobs, m.Canary.Logprobs) {
		t.Errorf("proof %+v", proof)
	}
	body := f.script.bodies["/v1/load_lora_adapter"]
	dir, _ := body["lora_path"].(string)
	data, err := os.ReadFile(filepath.Join(dir, "adapter_model.safetensors"))
	if body["lora_name"] != "policy-v4" || err != nil || string(data) != "weights 4" {
		t.Errorf("adapter %v holds %q (%v)", body, data, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(f fixture, m *rollout.WeightsManifest)
		want   string
	}{
		{"other weights", func(f fixture, _ *rollout.WeightsManifest) { f.script.shift = 0.5 }, "holds other weights"},
		{"missing file", func(_ fixture, m *rollout.WeightsManifest) { m.Files[0].SHA256 = strings.Repeat("0", 64) }, "adapter_model.safetensors"},
		{"path as name", func(_ fixture, m *rollout.WeightsManifest) { m.Files[0].Name = "../x" }, "no plain file name"},
		{"no prompt log-probs", func(f fixture, _ *rollout.WeightsManifest) {
			f.script.spoil = func(_ string, a answer) { delete(a, "prompt_logprobs") }
		}, "honours prompt_logprobs"},
		{"no adapters", func(f fixture, _ *rollout.WeightsManifest) { f.script.refuse["/v1/load_lora_adapter"] = 404 }, "404"},
	}
	for _, test := range tests {
		f := newFixture(t, nil)
		f.load(t, 1)
		m := manifest(t, f.store, 2)
		test.change(f, &m)
		if _, err := f.Load(context.Background(), m); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
		f.script.spoil = nil
		if _, err := f.Sample(context.Background(), request(2)); err == nil {
			t.Errorf("%s: version 2 samples without its proof", test.name)
		}
		if _, err := f.Sample(context.Background(), request(1)); err != nil {
			t.Errorf("%s: version 1, still there, gave %v", test.name, err)
		}
	}
}

// A turn during which all weights were replaced is of no version.
func TestReload(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Weights = WeightsReload })
	f.load(t, 1)
	paths := strings.Join(f.script.calls, " ")
	if want := "/pause?mode=wait&clear_cache=true /collective_rpc /resume /inference/v1/generate"; paths != want {
		t.Errorf("calls %s, want %s", paths, want)
	}
	var begun atomic.Bool
	f.script.during = func(path string) {
		if path == "/inference/v1/generate" && begun.CompareAndSwap(false, true) {
			f.load(t, 2)
		}
	}
	if _, err := f.Sample(context.Background(), request(1)); err == nil || !strings.Contains(err.Error(), "weights changed") {
		t.Errorf("a turn across a reload gave %v", err)
	}
	if _, err := f.Sample(context.Background(), request(2)); err != nil {
		t.Errorf("version 2: %v", err)
	}
	f.script.refuse["/collective_rpc"] = 500
	if _, err := f.Load(context.Background(), manifest(t, f.store, 3)); err == nil {
		t.Error("a refused reload gave no error")
	}
	if last := f.script.calls[len(f.script.calls)-1]; last != "/resume" {
		t.Errorf("last call %s, want /resume: the server must not stay paused", last)
	}
	if _, err := f.Sample(context.Background(), request(2)); err == nil || !strings.Contains(err.Error(), "proved none") {
		t.Errorf("after a failed reload version 2 gave %v", err)
	}
}

func TestConfigValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Config){
		"url":     func(c *Config) { c.URL = "localhost:8000" },
		"model":   func(c *Config) { c.Model = "" },
		"api":     func(c *Config) { c.API = "chat" },
		"weights": func(c *Config) { c.Weights = "" },
		"dir":     func(c *Config) { c.Dir = "" },
		"timeout": func(c *Config) { c.Timeout = 0 },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "field "+field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
}
