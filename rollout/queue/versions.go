package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"xragent/rollout"
)

// readOpen restores which versions are open.
func (q *Queue) readOpen(ctx context.Context) (err error) {
	if q.open, err = openVersions(ctx, q.policy); errors.Is(err, errRunEnded) {
		return nil
	}
	return err
}

// openKey holds every open manifest in one record, so that a worker reads a
// consistent picture in one request.
const openKey = "open"

// endedRecord stands there in place of manifests once the run has ended.
const endedRecord = `"ended"`

func openVersions(ctx context.Context, policy jetstream.KeyValue) ([]rollout.WeightsManifest, error) {
	entry, err := policy.Get(ctx, openKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open versions: %w", err)
	}
	if string(entry.Value()) == endedRecord {
		return nil, errRunEnded
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
	if err := q.setOpen(ctx, record); err != nil {
		return fmt.Errorf("open version %d: %w", m.Version, err)
	}
	q.openedOnce.Do(func() { close(q.opened) })
	return q.announce()
}

// End closes all versions for good: workers that follow the run return. What
// a run's weights were is nobody's business afterwards, so that they may be
// deleted. Opening a version begins anew.
func (q *Queue) End(ctx context.Context) error {
	for _, m := range q.versions() {
		if err := q.closeVersion(ctx, m.Version); err != nil {
			return fmt.Errorf("end of the run: close version %d: %w", m.Version, err)
		}
	}
	q.mu.Lock()
	q.open = nil
	q.mu.Unlock()
	if err := q.setOpen(ctx, []byte(endedRecord)); err != nil {
		return fmt.Errorf("end of the run: %w", err)
	}
	return q.announce()
}

func (q *Queue) setOpen(ctx context.Context, record []byte) error {
	return q.insist(ctx, "say which versions are open", func(ctx context.Context) error {
		_, err := q.policy.Put(ctx, openKey, record)
		return err
	})
}

// Opened is closed once this queue has opened a version. What an earlier queue
// had opened may be about to be replaced, and its weights may be gone.
func (q *Queue) Opened() <-chan struct{} { return q.opened }

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
	config := jetstream.ConsumerConfig{
		Durable:       versionConsumer(q.opts.Run, v),
		FilterSubject: versionSubjects(q.opts.Run, v),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       q.opts.AckWait,
		MaxDeliver:    q.opts.MaxDeliver,
		MaxAckPending: q.opts.MaxPending,
		MaxWaiting:    q.opts.MaxPending,
		Replicas:      q.opts.Replicas,
	}
	return q.insist(ctx, "make a consumer", func(ctx context.Context) error {
		_, err := q.tasks.CreateOrUpdateConsumer(ctx, config)
		return err
	})
}

// closeVersion turns what is left of a version's tasks into lost results and
// removes its consumer. It may be repeated.
func (q *Queue) closeVersion(ctx context.Context, v rollout.PolicyVersion) error {
	err := q.insist(ctx, "remove a consumer", func(ctx context.Context) error {
		return q.tasks.DeleteConsumer(ctx, versionConsumer(q.opts.Run, v))
	})
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	left, err := q.subjects(ctx, q.tasks, versionSubjects(q.opts.Run, v))
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
	return q.insist(ctx, "remove tasks", func(ctx context.Context) error {
		return q.tasks.Purge(ctx, jetstream.WithPurgeSubject(versionSubjects(q.opts.Run, v)))
	})
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
func (q *Queue) subjects(ctx context.Context, s jetstream.Stream, filter string) (names []string, err error) {
	err = q.insist(ctx, "list subjects", func(ctx context.Context) error {
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err == nil {
			names = slices.Sorted(maps.Keys(info.State.Subjects))
		}
		return err
	})
	return names, err
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
