// Package queue carries tasks to rollout workers and their results back, over
// NATS JetStream. It holds both ends: [Queue] for the coordinator, [RunWorker]
// for a worker in the same process or anywhere else.
//
// Nothing is lost and nothing counts twice. A task is one message in TASKS
// until a worker has stored its result as the only message of the result's
// subject in TRAJ; both are named by run, step, group, index and attempt.
// Whoever comes second with a result finds the place taken, and that is
// success. A task that comes to nothing gets a result as well, one that says
// why; a late trajectory cannot then take its place.
//
// The package refuses results of workers that have not proved their weights,
// and results that it cannot read. It does not judge a trajectory's content
// and keeps no ledger: after a restart, what was delivered but not
// acknowledged comes again, and sometimes what had been a moment before.
package queue

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"xragent/rollout"
	"xragent/trainer"
)

// Options says how a run's queue behaves. The zero value of a field takes the
// default given beside it.
type Options struct {
	Run          string
	AckWait      time.Duration // a task without a sign of life this long is given to another worker; 10 s
	LeaseTTL     time.Duration // the same for a worker whose lease ran out; 1.5 s
	MaxDeliver   int           // deliveries of a task before it is lost; 5
	MaxPending   int           // tasks of one version in workers' hands at once; 4096
	KeepVersions int           // versions kept open beside the newest; 2; negative: none
	Replicas     int           // of every stream, on a cluster; 1
	OnEvent      func(Event)   // called from several goroutines, must not block; may be nil
	Log          *slog.Logger  // slog.Default
}

func (o Options) withDefaults() Options {
	o.AckWait = cmp.Or(o.AckWait, 10*time.Second)
	o.LeaseTTL = cmp.Or(o.LeaseTTL, 1500*time.Millisecond)
	o.MaxDeliver = cmp.Or(o.MaxDeliver, 5)
	o.MaxPending = cmp.Or(o.MaxPending, 4096)
	o.KeepVersions = cmp.Or(o.KeepVersions, 2)
	o.Replicas = cmp.Or(o.Replicas, 1)
	o.Log = cmp.Or(o.Log, slog.Default()).With("run", o.Run)
	o.KeepVersions = max(o.KeepVersions, 0)
	if o.OnEvent == nil {
		o.OnEvent = func(Event) {}
	}
	return o
}

// An Event is something that a person or a counter may want to know.
type Event struct {
	Kind    EventKind
	Worker  string                // "" where none is concerned
	Version rollout.PolicyVersion // 0 where none is concerned
	Tasks   int                   // how many tasks are concerned
	Detail  string
}

// EventKind names a kind of event, as a label for counters.
type EventKind string

// The kinds of event.
const (
	WorkerProved    EventKind = "worker_proved"
	WorkerRefused   EventKind = "worker_refused"
	WorkerLost      EventKind = "worker_lost" // its lease ran out; its tasks go to others
	TaskLost        EventKind = "task_lost"
	TaskRedelivered EventKind = "task_redelivered"
	VersionClosed   EventKind = "version_closed"
)

// The reasons of a [trainer.Lost].
const (
	ReasonMaxDeliveries = "max_deliveries" // delivered MaxDeliver times without a result
	ReasonPoison        = "poison"         // the task could not be read
	ReasonTooLarge      = "too_large"      // the result is larger than MaxMessage
	ReasonUnreadable    = "unreadable"     // the result could not be read
	ReasonUnproved      = "unproved"       // the worker had not proved the weights
	ReasonStale         = "stale_version"  // its version was closed before it ran
)

const (
	callTimeout   = 5 * time.Second  // of one request to the server
	insistFor     = 30 * time.Second // how long a restarting server is waited for
	resultBeat    = 5 * time.Second  // without one twice as long, results are read anew
	prefetch      = 64               // results read ahead
	prefetchBytes = 32 << 20
)

// A Queue is the coordinator's end of one run's queue. It implements
// [trainer.Queue] and is safe for concurrent use. A run has one at a time.
type Queue struct {
	js     jetstream.JetStream
	opts   Options
	secret []byte // signs passes

	tasks, traj     jetstream.Stream
	policy, private jetstream.KeyValue
	marks           *marks
	closed          context.Context
	close           context.CancelFunc
	stops           []func()

	reading sync.Mutex                // one Next at a time
	results jetstream.MessagesContext // nil: to be opened

	mu   sync.Mutex
	open []rollout.WeightsManifest // ascending versions

	opened     chan struct{}
	openedOnce sync.Once
}

var _ trainer.Queue = (*Queue)(nil)

// New opens the queue of a run, making its streams where they are missing, and
// takes up where an earlier Queue ended: versions stay open, tasks stay
// queued, and results that were not acknowledged come again.
func New(ctx context.Context, js jetstream.JetStream, o Options) (*Queue, error) {
	if err := CheckRun(o.Run); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q := &Queue{js: js, opts: o.withDefaults(), opened: make(chan struct{})}
	q.closed, q.close = context.WithCancel(context.Background())
	for _, step := range []func(context.Context) error{
		q.makeStreams, q.readSecret, q.readOpen, q.restoreMarks, q.followDead, q.followLeases, q.answerProofs,
	} {
		if err := step(ctx); err != nil {
			q.Close()
			return nil, fmt.Errorf("queue of run %s: %w", o.Run, err)
		}
	}
	return q, nil
}

// Close ends a Next in progress and the queue's goroutines. What is stored
// stays.
func (q *Queue) Close() {
	q.close()
	q.reading.Lock()
	defer q.reading.Unlock()
	q.stopReading()
	for _, stop := range slices.Backward(q.stops) {
		stop()
	}
	q.stops = nil
}

func (q *Queue) stopReading() {
	if q.results != nil {
		q.results.Stop()
		q.results = nil
	}
}

func (q *Queue) onClose(stop func()) { q.stops = append(q.stops, stop) }

func (q *Queue) makeStreams(ctx context.Context) (err error) {
	unique := jetstream.StreamConfig{
		MaxMsgsPerSubject:    1,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		AllowDirect:          true,
		Replicas:             q.opts.Replicas,
	}
	tasks, traj := unique, unique
	tasks.Name, tasks.Subjects, tasks.Retention = tasksStream, []string{prefix + "*.task.>"}, jetstream.WorkQueuePolicy
	traj.Name, traj.Subjects = resultsStream, []string{prefix + "*.traj.>"}
	if q.tasks, err = q.js.CreateOrUpdateStream(ctx, tasks); err != nil {
		return fmt.Errorf("stream %s: %w", tasksStream, err)
	}
	if q.traj, err = q.js.CreateOrUpdateStream(ctx, traj); err != nil {
		return fmt.Errorf("stream %s: %w", resultsStream, err)
	}
	q.policy, err = q.bucket(ctx, jetstream.KeyValueConfig{Bucket: policyBucket(q.opts.Run)})
	return err
}

func (q *Queue) bucket(ctx context.Context, c jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	c.Replicas = q.opts.Replicas
	kv, err := q.js.CreateOrUpdateKeyValue(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", c.Bucket, err)
	}
	return kv, nil
}

// readSecret makes the key that signs passes, once a run, so that a pass
// outlives a restart of the coordinator.
func (q *Queue) readSecret(ctx context.Context) (err error) {
	q.private, err = q.bucket(ctx, jetstream.KeyValueConfig{Bucket: privateBucket(q.opts.Run)})
	if err != nil {
		return err
	}
	q.secret = make([]byte, 32)
	rand.Read(q.secret)
	_, err = q.private.Create(ctx, "secret", q.secret)
	if errors.Is(err, jetstream.ErrKeyExists) {
		var entry jetstream.KeyValueEntry
		if entry, err = q.private.Get(ctx, "secret"); err == nil {
			q.secret = entry.Value()
		}
	}
	return err
}

// restoreMarks finds out how far the results had been acknowledged.
func (q *Queue) restoreMarks(ctx context.Context) (err error) {
	q.marks, err = readMarks(ctx, q.private, q.traj.CachedInfo().State.LastSeq)
	if err != nil {
		return err
	}
	q.background(ctx, func(ctx context.Context) { q.marks.keep(ctx, q.private, q.opts.Log) })
	return nil
}

// background runs do until Close, which waits for it.
func (q *Queue) background(ctx context.Context, do func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(ctx)
	}()
	q.onClose(func() {
		cancel()
		<-done
	})
}
