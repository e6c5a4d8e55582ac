package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"xragent/trainer"
)

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

// Forget removes the results that are acknowledged, which the ledger has. A worker
// that was given such a task once more stores its result anew; it is delivered
// again, for the ledger to know, and forgotten the next time.
func (q *Queue) Forget(ctx context.Context) error {
	return q.insist(ctx, "remove results", func(ctx context.Context) error {
		return q.traj.Purge(ctx, jetstream.WithPurgeSubject(resultSubjects(q.opts.Run)), jetstream.WithPurgeSequence(q.marks.settled()+1))
	})
}
