package remote

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xragent/chat"
	"xragent/policy/embedded"
	"xragent/rollout"
	"xragent/trainer"
	"xragent/trainer/batch"
	"xragent/trainer/learnertest"
	"xragent/trainer/loss"
)

// python is an interpreter with torch, transformers, safetensors and pyarrow.
const python = "XRAGENT_PYTHON"

const golden = "../embedded/testdata/golden/tied"

// startPython runs learner.py over the golden model and returns its address.
func startPython(t *testing.T, flags ...string) string {
	t.Helper()
	return startPythonWith(t, "", flags...)
}

// startPythonWith also puts the files of a folder beside the model.
func startPythonWith(t *testing.T, beside string, flags ...string) string {
	t.Helper()
	interpreter := os.Getenv(python)
	if interpreter == "" {
		t.Skipf("%s is not set: learner.py was not checked against the embedded learner", python)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(golden)); err != nil {
		t.Fatal(err)
	}
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range codec.Files(chat.Small) {
		if f.Name == "preprocessor_config.json" {
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if beside != "" {
		if err := os.Remove(filepath.Join(dir, "preprocessor_config.json")); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(beside)); err != nil {
			t.Fatal(err)
		}
	}
	args := append([]string{"../../learner/learner.py", "--model", dir, "--listen", "127.0.0.1:0", "--device", "cpu", "--state", t.TempDir()}, flags...)
	cmd := exec.Command(interpreter, args...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
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
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("learner.py said %q: %v\n%s", line, err, errs.String())
	}
	_, address, _ := strings.Cut(line, "listens on ")
	address, _, _ = strings.Cut(address, ",")
	return "http://" + address
}

func dial(t *testing.T, url string, blobs stored) *Learner {
	t.Helper()
	l, err := Dial(context.Background(), Config{URL: url, Timeout: time.Minute},
		Options{Run: "run", Processor: chat.Small.Hash(), Images: blobs.get, Put: blobs.put})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// goldenBatch has rows with and without an image over the golden vocabulary,
// with behaviour log-probs around what an untrained model gives.
func goldenBatch(t *testing.T, blobs stored) batch.Batch {
	t.Helper()
	use := goldenImage(t, blobs, 5)
	var b batch.Batch
	for i := range 4 {
		r := batch.Row{ID: fmt.Sprint("row", i), Advantage: float64(i%3) - 1}
		if i != 2 {
			r.Images = []rollout.ImageUse{use}
			r.IDs = []int32{5, 121}
			for range use.PadTokens(2) {
				r.IDs = append(r.IDs, 120)
			}
			r.IDs = append(r.IDs, 122)
		}
		for j := range 9 + 6*i {
			r.IDs = append(r.IDs, int32((i*37+j*j*11+j)%100))
		}
		r.LossMask, r.Logprobs = make([]uint8, len(r.IDs)), make([]float32, len(r.IDs))
		for j := len(r.IDs) - 6; j < len(r.IDs); j++ {
			r.LossMask[j], r.Logprobs[j] = 1, -4.9+float32(j%5)*0.1
			b.Tokens++
		}
		b.Rows = append(b.Rows, r)
	}
	return b
}

func goldenImage(t *testing.T, blobs stored, pattern int) rollout.ImageUse {
	t.Helper()
	film := image.NewGray(image.Rect(0, 0, 150, 140))
	for i := range film.Pix {
		film.Pix[i] = uint8(i * i >> pattern)
	}
	var w bytes.Buffer
	if err := png.Encode(&w, film); err != nil {
		t.Fatal(err)
	}
	sha, err := blobs.put(context.Background(), w.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	use, err := chat.Small.Use(w.Bytes(), sha)
	if err != nil {
		t.Fatal(err)
	}
	return use
}

func TestPythonConformance(t *testing.T) {
	blobs := stored{}
	b := goldenBatch(t, blobs)
	learnertest.TestLearner(t, learnertest.Setup{
		New:   func(t *testing.T) trainer.Learner { return dial(t, startPython(t), blobs) },
		Batch: b, LR: 1e-2,
	})
}

// The learner keeps images within its bound and those of the batch at hand
// beyond it, and asks again for what it has let go.
func TestPythonImagesAreBounded(t *testing.T) {
	blobs, sent := stored{}, 0
	a, b := goldenBatch(t, blobs), goldenBatch(t, blobs)
	other := goldenImage(t, blobs, 7)
	for i := range b.Rows {
		if b.Rows[i].Images != nil {
			b.Rows[i].Images = []rollout.ImageUse{other}
		}
	}
	both := goldenBatch(t, blobs)
	both.Rows[0].Images = b.Rows[0].Images
	l := dial(t, startPython(t, "--image-bytes", "1"), blobs)
	l.opts.Images = func(ctx context.Context, sha string) ([]byte, error) { sent++; return blobs.get(ctx, sha) }
	o := batch.Objective{Kind: "sft", LR: 1e-3, MaxNorm: 1, Weight: batch.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8}}
	for i, step := range []struct {
		b    batch.Batch
		want int
	}{{a, 1}, {a, 1}, {b, 2}, {both, 3}, {both, 3}, {a, 3}} {
		if _, err := l.Step(context.Background(), step.b, o); err != nil || sent != step.want {
			t.Fatalf("step %d: %d images sent, want %d: %v", i+1, sent, step.want, err)
		}
	}
}

// The Python learner and the embedded one are the same function: the same
// weights, batches and objectives give the same statistics, step after step.
func TestPythonEqualsEmbedded(t *testing.T) {
	blobs := stored{}
	b := goldenBatch(t, blobs)
	far := dial(t, startPython(t, "--micro-tokens", "64"), blobs)
	near := embeddedLearner(t, blobs)
	kinds := []string{"sft", "grpo", "grpo", "sft"}
	for _, name := range loss.Presets {
		kinds = append(kinds, name, name+" with KL")
	}
	for i, kind := range kinds {
		o := batch.Objective{Kind: kind, Loss: loss.Default(), LR: 3e-3, MaxNorm: 1,
			Weight: batch.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Decay: 0.05}}
		if i%2 == 1 {
			o.Temperature = 0.7
		}
		if i >= 4 {
			o.Kind, o.Loss = "grpo", lossNamed(t, kind)
		}
		x, err := far.Step(context.Background(), b, o)
		if err != nil {
			t.Fatal(err)
		}
		y, err := near.Step(context.Background(), b, o)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, fmt.Sprintf("step %d (%s)", i+1, kind), x, y)
	}
}

// With LoRA only the adapter is trained and published.
func TestPythonLoRA(t *testing.T) {
	blobs := stored{}
	b := goldenBatch(t, blobs)
	l := dial(t, startPython(t, "--lora-rank", "4"), blobs)
	before, err := l.Evaluate(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	o := batch.Objective{Kind: "sft", LR: 1e-2, Weight: batch.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8}}
	for range 5 {
		if _, err := l.Step(context.Background(), b, o); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := l.Evaluate(context.Background(), b); err != nil || after >= before {
		t.Errorf("loss %v before, %v after five steps (%v)", before, after, err)
	}
	o.Kind, o.Loss, o.LR = "grpo", lossNamed(t, "xragent with KL"), 0
	away := func() float64 {
		t.Helper()
		st, err := l.Step(context.Background(), b, o)
		if err != nil {
			t.Fatal(err)
		}
		return st.KL
	}
	moved := away()
	if err := l.Start(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	if first := away(); first != 0 || moved <= 0 {
		t.Errorf("KL is %v from the first adapter to itself, %v after five steps", first, moved)
	}
	o = batch.Objective{Kind: "sft", LR: 1e-2, Weight: o.Weight}
	if _, err := l.Step(context.Background(), b, o); err != nil { // something to publish
		t.Fatal(err)
	}
	m, err := l.Publish(context.Background(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " "); got != "adapter_config.json adapter_model.safetensors" {
		t.Errorf("published %s", got)
	}
}

// Start goes back to the first weights, or on from saved ones, under a new
// optimizer; an export holds what was trained, a LoRA adapter merged into it.
func TestPythonStartAndExport(t *testing.T) {
	for name, flags := range map[string][]string{"all weights": nil, "LoRA": {"--lora-rank", "4"}} {
		t.Run(name, func(t *testing.T) {
			blobs, ctx := stored{}, context.Background()
			b := goldenBatch(t, blobs)
			l := dial(t, startPython(t, flags...), blobs)
			loss := func() float64 {
				t.Helper()
				v, err := l.Evaluate(ctx, b)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			first := loss()
			o := batch.Objective{Kind: "sft", LR: 1e-2, Weight: batch.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8}}
			for range 3 {
				if _, err := l.Step(ctx, b, o); err != nil {
					t.Fatal(err)
				}
			}
			trained, saved := loss(), t.TempDir()
			if err := l.Save(ctx, saved); err != nil {
				t.Fatal(err)
			}
			e, err := l.Export(ctx, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if near, far := widest(e.Loaded, e.Trained), widest(e.Loaded, e.First); near > e.Tolerance || far < 1e-3 {
				t.Errorf("the export lies %v from the trained weights, %v from the first", near, far)
			}
			for _, step := range []struct {
				dir  string
				want float64
			}{{"", first}, {saved, trained}} {
				if err := l.Start(ctx, step.dir); err != nil {
					t.Fatal(err)
				}
				if got := loss(); got != step.want || l.steps != 0 {
					t.Errorf("started from %q: loss %v behind %d steps, want %v behind 0", step.dir, got, l.steps, step.want)
				}
			}
			if _, err := l.Step(ctx, b, o); err != nil {
				t.Error(err)
			}
		})
	}
}

// lossNamed returns a preset, or one with KL against the first weights.
func lossNamed(t *testing.T, name string) loss.Config {
	t.Helper()
	preset, withKL := strings.CutSuffix(name, " with KL")
	c, err := loss.Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	if withKL {
		c.KL.Coef = 0.1
	}
	return c.Resolved(64)
}

func widest(a, b []float32) float64 {
	d := 0.0
	for i := range a {
		d = max(d, math.Abs(float64(a[i])-float64(b[i])))
	}
	return d
}

func embeddedLearner(t *testing.T, blobs stored) *embedded.Learner {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(golden, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := embedded.ReadConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	w, err := embedded.ReadSafetensors(filepath.Join(golden, "model.safetensors"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := embedded.NewLearner(cfg, w, embedded.LearnerOptions{Threads: 1, Reference: true, Images: blobs.get, Processor: chat.Small})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func compare(t *testing.T, what string, x, y batch.Stats) {
	t.Helper()
	if x.Tokens != y.Tokens {
		t.Errorf("%s: %d tokens there, %d here", what, x.Tokens, y.Tokens)
	}
	for name, pair := range map[string][2]float64{"loss": {x.Loss, y.Loss}, "grad_norm": {x.GradNorm, y.GradNorm}, "entropy": {x.Entropy, y.Entropy},
		"clip_low": {x.ClipLow, y.ClipLow}, "clip_high": {x.ClipHigh, y.ClipHigh}, "approx_kl": {x.ApproxKL, y.ApproxKL}, "logp_diff": {x.LogpDiff, y.LogpDiff},
		"kl": {x.KL, y.KL}, "weight": {x.Weight, y.Weight}} {
		if d := math.Abs(pair[0] - pair[1]); d > 1e-4*max(1, math.Abs(pair[1])) {
			t.Errorf("%s: %s is %v there, %v here", what, name, pair[0], pair[1])
		}
	}
}
