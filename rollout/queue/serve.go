package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"xragent/rollout"
)

const (
	pullExpiry = 30 * time.Second
	retryAfter = 500 * time.Millisecond // before a task that the engine failed is tried again
)

// serve pulls and runs tasks of m until another version should be served, ctx
// ends, or the server fails.
func (w *worker) serve(ctx context.Context, m rollout.WeightsManifest) error {
	consumer, err := w.js.Consumer(ctx, tasksStream, versionConsumer(w.opts.Run, m.Version))
	if err != nil {
		return fmt.Errorf("tasks of version %d: %w", m.Version, err)
	}
	w.hands.setAckWait(consumer.CachedInfo().Config.AckWait)
	// One message a pull: a task that waited in a buffer here would be nobody's.
	pull, err := consumer.Messages(jetstream.PullMaxMessages(1), jetstream.PullExpiry(pullExpiry),
		jetstream.WithMessagesErrOnMissingHeartbeat(false))
	if err != nil {
		return fmt.Errorf("tasks of version %d: %w", m.Version, err)
	}
	defer w.stopPulling(ctx, pull, m)
	for w.takeSlot(ctx) {
		msg, err := w.next(ctx, pull)
		if err == nil {
			w.start(ctx, msg, m)
			continue
		}
		w.freeSlot()
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("tasks of version %d: %w", m.Version, err)
		}
		if next, err := w.choose(ctx); err != nil || !same(next, &m) {
			return err
		}
	}
	return nil
}

// next waits for a task, a while or until the bell rings.
func (w *worker) next(ctx context.Context, pull jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := w.bell.context(ctx, recheck)
	defer cancel()
	msg, err := pull.Next(jetstream.NextContext(ctx))
	if err == nil {
		w.idleSince = time.Now()
	}
	return msg, err
}

// stopPulling ends the pull without losing sight of a task that is on its way.
func (w *worker) stopPulling(ctx context.Context, pull jetstream.MessagesContext, m rollout.WeightsManifest) {
	pull.Drain()
	for {
		msg, err := pull.Next(jetstream.NextMaxWait(callTimeout))
		if err != nil {
			return
		}
		if !w.takeSlot(ctx) {
			w.giveBack(msg, 0)
			continue
		}
		w.start(ctx, msg, m)
	}
}

// takeSlot waits for a free slot. False means that ctx ended.
func (w *worker) takeSlot(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case w.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *worker) freeSlot() { <-w.slots }

// start runs a task in its own goroutine, in the slot taken for it.
func (w *worker) start(ctx context.Context, msg jetstream.Msg, m rollout.WeightsManifest) {
	pass := w.pass
	w.hands.take(msg)
	w.running.Go(func() {
		defer w.freeSlot()
		defer w.hands.drop(msg)
		w.attempt(ctx, msg, m, pass)
	})
}

// attempt runs one task, stores its result, and then removes it from the
// queue. Whatever fails on the way leaves the task to be delivered again.
func (w *worker) attempt(ctx context.Context, msg jetstream.Msg, m rollout.WeightsManifest, pass []byte) {
	meta, err := msg.Metadata()
	if err != nil {
		w.opts.Log.Warn("message without metadata", "subject", msg.Subject(), "err", err)
		return
	}
	id, err := parseSubject(msg.Subject())
	if err != nil {
		w.opts.Log.Warn("not a task", "err", err)
		return
	}
	r, err := w.outcome(ctx, id, msg.Data(), m)
	if err != nil {
		w.opts.Log.Warn("task given back", "task", id, "deliveries", meta.NumDelivered, "err", err)
		w.giveBack(msg, retryDelay(ctx))
		return
	}
	r.deliveries, r.pass, r.digest = int(meta.NumDelivered), pass, m.Digest
	ctx, cancel := outlive(ctx, storeFor)
	defer cancel()
	if err := w.finish(ctx, msg, id, r); err != nil {
		w.opts.Log.Warn("task not finished, it will be delivered again", "task", id, "err", err)
	}
}

func retryDelay(ctx context.Context) time.Duration {
	if ctx.Err() != nil {
		return 0 // nothing is wrong with the task
	}
	return retryAfter
}

// outlive returns a context that ends d after ctx does.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return longer, func() { stop(); cancel() }
}

// outcome runs the engine. A task that cannot be read is lost, at once: it
// would be no more readable elsewhere.
func (w *worker) outcome(ctx context.Context, id rollout.TaskID, data []byte, m rollout.WeightsManifest) (result, error) {
	t, err := decodeTask(data)
	switch {
	case err != nil:
		return result{lost: &lost{id, ReasonPoison, err.Error()}}, nil
	case t.ID != id || t.Version != m.Version:
		detail := fmt.Sprintf("its content names %v of version %d, not of %d", t.ID, t.Version, m.Version)
		return result{lost: &lost{id, ReasonPoison, detail}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.opts.TaskTimeout)
	defer cancel()
	trajectory, err := w.engine.Run(ctx, t)
	if err != nil {
		return result{}, err
	}
	trajectory.Worker = w.opts.Name
	return result{trajectory: &trajectory}, nil
}

// finish stores the result, then acknowledges the task and waits for the
// server's word that it did.
func (w *worker) finish(ctx context.Context, msg jetstream.Msg, id rollout.TaskID, r result) error {
	data, err := encodeResult(r)
	if err != nil {
		data, err = encodeResult(result{lost: &lost{id, ReasonTooLarge, err.Error()}, deliveries: r.deliveries})
	}
	if err != nil {
		return err
	}
	first, err := store(ctx, w.js, resultSubject(id), data, w.opts.Log)
	if err != nil {
		return err
	}
	if !first {
		w.opts.Log.Debug("another result was there first", "task", id)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return msg.DoubleAck(ctx)
}

func (w *worker) giveBack(msg jetstream.Msg, delay time.Duration) {
	nak := msg.Nak
	if delay > 0 {
		nak = func() error { return msg.NakWithDelay(delay) }
	}
	err := nak()
	if err != nil {
		w.opts.Log.Warn("task not given back, it waits for AckWait", "subject", msg.Subject(), "err", err)
	}
}
