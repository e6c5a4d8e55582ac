package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/internal/bus"
	"xragent/rollout"
)

// A world is a server that others reach over TCP and that can be restarted,
// with a coordinator that can be, too, and the ledger that outlives both.
type world struct {
	*bench
	dir, address string
	want         map[rollout.TaskID]rollout.Task
	ledger       map[rollout.TaskID]rollout.Trajectory
	ackOdds      float64 // how likely a recorded delivery is acknowledged
	rng          *rand.Rand
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	t.Parallel()
	w := &world{
		bench: &bench{t: t, opts: o, events: make(map[EventKind]int)},
		dir:   t.TempDir(), address: "127.0.0.1:0", ackOdds: 1,
		want:   make(map[rollout.TaskID]rollout.Task),
		ledger: make(map[rollout.TaskID]rollout.Trajectory),
		rng:    rand.New(rand.NewPCG(1, 2)),
	}
	w.opts.Run, w.opts.Log = run, quiet
	w.opts.OnEvent = func(e Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events[e.Kind]++
	}
	w.startServer()
	t.Cleanup(func() { w.server.Stop() })
	w.nc = w.dial("coordinator")
	w.queue = w.newQueue()
	return w
}

func (w *world) startServer() {
	w.t.Helper()
	var s *bus.Server
	eventually(w.t, "a server at "+w.address, func() (ok bool) { // another process may hold a port that was ours, for a moment
		var err error
		s, err = bus.Start(bus.Options{Dir: w.dir, Listen: w.address, Log: quiet})
		return err == nil
	})
	w.server, w.address = s, strings.TrimPrefix(s.URL(), "nats://")
}

func (w *world) dial(name string) *nats.Conn {
	w.t.Helper()
	nc, err := bus.Dial(w.t.Context(), "nats://"+w.address, name, quiet)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { bus.Close(nc) })
	return nc
}

func (w *world) publish(ts ...rollout.Task) {
	for _, t := range ts {
		w.want[t.ID] = t
	}
	w.bench.publish(ts...)
}

// record takes one delivery into the ledger, as a trainer does: what it holds
// already it does not take again.
func (w *world) record() {
	w.t.Helper()
	d := w.next()
	if d.Lost != nil {
		w.t.Fatalf("lost: %+v", *d.Lost)
	}
	if _, ok := w.ledger[d.Trajectory.Task]; !ok {
		w.ledger[d.Trajectory.Task] = *d.Trajectory
	}
	if w.rng.Float64() < w.ackOdds {
		if err := d.Ack(); err != nil {
			w.t.Logf("ack: %v", err)
		}
	}
}

// restartCoordinator forgets everything but the ledger, and publishes again
// what the ledger lacks.
func (w *world) restartCoordinator() {
	w.t.Helper()
	w.queue.Close()
	w.queue = w.newQueue()
	for id, t := range w.want {
		if _, ok := w.ledger[id]; !ok {
			w.bench.publish(t)
		}
	}
}

// check holds the ledger and the stream against what was wanted.
func (w *world) check() {
	w.t.Helper()
	for id, t := range w.want {
		got, ok := w.ledger[id]
		if !ok {
			w.t.Errorf("%v: not in the ledger", id)
			continue
		}
		if diff := cmp.Diff(trajectory(t).Canonical(), got.Canonical()); diff != "" {
			w.t.Errorf("%v (-made +received):\n%s", id, diff)
		}
	}
	if len(w.ledger) != len(w.want) {
		w.t.Errorf("%d in the ledger, want %d", len(w.ledger), len(w.want))
	}
	info, err := w.queue.traj.Info(w.t.Context())
	if err != nil || info.State.Msgs != uint64(len(w.want)) {
		w.t.Errorf("%d messages in %s, err %v, want %d", info.State.Msgs, resultsStream, err, len(w.want))
	}
	eventually(w.t, "no task left", func() bool {
		info, err := w.queue.tasks.Info(w.t.Context())
		return err == nil && info.State.Msgs == 0
	})
}

// mortal is a worker that ends when its connection is cut under it.
type mortal struct {
	nc   *nats.Conn
	done chan struct{}
}

func (w *world) hire(name string, e Engine) mortal {
	nc, err := bus.Dial(w.t.Context(), "nats://"+w.address, name, quiet)
	if err != nil {
		w.t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		w.t.Fatal(err)
	}
	m := mortal{nc, make(chan struct{})}
	go func() {
		defer close(m.done)
		// Its error is that the connection was cut.
		_ = RunWorker(w.t.Context(), js, WorkerOptions{Run: run, Name: name, Slots: 3, Log: quiet}, e)
	}()
	return m
}

func (m mortal) kill() {
	m.nc.Close()
	<-m.done
}

func TestExactlyOnceUnderChaos(t *testing.T) {
	w := newWorld(t, Options{AckWait: time.Second, LeaseTTL: 500 * time.Millisecond, MaxDeliver: 100})
	w.ackOdds = 0.8
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(3, 4))
	newEngine := func() *engine {
		return &engine{run: func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
			mu.Lock()
			d, fails := time.Duration(1+rng.IntN(40))*time.Millisecond, rng.IntN(30) == 0
			mu.Unlock()
			if sleep(ctx, d) != nil || fails {
				return rollout.Trajectory{}, fmt.Errorf("engine failed: %w", context.Canceled)
			}
			return trajectory(t), nil
		}}
	}
	var crew []mortal
	hired := 0
	hire := func() mortal {
		hired++
		return w.hire(fmt.Sprintf("w%d", hired), newEngine())
	}
	w.open(0)
	for range 4 {
		crew = append(crew, hire())
	}
	defer func() {
		for _, m := range crew {
			m.kill()
		}
	}()
	const steps, size = 4, 60
	for step := range steps {
		w.open(rollout.PolicyVersion(step))
		w.publish(tasks(rollout.PolicyVersion(step), step, size)...)
		for n := 0; len(w.ledger) < (step+1)*size; n++ {
			w.record()
			switch {
			case n%20 == 5:
				i := w.rng.IntN(len(crew))
				crew[i].kill()
				crew[i] = hire()
			case n == 30 && step%2 == 0:
				w.restartCoordinator()
			case n == 30:
				w.server.Stop()
				w.startServer()
			}
		}
	}
	w.check()
	t.Logf("%d tasks, %d workers killed, %d redeliveries, %d leases run out",
		len(w.want), hired-len(crew), w.count(TaskRedelivered), w.count(WorkerLost))
	if w.count(TaskRedelivered) == 0 {
		t.Error("no redelivery: the chaos was too mild to show anything")
	}
}

const victim = "victim"

// workerProcess is the main function of a worker in a process of its own.
func workerProcess(url, name string) {
	nc, err := bus.Dial(context.Background(), url, name, quiet)
	if err != nil {
		panic(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		panic(err)
	}
	done := make(chan struct{}, 4)
	e := &engine{run: func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
		if name == victim {
			done <- struct{}{} // blocks for ever after the fourth task
		}
		return trajectory(t), sleep(ctx, 20*time.Millisecond)
	}}
	if err := RunWorker(context.Background(), js, WorkerOptions{Run: run, Name: name, Slots: 2, Log: quiet}, e); err != nil {
		panic(err)
	}
}

func TestKilledProcessLosesNothing(t *testing.T) {
	w := newWorld(t, Options{AckWait: never, LeaseTTL: time.Second})
	start := func(name string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "QUEUE_TEST_WORKER_URL=nats://"+w.address, "QUEUE_TEST_WORKER_NAME="+name)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		cmd.Process.Kill()
		cmd.Wait()
	}
	w.open(0)
	doomed := start(victim)
	defer kill(doomed)
	w.publish(tasks(0, 0, 40)...)
	eventually(t, "the victim stuck in two tasks", func() bool {
		for len(w.ledger) < 4 {
			w.record()
		}
		return w.leased(victim) == 2
	})
	survivor := start("survivor")
	defer kill(survivor)
	for range 34 {
		w.record()
	}
	kill(doomed) // with the two tasks that are left in its hands
	killed := time.Now()
	for len(w.ledger) < len(w.want) {
		w.record()
	}
	w.check()
	if w.count(WorkerLost) == 0 { // more, where the machine stalls a worker for longer than its lease
		t.Error("no worker lost")
	}
	t.Logf("the last trajectory came %v after the kill, lease %v", time.Since(killed).Round(time.Millisecond), w.opts.LeaseTTL)
	byVictim := 0
	for _, tr := range w.ledger {
		if tr.Worker == victim {
			byVictim++
		}
	}
	if byVictim != 4 || w.count(TaskRedelivered) < 2 {
		t.Errorf("%d trajectories by the victim, %d redelivered, want 4 and at least 2", byVictim, w.count(TaskRedelivered))
	}
}

// leased is how many tasks a worker's lease names.
func (w *world) leased(worker string) int {
	lease, err := w.queue.js.KeyValue(w.t.Context(), leaseBucket(run))
	if err != nil {
		w.t.Fatal(err)
	}
	entry, err := lease.Get(w.t.Context(), worker)
	if err != nil {
		return 0
	}
	return len(strings.Fields(string(entry.Value())))
}

// What the coordinator asks of a server that is being restarted waits for it,
// longer than a request has.
func TestCoordinatorWaitsForTheServer(t *testing.T) {
	w := newWorld(t, Options{})
	w.open(0)
	w.publish(tasks(0, 0, 4)...)
	w.server.Stop()
	errs := make(chan error)
	for name, ask := range map[string]func() error{
		"publish": func() error { return w.queue.Publish(t.Context(), tasks(0, 1, 4)) },
		"open":    func() error { return w.queue.Open(t.Context(), manifest(1)) },
		"close":   func() error { return w.queue.closeVersion(t.Context(), 9) }, // not there: nothing to close
		"forget":  func() error { return w.queue.Forget(t.Context()) },
	} {
		go func() {
			err := ask()
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			errs <- err
		}()
	}
	time.Sleep(callTimeout + 500*time.Millisecond)
	w.startServer()
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if d, err := w.queue.Depth(t.Context()); err != nil || d != (Depth{Waiting: 8}) {
		t.Errorf("%+v, %v; want 8 waiting", d, err)
	}
}
