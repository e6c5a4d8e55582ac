package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/rollout"
)

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
	err = q.insist(ctx, "publish tasks", func(ctx context.Context) error {
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
		names, err := q.subjects(ctx, q.traj, stepResults(q.opts.Run, t.ID.Step))
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

// leastTries are made before giving up, however long they took: a process that
// was suspended finds its deadlines passed and the server well.
const leastTries = 3

// insist repeats do while the server may be restarting, with a deadline for
// each try.
func insist(ctx context.Context, log *slog.Logger, what string, do func(context.Context) error) error {
	begin := time.Now()
	for try, pause := 1, 20*time.Millisecond; ; try, pause = try+1, min(2*pause, time.Second) {
		one, cancel := context.WithTimeout(ctx, callTimeout)
		err := do(one)
		cancel()
		switch {
		case err == nil || permanent(err):
			return err
		case ctx.Err() != nil || try >= leastTries && time.Since(begin) > insistFor:
			return fmt.Errorf("%s: gave up after %d tries in %v: %w", what, try, time.Since(begin).Round(time.Millisecond), err)
		}
		log.Debug("waiting for the server", "to", what, "err", err)
		_ = sleep(ctx, pause) // the cases above look at ctx
	}
}

// insist is [insist] with the queue's log.
func (q *Queue) insist(ctx context.Context, what string, do func(context.Context) error) error {
	return insist(ctx, q.opts.Log, what, do)
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
