package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"xragent/dataset/columnar"
	"xragent/rollout"
	"xragent/trainer/batch"
	"xragent/trainer/loss"
)

const (
	vocab    = 12
	imagePad = 11
)

// A script is a learner process in Go. Its model is the smallest that learns:
// a softmax over one logit an id, whatever stands before. The objective and
// the optimizer are the real ones.
type script struct {
	mu     sync.Mutex
	state  state
	images map[string]bool
	files  map[string][]byte
	last   string // identity of the last step
	stats  batch.Stats
	lose   int      // answers to steps that get lost
	calls  []string // paths in order
	info   Info
	short  bool // forgets a conversation
}

type state struct {
	Logits, M, V [vocab]float64
	Steps        int
}

func newScript() *script {
	s := &script{images: map[string]bool{}, files: map[string][]byte{}, info: Info{Format: format, Model: "script", Vocab: vocab, Processor: "p"}}
	for i := range s.state.Logits {
		s.state.Logits[i] = math.Sin(float64(i))
	}
	return s
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	answer, err := s.answer(r, body)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusUnprocessableEntity)
		answer = map[string]string{"error": err.Error()}
	case s.lose > 0 && r.URL.Path == "/v1/step":
		s.lose--
		panic(http.ErrAbortHandler)
	}
	if data, ok := answer.([]byte); ok {
		_, _ = w.Write(data)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *script) answer(r *http.Request, body []byte) (any, error) {
	path := r.URL.Path
	switch {
	case path == "/v1/info":
		s.info.Steps = s.state.Steps
		return s.info, nil
	case path == "/v1/encode":
		return s.encode(body)
	case path == "/v1/missing":
		return s.missing(body)
	case strings.HasPrefix(path, "/v1/images/"):
		sum := sha256.Sum256(body)
		s.images[hex.EncodeToString(sum[:])] = true
		return map[string]any{}, nil
	case path == "/v1/step":
		return s.step(r, body)
	case path == "/v1/evaluate":
		b, err := s.read(body)
		if err != nil {
			return nil, err
		}
		st, _, err := s.state.loss(b, objective{Kind: "sft"})
		return map[string]float64{"loss": st.Loss}, err
	case path == "/v1/save" || path == "/v1/load":
		return s.folder(path, body)
	case path == "/v1/publish":
		return s.publish()
	case strings.HasPrefix(path, "/v1/files/"):
		return s.files[strings.TrimPrefix(path, "/v1/files/")], nil
	}
	return nil, fmt.Errorf("no %s", path)
}

// encode gives conversations without ids.
func (s *script) encode(body []byte) (any, error) {
	var ask struct{ Conversations []any }
	err := json.Unmarshal(body, &ask)
	ids := make([][]int32, len(ask.Conversations))
	if s.short {
		ids = ids[1:]
	}
	return map[string]any{"ids": ids, "image_pad": imagePad}, err
}

func (s *script) missing(body []byte) (any, error) {
	var ask struct{ Images []string }
	err := json.Unmarshal(body, &ask)
	missing := []string{}
	for _, sha := range ask.Images {
		if !s.images[sha] {
			missing = append(missing, sha)
		}
	}
	return map[string]any{"missing": missing}, err
}

type objective struct {
	Kind                         string
	Loss                         loss.Config
	LR, Beta1, Beta2, Eps, Decay float64
	MaxNorm                      float64 `json:"max_norm"`
}

func (s *script) step(r *http.Request, body []byte) (any, error) {
	steps, err := strconv.Atoi(r.URL.Query().Get("steps"))
	key := fmt.Sprintf("%x", sha256.Sum256(append([]byte(r.Header.Get("X-Objective")), body...)))
	switch {
	case err != nil:
		return nil, err
	case steps == s.state.Steps-1 && key == s.last:
		return s.stats, nil
	case steps != s.state.Steps:
		return nil, fmt.Errorf("asked for a step behind %d, the learner has taken %d", steps, s.state.Steps)
	}
	var o objective
	if err := json.Unmarshal([]byte(r.Header.Get("X-Objective")), &o); err != nil {
		return nil, err
	}
	b, err := s.read(body)
	if err != nil {
		return nil, err
	}
	st, gradient, err := s.state.loss(b, o)
	if err != nil {
		return nil, err
	}
	s.state.adam(gradient, st.GradNorm, o)
	s.last, s.stats = key, st
	return st, nil
}

func (s *script) read(body []byte) (batch.Batch, error) {
	b, err := columnar.DecodeBatch(body)
	if err != nil {
		return b, err
	}
	for _, r := range b.Rows {
		for _, use := range r.Images {
			if !s.images[use.SHA256] {
				return b, fmt.Errorf("row %s: image %.12s was not sent", r.ID, use.SHA256)
			}
		}
	}
	return b, nil
}

// loss returns the statistics and the gradient of the batch.
func (s *state) loss(b batch.Batch, o objective) (st batch.Stats, gradient [vocab]float64, err error) {
	if o.Kind != "sft" && o.Kind != "grpo" {
		return st, gradient, fmt.Errorf("objective kind %q", o.Kind)
	}
	sum, n := 0.0, float64(b.Tokens)
	for _, x := range s.Logits {
		sum += math.Exp(x)
	}
	for _, r := range b.Rows {
		st.AllTokens += len(r.IDs)
		if o.Kind == "grpo" && len(r.Logprobs) == 0 {
			return st, gradient, fmt.Errorf("row %s: no log-probs", r.ID)
		}
		for i, id := range r.IDs {
			if id < 0 || id >= vocab || i == 0 && r.LossMask[0] != 0 {
				return st, gradient, fmt.Errorf("row %s: id %d at %d", r.ID, id, i)
			}
			if r.LossMask[i] == 0 {
				continue
			}
			st.Tokens++
			lp := s.Logits[id] - math.Log(sum)
			loss, slope := -lp, -1.0
			if o.Kind == "grpo" {
				ratio := math.Exp(lp - float64(r.Logprobs[i]))
				loss, slope = -ratio*r.Advantage, -ratio*r.Advantage
				if bounded := min(max(ratio, 1-o.Loss.ClipLow), 1+o.Loss.ClipHigh); bounded*r.Advantage < ratio*r.Advantage {
					loss, slope = -bounded*r.Advantage, 0
				}
				st.ApproxKL += (ratio - 1 - math.Log(ratio)) / n
				st.LogpDiff += math.Abs(math.Log(ratio)) / n
			}
			st.Loss += loss / n
			for k, x := range s.Logits {
				p := math.Exp(x) / sum
				st.Entropy -= p * math.Log(p) / n
				gradient[k] -= slope * p / n
			}
			gradient[id] += slope / n
		}
	}
	if st.Tokens != b.Tokens || st.Tokens == 0 {
		return st, gradient, fmt.Errorf("%d loss tokens, the batch says %d", st.Tokens, b.Tokens)
	}
	norm := 0.0
	for _, g := range gradient {
		norm += g * g
	}
	st.GradNorm = math.Sqrt(norm)
	return st, gradient, nil
}

func (s *state) adam(gradient [vocab]float64, norm float64, o objective) {
	s.Steps++
	scale := 1.0
	if o.MaxNorm > 0 && norm > o.MaxNorm {
		scale = o.MaxNorm / norm
	}
	for i, g := range gradient {
		g *= scale
		s.M[i] = o.Beta1*s.M[i] + (1-o.Beta1)*g
		s.V[i] = o.Beta2*s.V[i] + (1-o.Beta2)*g*g
		m := s.M[i] / (1 - math.Pow(o.Beta1, float64(s.Steps)))
		v := s.V[i] / (1 - math.Pow(o.Beta2, float64(s.Steps)))
		s.Logits[i] -= o.LR * m / (math.Sqrt(v) + o.Eps)
	}
}

func (s *script) folder(path string, body []byte) (any, error) {
	var ask struct{ Dir string }
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, err
	}
	file := filepath.Join(ask.Dir, "state.json")
	if path == "/v1/save" {
		data, err := json.Marshal(s.state)
		if err != nil {
			return nil, err
		}
		return map[string]int{"steps": s.state.Steps}, os.WriteFile(file, data, 0o644)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var next state
	if err := json.Unmarshal(data, &next); err != nil {
		return nil, err
	}
	s.state, s.last = next, ""
	return map[string]int{"steps": s.state.Steps}, nil
}

func (s *script) publish() (any, error) {
	data, err := json.Marshal(s.state.Logits)
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	s.files[sha] = data
	return rollout.WeightsManifest{
		Files:  []rollout.File{{Name: "model.safetensors", SHA256: sha, Size: int64(len(data))}},
		Canary: rollout.Canary{IDs: []int32{1, 2, 3}, Logprobs: []float32{-1, -2}, Tolerance: 1e-3},
	}, err
}

// stored is a blob store in memory.
type stored map[string][]byte

func (s stored) get(_ context.Context, sha string) ([]byte, error) {
	data, ok := s[sha]
	if !ok {
		return nil, fmt.Errorf("no blob %.12s", sha)
	}
	return bytes.Clone(data), nil
}

func (s stored) put(_ context.Context, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	s[sha] = data
	return sha, nil
}
