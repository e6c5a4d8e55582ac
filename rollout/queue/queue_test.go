package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"xragent/internal/bus/bustest"
	"xragent/rollout"
	"xragent/trainer"
)

func TestTasksComeBackAsTrajectories(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	b.worker("w1", 3, &engine{})
	want := tasks(0, 0, 16)
	b.publish(want...)
	for range want {
		d := b.next()
		i := slices.IndexFunc(want, func(t rollout.Task) bool { return t.ID == d.Trajectory.Task })
		made := trajectory(want[i])
		made.Worker = "w1"
		if diff := cmp.Diff(made, *d.Trajectory); diff != "" {
			t.Errorf("trajectory (-made +received):\n%s", diff)
		}
		if d.Redelivered {
			t.Errorf("%v: said to be redelivered", d.Trajectory.Task)
		}
		d.Ack()
	}
	b.nothingMore()
	eventually(t, "no task left", func() bool {
		d, err := b.queue.Depth(t.Context())
		return err == nil && d == Depth{}
	})
}

func TestPublishIsIdempotent(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	want := tasks(0, 0, 8)
	b.publish(want[:5]...)
	b.publish(want...) // five wait
	eventually(t, "eight waiting", func() bool {
		d, err := b.queue.Depth(t.Context())
		return err == nil && d == Depth{Waiting: 8}
	})
	e := &engine{}
	b.worker("w1", 4, e)
	b.collect(want)
	b.publish(want...) // all are done
	b.nothingMore()
	if _, runs := e.counts(); runs != 8 {
		t.Errorf("%d runs, want 8", runs)
	}
}

func TestPublishRefuses(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	other := task(0, 0, 0)
	other.ID.Run = "other"
	large := task(0, 0, 0)
	large.Prompt.Question = strings.Repeat("x", MaxMessage)
	for name, tt := range map[string]struct {
		task rollout.Task
		want string
	}{
		"another run":   {other, `queue is of run "test"`},
		"version":       {task(3, 0, 0), "version 3 is not open, only [0] are"},
		"larger than 4": {large, "limit 4194304"},
	} {
		err := b.queue.Publish(t.Context(), []rollout.Task{tt.task})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: err %v, want one that says %q", name, err, tt.want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	b := newBench(t, Options{})
	for name, tt := range map[string]struct {
		change func(m *rollout.WeightsManifest)
		want   string
	}{
		"run":       {func(m *rollout.WeightsManifest) { m.Run = "other" }, "other"},
		"digest":    {func(m *rollout.WeightsManifest) { m.Digest = "" }, "no digest"},
		"version":   {func(m *rollout.WeightsManifest) { m.Version = -1 }, "-1"},
		"no canary": {func(m *rollout.WeightsManifest) { m.Canary = rollout.Canary{} }, "canary"},
		"uneven":    {func(m *rollout.WeightsManifest) { m.Canary.Logprobs = m.Canary.Logprobs[1:] }, "3 ids has 1 logprobs"},
		"tolerance": {func(m *rollout.WeightsManifest) { m.Canary.Tolerance = -1 }, "tolerance"},
	} {
		m := manifest(0)
		tt.change(&m)
		if err := b.queue.Open(t.Context(), m); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: err %v, want one that says %q", name, err, tt.want)
		}
	}
}

func TestResumeLosesAndDoublesNothing(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	want := tasks(0, 0, 12)
	b.publish(want[:8]...)
	stop := b.worker("w1", 2, &engine{})
	acked := b.next()
	acked.Ack()
	for range 3 {
		b.next() // delivered, never acknowledged
	}
	late := b.next()
	late.Ack() // out of order: comes again with those before it
	eventually(t, "eight results", func() bool {
		info, err := b.queue.traj.Info(t.Context())
		return err == nil && info.State.Msgs == 8
	})
	stop()
	b.queue.Close()

	b.queue = b.newQueue()
	b.publish(want...) // as a coordinator does that recorded one of them
	b.worker("w2", 2, &engine{})
	left := slices.DeleteFunc(want, func(t rollout.Task) bool { return t.ID == acked.Trajectory.Task })
	if n := b.collect(left); n < 4 {
		t.Errorf("%d said to be redelivered, want at least the 4 delivered before", n)
	}
	b.nothingMore()
}

// What is acknowledged leaves the stream, of this run only and nothing before
// it was. A task that a worker does once more afterwards comes again.
func TestForget(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	b.forgets(0)
	want := tasks(0, 0, 6)
	b.publish(want...)
	b.worker("w1", 2, &engine{})
	first, second := b.next(), b.next()
	other, err := b.queue.js.Publish(t.Context(), "xragent.other.traj.0.0.0.0", []byte("another run's"))
	if err != nil {
		t.Fatal(err)
	}
	b.collect(slices.DeleteFunc(slices.Clone(want), func(x rollout.Task) bool {
		return x.ID == first.Trajectory.Task || x.ID == second.Trajectory.Task
	}))
	b.forgets(7) // the first is not acknowledged, nor is what lies behind it
	second.Ack()
	b.forgets(7)
	first.Ack()
	b.forgets(1)
	if m, err := b.queue.traj.GetMsg(t.Context(), other.Sequence); err != nil || string(m.Data) != "another run's" {
		t.Errorf("another run's result: %v, %v", m, err)
	}
	b.publish(want[0])
	if d := b.next(); d.Trajectory == nil || d.Trajectory.Task != want[0].ID {
		t.Errorf("done once more: %+v", d)
	}

	b.queue.Close()
	b.queue = b.newQueue()
	if d := b.next(); d.Trajectory.Task != want[0].ID || !d.Redelivered {
		t.Errorf("after a restart %+v", d)
	}
	b.nothingMore()
}

// forgets makes the queue forget, and the stream hold so many messages.
func (b *bench) forgets(left uint64) {
	b.t.Helper()
	if err := b.queue.Forget(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	info, err := b.queue.traj.Info(b.t.Context())
	if err != nil || info.State.Msgs != left {
		b.t.Errorf("%d results are left, err %v, want %d", info.State.Msgs, err, left)
	}
}

func TestUnprovedWorkerIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(p *rollout.Proof){
		"digest":   func(p *rollout.Proof) { p.Digest = "other" },
		"kernels":  func(p *rollout.Proof) { p.Kernels = "avx2" },
		"logprobs": func(p *rollout.Proof) { p.Logprobs = []float32{-1, -2.1} },
		"count":    func(p *rollout.Proof) { p.Logprobs = p.Logprobs[:1] },
		"version":  func(p *rollout.Proof) { p.Version = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			b.open(0)
			b.publish(task(0, 0, 0))
			err := RunWorker(t.Context(), bustest.JetStream(t, b.nc), WorkerOptions{Run: run, Name: "w1", LoadTries: 2, Log: quiet}, &engine{prove: spoil})
			var refused *RefusedError
			if !errors.As(err, &refused) || refused.Worker != "w1" {
				t.Fatalf("err %v, want a RefusedError", err)
			}
			if b.count(WorkerRefused) == 0 {
				t.Error("no event")
			}
			b.nothingMore()
		})
	}
}

// Results that did not come from a proved worker are stored by hand here.
func TestRefusedResultsAreLost(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	q := b.queue
	good := q.pass("w1", 0, "digest-0")
	encode := func(change func(r *result)) []byte {
		tr := trajectory(task(0, 0, 0))
		tr.Worker = "w1"
		r := result{trajectory: &tr, pass: good, digest: "digest-0", deliveries: 1}
		change(&r)
		data, err := encodeResult(r)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for i, tt := range []struct {
		name, want string
		data       []byte
	}{
		{"proved", "", encode(func(r *result) {})},
		{"no pass", ReasonUnproved, encode(func(r *result) { r.pass = nil })},
		{"another's pass", ReasonUnproved, encode(func(r *result) { r.trajectory.Worker = "w2" })},
		{"another version", ReasonUnproved, encode(func(r *result) { r.trajectory.Version = 1 })},
		{"weights since replaced", ReasonUnproved, encode(func(r *result) {
			r.digest, r.pass = "old", q.pass("w1", 0, "old")
		})},
		{"not a message", ReasonUnreadable, []byte("{\"stream\":\"TRAJ\"}")},
		{"empty", ReasonUnreadable, nil},
		{"uneven", ReasonUnreadable, encode(func(r *result) { r.trajectory.Turns[0].Logprobs = nil })},
	} {
		id := task(0, i, 0).ID
		data := tt.data
		if r, err := decodeResult(data); err == nil { // name the task that it is stored under
			r.trajectory.Task = id
			if data, err = encodeResult(r); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := store(t.Context(), q.js, resultSubject(id), data, quiet); err != nil {
			t.Fatal(err)
		}
		d := b.next()
		switch {
		case tt.want == "" && d.Lost != nil:
			t.Errorf("%s: lost %+v", tt.name, *d.Lost)
		case tt.want != "" && (d.Lost == nil || *d.Lost != trainer.Lost{Task: id, Reason: tt.want}):
			t.Errorf("%s: %+v, want lost by %s", tt.name, d.Lost, tt.want)
		}
	}
	// And one whose content names another task.
	id := task(0, 99, 0).ID
	if _, err := store(t.Context(), q.js, resultSubject(id), encode(func(*result) {}), quiet); err != nil {
		t.Fatal(err)
	}
	if d := b.next(); d.Lost == nil || d.Lost.Task != id || d.Lost.Reason != ReasonUnreadable {
		t.Errorf("content of another task: %+v", d.Lost)
	}
}

func TestPassOutlivesTheCoordinator(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	e := &engine{}
	b.worker("w1", 1, e)
	b.publish(tasks(0, 0, 2)...)
	b.collect(tasks(0, 0, 2))
	b.queue.Close()
	b.queue = b.newQueue()
	b.publish(tasks(0, 1, 4)...) // version 0 is still open
	b.collect(tasks(0, 1, 4))
	if loads, _ := e.counts(); loads != 1 {
		t.Errorf("%d loads, want 1: the worker need not prove again", loads)
	}
}

func TestWorkerWaitsForTheCoordinator(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	b.queue.Close()
	e := &engine{}
	b.worker("w1", 1, e)
	eventually(t, "weights loaded", func() bool { loads, _ := e.counts(); return loads == 1 })
	time.Sleep(500 * time.Millisecond) // long enough for three loads in a row
	b.queue = b.newQueue()
	b.publish(tasks(0, 0, 2)...)
	b.collect(tasks(0, 0, 2))
	if loads, _ := e.counts(); loads != 1 {
		t.Errorf("%d loads, want 1", loads)
	}
}

func TestWorkerThatCannotLoadSaysSo(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	err := RunWorker(t.Context(), bustest.JetStream(t, b.nc), WorkerOptions{Run: run, Name: "w1", LoadTries: 3, Log: quiet}, broken{})
	if !errors.Is(err, errNoWeights) || !strings.Contains(err.Error(), "worker w1") || !strings.Contains(err.Error(), "version 0") {
		t.Errorf("err %v, want one that names worker, version and cause", err)
	}
}

func TestWorkersReturnWhenTheRunEnds(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	e := &engine{}
	ended := make(chan error, 2)
	work := func(name string) {
		ended <- RunWorker(t.Context(), bustest.JetStream(t, b.nc), WorkerOptions{Run: run, Name: name, Log: quiet}, e)
	}
	go work("early")
	b.publish(tasks(0, 0, 2)...)
	b.collect(tasks(0, 0, 2))
	if err := b.queue.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	go work("late")
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if loads, _ := e.counts(); loads != 1 {
		t.Errorf("%d loads, want 1: nothing is loaded for a run that has ended", loads)
	}
}

func TestRunOpensAgainAfterItsEnd(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	if err := b.queue.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.queue.Close()
	b.queue = b.newQueue()
	select {
	case <-b.queue.Opened():
		t.Error("a queue that opened nothing says that it did")
	default:
	}
	b.open(1)
	<-b.queue.Opened()
	b.worker("w1", 1, &engine{})
	b.publish(tasks(1, 1, 2)...)
	b.collect(tasks(1, 1, 2))
}

var errNoWeights = errors.New("no weights")

type broken struct{ Engine }

func (broken) Load(context.Context, rollout.WeightsManifest) (rollout.Proof, error) {
	return rollout.Proof{}, errNoWeights
}

func TestWorkerNames(t *testing.T) {
	b := newBench(t, Options{})
	js := bustest.JetStream(t, b.nc)
	for _, o := range []WorkerOptions{{Run: run}, {Run: run, Name: "a.b"}, {Run: "*", Name: "w"}} {
		if err := RunWorker(t.Context(), js, o, &engine{}); err == nil {
			t.Errorf("run %q, worker %q accepted", o.Run, o.Name)
		}
	}
}

func TestPoisonIsLostAtOnce(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	id := task(0, 0, 0).ID
	if _, err := b.queue.js.Publish(t.Context(), taskSubject(id, 0), []byte("\xff not a task")); err != nil {
		t.Fatal(err)
	}
	b.publish(task(0, 0, 1))
	e := &engine{}
	b.worker("w1", 1, e)
	reasons := make(map[string]int)
	for range 2 {
		d := b.next()
		if d.Lost != nil {
			reasons[d.Lost.Reason]++
			if d.Lost.Task != id {
				t.Errorf("lost %v, want %v", d.Lost.Task, id)
			}
		}
		d.Ack()
	}
	if reasons[ReasonPoison] != 1 {
		t.Errorf("reasons %v, want one poison", reasons)
	}
	if _, runs := e.counts(); runs != 1 {
		t.Errorf("%d runs, want 1", runs)
	}
}

func TestTaskThatAlwaysFailsIsLostInTheEnd(t *testing.T) {
	b := newBench(t, Options{MaxDeliver: 2})
	b.open(0)
	bad := task(0, 0, 0)
	e := &engine{}
	e.run = func(_ context.Context, t rollout.Task) (rollout.Trajectory, error) {
		if t.ID == bad.ID {
			return rollout.Trajectory{}, errors.New("cannot")
		}
		return trajectory(t), nil
	}
	b.worker("w1", 2, e)
	b.publish(tasks(0, 0, 4)...)
	lost := 0
	for range 4 {
		d := b.next()
		if d.Lost != nil {
			lost++
			if want := (trainer.Lost{Task: bad.ID, Reason: ReasonMaxDeliveries}); *d.Lost != want {
				t.Errorf("lost %+v, want %+v", *d.Lost, want)
			}
		}
		d.Ack()
	}
	if lost != 1 {
		t.Errorf("%d lost, want 1", lost)
	}
	eventually(t, "one event", func() bool { return b.count(TaskLost) == 1 })
	eventually(t, "the task removed", func() bool {
		info, err := b.queue.tasks.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	})
	b.publish(bad) // its result is that it was lost
	b.nothingMore()
	retry := bad
	retry.ID.Attempt = 1
	b.publish(retry)
	b.collect([]rollout.Task{retry})
}

func TestOversizedResultIsLost(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	b.worker("w1", 1, &engine{run: func(_ context.Context, t rollout.Task) (rollout.Trajectory, error) {
		tr := trajectory(t)
		tr.Attachments = []rollout.Attachment{{SHA256: "x", PNG: make([]byte, MaxMessage)}}
		return tr, nil
	}})
	b.publish(task(0, 0, 0))
	if d := b.next(); d.Lost == nil || d.Lost.Reason != ReasonTooLarge {
		t.Errorf("delivery %+v, want lost by %s", d, ReasonTooLarge)
	}
}

func TestStaleVersionIsClosed(t *testing.T) {
	b := newBench(t, Options{KeepVersions: 1})
	b.open(0)
	b.publish(tasks(0, 0, 3)...)
	b.open(1)
	b.open(2)
	for range 3 {
		d := b.next()
		if d.Lost == nil || d.Lost.Reason != ReasonStale {
			t.Fatalf("delivery %+v, want lost by %s", d, ReasonStale)
		}
		d.Ack()
	}
	if n := b.count(VersionClosed); n != 1 {
		t.Errorf("%d versions closed, want 1", n)
	}
	if err := b.queue.Publish(t.Context(), tasks(0, 1, 1)); err == nil || !strings.Contains(err.Error(), "only [1 2] are") {
		t.Errorf("publishing to a closed version: %v", err)
	}
	e := &engine{}
	b.worker("w1", 2, e)
	both := append(tasks(1, 2, 4), tasks(2, 3, 4)...)
	b.publish(both...)
	b.collect(both)
	b.nothingMore()
}

func TestWorkerFollowsVersions(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	e := &engine{}
	b.worker("w1", 2, e)
	for v := range rollout.PolicyVersion(4) {
		b.open(v)
		ts := tasks(v, int(v), 6)
		b.publish(ts...)
		b.collect(ts)
	}
	// A late attempt of an older version brings the worker back.
	late := task(2, 2, 0)
	late.ID.Attempt = 1
	b.publish(late)
	b.collect([]rollout.Task{late})
}

func TestNewVersionLetsRunningTasksFinish(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	started, finish := make(chan struct{}), make(chan struct{})
	e := &engine{run: func(_ context.Context, t rollout.Task) (rollout.Trajectory, error) {
		if t.Version == 0 {
			started <- struct{}{}
			<-finish
		}
		return trajectory(t), nil
	}}
	b.worker("w1", 2, e)
	b.publish(task(0, 0, 0))
	<-started
	b.open(1)
	b.publish(task(1, 1, 0))
	time.Sleep(50 * time.Millisecond) // the fake panics if it is loaded now
	close(finish)
	b.collect([]rollout.Task{task(0, 0, 0), task(1, 1, 0)})
}

func TestReplacedWeightsAreProvedAnew(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	e := &engine{}
	b.worker("w1", 1, e)
	b.publish(task(0, 0, 0))
	b.collect(tasks(0, 0, 1))
	m := manifest(0)
	m.Digest = "recomputed"
	if err := b.queue.Open(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second load", func() bool { loads, _ := e.counts(); return loads == 2 })
	b.publish(task(0, 1, 0))
	b.collect(tasks(0, 1, 1))
}

func TestCancelledWorkerGivesItsTasksBack(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	started := make(chan struct{}, 8)
	stop := b.worker("slow", 4, &engine{run: func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
		started <- struct{}{}
		<-ctx.Done()
		return rollout.Trajectory{}, ctx.Err()
	}})
	want := tasks(0, 0, 4)
	b.publish(want...)
	for range want {
		<-started
	}
	if err := stop(); err != nil {
		t.Errorf("a worker that was told to end: %v", err)
	}
	b.worker("quick", 4, &engine{})
	if n := b.collect(want); n != len(want) { // none comes before the lease runs out, unless it was given back
		t.Errorf("%d said to be redelivered, want %d", n, len(want))
	}
}

// A machine that stalls a worker for longer than its lease makes it look dead,
// so the test allows itself longer leases until one is kept.
func TestLongTaskIsLeftWithItsWorker(t *testing.T) {
	t.Parallel()
	for lease := 400 * time.Millisecond; ; lease *= 2 {
		runs, lost := longTask(t, lease)
		if runs == 1 && lost == 0 {
			return
		}
		if lease > 5*time.Second {
			t.Fatalf("lease %v: %d runs, %d workers lost, want 1 run and no lost worker", lease, runs, lost)
		}
		t.Logf("lease %v: %d runs, %d workers lost", lease, runs, lost)
	}
}

// longTask runs a task that takes five leases and returns how often it ran, and
// how many workers were thought dead.
func longTask(t *testing.T, lease time.Duration) (runs, lost int) {
	b := startBench(t, Options{AckWait: 2 * lease, LeaseTTL: lease})
	b.open(0)
	slow := func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
		return trajectory(t), sleep(ctx, 5*lease)
	}
	one, two := &engine{run: slow}, &engine{run: slow}
	b.worker("w1", 2, one)
	b.worker("w2", 2, two)
	b.publish(task(0, 0, 0))
	b.collect(tasks(0, 0, 1))
	_, runs1 := one.counts()
	_, runs2 := two.counts()
	return runs1 + runs2, b.count(WorkerLost)
}

// A worker that goes on computing without a sign of life is overtaken; its
// late result finds the place taken.
func TestSilentWorkerIsOvertaken(t *testing.T) {
	b := newBench(t, Options{LeaseTTL: 500 * time.Millisecond})
	b.open(0)
	nc := bustest.Connect(t, b.server)
	js := bustest.JetStream(t, nc)
	consumer, err := js.Consumer(t.Context(), tasksStream, versionConsumer(run, 0))
	if err != nil {
		t.Fatal(err)
	}
	b.publish(task(0, 0, 0))
	msg, err := consumer.Next()
	if err != nil {
		t.Fatal(err)
	}
	lease, err := js.KeyValue(t.Context(), leaseBucket(run))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lease.Put(t.Context(), "dead", []byte(msg.Reply())); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	b.worker("w1", 1, &engine{})
	if n := b.collect(tasks(0, 0, 1)); n != 1 {
		t.Error("not said to be redelivered")
	}
	t.Logf("redelivered %v after the last sign of life, lease %v", time.Since(begin).Round(time.Millisecond), b.opts.LeaseTTL)
	if b.count(WorkerLost) == 0 || b.count(TaskRedelivered) != 1 { // w1 is lost, too, where the machine stalls it
		t.Errorf("%d workers lost, %d tasks redelivered", b.count(WorkerLost), b.count(TaskRedelivered))
	}
	late := trajectory(task(0, 0, 0))
	data, err := encodeResult(result{trajectory: &late})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := store(t.Context(), js, resultSubject(late.Task), data, quiet); first || err != nil {
		t.Errorf("late result: first %v, err %v; want second and no error", first, err)
	}
	b.nothingMore()
}

func TestRunInfo(t *testing.T) {
	_, nc := bustest.Start(t)
	js := bustest.JetStream(t, nc)
	if _, err := GetRunInfo(t.Context(), js, run); !errors.Is(err, ErrNoRun) {
		t.Errorf("on an empty server: %v, want ErrNoRun", err)
	}
	for _, doc := range []string{`{"http":"http://127.0.0.1:8080"}`, `{}`} {
		if err := PutRunInfo(t.Context(), js, run, []byte(doc)); err != nil {
			t.Fatal(err)
		}
		if got, err := GetRunInfo(t.Context(), js, run); err != nil || string(got) != doc {
			t.Errorf("got %q, %v, want %q", got, err, doc)
		}
	}
	if _, err := GetRunInfo(t.Context(), js, "other"); !errors.Is(err, ErrNoRun) {
		t.Errorf("another run: %v, want ErrNoRun", err)
	}
	if err := PutRunInfo(t.Context(), js, "a.b", nil); err == nil {
		t.Error("run a.b accepted")
	}
}

func TestRunsShareAServer(t *testing.T) {
	b := newBench(t, Options{})
	b.open(0)
	o := b.opts
	o.Run = "test_v0" // whose consumers look much like those of run test
	other, err := New(t.Context(), b.queue.js, o)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	m := manifest(0)
	m.Run = o.Run
	if err := other.Open(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	foreign := task(0, 0, 0)
	foreign.ID.Run = o.Run
	if err := other.Publish(t.Context(), []rollout.Task{foreign}); err != nil {
		t.Fatal(err)
	}
	b.worker("w1", 1, &engine{})
	b.publish(task(0, 0, 0))
	b.collect(tasks(0, 0, 1))
	b.nothingMore()
	if d, err := other.Depth(t.Context()); err != nil || d.Waiting != 1 {
		t.Errorf("the other run's depth %+v, err %v, want its one task", d, err)
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	b := newBench(t, Options{})
	if _, err := nextWithin(b.queue, 20*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err %v, want the context's", err)
	}
	b.queue.Close()
	if _, err := nextWithin(b.queue, time.Second); err == nil {
		t.Error("Next of a closed queue succeeded")
	}
}

// A process that was suspended finds every deadline passed, that of all tries
// too, and the server well.
func TestInsistOutlivesASuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		suspended := func(ctx context.Context) error {
			if tries++; tries == 1 {
				time.Sleep(10 * time.Minute)
			}
			return ctx.Err()
		}
		if err := insist(t.Context(), quiet, "ask", suspended); err != nil || tries != 2 {
			t.Errorf("%d tries, %v; want the second to do", tries, err)
		}
		begin := time.Now()
		err := insist(t.Context(), quiet, "ask", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if took := time.Since(begin); err == nil || took < insistFor || took > 2*insistFor {
			t.Errorf("a server that never answers: %v after %v, want an error after %v or a little more", err, took, insistFor)
		}
	})
}
