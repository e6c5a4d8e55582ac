package embedded

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"xragent/rollout"
	"xragent/trainer/batch"
	"xragent/trainer/loss"
)

// seedProcessor makes patches from the number that an "encoded image" is.
type seedProcessor struct {
	patch int
	grid  [3]int
}

func (p seedProcessor) Hash() string { return "seed" }

func (p seedProcessor) Process(encoded []byte) ([]float32, [3]int, error) {
	if len(encoded) != 8 {
		return nil, p.grid, fmt.Errorf("image of %d bytes", len(encoded))
	}
	x := make([]float32, p.grid[0]*p.grid[1]*p.grid[2]*p.patch)
	normal(x, binary.LittleEndian.Uint64(encoded), 0.5)
	return x, p.grid, nil
}

func numberedImage(_ context.Context, name string) ([]byte, error) {
	var n uint64
	if _, err := fmt.Sscanf(name, "image%d", &n); err != nil {
		return nil, fmt.Errorf("no image %s", name)
	}
	return binary.LittleEndian.AppendUint64(nil, n), nil
}

// storeNothing is a blob store that forgets.
func storeNothing(_ context.Context, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// tiny is a configuration that trains in milliseconds.
func tiny() Config {
	c := Small(64)
	c.Text.HiddenSize, c.Text.IntermediateSize, c.Text.NumHiddenLayers, c.Text.HeadDim = 32, 64, 2, 16
	c.Text.RopeScaling = &Rope{RopeType: "default", Interleaved: true, Section: []int{3, 3, 2}}
	c.Text.InitializerRange = 0.1
	c.Vision.HiddenSize, c.Vision.IntermediateSize, c.Vision.Depth, c.Vision.OutHiddenSize = 32, 64, 2, 32
	c.Vision.PatchSize, c.Vision.DeepstackVisualIndexes = 4, []int{0}
	c.Vision.InitializerRange = 0.1
	return c
}

func newTestLearner(t testing.TB, cfg Config, threads, micro int) *Learner {
	t.Helper()
	l, err := NewLearner(cfg, Init(cfg, 1), LearnerOptions{
		Run: "test", Threads: threads, MicroTokens: micro, Images: numberedImage,
		Processor: seedProcessor{cfg.Vision.PatchDim(), [3]int{1, 4, 6}},
		Put:       storeNothing,
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// testRow makes a row: an image where image ≥ 0, then text of the given length,
// the later half of which is scored.
func testRow(cfg Config, n, length, image int) batch.Row {
	r := batch.Row{ID: fmt.Sprintf("row%d", n)}
	if image >= 0 {
		r.Images = []rollout.ImageUse{{SHA256: fmt.Sprintf("image%d", image), Grid: [3]int{1, 4, 6}, Processor: "seed"}}
		r.IDs = append([]int32{1, cfg.VisionStartID}, slices.Repeat([]int32{cfg.ImageTokenID}, 6)...)
		r.IDs = append(r.IDs, cfg.VisionEndID)
	}
	for i := range length {
		r.IDs = append(r.IDs, int32(mix64(uint64(n*1000+i))%uint64(cfg.Text.VocabSize-4)))
	}
	r.LossMask = make([]uint8, len(r.IDs))
	r.Logprobs = make([]float32, len(r.IDs))
	for i := len(r.IDs) - length/2; i < len(r.IDs); i++ {
		r.LossMask[i] = 1
		r.Logprobs[i] = -4 - float32(i%5)/10
	}
	r.Advantage = float64(n%3) - 1
	return r
}

func batchOf(rows ...batch.Row) batch.Batch {
	b := batch.Batch{Rows: rows}
	for _, r := range rows {
		for _, m := range r.LossMask {
			b.Tokens += int(m)
		}
	}
	return b
}

// mixedBatch has rows with and without images, two of them with the same one.
func mixedBatch(cfg Config) batch.Batch {
	return batchOf(testRow(cfg, 0, 20, 1), testRow(cfg, 1, 31, -1), testRow(cfg, 2, 70, 1),
		testRow(cfg, 3, 12, 2), testRow(cfg, 4, 25, -1))
}

func objective(kind string, lr float64) batch.Objective {
	return batch.Objective{Kind: kind, Loss: loss.Default(), LR: lr, MaxNorm: 1,
		Weight: batch.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Decay: 0.01}}
}

func step(t testing.TB, l *Learner, b batch.Batch, o batch.Objective) batch.Stats {
	t.Helper()
	st, err := l.Step(context.Background(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestThreads holds the promise that the thread count changes no bit.
func TestThreads(t *testing.T) {
	cfg := tiny()
	b := mixedBatch(cfg)
	for _, kind := range []string{"sft", "grpo"} {
		one, three := newTestLearner(t, cfg, 1, 80), newTestLearner(t, cfg, 3, 80)
		for range 3 {
			if a, b := step(t, one, b, objective(kind, 1e-3)), step(t, three, b, objective(kind, 1e-3)); a != b {
				t.Errorf("%s: statistics %+v with 1 thread, %+v with 3", kind, a, b)
			}
		}
		if one.weights.Digest() != three.weights.Digest() {
			t.Errorf("%s: weights differ between 1 thread and 3", kind)
		}
	}
}

// TestMicroBatches holds the loss and its gradient to be the whole batch's,
// however it is cut.
func TestMicroBatches(t *testing.T) {
	cfg := tiny()
	b := mixedBatch(cfg)
	whole, cut := newTestLearner(t, cfg, 2, 1000), newTestLearner(t, cfg, 2, 40)
	o := objective("grpo", 0)
	o.MaxNorm = 0
	x, y := step(t, whole, b, o), step(t, cut, b, o)
	if math.Abs(x.Loss-y.Loss) > 1e-6 || math.Abs(x.Entropy-y.Entropy) > 1e-5 {
		t.Errorf("loss and entropy %v %v whole, %v %v cut", x.Loss, x.Entropy, y.Loss, y.Entropy)
	}
	if d := worstDifference(whole.gradient, cut.gradient); d > 1e-5 {
		t.Errorf("gradients differ by up to %.2g", d)
	}
}

// TestFiniteDifferences compares the gradient along random directions with the
// loss's own slope, for both objectives and at another temperature.
func TestFiniteDifferences(t *testing.T) {
	cfg := tiny()
	b := mixedBatch(cfg)
	for _, c := range []struct {
		kind        string
		temperature float64
	}{{"sft", 0}, {"grpo", 1}, {"sft", 0.6}} {
		l := newTestLearner(t, cfg, 1, 1000)
		o := objective(c.kind, 0)
		o.MaxNorm, o.Temperature = 0, c.temperature
		for i := range b.Rows { // stay away from the clip's corners
			for j := range b.Rows[i].Logprobs {
				b.Rows[i].Logprobs[j] -= 0.001
			}
		}
		step(t, l, b, o)
		gradient := slices.Clone(l.gradient)
		for seed := range uint64(4) {
			checkSlope(t, l, b, o, gradient, seed)
		}
	}
}

func checkSlope(t *testing.T, l *Learner, b batch.Batch, o batch.Objective, gradient []float32, seed uint64) {
	t.Helper()
	direction := make([]float32, len(gradient))
	normal(direction, seed, 1)
	want := 0.0
	for i, g := range gradient {
		want += float64(g) * float64(direction[i])
	}
	at := slices.Clone(l.weights.slab)
	loss := func(h float32) float64 {
		for i, d := range direction {
			l.weights.slab[i] = at[i] + h*d
		}
		return step(t, l, b, o).Loss
	}
	const h = 2e-4
	slope := (8*(loss(h)-loss(-h)) - (loss(2*h) - loss(-2*h))) / (12 * h)
	copy(l.weights.slab, at)
	if math.Abs(slope-want) > 0.02*max(math.Abs(want), norm(1, gradient)) {
		t.Errorf("%s, direction %d: slope %v, gradient says %v", o.Kind, seed, slope, want)
	}
}

// TestLearns overfits a few sequences, one of which only its image tells apart.
func TestLearns(t *testing.T) {
	cfg := tiny()
	a, b := testRow(cfg, 7, 8, 1), testRow(cfg, 7, 8, 2)
	for i := len(b.IDs) - 4; i < len(b.IDs); i++ {
		b.IDs[i] = int32(i % 50) // same prompt, other answer
	}
	data := batchOf(a, b, testRow(cfg, 9, 30, -1))
	l := newTestLearner(t, cfg, 2, 1000)
	first := step(t, l, data, objective("sft", 3e-3)).Loss
	for range 80 {
		step(t, l, data, objective("sft", 3e-3))
	}
	last, err := l.Evaluate(context.Background(), data)
	if err != nil {
		t.Fatal(err)
	}
	if first < 3 || last > 0.1 {
		t.Errorf("loss went from %v to %v, want from about ln 64 to below 0.1", first, last)
	}
}

// TestResume holds a saved and loaded learner to go on with the same bits.
func TestResume(t *testing.T) {
	cfg, ctx := tiny(), context.Background()
	b, o := mixedBatch(cfg), objective("grpo", 1e-3)
	whole := newTestLearner(t, cfg, 2, 80)
	for range 2 {
		step(t, whole, b, o)
	}
	dir := t.TempDir()
	if err := whole.Save(ctx, dir); err != nil {
		t.Fatal(err)
	}
	resumed := newTestLearner(t, cfg, 1, 80)
	step(t, resumed, b, objective("sft", 1e-2)) // something to forget
	if err := resumed.Load(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		step(t, whole, b, o)
		step(t, resumed, b, o)
	}
	again := t.TempDir()
	for _, l := range []*Learner{whole, resumed} {
		if err := l.Save(ctx, again); err != nil {
			t.Fatal(err)
		}
		compareFiles(t, dir, again, l == resumed)
		dir, again = again, dir
	}
}

// compareFiles reports files that differ, where they should not.
func compareFiles(t *testing.T, a, b string, equal bool) {
	t.Helper()
	for _, name := range []string{weightsFile, optimizerFile, stateFile} {
		x, err := os.ReadFile(filepath.Join(a, name))
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(filepath.Join(b, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(x, y) != equal {
			t.Errorf("%s: equal is %v, want %v", name, !equal, equal)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	cfg, ctx := tiny(), context.Background()
	l := newTestLearner(t, cfg, 1, 80)
	spoil := map[string]func(dir string) error{
		"state.json":        func(dir string) error { return os.WriteFile(filepath.Join(dir, stateFile), []byte("{"), 0o644) },
		"config.json":       func(dir string) error { return rewrite(dir, stateFile, l.weights.cfg.fingerprint(), "other") },
		"kernels":           func(dir string) error { return rewrite(dir, stateFile, `"kernels":"`, `"kernels":"x`) },
		"model.safetensors": func(dir string) error { return os.Truncate(filepath.Join(dir, weightsFile), 5000) },
		"optimizer.safetensors": func(dir string) error {
			return rewrite(dir, optimizerFile, "exp_avg.model.visual.pos_embed", "exp_avg.model.visual.pas_embed")
		},
	}
	for want, change := range spoil {
		dir := t.TempDir()
		if err := l.Save(ctx, dir); err != nil {
			t.Fatal(err)
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		before := l.weights.Digest()
		if err := l.Load(ctx, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("loading a checkpoint with a spoilt %s: %v", want, err)
		}
		if l.weights.Digest() != before {
			t.Errorf("a failed load changed the weights")
		}
	}
}

// With somebody to tell, a run goes on under other kernels.
func TestLoadWarnsOfOtherKernels(t *testing.T) {
	l, dir := newTestLearner(t, tiny(), 1, 80), t.TempDir()
	var notices []string
	l.opts.Notice = func(text string) { notices = append(notices, text) }
	if err := l.Save(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Load(t.Context(), dir); err != nil || len(notices) > 0 {
		t.Fatalf("own kernels: %v, notices %q", err, notices)
	}
	if err := rewrite(dir, stateFile, `"kernels":"`, `"kernels":"x`); err != nil {
		t.Fatal(err)
	}
	if err := l.Load(t.Context(), dir); err != nil || len(notices) != 1 || !strings.Contains(notices[0], "kernels x") {
		t.Errorf("other kernels: %v, notices %q", err, notices)
	}
}

func rewrite(dir, name, old, replacement string) error {
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, bytes.Replace(data, []byte(old), []byte(replacement), 1), 0o644)
}

// TestStepRefuses holds that a step that cannot be taken says why and changes
// nothing.
func TestStepRefuses(t *testing.T) {
	cfg := tiny()
	type change func(b *batch.Batch, o *batch.Objective)
	row := func(f func(r *batch.Row)) change { return func(b *batch.Batch, _ *batch.Objective) { f(&b.Rows[2]) } }
	for name, c := range map[string]struct {
		change change
		want   []string
	}{
		"objective":  {func(_ *batch.Batch, o *batch.Objective) { o.Kind = "dpo" }, []string{"dpo"}},
		"rate":       {func(_ *batch.Batch, o *batch.Objective) { o.LR = math.NaN() }, []string{"lr", "NaN"}},
		"tokens":     {func(b *batch.Batch, _ *batch.Objective) { b.Tokens++ }, []string{"79", "78"}},
		"id":         {row(func(r *batch.Row) { r.IDs[20] = 64 }), []string{"row2", "64"}},
		"mask":       {row(func(r *batch.Row) { r.LossMask = r.LossMask[1:] }), []string{"row2", "79", "78"}},
		"two":        {row(func(r *batch.Row) { r.LossMask[70] = 2 }), []string{"row2", "2 at 70"}},
		"first":      {row(func(r *batch.Row) { r.LossMask[0] = 1 }), []string{"row2", "first id"}},
		"logprobs":   {row(func(r *batch.Row) { r.Logprobs = nil }), []string{"row2", "0 behaviour"}},
		"pads":       {row(func(r *batch.Row) { r.IDs[3] = 5 }), []string{"row2", "image 0", "6 image-pad ids, found 1"}},
		"grid":       {row(func(r *batch.Row) { r.Images[0].Grid = [3]int{1, 6, 4} }), []string{"row2", "[1 6 4]", "[1 4 6]"}},
		"image":      {row(func(r *batch.Row) { r.Images[0].SHA256 = "gone" }), []string{"row2", "gone"}},
		"processor":  {row(func(r *batch.Row) { r.Images[0].Processor = "p2" }), []string{"row2", "p2", "seed"}},
		"infinite":   {row(func(r *batch.Row) { r.Logprobs[70] = float32(math.Inf(-1)) }), []string{"row2", "log-prob 70"}},
		"not finite": {row(func(r *batch.Row) { r.Advantage = math.NaN() }), []string{"row2", "advantage"}},
	} {
		l := newTestLearner(t, cfg, 1, 80)
		before := l.weights.Digest()
		b, o := mixedBatch(cfg), objective("grpo", 1e-3)
		c.change(&b, &o)
		_, err := l.Step(context.Background(), b, o)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not name %q", name, err, want)
			}
		}
		if l.weights.Digest() != before || l.adam.steps != 0 {
			t.Errorf("%s: the weights changed", name)
		}
	}
}

// TestBrokenWeights holds that weights that are not finite name the rows.
func TestBrokenWeights(t *testing.T) {
	l := newTestLearner(t, tiny(), 1, 80)
	l.weights.Get(textPrefix + "norm.weight")[0] = float32(math.NaN())
	_, err := l.Step(context.Background(), mixedBatch(tiny()), objective("sft", 1e-3))
	if err == nil || !strings.Contains(err.Error(), "row0") {
		t.Errorf("got %v", err)
	}
}

func TestCancelled(t *testing.T) {
	l := newTestLearner(t, tiny(), 1, 80)
	before := l.weights.Digest()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Step(ctx, mixedBatch(tiny()), objective("sft", 1e-3)); err == nil {
		t.Error("a cancelled step was taken")
	}
	if l.weights.Digest() != before {
		t.Error("a cancelled step changed the weights")
	}
}

func TestPublish(t *testing.T) {
	l := newTestLearner(t, tiny(), 1, 80)
	m, err := l.Publish(context.Background(), 3)
	if err != nil {
		t.Fatal(err)
	}
	lp, err := l.Logprobs(context.Background(), m.Canary.IDs)
	if err != nil {
		t.Fatal(err)
	}
	if m.Version != 3 || m.Files[0].SHA256 != l.weights.Digest() || m.Digest != rollout.FilesDigest(m.Files) ||
		len(lp) != 31 || !slices.Equal(lp, m.Canary.Logprobs) {
		t.Errorf("manifest %+v", m)
	}
	l.opts.Put = func(context.Context, []byte) (string, error) { return "other", nil }
	if _, err := l.Publish(context.Background(), 3); err == nil {
		t.Error("a store that altered the weights was believed")
	}
}

// TestSteadyMemory holds that steps accumulate no memory and build no graphs.
func TestSteadyMemory(t *testing.T) {
	cfg := tiny()
	l, b := newTestLearner(t, cfg, 1, 80), mixedBatch(cfg)
	heap := func(steps int) int {
		for range steps {
			step(t, l, b, objective("grpo", 1e-3))
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap(3)
	graphs := fmt.Sprint(l.graphs)
	if grown := heap(20) - before; grown > 1<<20 {
		t.Errorf("20 steps left %d bytes behind", grown)
	}
	if fmt.Sprint(l.graphs) != graphs {
		t.Error("graphs were built again")
	}
}

// BenchmarkStep measures forward, backward and update of 8 sequences of 256
// tokens, all scored, without images.
func BenchmarkStep(b *testing.B) {
	cfg := Small(1024)
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			l := newTestLearner(b, cfg, threads, 2048)
			var rows []batch.Row
			for i := range 8 {
				r := testRow(cfg, i, 256, -1)
				for j := 1; j < 256; j++ {
					r.LossMask[j] = 1
				}
				rows = append(rows, r)
			}
			data := batchOf(rows...)
			step(b, l, data, objective("sft", 1e-4))
			for b.Loop() {
				step(b, l, data, objective("sft", 1e-4))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/2048, "µs/token")
		})
	}
}

// BenchmarkGRPO measures a step of 8 prompts × 4 rollouts of 448 ids, of which
// 200 are a common prompt with one image and 124 are scored.
func BenchmarkGRPO(b *testing.B) {
	cfg := Small(2048)
	l := newTestLearner(b, cfg, 2, 2048)
	l.opts.Processor = seedProcessor{cfg.Vision.PatchDim(), [3]int{1, 8, 8}}
	var rows []batch.Row
	for i := range 32 {
		r := testRow(cfg, 1000+i/4, 248, -1)
		r.Images = []rollout.ImageUse{{SHA256: fmt.Sprintf("image%d", i/4), Grid: [3]int{1, 8, 8}}}
		prompt := append(slices.Repeat([]int32{cfg.ImageTokenID}, 16), testRow(cfg, i/4, 184, -1).IDs...)
		r.IDs = append(prompt, r.IDs...)
		for t := 200; t < len(r.IDs); t++ {
			r.IDs[t] = int32((i + t) % 1000)
		}
		r.LossMask = append(make([]uint8, 200), r.LossMask...)
		r.Logprobs = slices.Repeat([]float32{-7.6}, len(r.IDs))
		r.Advantage = float64(i%4) - 1.5
		rows = append(rows, r)
	}
	data, o := batchOf(rows...), objective("grpo", 1e-5)
	step(b, l, data, o)
	for b.Loop() {
		step(b, l, data, o)
	}
}

// What a marked id is trained on is the model's own distribution behind that
// id: over all marks it sums to 1, and the mark that follows gives the plain loss.
func TestMarks(t *testing.T) {
	cfg := tiny()
	l := newTestLearner(t, cfg, 1, 256)
	ids := []int32{5, 9, 3, 7}
	loss := func(row batch.Row) float64 {
		t.Helper()
		got, err := l.Evaluate(t.Context(), batch.Batch{Rows: []batch.Row{row}, Tokens: row.LossTokens()})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	marked := func(mark int32) float64 {
		return loss(batch.FromMarks("m", ids, []int32{-1, mark, -1, -1}, nil))
	}
	sum := 0.0
	for mark := range cfg.Text.VocabSize {
		sum += math.Exp(-marked(int32(mark)))
	}
	if math.Abs(sum-1) > 1e-5 {
		t.Errorf("probabilities of all marks sum to %v", sum)
	}
	if got, want := marked(3), loss(batch.Row{ID: "p", IDs: ids, LossMask: []uint8{0, 0, 1, 0}}); got != want {
		t.Errorf("marked with what follows: %v, plain %v", got, want)
	}
	for _, bad := range []batch.Row{
		{ID: "short", IDs: ids, LossMask: []uint8{0, 1, 0, 0}, Targets: []int32{1}},
		{ID: "far", IDs: ids, LossMask: []uint8{0, 1, 0, 0}, Targets: []int32{0, 9999, 0, 0}},
	} {
		if _, err := l.Evaluate(t.Context(), batch.Batch{Rows: []batch.Row{bad}, Tokens: 1}); err == nil {
			t.Errorf("row %s was taken", bad.ID)
		}
	}
}
