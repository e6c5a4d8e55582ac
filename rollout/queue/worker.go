package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/rollout"
)

// An Engine holds one version's weights and runs tasks on them.
type Engine interface {
	// Load makes m's weights the engine's and returns the proof of it. It is
	// never called while Run is; between the two the engine may forget what
	// it held.
	Load(ctx context.Context, m rollout.WeightsManifest) (rollout.Proof, error)
	// Run attempts one task of the loaded version. It is called from several
	// goroutines at once, as many as the worker has slots. An error gives the
	// task back to the queue.
	Run(ctx context.Context, t rollout.Task) (rollout.Trajectory, error)
}

// WorkerOptions says how a worker takes part in a run. The zero value of a
// field takes the default given beside it.
type WorkerOptions struct {
	Run         string
	Name        string        // unique in the run
	Slots       int           // tasks at once; 1
	LoadTimeout time.Duration // of fetching and loading a version; 10 min
	LoadTries   int           // failed loads or proofs in a row, with growing pauses, before giving up; 9, in 25 s
	TaskTimeout time.Duration // of one task; 10 min
	Patience    time.Duration // without a word of the server, before giving up; 10 min
	Log         *slog.Logger  // slog.Default
}

func (o WorkerOptions) withDefaults() WorkerOptions {
	o.LoadTimeout = cmp.Or(o.LoadTimeout, 10*time.Minute)
	o.LoadTries = cmp.Or(o.LoadTries, 9)
	o.TaskTimeout = cmp.Or(o.TaskTimeout, 10*time.Minute)
	o.Patience = cmp.Or(o.Patience, 10*time.Minute)
	o.Slots = max(o.Slots, 1)
	o.Log = cmp.Or(o.Log, slog.Default()).With("run", o.Run, "worker", o.Name)
	return o
}

const (
	joinFor      = 30 * time.Second       // for a run to appear
	proofWait    = 5 * time.Second        // for the coordinator's answer to a proof
	recheck      = 500 * time.Millisecond // between looks for work in other versions, while idle
	idleSwitch   = 2 * time.Second        // idle, before loading a version whose tasks others hold
	drainFor     = 10 * time.Second       // for tasks to notice that the worker ends
	storeFor     = 5 * time.Second        // for a last result when the worker ends
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// RunWorker takes tasks of o.Run until the run or ctx ends, then gives back
// what it has not finished and returns nil. It follows the run's open versions: it loads
// the one that has work, proves it to the coordinator, and pulls its tasks,
// never more than it has slots for. It returns an error when the run is not
// there, when the coordinator refuses it for good, and when the server stays
// silent for longer than o.Patience.
func RunWorker(ctx context.Context, js jetstream.JetStream, o WorkerOptions, engine Engine) error {
	if err := errors.Join(CheckRun(o.Run), CheckWorker(o.Name)); err != nil {
		return err
	}
	w := &worker{js: js, opts: o.withDefaults(), engine: engine}
	w.slots = make(chan struct{}, w.opts.Slots)
	if err := w.join(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("worker %s: %w", o.Name, err)
	}
	sub, err := js.Conn().Subscribe(announceSubject(o.Run), func(*nats.Msg) { w.bell.ring() })
	if err != nil {
		return fmt.Errorf("worker %s: %w", o.Name, err)
	}
	defer sub.Unsubscribe()
	stopHolding := w.hands.start(w.lease, w.opts.Name, w.opts.Log)
	defer stopHolding() // last, so that tasks stay alive while the worker drains
	defer w.drain()
	if err := w.work(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("worker %s: %w", o.Name, err)
	}
	return nil
}

type worker struct {
	js            jetstream.JetStream
	opts          WorkerOptions
	engine        Engine
	policy, lease jetstream.KeyValue

	bell    bell
	hands   hands
	slots   chan struct{} // one element a task being run
	running sync.WaitGroup

	// Of the main goroutine alone.
	loaded    *rollout.WeightsManifest // nil: none
	pass      []byte                   // for loaded
	idleSince time.Time
}

// join waits until the run's buckets are there.
func (w *worker) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinFor)
	defer cancel()
	for pause := firstBackoff; ; pause = min(2*pause, lastBackoff) {
		var err error
		if w.policy, err = w.js.KeyValue(ctx, policyBucket(w.opts.Run)); err == nil {
			w.lease, err = w.js.KeyValue(ctx, leaseBucket(w.opts.Run))
		}
		if err == nil {
			return nil
		}
		if w.js.Conn().IsClosed() {
			return err
		}
		w.opts.Log.Debug("waiting for the run", "err", err)
		if sleep(ctx, pause) != nil {
			return fmt.Errorf("run %s: %w (%w)", w.opts.Run, ErrNoRun, err)
		}
	}
}

// work serves one version after another until ctx ends.
func (w *worker) work(ctx context.Context) error {
	var silentSince time.Time // zero while the server answers
	pause := firstBackoff
	for ctx.Err() == nil {
		served, err := w.serveChosen(ctx)
		if errors.Is(err, errRunEnded) {
			w.opts.Log.Info("the run has ended")
			return nil
		}
		if errors.Is(err, errGivenUp) || w.js.Conn().IsClosed() {
			return err
		}
		if served {
			silentSince, pause = time.Time{}, firstBackoff
			continue
		}
		if silentSince.IsZero() {
			silentSince = time.Now()
		}
		if time.Since(silentSince) > w.opts.Patience {
			return fmt.Errorf("no work possible for %v: %w", w.opts.Patience, err)
		}
		w.opts.Log.Debug("waiting for the server", "err", err)
		_ = sleep(ctx, pause) // the loop's condition looks at ctx
		pause = min(2*pause, lastBackoff)
	}
	return nil
}

// serveChosen serves the version to be served now until it should be another.
// It reports whether the server answered.
func (w *worker) serveChosen(ctx context.Context) (bool, error) {
	m, err := w.choose(ctx)
	if err != nil {
		return false, err
	}
	if m == nil {
		w.opts.Log.Debug("waiting for a first version")
		return true, w.bell.wait(ctx, recheck)
	}
	if !same(m, w.loaded) {
		w.running.Wait() // bounded by the tasks' own deadlines
		if err := w.load(ctx, *m); err != nil {
			return true, err
		}
		w.idleSince = time.Now()
	}
	err = w.serve(ctx, *m)
	return err == nil, err
}

func same(a, b *rollout.WeightsManifest) bool {
	return a != nil && b != nil && a.Version == b.Version && a.Digest == b.Digest
}

// choose returns the open version to serve, nil when there is none: the loaded
// one while tasks of it wait; else the oldest with waiting tasks, since groups
// train in order; else, having been idle, one whose tasks others hold and may
// yet give back; else the newest.
func (w *worker) choose(ctx context.Context) (*rollout.WeightsManifest, error) {
	w.bell.reset()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	open, err := openVersions(ctx, w.policy)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	var waiting, held *rollout.WeightsManifest
	for i := range open {
		m := &open[i]
		n, err := w.look(ctx, m.Version)
		if err != nil {
			return nil, err
		}
		loaded := same(m, w.loaded)
		switch {
		case n.Waiting > 0 && loaded:
			return m, nil
		case n.Waiting > 0 && waiting == nil:
			waiting = m
		case n.Held > 0 && held == nil && (loaded || w.idle()):
			held = m
		}
	}
	for _, m := range []*rollout.WeightsManifest{waiting, held} {
		if m != nil {
			return m, nil
		}
	}
	return &open[len(open)-1], nil
}

func (w *worker) idle() bool {
	return len(w.slots) == 0 && time.Since(w.idleSince) > idleSwitch
}

func (w *worker) look(ctx context.Context, v rollout.PolicyVersion) (Depth, error) {
	consumer, err := w.js.Consumer(ctx, tasksStream, versionConsumer(w.opts.Run, v))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return Depth{}, nil // being closed
	}
	if err != nil {
		return Depth{}, fmt.Errorf("tasks of version %d: %w", v, err)
	}
	info := consumer.CachedInfo()
	return Depth{Waiting: int(info.NumPending), Held: info.NumAckPending}, nil
}

var (
	errGivenUp  = errors.New("gave up") // marks errors after which a worker ends
	errRunEnded = errors.New("run ended")
)

// load makes the engine hold m and proves it, trying a few times.
func (w *worker) load(ctx context.Context, m rollout.WeightsManifest) error {
	w.loaded = nil
	var err error
	for try := range w.opts.LoadTries {
		started := time.Now()
		var pass []byte
		if pass, err = w.loadOnce(ctx, m); err == nil {
			w.loaded, w.pass = &m, pass
			w.opts.Log.Debug("version loaded and proved", "version", m.Version, "seconds", time.Since(started).Seconds())
			return nil
		}
		if errors.Is(err, errGivenUp) {
			return err
		}
		w.opts.Log.Warn("version not loaded", "version", m.Version, "try", try+1, "err", err)
		if current, lookErr := w.stillOpen(ctx, m); lookErr != nil || !current {
			return err // the run has moved on: choose again
		}
		if try+1 < w.opts.LoadTries && sleep(ctx, firstBackoff<<try) != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w after %d tries: %w", errGivenUp, w.opts.LoadTries, err)
}

func (w *worker) loadOnce(ctx context.Context, m rollout.WeightsManifest) ([]byte, error) {
	loading, cancel := context.WithTimeout(ctx, w.opts.LoadTimeout)
	defer cancel()
	proof, err := w.engine.Load(loading, m)
	if err != nil {
		return nil, fmt.Errorf("load version %d: %w", m.Version, err)
	}
	proof.Worker = w.opts.Name
	return w.prove(ctx, proof)
}

// prove sends the proof until the coordinator answers it: a coordinator that
// is being restarted is no reason to load again, or to give up.
func (w *worker) prove(ctx context.Context, proof rollout.Proof) ([]byte, error) {
	begin := time.Now()
	for pause := firstBackoff; ; pause = min(2*pause, lastBackoff) {
		pass, err := prove(ctx, w.js.Conn(), w.opts.Run, proof, proofWait)
		var refused *RefusedError
		if err == nil || errors.As(err, &refused) || w.js.Conn().IsClosed() {
			return pass, err
		}
		if time.Since(begin) > w.opts.Patience {
			return nil, fmt.Errorf("%w after %v: %w", errGivenUp, w.opts.Patience, err)
		}
		w.opts.Log.Debug("waiting for the coordinator", "to", "answer a proof", "version", proof.Version, "err", err)
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func (w *worker) stillOpen(ctx context.Context, m rollout.WeightsManifest) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	open, err := openVersions(ctx, w.policy)
	if err != nil {
		return false, err
	}
	now, ok := find(open, m.Version)
	return ok && now.Digest == m.Digest, nil
}

// drain waits for the tasks that still run to notice that the worker ends.
func (w *worker) drain() {
	done := make(chan struct{})
	go func() {
		w.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(drainFor):
		w.opts.Log.Warn("tasks still running, left to redelivery", "tasks", len(w.slots))
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// A bell wakes one waiting goroutine, also when it rang before the wait began.
type bell struct {
	mu   sync.Mutex
	rung bool
	wake context.CancelFunc // of the wait in progress
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rung = true
	if b.wake != nil {
		b.wake()
	}
}

func (b *bell) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rung = false
}

// context returns a context that ends after d, with ctx, or when the bell
// rings or has rung since the last reset.
func (b *bell) context(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake = cancel
	if b.rung {
		cancel()
	}
	return ctx, cancel
}

// wait waits until the bell rings, at most d. Its error is ctx's.
func (b *bell) wait(ctx context.Context, d time.Duration) error {
	waiting, cancel := b.context(ctx, d)
	defer cancel()
	<-waiting.Done()
	return ctx.Err()
}
