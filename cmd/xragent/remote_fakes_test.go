package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"xragent/chat"
	"xragent/dataset/columnar"
	"xragent/rollout"
	"xragent/trainer/batch"
)

// fakeState is a policy that knows how often each id comes, and nothing of what
// stands before it: the smallest that learns.
type fakeState struct {
	Logits []float64
	Steps  int
}

// logSoftmax returns the log-prob of each id.
func logSoftmax(logits []float64) []float64 {
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(x)
	}
	out := make([]float64, len(logits))
	for i, x := range logits {
		out[i] = x - math.Log(sum)
	}
	return out
}

func firstLogits(vocab int) []float64 {
	out := make([]float64, vocab)
	for i := range out {
		out[i] = math.Sin(float64(i))
	}
	return out
}

// A fakeLearner answers as learner.py does, with plain gradient steps.
type fakeLearner struct {
	mu        sync.Mutex
	vocab     int
	processor string
	rank      int
	state     fakeState
	images    map[string]bool
	files     map[string][]byte
	drift     float64 // largest mean difference to behaviour log-probs
	codec     *chat.Codec
	shift     int32 // added to the image pad's id
}

func newFakeLearner(codec *chat.Codec) *fakeLearner {
	vocab := codec.Vocab()
	return &fakeLearner{codec: codec, vocab: vocab, processor: chat.Base.Hash(), state: fakeState{Logits: firstLogits(vocab)},
		images: map[string]bool{}, files: map[string][]byte{}}
}

// seen returns what the learner has counted: a request that nobody waits for
// any longer may still be answered beside the test.
func (l *fakeLearner) seen() (steps int, drift float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Steps, l.drift
}

func (l *fakeLearner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	answer, err := l.answer(r, body)
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		answer = map[string]string{"error": err.Error()}
	}
	if data, ok := answer.([]byte); ok {
		_, _ = w.Write(data)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (l *fakeLearner) answer(r *http.Request, body []byte) (any, error) {
	path := r.URL.Path
	name := filepath.Base(path)
	switch {
	case path == "/v1/info":
		return map[string]any{"format": "xragent.learner/1", "model": "base", "vocab": l.vocab, "processor": l.processor, "lora_rank": l.rank, "steps": l.state.Steps}, nil
	case strings.HasPrefix(path, "/v1/images/"):
		l.images[name] = true
		return struct{}{}, nil
	case strings.HasPrefix(path, "/v1/files/"):
		return l.files[name], nil
	case path == "/v1/step" || path == "/v1/evaluate":
		return l.train(r, body)
	case path == "/v1/encode":
		return l.encode(), nil
	case path == "/v1/publish":
		return l.publish()
	}
	var ask struct {
		Dir    string
		Images []string
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, err
	}
	switch path {
	case "/v1/missing":
		missing := slices.DeleteFunc(ask.Images, func(sha string) bool { return l.images[sha] })
		return map[string]any{"missing": missing}, nil
	case "/v1/export":
		return l.export(ask.Dir)
	}
	err := l.folder(path, ask.Dir)
	return map[string]any{"steps": l.state.Steps}, err
}

// encode reads the probes with a tokenizer of its own.
func (l *fakeLearner) encode() any {
	ids := [][]int32{}
	for _, p := range l.codec.Probes() {
		ids = append(ids, p.IDs)
	}
	start, end := l.codec.VisionMarks()
	return map[string]any{"ids": ids, "image_pad": l.codec.ImagePad() + l.shift, "vision_start": start, "vision_end": end}
}

func (l *fakeLearner) folder(path, dir string) error {
	file := filepath.Join(dir, "state.json")
	if path == "/v1/save" {
		return writeJSON(file, l.state)
	}
	next := fakeState{Logits: firstLogits(l.vocab)}
	if dir != "" {
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &next)
		}
		if err != nil {
			return err
		}
	}
	if path == "/v1/start" {
		next.Steps = 0
	}
	l.state = next
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

func (l *fakeLearner) train(r *http.Request, body []byte) (any, error) {
	b, err := columnar.DecodeBatch(body)
	if err != nil {
		return nil, err
	}
	if r.URL.Path == "/v1/evaluate" {
		st, _, err := l.loss(b, false)
		return map[string]float64{"loss": st.Loss}, err
	}
	var o struct {
		Kind string
		LR   float64
	}
	if err := json.Unmarshal([]byte(r.Header.Get("X-Objective")), &o); err != nil {
		return nil, err
	}
	if steps, _ := strconv.Atoi(r.URL.Query().Get("steps")); steps != l.state.Steps {
		return nil, fmt.Errorf("asked for a step behind %d, the learner has taken %d", steps, l.state.Steps)
	}
	st, gradient, err := l.loss(b, o.Kind == "grpo")
	if err != nil {
		return nil, err
	}
	l.drift = max(l.drift, st.LogpDiff)
	for i := range gradient {
		l.state.Logits[i] -= o.LR * gradient[i]
	}
	l.state.Steps++
	return st, nil
}

// loss returns the statistics of b, and the gradient of −log p, each weighted
// by its advantage where grpo.
func (l *fakeLearner) loss(b batch.Batch, grpo bool) (st batch.Stats, gradient []float64, err error) {
	lps, total := logSoftmax(l.state.Logits), 0.0
	gradient = make([]float64, len(lps))
	for _, r := range b.Rows {
		st.AllTokens += len(r.IDs)
		for _, use := range r.Images {
			if !l.images[use.SHA256] {
				return st, nil, fmt.Errorf("row %s: image %.12s was not sent", r.ID, use.SHA256)
			}
		}
		for i, id := range r.IDs {
			if r.LossMask[i] == 0 {
				continue
			}
			weight := 1.0
			if grpo {
				weight = r.Advantage
				st.LogpDiff += math.Abs(lps[id]-float64(r.Logprobs[i])) / float64(b.Tokens)
			}
			st.Tokens++
			st.Loss -= weight * lps[id] / float64(b.Tokens)
			gradient[id] -= weight
			total += weight
		}
	}
	for i, lp := range lps {
		gradient[i] += total * math.Exp(lp)
		st.GradNorm += gradient[i] * gradient[i] / float64(b.Tokens*b.Tokens)
	}
	return st, gradient, nil
}

// canary is scored wherever weights must be proved.
var canary = []int32{300, 301, 302, 303}

func scoreCanary(logits []float64) []float32 {
	var out []float32
	for _, id := range canary[1:] {
		out = append(out, float32(logSoftmax(logits)[id]))
	}
	return out
}

func (l *fakeLearner) publish() (any, error) {
	data, err := json.Marshal(l.state.Logits)
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	l.files[sha] = data
	return rollout.WeightsManifest{Files: []rollout.File{{Name: "weights.json", SHA256: sha, Size: int64(len(data))}},
		Canary: rollout.Canary{IDs: canary, Logprobs: scoreCanary(l.state.Logits), Tolerance: 1e-3}}, err
}

func (l *fakeLearner) export(dir string) (any, error) {
	now := scoreCanary(l.state.Logits)
	return map[string]any{"trained": now, "loaded": now, "first": scoreCanary(firstLogits(l.vocab)), "tolerance": 1e-5},
		writeJSON(filepath.Join(dir, "weights.json"), l.state.Logits)
}

// A fakeServer answers as vLLM does. What it writes follows the protocol, with
// an answer drawn by the request's seed; how likely it says that was follows
// from the weights that it was told to read.
type fakeServer struct {
	codec *chat.Codec

	mu       sync.Mutex
	logps    []float64
	sampled  int
	adapters int  // loaded
	deaf     bool // reads weights, and keeps others
}

// seen returns the turns sampled and the adapters loaded.
func (s *fakeServer) seen() (sampled, adapters int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sampled, s.adapters
}

type generateBody struct {
	TokenIDs     []int32                `json:"token_ids"`
	ContentParts []struct{ URL string } `json:"content_parts"`
	Sampling     struct {
		Seed           uint64
		MaxTokens      int  `json:"max_tokens"`
		PromptLogprobs *int `json:"prompt_logprobs"`
	} `json:"sampling_params"`
	Kwargs struct {
		Path string `json:"weights_path"`
	}
	Adapter string `json:"lora_path"`
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body generateBody
	err := json.NewDecoder(r.Body).Decode(&body)
	answer := any(struct{}{})
	switch {
	case err != nil:
	case r.URL.Path == "/collective_rpc":
		err = s.reload(body.Kwargs.Path)
	case r.URL.Path == "/v1/load_lora_adapter":
		s.adapters++
		err = s.reload(body.Adapter)
	case r.URL.Path == "/inference/v1/generate":
		answer, err = s.generate(body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *fakeServer) reload(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "weights.json"))
	if err != nil {
		return err
	}
	var logits []float64
	err = json.Unmarshal(data, &logits)
	if s.deaf {
		logits = make([]float64, len(logits))
	}
	s.logps = logSoftmax(logits)
	return err
}

func (s *fakeServer) generate(body generateBody) (any, error) {
	prompt, err := s.expand(body)
	if err != nil {
		return nil, err
	}
	ids := append(s.codec.Encode(s.text(body)), s.codec.EndOfTurn())
	if body.Sampling.PromptLogprobs != nil {
		return map[string]any{"prompt_token_ids": prompt, "prompt_logprobs": s.scored(prompt), "choices": []any{}}, nil
	}
	if len(ids) > body.Sampling.MaxTokens {
		return nil, fmt.Errorf("%d ids to write, max_tokens is %d", len(ids), body.Sampling.MaxTokens)
	}
	s.sampled++
	var content []any
	for _, id := range ids {
		content = append(content, map[string]any{"token_id": id, "logprob": s.logps[id]})
	}
	choice := map[string]any{"token_ids": ids, "finish_reason": "stop", "logprobs": map[string]any{"content": content}}
	return map[string]any{"prompt_token_ids": prompt, "choices": []any{choice}}, nil
}

func (s *fakeServer) expand(body generateBody) ([]int32, error) {
	var pads []int
	for _, part := range body.ContentParts {
		_, data, _ := strings.Cut(part.URL, ",")
		encoded, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, err
		}
		use, err := chat.Base.Use(encoded, "")
		if err != nil {
			return nil, err
		}
		pads = append(pads, use.PadTokens(chat.Base.Merge))
	}
	return chat.Expand(body.TokenIDs, pads, s.codec.ImagePad())
}

// text is what the policy writes behind a prompt: in turn 1 sometimes calls, in
// turn 2 an answer that is sometimes right.
func (s *fakeServer) text(body generateBody) string {
	rng := rand.New(rand.NewPCG(body.Sampling.Seed, 1))
	prompt := s.codec.Decode(body.TokenIDs)
	if strings.Count(prompt, "<|im_start|>") <= 3 { // system, user, assistant
		call := ""
		if rng.IntN(2) == 0 {
			call = "\n" + rollout.FormatCall("roi_crop", json.RawMessage(`{"region":"left upper zone"}`))
		}
		return "<assess>pa view.</assess>" + call
	}
	answers := []string{"yes", "no"}
	if strings.Contains(prompt, "A) ") {
		answers = []string{"A", "B"}
	}
	return "<think>as seen.</think><answer>" + answers[rng.IntN(2)] + "</answer>"
}

func (s *fakeServer) scored(ids []int32) []any {
	rows := []any{nil}
	for _, id := range ids[1:] {
		rows = append(rows, map[string]any{fmt.Sprint(id): map[string]any{"logprob": s.logps[id]}})
	}
	return rows
}
