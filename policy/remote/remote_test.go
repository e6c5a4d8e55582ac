package remote

import (
	"context"
	"fmt"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"xragent/rollout"
	"xragent/trainer"
	"xragent/trainer/batch"
	"xragent/trainer/learnertest"
	"xragent/trainer/loss"
)

type fixture struct {
	*Learner
	script *script
	blobs  stored
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	f := fixture{script: newScript(), blobs: stored{}}
	server := httptest.NewServer(f.script)
	t.Cleanup(server.Close)
	l, err := Dial(context.Background(), Config{URL: server.URL, Timeout: time.Minute},
		Options{Run: "run", Processor: "p", Images: f.blobs.get, Put: f.blobs.put})
	if err != nil {
		t.Fatal(err)
	}
	f.Learner = l
	if _, err := f.blobs.put(context.Background(), []byte("film")); err != nil {
		t.Fatal(err)
	}
	return f
}

// testBatch has three rows, one of them with an image.
func testBatch() batch.Batch {
	film, _ := stored{}.put(context.Background(), []byte("film"))
	b := batch.Batch{}
	for i := range 3 {
		r := batch.Row{ID: fmt.Sprint("row", i), IDs: []int32{1, 2, 3, 4, 5, 4}, LossMask: []uint8{0, 0, 0, 1, 1, 1},
			Logprobs: []float32{0, 0, 0, -2, -2.5, -2}, Advantage: float64(1 - i)}
		if i == 1 {
			r.IDs[1] = imagePad
			r.Images = []rollout.ImageUse{{SHA256: film, Grid: [3]int{1, 2, 2}, Processor: "p"}}
		}
		b.Rows = append(b.Rows, r)
		b.Tokens += 3
	}
	return b
}

func TestConformance(t *testing.T) {
	learnertest.TestLearner(t, learnertest.Setup{
		New:   func(t *testing.T) trainer.Learner { return newFixture(t).Learner },
		Batch: testBatch(), LR: 0.05,
	})
}

func grpo() batch.Objective {
	return batch.Objective{Kind: "grpo", Loss: loss.Default(), LR: 0.1, Weight: batch.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8}}
}

// An image travels once, whatever batches hold it.
func TestImagesTravelOnce(t *testing.T) {
	f := newFixture(t)
	for range 3 {
		if _, err := f.Step(context.Background(), testBatch(), grpo()); err != nil {
			t.Fatal(err)
		}
	}
	sent := 0
	for _, call := range f.script.calls {
		if strings.HasPrefix(call, "PUT /v1/images/") {
			sent++
		}
	}
	if sent != 1 {
		t.Errorf("the image was sent %d times, want once", sent)
	}
	b := testBatch()
	b.Rows[1].Images[0].SHA256 = strings.Repeat("ab", 32)
	if _, err := f.Step(context.Background(), b, grpo()); err == nil || !strings.Contains(err.Error(), "image abababababab") {
		t.Errorf("an image that nobody has gave %v", err)
	}
}

// A step whose answer got lost is taken once; lost twice, the next says so.
func TestLostAnswers(t *testing.T) {
	f, whole := newFixture(t), newFixture(t)
	f.script.lose = 1
	got, err := f.Step(context.Background(), testBatch(), grpo())
	if err != nil {
		t.Fatal(err)
	}
	want, err := whole.Step(context.Background(), testBatch(), grpo())
	if err != nil || got != want || f.script.state != whole.script.state {
		t.Errorf("with a lost answer %+v, %+v; without %+v, %+v (%v)", got, f.script.state, want, whole.script.state, err)
	}
	f.script.lose = 2
	if _, err := f.Step(context.Background(), testBatch(), grpo()); err == nil {
		t.Error("a step lost twice gave no error")
	}
	other := testBatch()
	other.Rows[0].Advantage = 0.5
	if _, err := f.Step(context.Background(), other, grpo()); err == nil || !strings.Contains(err.Error(), "behind 1, the learner has taken 2") {
		t.Errorf("another step behind it gave %v", err)
	}
	if _, err := f.Step(context.Background(), testBatch(), grpo()); err != nil {
		t.Errorf("the same step again gave %v", err)
	}
}

func TestPublishBringsFiles(t *testing.T) {
	f := newFixture(t)
	m, err := f.Publish(context.Background(), 7)
	if err != nil || m.Run != "run" || m.Kernels != Kernels {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := f.blobs.get(context.Background(), m.Files[0].SHA256); err != nil {
		t.Error(err)
	}
	f.script.files[m.Files[0].SHA256] = []byte("damaged")
	if err := f.bring(context.Background(), m.Files[0]); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("a damaged file gave %v", err)
	}
}

func TestDialRefuses(t *testing.T) {
	ctx := context.Background()
	s := newScript()
	server := httptest.NewServer(s)
	cfg := Config{URL: server.URL, Timeout: time.Minute}
	if _, err := Dial(ctx, cfg, Options{Processor: "q"}); err == nil || !strings.Contains(err.Error(), "image processor p, rollouts use q") {
		t.Errorf("another processor gave %v", err)
	}
	s.info.Format = "xragent.learner/0"
	if _, err := Dial(ctx, cfg, Options{}); err == nil || !strings.Contains(err.Error(), "want xragent.learner/1") {
		t.Errorf("another format gave %v", err)
	}
	server.Close()
	if _, err := Dial(ctx, cfg, Options{}); err == nil || !strings.Contains(err.Error(), "start it with") {
		t.Errorf("nobody there gave %v", err)
	}
	if _, err := Dial(ctx, Config{URL: "x"}, Options{}); err == nil || !strings.Contains(err.Error(), "field url") {
		t.Errorf("no URL gave %v", err)
	}
}

func TestUnfitRowsAreRefused(t *testing.T) {
	fit := batch.Objective{Kind: "sft", LR: 1e-3}
	for name, r := range map[string]batch.Row{
		"advantage": {ID: "r7", Advantage: math.NaN()},
		"marks":     batch.FromMarks("r7", []int32{1, 2}, []int32{3, -1}, nil),
	} {
		if err := checkFinite(batch.Batch{Rows: []batch.Row{r}}, fit); err == nil || !strings.Contains(err.Error(), "r7") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
