package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"xragent/internal/bus/bustest"
	"xragent/rollout"
	"xragent/rollout/queue"
	"xragent/trainer"
)

// A fakeEngine samples what the weights' digest and the task's seed say.
type fakeEngine struct {
	name   string
	mu     sync.Mutex
	digest string
}

func (e *fakeEngine) Load(_ context.Context, m rollout.WeightsManifest) (rollout.Proof, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.digest = m.Digest
	return rollout.Proof{Worker: e.name, Version: m.Version, Digest: m.Digest, Kernels: m.Kernels, Logprobs: m.Canary.Logprobs}, nil
}

func (e *fakeEngine) Run(_ context.Context, t rollout.Task) (rollout.Trajectory, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := trainer.SampleTrajectory(t, e.digest)
	r.Worker = e.name
	return r, nil
}

// TestOverTheRealQueue runs GRPO over JetStream: once undisturbed with one
// worker, once with three, killed again and again, and wants equal bytes.
func TestOverTheRealQueue(t *testing.T) {
	want := overQueue(t, 1, 1<<30)
	if got := overQueue(t, 3, 60); got != want {
		t.Error("a run that was killed and resumed over the real queue differs from the undisturbed one")
	}
}

func overQueue(t *testing.T, workers, life int) string {
	t.Helper()
	_, nc := bustest.Start(t)
	js := bustest.JetStream(t, nc)
	dir := t.TempDir()
	for start := 0; ; start++ {
		r, err := startOverQueue(t, js, dir, fmt.Sprint("start-", start), workers, life+start)
		if errors.Is(err, trainer.ErrKilled) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d workers: finished at start %d", workers, start+1)
		return outcome(t, dir, r)
	}
}

func startOverQueue(t *testing.T, js jetstream.JetStream, dir, name string, workers, life int) (trainer.GRPOResult, error) {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	q, err := queue.New(t.Context(), js, queue.Options{Run: "t", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range workers {
		e := &fakeEngine{name: fmt.Sprintf("%s-%d", name, i)}
		wg.Go(func() {
			if err := queue.RunWorker(ctx, js, queue.WorkerOptions{Run: "t", Name: e.name, Slots: 4, Log: quiet}, e); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	d := trainer.GRPODeps{
		Run: "t", Dir: dir, Learner: &trainer.FakeLearner{}, Queue: q, Samples: trainer.FakeSamples(11), Score: trainer.FakeScore,
		Blobs: &trainer.FakeBlobs{}, Limits: trainer.FakeLimits, Resume: true,
	}
	d.KillAt(life)
	c := trainer.TestConfig()
	c.StallSeconds = 120
	return trainer.RunGRPO(ctx, c, d)
}

func outcome(t *testing.T, dir string, r trainer.GRPOResult) string {
	t.Helper()
	canonical, err := trainer.Canonical(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, path := range []string{canonical, filepath.Join(dir, "steps.jsonl"), filepath.Join(r.Latest.LearnerDir(), "weights.json")} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all += string(data)
	}
	return all
}

// A wideEngine adds text, so that a trajectory has the size of a real one.
type wideEngine struct {
	fakeEngine
	text string
}

func (e *wideEngine) Run(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
	r, err := e.fakeEngine.Run(ctx, t)
	r.Turns[0].Text, r.Turns[1].Text = e.text, e.text
	return r, err
}

// BenchmarkDurableTrajectories measures trajectories of 16 KB from task to
// ledger: dispatched, sampled by 8 workers at no cost, stored, judged, synced,
// acknowledged, scored, trained.
func BenchmarkDurableTrajectories(b *testing.B) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	_, nc := bustest.Start(b)
	js := bustest.JetStream(b, nc)
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	c := trainer.TestConfig()
	c.Steps, c.Prompts, c.GroupSize, c.DynamicSampling, c.CheckpointEvery = 2, 64, 8, false, 0
	for n := 0; b.Loop(); n++ {
		run := fmt.Sprint("bench", n)
		q, err := queue.New(ctx, js, queue.Options{Run: run, Log: quiet})
		if err != nil {
			b.Fatal(err)
		}
		working, stop := context.WithCancel(ctx)
		for i := range 8 {
			e := &wideEngine{fakeEngine{name: fmt.Sprint("w", i)}, strings.Repeat("x", 8<<10)}
			wg.Go(func() {
				queue.RunWorker(working, js, queue.WorkerOptions{Run: run, Name: e.name, Slots: 8, Log: quiet}, e)
			})
		}
		_, err = trainer.RunGRPO(ctx, c, trainer.GRPODeps{Run: run, Dir: b.TempDir(), Learner: &trainer.FakeLearner{}, Queue: q,
			Samples: trainer.FakeSamples(11), Score: trainer.FakeScore, Blobs: &trainer.FakeBlobs{}, Limits: trainer.FakeLimits})
		stop()
		wg.Wait()
		q.Close()
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*c.Steps*c.Prompts*c.GroupSize)/b.Elapsed().Seconds(), "trajectories/s")
}
