package main

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"xragent/dataset/phantom"
	"xragent/internal/blobs"
	"xragent/internal/simd"
	"xragent/policy/embedded"
	"xragent/rollout"
	"xragent/rollout/engine"
	"xragent/rollout/loop"
	"xragent/trainer/batch"
)

const servedTurns = 20

// A served export is one that a vLLM server and this process hold.
type served struct {
	folder
	learner *embedded.Learner
	store   *blobs.Store
	theirs  *engine.Client
}

// TestEngineServesExport holds an export in a vLLM server against our own
// decoding and our learner: the canary's log-probs, greedy turns over one image
// and over two with their log-probs, and the log-probs of what the server
// samples, as the learner recomputes them. With XRAGENT_ENGINE_RELOAD, a folder
// that the server reads, it also sends it other weights.
// learner/engine/run.sh starts a server and runs it.
func TestEngineServesExport(t *testing.T) {
	url, dir := os.Getenv("XRAGENT_ENGINE"), os.Getenv("XRAGENT_EXPORT")
	if url == "" || dir == "" {
		t.Skip("XRAGENT_ENGINE or XRAGENT_EXPORT is not set: an export was not served by an inference engine")
	}
	s := newServed(t, url, dir)
	canary, err := s.load(t, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := s.engine(t)
	ids, differ, worst := 0, 0, 0.0
	for i := range servedTurns {
		req := s.request(t, i)
		mine, err := ours.Sample(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		their, err := s.theirs.Sample(t.Context(), req)
		if err != nil {
			t.Fatalf("prompt %d: %v", i, err)
		}
		if !slices.Equal(mine.Images, their.Images) {
			t.Errorf("prompt %d: images %+v, ours %+v", i, their.Images, mine.Images)
		}
		same := common(mine.Turn.OutputIDs, their.Turn.OutputIDs)
		if ids += same; same < len(mine.Turn.OutputIDs) {
			differ++
			t.Logf("prompt %d: from id %d on another one, log-probs %v and %v", i, same, mine.Turn.Logprobs[same], their.Turn.Logprobs[same])
		}
		worst = max(worst, apart(mine.Turn.Logprobs[:same], their.Turn.Logprobs[:same]))
	}
	sampled, drawn := s.sampled(t)
	fmt.Printf("log-probs apart: canary %.2g; %d greedy ids of %d turns %.2g, of which %d go another way; %d sampled ids %.2g\n",
		canary, ids, servedTurns, worst, differ, drawn, sampled)
	if !(max(canary, worst, sampled) <= 1e-3) || differ > servedTurns/10 {
		t.Error("the server computes something else")
	}
	if os.Getenv("XRAGENT_ENGINE_RELOAD") != "" {
		s.reloads(t)
	}
}

func newServed(t *testing.T, url, dir string) *served {
	t.Helper()
	m, err := readFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &served{folder: m}
	if s.store, err = blobs.Open(t.TempDir(), false); err != nil {
		t.Fatal(err)
	}
	s.learner, err = embedded.NewLearner(m.weights.Config(), m.weights.Clone(), embedded.LearnerOptions{Images: s.store.Get, Processor: m.images, Put: s.store.Put})
	if err != nil {
		t.Fatal(err)
	}
	cfg := engine.Default()
	cfg.URL, cfg.Weights = url, engine.WeightsFixed
	if cfg.Dir = os.Getenv("XRAGENT_ENGINE_RELOAD"); cfg.Dir != "" {
		cfg.Weights = engine.WeightsReload
	}
	cfg.Timeout = time.Hour // a loaded machine is slow, not wrong
	s.theirs, err = engine.New(cfg, engine.Options{Processor: m.images, ImagePad: m.codec.ImagePad(), Files: s.store.Get})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// load has the server prove the learner's weights as version v and returns how
// far its canary is from ours.
func (s *served) load(t *testing.T, v rollout.PolicyVersion) (float64, error) {
	t.Helper()
	m, err := s.learner.Publish(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := s.theirs.Load(t.Context(), m)
	return apart(proof.Logprobs, m.Canary.Logprobs), err
}

// engine returns our own decoding of the same weights.
func (s *served) engine(t *testing.T) *embedded.Engine {
	t.Helper()
	e, err := embedded.NewEngine(s.weights.Config(), embedded.EngineOptions{Processor: s.images})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if err := e.Load(s.weights, 0); err != nil {
		t.Fatal(err)
	}
	return e
}

// request asks for a greedy first turn over one film, or, where i is odd, for a
// second turn that also shows a crop of another size.
func (s *served) request(t *testing.T, i int) loop.SampleRequest {
	t.Helper()
	study := phantom.Generate(phantom.Config{Seed: 9, Train: 40}, i)
	film, err := study.EncodePNG()
	if err != nil {
		t.Fatal(err)
	}
	req := loop.SampleRequest{
		IDs: s.codec.Triage(study.Samples[0].Prompt, nil), Images: [][]byte{film}, Stop: []int32{s.codec.EndOfTurn()},
		Seed: uint64(i), Sampling: rollout.Sampling{TopP: 1, MaxTokens: 48},
	}
	if i%2 == 1 {
		calls := []rollout.Call{{Tool: "roi_crop", Status: rollout.CallOK, Observation: "crop", Image: "crop"}}
		first := append(s.codec.Encode("The heart looks large."), s.codec.EndOfTurn())
		req.IDs = slices.Concat(req.IDs, first, s.codec.Integration(calls, rollout.Bundle{Image: -1}))
		req.Images = append(req.Images, cropped(t, study.Image, image.Rect(100, 150, 260+8*i, 400)))
	}
	return req
}

func cropped(t *testing.T, film *image.Gray, r image.Rectangle) []byte {
	t.Helper()
	var w bytes.Buffer
	if err := png.Encode(&w, film.SubImage(r)); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

// sampled has the server sample at temperature 1 and returns how far its
// log-probs are from the learner's, and how many were compared.
func (s *served) sampled(t *testing.T) (worst float64, ids int) {
	t.Helper()
	for i := range 4 {
		req := s.request(t, i)
		req.Sampling = rollout.Sampling{Temperature: 1, TopP: 1, MaxTokens: 12}
		for _, encoded := range req.Images {
			if _, err := s.store.Put(t.Context(), encoded); err != nil {
				t.Fatal(err)
			}
		}
		r, err := s.theirs.Sample(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		want := s.recompute(t, r)
		worst, ids = max(worst, apart(r.Turn.Logprobs, want)), ids+len(want)
	}
	return worst, ids
}

// recompute returns the learner's log-probs of a turn, one id at a time.
func (s *served) recompute(t *testing.T, r loop.SampleResult) []float32 {
	t.Helper()
	ids := slices.Concat(r.Turn.PromptIDs, r.Turn.OutputIDs)
	var lps []float32
	for at := len(r.Turn.PromptIDs); at < len(ids); at++ {
		row := batch.Row{ID: fmt.Sprint("id ", at), IDs: ids, LossMask: make([]uint8, len(ids)), Images: r.Images}
		row.LossMask[at] = 1
		loss, err := s.learner.Evaluate(t.Context(), batch.Batch{Rows: []batch.Row{row}, Tokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		lps = append(lps, float32(-loss))
	}
	return lps
}

// reloads sends the server other weights and the first ones again. vLLM 0.32.0
// on CPU keeps a packed copy of a tied head, which reloading leaves as it was:
// there the canary must have refused.
func (s *served) reloads(t *testing.T) {
	t.Helper()
	first := s.learner
	other := s.weights.Clone()
	for _, x := range other.Tensors() {
		simd.Scale(1.01, x.Data)
	}
	var err error
	if s.learner, err = embedded.NewLearner(other.Config(), other, embedded.LearnerOptions{Put: s.store.Put}); err != nil {
		t.Fatal(err)
	}
	away, err := s.load(t, 1)
	s.learner = first
	if err != nil && s.weights.Config().TieWordEmbeddings && strings.Contains(err.Error(), "holds other weights") {
		fmt.Println("reloading was refused, as the server's tied head stayed what it was:", err)
		return
	}
	back, again := s.load(t, 2)
	if err = errors.Join(err, again); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("reloaded: canary %.2g under other weights, %.2g under the first again\n", away, back)
}

func common(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// apart returns the greatest difference; NaN and unequal lengths are infinite.
func apart(a, b []float32) (worst float64) {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	for i := range a {
		if d := math.Abs(float64(a[i]) - float64(b[i])); !(d <= worst) {
			worst = d
		}
		if a[i] != a[i] || b[i] != b[i] {
			return math.Inf(1)
		}
	}
	return worst
}
