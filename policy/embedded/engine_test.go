package embedded

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"xragent/rollout"
	"xragent/rollout/loop"
)

// fakeProcessor reads an "image" of the form HxW:anything as noise of its own.
type fakeProcessor struct{ row int }

func (fakeProcessor) Hash() string { return "fake" }

func (p fakeProcessor) Process(encoded []byte) ([]float32, [3]int, error) {
	var h, w int
	if _, err := fmt.Sscanf(string(encoded), "%dx%d:", &h, &w); err != nil {
		return nil, [3]int{}, errors.New("no image")
	}
	r := rand.New(rand.NewPCG(uint64(len(encoded)), uint64(encoded[len(encoded)-1])))
	patches := make([]float32, h*w*p.row)
	for i := range patches {
		patches[i] = r.Float32()*2 - 1
	}
	return patches, [3]int{1, h, w}, nil
}

func newTestEngine(t testing.TB, w *Weights, opts EngineOptions) *Engine {
	t.Helper()
	opts.Processor = fakeProcessor{w.cfg.Vision.PatchDim()}
	e, err := NewEngine(w.cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if err := e.Load(w, 3); err != nil {
		t.Fatal(err)
	}
	return e
}

const stopID = 7

// firstTurn makes one of a group's requests: the prompt is the group's, the
// seed its own. Every third group has no image.
func firstTurn(cfg Config, group, index int) loop.SampleRequest {
	r := rand.New(rand.NewPCG(uint64(group), 1))
	var images [][]byte
	ids := []int32{1, 2, 3}
	text := func(n int) {
		for range n {
			ids = append(ids, int32(r.IntN(100)))
		}
	}
	text(5)
	if group%3 != 2 {
		ids = append(ids, cfg.VisionStartID, cfg.ImageTokenID, cfg.VisionEndID)
		images = append(images, fmt.Appendf(nil, "%dx%d:%c", 4, 4+2*(group%2), 'a'+group))
	}
	text(10 + group*7)
	return loop.SampleRequest{
		Version: 3, IDs: ids, Images: images, Stop: []int32{stopID}, Seed: uint64(100*group + index),
		Sampling: rollout.Sampling{Temperature: 1, TopP: []float64{1, 0.9}[group%2], MaxTokens: 24},
	}
}

// secondTurn continues r by what it sampled, some text, and for odd indices
// another image.
func secondTurn(cfg Config, r loop.SampleRequest, first loop.SampleResult, index int) loop.SampleRequest {
	r.IDs = append(slices.Clone(r.IDs), first.Turn.OutputIDs...)
	r.IDs = append(r.IDs, 11, 12, 13)
	if index%2 == 1 {
		r.IDs = append(r.IDs, cfg.VisionStartID, cfg.ImageTokenID, cfg.VisionEndID)
		r.Images = append(slices.Clone(r.Images), []byte("4x4:z"))
	}
	r.IDs = append(r.IDs, 14, 15)
	r.Seed ^= 1 << 40
	return r
}

type trajectory [2]loop.SampleResult

func sampleTwoTurns(ctx context.Context, e *Engine, group, index int) (tr trajectory, err error) {
	req := firstTurn(e.cfg, group, index)
	if tr[0], err = e.Sample(ctx, req); err != nil {
		return tr, err
	}
	tr[1], err = e.Sample(ctx, secondTurn(e.cfg, req, tr[0], index))
	return tr, err
}

// sampleGroups samples groups of four at once, as a GRPO step does.
func sampleGroups(t testing.TB, e *Engine, groups int) []trajectory {
	t.Helper()
	out := make([]trajectory, 4*groups)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			var err error
			if out[i], err = sampleTwoTurns(t.Context(), e, i/4, i%4); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return out
}

func sameTurns(a, b trajectory) bool {
	for i := range a {
		x, y := a[i].Turn, b[i].Turn
		if !slices.Equal(x.PromptIDs, y.PromptIDs) || !slices.Equal(x.OutputIDs, y.OutputIDs) ||
			!slices.Equal(x.Logprobs, y.Logprobs) || x.Finish != y.Finish || !slices.Equal(a[i].Images, b[i].Images) {
			return false
		}
	}
	return true
}

// testWeights has a vocabulary whose image-pad id is practically never sampled.
func testWeights(t testing.TB) *Weights {
	t.Helper()
	cfg := Small(128)
	cfg.ImageTokenID, cfg.VideoTokenID, cfg.VisionStartID, cfg.VisionEndID = 120, 123, 121, 122
	cfg.Text.HiddenSize, cfg.Vision.OutHiddenSize, cfg.Text.IntermediateSize, cfg.Text.NumHiddenLayers = 64, 64, 96, 2
	cfg.Vision.HiddenSize, cfg.Vision.IntermediateSize, cfg.Vision.Depth = 32, 48, 2
	cfg.Vision.PatchSize, cfg.Vision.DeepstackVisualIndexes = 8, []int{0, 1}
	w := Init(cfg, 1)
	for _, p := range w.Tensors() {
		if strings.Contains(p.Name, "proj") {
			for i := range p.Data {
				p.Data[i] *= 5 // so that attention and images matter
			}
		}
	}
	return w
}

// Decoding at batch 1, 7 and 32, with 1 and 2 threads, with and without caches:
// identical trajectories.
func TestEngineTrajectoriesDependOnRequestAlone(t *testing.T) {
	w := testWeights(t)
	const groups = 8
	var want []trajectory
	for _, batch := range []int{1, 7, 32} {
		for _, threads := range []int{1, 2} {
			for _, cache := range []int{-1, 200 << 10, 0} {
				e := newTestEngine(t, w, EngineOptions{MaxBatch: batch, Threads: threads, CacheBytes: cache})
				got := sampleGroups(t, e, groups)
				stats := e.Stats()
				e.Close()
				if want == nil {
					want = got
				}
				for i := range got {
					if !sameTurns(got[i], want[i]) {
						t.Fatalf("batch %d, %d threads, cache %d: trajectory %d differs:\n%v\n%v", batch, threads, cache, i, got[i], want[i])
					}
				}
				if (cache < 0) != (stats.Reused == 0) || (cache == 0 && stats.Reused < stats.Prompt/2) {
					t.Errorf("batch %d, cache %d: %d of %d prompt rows reused", batch, cache, stats.Reused, stats.Prompt)
				}
			}
		}
	}
	distinct := map[string]bool{}
	for _, tr := range want {
		distinct[fmt.Sprint(tr[0].Turn.OutputIDs)] = true
	}
	if len(distinct) < len(want)*3/4 {
		t.Errorf("only %d distinct outputs of %d: the comparison shows little", len(distinct), len(want))
	}
}

func TestEngineResultIsWhatTheLearnerSees(t *testing.T) {
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{Threads: 1})
	req := firstTurn(w.cfg, 2, 1)
	r, err := e.Sample(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(r.Turn.PromptIDs, r.Turn.OutputIDs)
	scored, err := e.Score(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	if got := scored[len(r.Turn.PromptIDs)-1:]; !slices.Equal(got, r.Turn.Logprobs) {
		t.Errorf("sampled log-probs %v, scored %v", r.Turn.Logprobs, got)
	}
	tr := rollout.Trajectory{Turns: []rollout.Turn{r.Turn}, Images: r.Images}
	if err := tr.Check(rollout.Limits{Vocab: 128, ImagePad: w.cfg.ImageTokenID, Merge: 2}); err != nil {
		t.Error(err)
	}
}

func TestEngineImagesMatter(t *testing.T) {
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{})
	req := firstTurn(w.cfg, 0, 0)
	a, err := e.Sample(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.Images = [][]byte{[]byte("4x4:q")}
	b, err := e.Sample(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(a.Turn.Logprobs, b.Turn.Logprobs) {
		t.Error("another image, the same log-probs: was the cached prefix of the first used?")
	}
	if n := len(a.Turn.PromptIDs) - len(req.IDs); n != 3 || a.Images[0].Grid != [3]int{1, 4, 4} || len(a.Images[0].SHA256) != 64 {
		t.Errorf("%d ids added by expansion, use %+v", n, a.Images[0])
	}
}

func TestEngineScoreGolden(t *testing.T) {
	w, cases := readGolden(t, "untied")
	e := newTestEngine(t, w, EngineOptions{})
	got, err := e.Score(t.Context(), cases[0].ids)
	if err != nil {
		t.Fatal(err)
	}
	if diff := worstDifference(got, cases[0].logprobs[1:]); !(diff <= 1e-4) {
		t.Errorf("worst log-prob differs by %v", diff)
	}
}

func TestEngineStopsAndLengths(t *testing.T) {
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{})
	req := firstTurn(w.cfg, 2, 0)
	req.Sampling.MaxTokens = 9
	free, err := e.Sample(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if free.Turn.Finish != rollout.FinishLength || len(free.Turn.OutputIDs) != 9 {
		t.Fatalf("finish %s after %d ids", free.Turn.Finish, len(free.Turn.OutputIDs))
	}
	req.Stop = []int32{free.Turn.OutputIDs[4]}
	at := slices.Index(free.Turn.OutputIDs, req.Stop[0]) + 1
	stopped, err := e.Sample(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if stopped.Turn.Finish != rollout.FinishStop || !slices.Equal(stopped.Turn.OutputIDs, free.Turn.OutputIDs[:at]) {
		t.Errorf("finish %s, ids %v, want the first %d of %v", stopped.Turn.Finish, stopped.Turn.OutputIDs, at, free.Turn.OutputIDs)
	}
}

func TestEngineStopsAtLastPosition(t *testing.T) {
	w := testWeights(t)
	w.cfg.Text.MaxPositionEmbeddings = 40
	e := newTestEngine(t, w, EngineOptions{})
	req := firstTurn(w.cfg, 2, 0)
	req.Sampling.MaxTokens, req.Stop = 1000, nil
	r, err := e.Sample(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r.Turn.PromptIDs) + len(r.Turn.OutputIDs); n != 40 || r.Turn.Finish != rollout.FinishLength {
		t.Errorf("%d ids, finish %s, want 40 and length", n, r.Turn.Finish)
	}
}

func TestEngineRefuses(t *testing.T) {
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{})
	for _, c := range []struct {
		name   string
		change func(*loop.SampleRequest)
		want   string
	}{
		{"version", func(r *loop.SampleRequest) { r.Version = 5 }, "version 5 asked for, but version 3 is loaded"},
		{"empty", func(r *loop.SampleRequest) { r.IDs, r.Images = nil, nil }, "prompt is empty"},
		{"vocabulary", func(r *loop.SampleRequest) { r.IDs[1] = 128 }, "prompt id 128 at 1 lies outside the vocabulary of 128"},
		{"too long", func(r *loop.SampleRequest) { r.IDs = append(r.IDs, make([]int32, 4096)...) }, "the model takes fewer than 4096"},
		{"top-p", func(r *loop.SampleRequest) { r.Sampling.TopP = 0 }, "top_p is 0"},
		{"temperature", func(r *loop.SampleRequest) { r.Sampling.Temperature = math.NaN() }, "temperature is NaN"},
		{"max tokens", func(r *loop.SampleRequest) { r.Sampling.MaxTokens = 0 }, "max_tokens is 0"},
		{"missing image", func(r *loop.SampleRequest) { r.Images = nil }, "1 image placeholders for 0 images"},
		{"broken image", func(r *loop.SampleRequest) { r.Images = [][]byte{[]byte("?")} }, "image 0: no image"},
	} {
		req := firstTurn(w.cfg, 0, 0)
		c.change(&req)
		if _, err := e.Sample(t.Context(), req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want …%s…", c.name, err, c.want)
		}
	}
	if _, err := e.Score(t.Context(), []int32{-1}); err == nil {
		t.Error("score took a negative id")
	}
	if _, err := NewEngine(w.cfg, EngineOptions{MaxBatch: -1}); err == nil {
		t.Error("an engine with a negative batch was started")
	}
	if err := e.Load(Init(Small(128), 1), 4); err == nil || !strings.Contains(err.Error(), "another model configuration") {
		t.Errorf("loading other weights: %v", err)
	}
}

func TestEngineBrokenWeights(t *testing.T) {
	w := testWeights(t)
	w.Get(textPrefix + "norm.weight")[0] = float32(math.NaN())
	e := newTestEngine(t, w, EngineOptions{})
	if _, err := e.Sample(t.Context(), firstTurn(w.cfg, 0, 0)); err == nil || !strings.Contains(err.Error(), "not finite") {
		t.Errorf("error %v, want one that says the logits are not finite", err)
	}
}

func TestEngineLoadSwapsWeights(t *testing.T) {
	w := testWeights(t)
	other := w.Clone()
	for _, p := range other.Tensors() {
		for i := range p.Data {
			p.Data[i] *= 1.5
		}
	}
	e := newTestEngine(t, w, EngineOptions{})
	before := sampleGroups(t, e, 2)
	if err := e.Load(other, 3); err != nil {
		t.Fatal(err)
	}
	got, want := sampleGroups(t, e, 2), sampleGroups(t, newTestEngine(t, other, EngineOptions{}), 2)
	for i := range got {
		if !sameTurns(got[i], want[i]) || sameTurns(got[i], before[i]) {
			t.Fatalf("trajectory %d of the second weights is not that of an engine that never had the first", i)
		}
	}
}

func TestEngineReportsVersion(t *testing.T) {
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{})
	if err := e.Load(w, 4); err != nil {
		t.Fatal(err)
	}
	req := firstTurn(w.cfg, 0, 0)
	req.Version = 4
	r, err := e.Sample(t.Context(), req)
	if err != nil || r.Turn.Oldest != 4 || r.Turn.Newest != 4 {
		t.Errorf("versions %d to %d (%v), want 4", r.Turn.Oldest, r.Turn.Newest, err)
	}
}

// A load in the middle waits for the turns in progress, whether others wait or not.
func TestEngineLoadDrains(t *testing.T) {
	for _, batch := range []int{4, 8} {
		t.Run(fmt.Sprint("batch", batch), func(t *testing.T) { testLoadDrains(t, batch) })
	}
}

func testLoadDrains(t *testing.T, batch int) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{MaxBatch: batch})
	defer e.Close()
	sample := func(i int) (loop.SampleResult, error) {
		req := firstTurn(w.cfg, 2, i)
		req.Sampling.MaxTokens, req.Stop = 500, nil
		return e.Sample(t.Context(), req)
	}
	want := make([]loop.SampleResult, 8)
	for i := range want {
		var err error
		if want[i], err = sample(i); err != nil {
			t.Fatal(err)
		}
	}
	begun := e.Stats().Sequences
	finished := make(chan bool, len(want))
	for i := range want {
		go func() {
			got, err := sample(i)
			if err != nil && !strings.Contains(err.Error(), "version 3 asked for, but version 4 is loaded") {
				t.Error(err)
			}
			if err == nil && !slices.Equal(got.Turn.Logprobs, want[i].Turn.Logprobs) {
				t.Errorf("turn %d was changed by a load", i)
			}
			finished <- err == nil
		}()
	}
	for e.Stats().Sequences < begun+4 {
		time.Sleep(100 * time.Microsecond)
	}
	if err := e.Load(Init(w.cfg, 2), 4); err != nil {
		t.Error(err)
	}
	ended := 0
	for range want {
		if <-finished {
			ended++
		}
	}
	if ended < 4 {
		t.Errorf("%d turns ended with their version, 4 were in progress", ended)
	}
}

func TestPrefixCacheIsBounded(t *testing.T) {
	pool := &kvPool{cfg: Small(128).Text}
	probe := pool.newCache(16)
	one := probe.bytes()
	probe.drop()
	p := prefixCache{limit: 3 * one}
	keep := func(keys ...uint64) { p.keep(keys, pool.newCache(16)) }
	keep(1, 2)
	keep(1, 2, 3) // covers the first
	keep(1, 5)
	keep(9)
	if len(p.kept) != 3 || p.size != 3*one {
		t.Fatalf("%d prefixes of %d bytes, want 3 of %d", len(p.kept), p.size, 3*one)
	}
	if _, n := p.find([]uint64{1, 2, 3, 4}); n != 3 {
		t.Errorf("found %d rows, want 3", n)
	}
	keep(8)
	if _, n := p.find([]uint64{1, 5}); n != 1 {
		t.Errorf("%d rows of the least recently used prefix, want the 1 that another shares", n)
	}
	p.keep([]uint64{4}, pool.newCache(64))
	if p.size != 3*one {
		t.Errorf("a cache above the limit was kept: %d bytes", p.size)
	}
	p.clear()
	if p.size != 0 || pool.used != 0 || pool.waiting == 0 {
		t.Errorf("%d bytes are said to be kept, %d to be in use and %d to be waiting, once all were dropped", p.size, pool.used, pool.waiting)
	}
}

func TestEngineConcurrentWithCancellations(t *testing.T) {
	defer goleak.VerifyNone(t)
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{MaxBatch: 16, Threads: 2})
	want := sampleGroups(t, e, 8)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%3 == 0 {
				time.AfterFunc(time.Duration(i)*100*time.Microsecond, cancel)
			}
			got, err := sampleTwoTurns(ctx, e, i/4%8, i%4)
			switch {
			case err != nil && (i%3 != 0 || !errors.Is(err, context.Canceled)):
				t.Errorf("request %d: %v", i, err)
			case err == nil && !sameTurns(got, want[i%32]):
				t.Errorf("request %d differs from its run without cancellations", i)
			}
		})
	}
	wg.Wait()
	requireMemoryBack(t, e)
	e.Close()
}

// requireMemoryBack holds that what no prefix keeps waits to be used again.
func requireMemoryBack(t *testing.T, e *Engine) {
	t.Helper()
	err := e.control(t.Context(), true, func(s *scheduler) error {
		s.prefixes.clear()
		if p := s.pool; p.used != 0 || p.waiting == 0 || p.waiting > p.peak {
			return fmt.Errorf("%d bytes in use, %d waiting, at most %d were in use", p.used, p.waiting, p.peak)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEngineCloseEndsTurns(t *testing.T) {
	defer goleak.VerifyNone(t)
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{MaxBatch: 2})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			req := firstTurn(w.cfg, 2, i)
			req.Sampling.MaxTokens, req.Stop = 4000, nil
			if _, err := e.Sample(t.Context(), req); !errors.Is(err, errClosed) {
				t.Errorf("error %v, want %v", err, errClosed)
			}
		})
	}
	for e.Stats().Sequences < 2 {
		time.Sleep(time.Millisecond)
	}
	e.Close()
	wg.Wait()
	if _, err := e.Sample(t.Context(), firstTurn(w.cfg, 2, 0)); !errors.Is(err, errClosed) {
		t.Errorf("a closed engine: %v", err)
	}
}

func TestDrawFollowsTheDistribution(t *testing.T) {
	logits := []float32{2, 0, 1, -1, 1.5}
	const n = 20000
	for _, by := range []rollout.Sampling{{Temperature: 1, TopP: 1}, {Temperature: 0.5, TopP: 1}, {Temperature: 2, TopP: 1}} {
		weights, total := make([]float64, len(logits)), 0.0
		for i, l := range logits {
			weights[i] = math.Exp(float64(l) / by.Temperature)
			total += weights[i]
		}
		counts, s := make([]float64, len(logits)), &sampler{}
		for i := range n {
			c, err := s.draw(logits, by, uniform(5, i))
			if err != nil {
				t.Fatal(err)
			}
			counts[c.id]++
		}
		for i := range logits {
			p := weights[i] / total
			if sigma := math.Sqrt(p * (1 - p) / n); math.Abs(counts[i]/n-p) > 5*sigma {
				t.Errorf("temperature %v: id %d drawn with %v, want %v", by.Temperature, i, counts[i]/n, p)
			}
		}
	}
}

func TestDrawNucleusAndGreedy(t *testing.T) {
	logits := []float32{1, 3, 3, 0, float32(math.Inf(-1))}
	s := &sampler{}
	for i := range 1000 {
		c, err := s.draw(logits, rollout.Sampling{Temperature: 1, TopP: 0.6}, uniform(1, i))
		if err != nil {
			t.Fatal(err)
		}
		if c.id != 1 && c.id != 2 {
			t.Fatalf("id %d lies outside the nucleus", c.id)
		}
	}
	c, err := s.draw(logits, rollout.Sampling{TopP: 1}, 0.999)
	if err != nil || c.id != 1 {
		t.Errorf("greedy took %d (%v), want the lowest of the two best", c.id, err)
	}
	want := 3 - math.Log(math.E+2*math.Exp(3)+1)
	if math.Abs(float64(c.logprob)-want) > 1e-5 {
		t.Errorf("log-prob %v, want %v", c.logprob, want)
	}
	if c, _ := s.draw(logits, rollout.Sampling{Temperature: 1, TopP: 1}, math.Nextafter(1, 0)); c.id != 3 {
		t.Errorf("the end of the distribution gave id %d", c.id)
	}
}

func TestDrawNeverTakesBarredIDs(t *testing.T) {
	logits := []float32{9, 1, 0}
	s := &sampler{barred: []int32{0}}
	for i, by := range []rollout.Sampling{{TopP: 1}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.5}, {Temperature: 3, TopP: 1}} {
		for j := range 200 {
			c, err := s.draw(logits, by, uniform(9, j))
			if err != nil || c.id == 0 {
				t.Fatalf("sampling %d drew id %d (%v)", i, c.id, err)
			}
			whole := map[float64]float64{0: -8.000459, 1: -8.000459, 3: -2.779343}[by.Temperature]
			if c.id == 1 && math.Abs(float64(c.logprob)-whole) > 1e-4 {
				t.Fatalf("log-prob %v is not over the whole vocabulary", c.logprob)
			}
		}
	}
}

func TestLRU(t *testing.T) {
	l := lru[int]{limit: 10}
	l.put("a", 1, 4)
	l.put("b", 2, 4)
	l.get("a")
	l.put("c", 3, 4)
	if _, ok := l.get("b"); ok {
		t.Error("the least recently used value stayed")
	}
	l.put("a", 5, 4)
	if v, ok := l.get("a"); !ok || v != 5 || l.size != 8 || l.order.Len() != 2 {
		t.Errorf("a = %d, size %d, %d values", v, l.size, l.order.Len())
	}
	l.put("huge", 6, 100)
	if v, ok := l.get("huge"); !ok || v != 6 || l.order.Len() != 1 {
		t.Error("a value above the limit must stay alone")
	}
}

// BenchmarkDecode samples 100 ids behind a prompt of 200.
func BenchmarkDecode(b *testing.B) {
	cfg := Small(2048)
	cfg.ImageTokenID = 2000
	w := Init(cfg, 1)
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprint("batch", n), func(b *testing.B) {
			e := newTestEngine(b, w, EngineOptions{})
			round := uint64(0)
			for b.Loop() {
				round++
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() { benchmarkTurn(b, e, i/4, uint64(i)+round<<20) })
				}
				wg.Wait()
			}
			b.ReportMetric(float64(100*n*b.N)/b.Elapsed().Seconds(), "ids/s")
		})
	}
}

func benchmarkTurn(b *testing.B, e *Engine, group int, seed uint64) {
	ids := make([]int32, 200)
	for i := range ids {
		ids[i] = int32((i*7 + group) % 1000)
	}
	_, err := e.Sample(b.Context(), loop.SampleRequest{
		Version: 3, IDs: ids, Seed: seed, Sampling: rollout.Sampling{Temperature: 1, TopP: 1, MaxTokens: 100},
	})
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkGroups samples what a GRPO step samples: eight groups of four
// two-turn trajectories with an image, under weights of their own.
func BenchmarkGroups(b *testing.B) {
	cfg := Small(2048)
	cfg.ImageTokenID, cfg.VisionStartID, cfg.VisionEndID = 2000, 2001, 2002
	w := Init(cfg, 1)
	e := newTestEngine(b, w, EngineOptions{})
	version := rollout.PolicyVersion(3)
	for b.Loop() {
		version++
		if err := e.Load(w, version); err != nil {
			b.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() { benchmarkTrajectory(b, e, version, i/4, uint64(i)+uint64(version)<<20) })
		}
		wg.Wait()
	}
	b.ReportMetric(float64(e.Stats().Sampled)/b.Elapsed().Seconds(), "ids/s")
}

func benchmarkTrajectory(b *testing.B, e *Engine, v rollout.PolicyVersion, group int, seed uint64) {
	req := loop.SampleRequest{
		Version: v, Images: [][]byte{fmt.Appendf(nil, "8x8:%c", 'a'+group)}, Seed: seed,
		Sampling: rollout.Sampling{Temperature: 1, TopP: 1, MaxTokens: 60},
	}
	for i := range 230 {
		req.IDs = append(req.IDs, int32((i*7+i/110*group)%1000))
	}
	req.IDs[110], req.IDs[111], req.IDs[112] = 2001, 2000, 2002
	first, err := e.Sample(b.Context(), req)
	if err != nil {
		b.Error(err)
		return
	}
	req.IDs = slices.Concat(req.IDs, first.Turn.OutputIDs, req.IDs[:60])
	if _, err := e.Sample(b.Context(), req); err != nil {
		b.Error(err)
	}
}
