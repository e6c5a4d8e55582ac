package queue

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"xragent/dataset"
	"xragent/internal/bus"
	"xragent/internal/bus/bustest"
	"xragent/rollout"
	"xragent/trainer"
)

func TestMain(m *testing.M) {
	if url := os.Getenv("QUEUE_TEST_WORKER_URL"); url != "" {
		workerProcess(url, os.Getenv("QUEUE_TEST_WORKER_NAME"))
		return
	}
	bustest.Main(m)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

const run = "test"

func manifest(v rollout.PolicyVersion) rollout.WeightsManifest {
	return rollout.WeightsManifest{
		Run: run, Version: v, Digest: fmt.Sprintf("digest-%d", v), Kernels: "gonum",
		Canary: rollout.Canary{IDs: []int32{1, 2, 3}, Logprobs: []float32{-1, -2}, Tolerance: 1e-3},
	}
}

func task(v rollout.PolicyVersion, step, index int) rollout.Task {
	return rollout.Task{
		ID:     rollout.TaskID{Run: run, Step: step, Group: step*100 + index/4, Index: index % 4},
		Sample: fmt.Sprintf("sample-%d", index),
		Prompt: dataset.Prompt{
			Kind: dataset.Binary, Question: "Is the heart enlarged?",
			Images: []dataset.Image{{SHA256: "abc", Width: 64, Height: 64, SquarePx: true}},
		},
		Version: v, Seed: uint64(step)<<32 | uint64(index),
		Sampling: rollout.Sampling{Temperature: 1, TopP: 1, MaxTokens: 8}, Tools: true, Gate: rollout.GateOn,
	}
}

func tasks(v rollout.PolicyVersion, step, n int) []rollout.Task {
	ts := make([]rollout.Task, n)
	for i := range ts {
		ts[i] = task(v, step, i)
	}
	return ts
}

// trajectory is what the fake engine makes of t: a function of t alone.
func trajectory(t rollout.Task) rollout.Trajectory {
	id := int32(t.Seed % 1000)
	return rollout.Trajectory{
		Task: t.ID, Sample: t.Sample, Version: t.Version, Seed: t.Seed,
		Turns: []rollout.Turn{{
			PromptIDs: []int32{1, 2, id}, OutputIDs: []int32{id, 4}, Logprobs: []float32{-0.5, -0.25},
			Finish: rollout.FinishStop, Text: "<answer>yes</answer>\xff", Oldest: t.Version, Newest: t.Version,
		}},
		Bundle: rollout.Bundle{Image: -1}, Stop: rollout.Answered,
	}
}

// engine is a fake whose parts a test may replace.
type engine struct {
	mu     sync.Mutex
	loaded rollout.PolicyVersion
	loads  int
	runs   int
	active int
	prove  func(p *rollout.Proof)
	run    func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error)
}

func (e *engine) Load(_ context.Context, m rollout.WeightsManifest) (rollout.Proof, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.active > 0 {
		panic("Load while Run is running")
	}
	e.loaded = m.Version
	e.loads++
	p := rollout.Proof{Version: m.Version, Digest: m.Digest, Kernels: m.Kernels, Logprobs: m.Canary.Logprobs}
	if e.prove != nil {
		e.prove(&p)
	}
	return p, nil
}

func (e *engine) Run(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
	e.enter(t)
	defer e.leave()
	if e.run != nil {
		return e.run(ctx, t)
	}
	return trajectory(t), nil
}

func (e *engine) enter(t rollout.Task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loaded != t.Version {
		panic(fmt.Sprintf("task of version %d on weights of version %d", t.Version, e.loaded))
	}
	e.active++
	e.runs++
}

func (e *engine) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active--
}

func (e *engine) counts() (loads, runs int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.loads, e.runs
}

// never is longer than any test waits.
const never = 10 * time.Minute

// bench is a server with a queue on it.
type bench struct {
	t      testing.TB
	server *bus.Server
	nc     *nats.Conn
	queue  *Queue
	opts   Options
	mu     sync.Mutex
	events map[EventKind]int
}

func newBench(t testing.TB, o Options) *bench {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel() // most of a test's time is waiting
	}
	return startBench(t, o)
}

// startBench returns a bench on which no sign of life is ever late, but where o
// says how soon it is: a loaded machine may stall a test for seconds.
func startBench(t testing.TB, o Options) *bench {
	t.Helper()
	o.AckWait, o.LeaseTTL = cmp.Or(o.AckWait, never), cmp.Or(o.LeaseTTL, never)
	server, nc := bustest.Start(t)
	b := &bench{t: t, server: server, nc: nc, opts: o, events: make(map[EventKind]int)}
	b.opts.Run, b.opts.Log = run, quiet
	b.opts.OnEvent = func(e Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events[e.Kind]++
	}
	b.queue = b.newQueue()
	return b
}

func (b *bench) newQueue() *Queue {
	b.t.Helper()
	q, err := New(b.t.Context(), bustest.JetStream(b.t, b.nc), b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(q.Close)
	return q
}

func (b *bench) count(kind EventKind) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events[kind]
}

func (b *bench) open(v rollout.PolicyVersion) {
	b.t.Helper()
	if err := b.queue.Open(b.t.Context(), manifest(v)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) publish(ts ...rollout.Task) {
	b.t.Helper()
	if err := b.queue.Publish(b.t.Context(), ts); err != nil {
		b.t.Fatal(err)
	}
}

// worker starts a worker and returns what stops it and waits for its end.
func (b *bench) worker(name string, slots int, e Engine) (stop func() error) {
	b.t.Helper()
	nc := bustest.Connect(b.t, b.server)
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunWorker(ctx, bustest.JetStream(b.t, nc), WorkerOptions{Run: run, Name: name, Slots: slots, Log: quiet}, e)
	}()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() {
			cancel()
			err = <-done
		})
		return err
	}
	b.t.Cleanup(func() { stop() })
	return stop
}

// next returns the next delivery, unacknowledged.
func (b *bench) next() trainer.Delivery {
	b.t.Helper()
	d, err := nextWithin(b.queue, patience)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

func nextWithin(q *Queue, wait time.Duration) (trainer.Delivery, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return q.Next(ctx)
}

// collect takes and acknowledges n deliveries, all trajectories, and checks
// that they are those of want, each once.
func (b *bench) collect(want []rollout.Task) (redelivered int) {
	b.t.Helper()
	left := make(map[rollout.TaskID]rollout.Task)
	for _, t := range want {
		left[t.ID] = t
	}
	for range want {
		d := b.next()
		if d.Lost != nil {
			b.t.Fatalf("lost: %+v", *d.Lost)
		}
		if _, ok := left[d.Trajectory.Task]; !ok {
			b.t.Fatalf("%v: twice, or never asked for", d.Trajectory.Task)
		}
		delete(left, d.Trajectory.Task)
		if d.Redelivered {
			redelivered++
		}
		if err := d.Ack(); err != nil {
			b.t.Fatal(err)
		}
	}
	return redelivered
}

// nothingMore checks that no result follows.
func (b *bench) nothingMore() {
	b.t.Helper()
	if d, err := nextWithin(b.queue, 100*time.Millisecond); err == nil {
		b.t.Fatalf("one more: %+v, lost %+v", d.Trajectory, d.Lost)
	}
}

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}
