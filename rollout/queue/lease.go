package queue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A lease is a worker's sign of life: one key a worker, holding the subjects
// that acknowledge the tasks in its hands, one a line. The bucket lets a key
// run out after LeaseTTL, and the coordinator then hands the tasks back to the
// queue in the worker's name. Without a lease the same happens after AckWait.
//
// A live worker whose lease ran out by mistake loses nothing but time: its
// tasks run twice, and the second result finds the place taken.

// markerTTL is how long the server keeps the note that a key ran out; it must
// be a second at least.
const markerTTL = 10 * time.Second

func (q *Queue) followLeases(ctx context.Context) error {
	kv, err := q.bucket(ctx, jetstream.KeyValueConfig{
		Bucket: leaseBucket(q.opts.Run), TTL: q.opts.LeaseTTL, LimitMarkerTTL: markerTTL,
	})
	if err != nil {
		return err
	}
	watch, err := kv.WatchAll(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", kv.Bucket(), err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.watchLeases(watch.Updates())
	}()
	q.onClose(func() {
		_ = watch.Stop() // fails only on a closed connection
		<-done
	})
	return nil
}

func (q *Queue) watchLeases(updates <-chan jetstream.KeyValueEntry) {
	held := make(map[string]string) // by worker
	for entry := range updates {
		switch {
		case entry == nil: // the end of what was there at the start
		case entry.Operation() == jetstream.KeyValuePut:
			held[entry.Key()] = string(entry.Value())
		default:
			q.handBack(entry.Key(), held[entry.Key()])
			delete(held, entry.Key())
		}
	}
}

// nak is what a worker would send to give a task back.
var nak = []byte("-NAK")

func (q *Queue) handBack(worker, lines string) {
	tasks := strings.Fields(lines)
	if len(tasks) == 0 {
		return // it left in order
	}
	for _, subject := range tasks {
		if !strings.HasPrefix(subject, "$JS.ACK."+tasksStream+".") {
			continue // a lease may not speak to anything else
		}
		if err := q.js.Conn().Publish(subject, nak); err != nil {
			q.opts.Log.Warn("task not handed back, it waits for AckWait", "worker", worker, "err", err)
		}
	}
	q.opts.Log.Warn("worker lost", "worker", worker, "tasks", len(tasks))
	q.opts.OnEvent(Event{Kind: WorkerLost, Worker: worker, Tasks: len(tasks)})
}
