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
// and keeps no ledger: what it delivers comes again until it is acknowledged.
package queue

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
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
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&o.AckWait, 10*time.Second)
	def(&o.LeaseTTL, 1500*time.Millisecond)
	num(&o.MaxDeliver, 5)
	num(&o.MaxPending, 4096)
	num(&o.KeepVersions, 2)
	num(&o.Replicas, 1)
	o.KeepVersions = max(o.KeepVersions, 0)
	if o.OnEvent == nil {
		o.OnEvent = func(Event) {}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Log = o.Log.With("run", o.Run)
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
}

var _ trainer.Queue = (*Queue)(nil)

// New opens the queue of a run, making its streams where they are missing, and
// takes up where an earlier Queue ended: versions stay open, tasks stay
// queued, and results that were not acknowledged come again.
func New(ctx context.Context, js jetstream.JetStream, o Options) (*Queue, error) {
	if err := CheckRun(o.Run); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q := &Queue{js: js, opts: o.withDefaults()}
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

// readOpen restores which versions are open.
func (q *Queue) readOpen(ctx context.Context) (err error) {
	q.open, err = openVersions(ctx, q.policy)
	return err
}

// openKey holds every open manifest in one record, so that a worker reads a
// consistent picture in one request.
const openKey = "open"

func openVersions(ctx context.Context, policy jetstream.KeyValue) ([]rollout.WeightsManifest, error) {
	entry, err := policy.Get(ctx, openKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open versions: %w", err)
	}
	var open []rollout.WeightsManifest
	if err := json.Unmarshal(entry.Value(), &open); err != nil {
		return nil, fmt.Errorf("open versions in bucket %s: %w", policy.Bucket(), err)
	}
	return open, nil
}

// Open admits workers to a version and closes those older than m.Version -
// KeepVersions; their unprocessed tasks come back as lost. Opening a version
// again, also with other weights, replaces its manifest: workers prove anew.
func (q *Queue) Open(ctx context.Context, m rollout.WeightsManifest) error {
	if err := q.checkManifest(m); err != nil {
		return err
	}
	if err := q.makeVersionConsumer(ctx, m.Version); err != nil {
		return fmt.Errorf("open version %d: %w", m.Version, err)
	}
	keep, closed := q.partition(m)
	for _, old := range closed {
		if err := q.closeVersion(ctx, old.Version); err != nil {
			return fmt.Errorf("open version %d: close version %d: %w", m.Version, old.Version, err)
		}
	}
	record, err := json.Marshal(keep)
	if err != nil {
		return fmt.Errorf("open version %d: %w", m.Version, err)
	}
	// In memory first: a worker may prove the moment that the record is there.
	q.mu.Lock()
	q.open = keep
	q.mu.Unlock()
	if _, err := q.policy.Put(ctx, openKey, record); err != nil {
		return fmt.Errorf("open version %d: %w", m.Version, err)
	}
	return q.announce()
}

func (q *Queue) checkManifest(m rollout.WeightsManifest) error {
	c := m.Canary
	switch {
	case m.Run != q.opts.Run:
		return fmt.Errorf("manifest of version %d is of run %q, the queue of run %q", m.Version, m.Run, q.opts.Run)
	case m.Version < 0:
		return fmt.Errorf("manifest of version %d: versions count from 0", m.Version)
	case m.Digest == "":
		return fmt.Errorf("manifest of version %d has no digest", m.Version)
	case len(c.IDs) < 2 || len(c.Logprobs) != len(c.IDs)-1:
		return fmt.Errorf("manifest of version %d: canary of %d ids has %d logprobs, want one an id after the first",
			m.Version, len(c.IDs), len(c.Logprobs))
	case !finite(c.Tolerance) || c.Tolerance < 0:
		return fmt.Errorf("manifest of version %d: canary tolerance is %v", m.Version, c.Tolerance)
	}
	return nil
}

// partition returns the manifests that stay open once m is, ascending, and
// those to be closed.
func (q *Queue) partition(m rollout.WeightsManifest) (keep, closed []rollout.WeightsManifest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, old := range q.open {
		switch {
		case old.Version == m.Version:
		case old.Version < m.Version-rollout.PolicyVersion(q.opts.KeepVersions):
			closed = append(closed, old)
		default:
			keep = append(keep, old)
		}
	}
	keep = append(keep, m)
	slices.SortFunc(keep, func(a, b rollout.WeightsManifest) int { return int(a.Version - b.Version) })
	return keep, closed
}

func (q *Queue) makeVersionConsumer(ctx context.Context, v rollout.PolicyVersion) error {
	_, err := q.tasks.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:       versionConsumer(q.opts.Run, v),
		FilterSubject: versionSubjects(q.opts.Run, v),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       q.opts.AckWait,
		MaxDeliver:    q.opts.MaxDeliver,
		MaxAckPending: q.opts.MaxPending,
		MaxWaiting:    q.opts.MaxPending,
		Replicas:      q.opts.Replicas,
	})
	return err
}

// closeVersion turns what is left of a version's tasks into lost results and
// removes its consumer. It may be repeated.
func (q *Queue) closeVersion(ctx context.Context, v rollout.PolicyVersion) error {
	err := q.tasks.DeleteConsumer(ctx, versionConsumer(q.opts.Run, v))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	left, err := subjects(ctx, q.tasks, versionSubjects(q.opts.Run, v))
	if err != nil {
		return err
	}
	for _, subject := range left {
		id, err := parseSubject(subject)
		if err != nil {
			continue // not put there by a Queue; the purge removes it
		}
		detail := fmt.Sprintf("version %d was closed", v)
		if err := q.lose(ctx, lost{id, ReasonStale, detail}); err != nil {
			return err
		}
	}
	q.opts.OnEvent(Event{Kind: VersionClosed, Version: v, Tasks: len(left)})
	return q.tasks.Purge(ctx, jetstream.WithPurgeSubject(versionSubjects(q.opts.Run, v)))
}

// lose stores the lost result of an attempt, unless it has a result already.
func (q *Queue) lose(ctx context.Context, l lost) error {
	data, err := encodeResult(result{lost: &l})
	if err != nil {
		return err
	}
	first, err := store(ctx, q.js, resultSubject(l.task), data, q.opts.Log)
	if err == nil && first {
		q.opts.OnEvent(Event{Kind: TaskLost, Tasks: 1, Detail: l.reason})
		q.opts.Log.Warn("task lost", "task", l.task, "reason", l.reason, "detail", l.detail)
	}
	return err
}

// subjects lists the subjects under filter that hold a message, sorted.
func subjects(ctx context.Context, s jetstream.Stream, filter string) ([]string, error) {
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range info.State.Subjects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// Publish stores tasks. What TASKS or TRAJ holds already is left as it is, so
// that a restarted coordinator may publish all that its ledger lacks. After
// an error some tasks may be stored: publish again.
func (q *Queue) Publish(ctx context.Context, tasks []rollout.Task) error {
	done, err := q.finished(ctx, tasks)
	if err != nil {
		return fmt.Errorf("publish %d tasks: %w", len(tasks), err)
	}
	var messages []*nats.Msg
	for _, t := range tasks {
		if err := q.checkOwn(t); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		if _, ok := slices.BinarySearch(done, resultSubject(t.ID)); ok {
			continue
		}
		data, err := encodeTask(t)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		messages = append(messages, &nats.Msg{Subject: taskSubject(t.ID, t.Version), Data: data})
	}
	err = insist(ctx, q.opts.Log, "publish tasks", func(ctx context.Context) error {
		return q.publishAll(ctx, messages)
	})
	if err != nil || !q.olderThanNewest(tasks) {
		return err
	}
	return q.announce() // workers have moved on, and look back when they hear it
}

func (q *Queue) olderThanNewest(tasks []rollout.Task) bool {
	open := q.versions()
	return slices.ContainsFunc(tasks, func(t rollout.Task) bool { return t.Version < open[len(open)-1].Version })
}

// announce tells workers to look at what is open and waiting.
func (q *Queue) announce() error {
	return q.js.Conn().Publish(announceSubject(q.opts.Run), nil)
}

func (q *Queue) checkOwn(t rollout.Task) error {
	if t.ID.Run != q.opts.Run {
		return fmt.Errorf("task %v: the queue is of run %q", t.ID, q.opts.Run)
	}
	open := q.versions()
	if _, ok := find(open, t.Version); !ok {
		return fmt.Errorf("task %v: version %d is not open, only %v are; open it first, or keep more versions",
			t.ID, t.Version, numbers(open))
	}
	return nil
}

func (q *Queue) versions() []rollout.WeightsManifest {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open
}

func find(open []rollout.WeightsManifest, v rollout.PolicyVersion) (rollout.WeightsManifest, bool) {
	for _, m := range open {
		if m.Version == v {
			return m, true
		}
	}
	return rollout.WeightsManifest{}, false
}

func numbers(open []rollout.WeightsManifest) []rollout.PolicyVersion {
	var vs []rollout.PolicyVersion
	for _, m := range open {
		vs = append(vs, m.Version)
	}
	return vs
}

// finished lists the result subjects that TRAJ holds for the tasks' steps,
// sorted.
func (q *Queue) finished(ctx context.Context, tasks []rollout.Task) ([]string, error) {
	var done []string
	seen := make(map[int]bool)
	for _, t := range tasks {
		if seen[t.ID.Step] {
			continue
		}
		seen[t.ID.Step] = true
		names, err := subjects(ctx, q.traj, stepResults(q.opts.Run, t.ID.Step))
		if err != nil {
			return nil, err
		}
		done = append(done, names...)
	}
	slices.Sort(done)
	return done, nil
}

// publishAll sends all messages, then waits for all answers.
func (q *Queue) publishAll(ctx context.Context, messages []*nats.Msg) error {
	futures := make([]jetstream.PubAckFuture, len(messages))
	for i, m := range messages {
		f, err := q.js.PublishMsgAsync(m, jetstream.WithExpectStream(tasksStream), jetstream.WithExpectLastSequencePerSubject(0))
		if err != nil {
			return fmt.Errorf("%s: %w", m.Subject, err)
		}
		futures[i] = f
	}
	for i, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			if !alreadyThere(err) {
				return fmt.Errorf("%s: %w", messages[i].Subject, err)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", messages[i].Subject, ctx.Err())
		}
	}
	return nil
}

// store puts data under a result's subject, once and for all. It reports
// whether this call was the first.
func store(ctx context.Context, js jetstream.JetStream, subject string, data []byte, log *slog.Logger) (first bool, err error) {
	err = insist(ctx, log, "store a result", func(ctx context.Context) error {
		_, err := js.Publish(ctx, subject, data,
			jetstream.WithExpectStream(resultsStream), jetstream.WithExpectLastSequencePerSubject(0))
		if alreadyThere(err) {
			first = false
			return nil
		}
		first = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("store %s: %w", subject, err)
	}
	return first, nil
}

// alreadyThere tells the error of an expected-last-sequence of 0, code 10071,
// from the rest: 10077 in particular is any failure of the store, and taking
// it for success would lose the message.
func alreadyThere(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}

// insist repeats do while the server may be restarting, with a deadline for
// each try and for all of them.
func insist(ctx context.Context, log *slog.Logger, what string, do func(context.Context) error) error {
	all, cancel := context.WithTimeout(ctx, insistFor)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		one, cancel := context.WithTimeout(all, callTimeout)
		err := do(one)
		cancel()
		if err == nil || permanent(err) {
			return err
		}
		log.Debug("waiting for the server", "to", what, "err", err)
		select {
		case <-all.Done():
			return fmt.Errorf("%s: gave up: %w", what, err)
		case <-time.After(pause):
		}
	}
}

// permanent reports whether trying again is useless: the server understood and
// refused, or there will be no connection any more.
func permanent(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.Code < 500
	}
	return errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject)
}

// Next returns the next result. Its Ack says that the result need not come
// again after a restart, and must follow a durable record of it. Next waits as
// long as ctx lets it, also through a restart of the server: its error is
// ctx's, or says that the queue is closed.
func (q *Queue) Next(ctx context.Context) (trainer.Delivery, error) {
	q.reading.Lock()
	defer q.reading.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.closed, cancel)()
	for pause := firstBackoff; ; pause = min(2*pause, lastBackoff) {
		d, err := q.next(ctx)
		switch {
		case err == nil:
			return d, nil
		case q.closed.Err() != nil:
			return trainer.Delivery{}, fmt.Errorf("next result: %w", errClosed)
		case ctx.Err() != nil:
			return trainer.Delivery{}, fmt.Errorf("next result: %w", ctx.Err())
		}
		q.opts.Log.Debug("reading results anew", "err", err)
		q.stopReading()
		_ = sleep(ctx, pause) // the cases above look at ctx
	}
}

var errClosed = errors.New("the queue is closed")

// next reads until there is a result that this Queue has not delivered.
func (q *Queue) next(ctx context.Context) (trainer.Delivery, error) {
	if err := ctx.Err(); err != nil {
		return trainer.Delivery{}, err
	}
	if q.results == nil {
		var err error
		if q.results, err = q.read(ctx, q.marks.next()); err != nil {
			return trainer.Delivery{}, err
		}
	}
	for {
		msg, err := q.results.Next(jetstream.NextContext(ctx))
		if err != nil {
			return trainer.Delivery{}, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return trainer.Delivery{}, err
		}
		seq := meta.Sequence.Stream
		before, isNew := q.marks.deliver(seq)
		if !isNew {
			continue
		}
		d, err := q.delivery(msg.Subject(), msg.Data())
		if err != nil {
			q.opts.Log.Warn("ignored a message in "+resultsStream, "err", err)
			q.marks.ack(seq)
			continue
		}
		if d.Redelivered {
			q.opts.OnEvent(Event{Kind: TaskRedelivered, Tasks: 1})
		}
		d.Redelivered = d.Redelivered || before
		d.Ack = func() error { q.marks.ack(seq); return nil }
		return d, nil
	}
}

// read reads the run's results from a sequence on. The reader keeps no state
// on the server: it starts anew behind the last message when a connection or
// the server failed.
func (q *Queue) read(ctx context.Context, from uint64) (jetstream.MessagesContext, error) {
	consumer, err := q.traj.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{resultSubjects(q.opts.Run)},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    from,
	})
	if err != nil {
		return nil, err
	}
	return consumer.Messages(
		jetstream.PullMaxMessagesWithBytesLimit(prefetch, prefetchBytes),
		jetstream.PullHeartbeat(resultBeat))
}

// delivery reads one message of TRAJ. The error is for messages that name no
// task; everything else becomes a delivery.
func (q *Queue) delivery(subject string, data []byte) (trainer.Delivery, error) {
	id, err := parseSubject(subject)
	if err != nil {
		return trainer.Delivery{}, err
	}
	lost := func(reason string, detail any) (trainer.Delivery, error) {
		q.opts.Log.Warn("result refused", "task", id, "reason", reason, "detail", detail)
		return trainer.Delivery{Lost: &trainer.Lost{Task: id, Reason: reason}}, nil
	}
	r, err := decodeResult(data)
	if err != nil {
		return lost(ReasonUnreadable, err)
	}
	if r.lost != nil {
		return trainer.Delivery{Lost: &trainer.Lost{Task: id, Reason: r.lost.reason}, Redelivered: r.deliveries > 1}, nil
	}
	if r.trajectory.Task != id {
		return lost(ReasonUnreadable, fmt.Sprintf("its content names %v", r.trajectory.Task))
	}
	if err := q.checkPass(r); err != nil {
		return lost(ReasonUnproved, err)
	}
	return trainer.Delivery{Trajectory: r.trajectory, Redelivered: r.deliveries > 1}, nil
}

// Replay calls do with every result that TRAJ holds now, from the first, acked
// or not, so that a ledger can be compared with it. Their Ack does nothing.
func (q *Queue) Replay(ctx context.Context, do func(trainer.Delivery) error) error {
	stored, err := subjects(ctx, q.traj, resultSubjects(q.opts.Run))
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if len(stored) == 0 {
		return nil
	}
	iter, err := q.read(ctx, 1)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	defer iter.Stop()
	for range stored { // one message a subject
		msg, err := iter.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		d, err := q.delivery(msg.Subject(), msg.Data())
		if err != nil {
			continue
		}
		d.Ack = func() error { return nil }
		if err := do(d); err != nil {
			return err
		}
	}
	return nil
}

// Depth counts a run's tasks.
type Depth struct {
	Waiting int // no worker has them
	Held    int // in workers' hands
}

// Depth returns how many tasks wait and how many are held, over all open
// versions.
func (q *Queue) Depth(ctx context.Context) (Depth, error) {
	var d Depth
	for _, m := range q.versions() {
		consumer, err := q.tasks.Consumer(ctx, versionConsumer(q.opts.Run, m.Version))
		if err != nil {
			return Depth{}, fmt.Errorf("depth of version %d: %w", m.Version, err)
		}
		d.Waiting += int(consumer.CachedInfo().NumPending)
		d.Held += consumer.CachedInfo().NumAckPending
	}
	return d, nil
}

// ownConsumer reports whether a consumer of TASKS belongs to the run.
func (q *Queue) ownConsumer(name string) bool {
	version, ok := strings.CutPrefix(name, q.opts.Run+"_v")
	return ok && version != "" && strings.Trim(version, "0123456789") == ""
}
