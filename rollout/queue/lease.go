package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
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
	q.background(ctx, func(ctx context.Context) { q.keepWatching(ctx, kv) })
	return nil
}

// keepWatching watches the leases until ctx ends, anew after each reconnection:
// a restarted server has forgotten who was watching.
func (q *Queue) keepWatching(ctx context.Context, kv jetstream.KeyValue) {
	nc := q.js.Conn()
	reconnected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(reconnected)
	held := make(map[string]string) // by worker
	for pause := firstBackoff; ctx.Err() == nil; {
		err := q.watchLeases(ctx, kv, held, reconnected)
		if err == nil {
			pause = firstBackoff
			continue
		}
		q.opts.Log.Debug("waiting for the server", "to", "watch leases", "err", err)
		_ = sleep(ctx, pause) // the loop looks at ctx
		pause = min(2*pause, lastBackoff)
	}
}

// watchLeases keeps held up to date and hands back what lost workers held,
// until again says that a new watch is due.
func (q *Queue) watchLeases(ctx context.Context, kv jetstream.KeyValue, held map[string]string, again <-chan nats.Status) error {
	watch, err := kv.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer watch.Stop()
	alive := make(map[string]bool)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again:
			return nil
		case entry, ok := <-watch.Updates():
			switch {
			case !ok:
				return errors.New("the watch ended")
			case entry == nil: // what was there at the start is complete
				q.handBackAllBut(alive, held)
			case entry.Operation() == jetstream.KeyValuePut:
				held[entry.Key()] = string(entry.Value())
				alive[entry.Key()] = true
			default:
				q.handBack(entry.Key(), held)
			}
		}
	}
}

// handBackAllBut hands back what workers held whose leases ran out while
// nobody watched.
func (q *Queue) handBackAllBut(alive map[string]bool, held map[string]string) {
	for _, worker := range slices.Sorted(maps.Keys(held)) {
		if !alive[worker] {
			q.handBack(worker, held)
		}
	}
}

// nak is what a worker would send to give a task back.
var nak = []byte("-NAK")

func (q *Queue) handBack(worker string, held map[string]string) {
	tasks := strings.Fields(held[worker])
	delete(held, worker)
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
