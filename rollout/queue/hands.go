package queue

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// leaseGap spaces a worker's lease writes when tasks come and go quickly. A
// task taken less than this before its worker dies may have to wait for
// AckWait.
const leaseGap = 10 * time.Millisecond

// hands holds the tasks that a worker runs, and keeps telling the server so:
// by the worker's lease, and by a sign of life for each task.
type hands struct {
	mu      sync.Mutex
	held    map[string]jetstream.Msg // by the subject that acknowledges it
	ackWait time.Duration
	changed chan struct{} // one element when a task in hand is not in the lease
}

// start starts telling, and returns what stops it.
func (h *hands) start(lease jetstream.KeyValue, worker string, log *slog.Logger) (stop func()) {
	h.held, h.changed = make(map[string]jetstream.Msg), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.tell(ctx, lease, worker, log)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (h *hands) tell(ctx context.Context, lease jetstream.KeyValue, worker string, log *slog.Logger) {
	ttl := leaseTTL(lease)
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	write := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, ttl)
		defer cancel()
		if _, err := lease.Put(ctx, worker, []byte(h.lines())); err != nil {
			log.Debug("lease not written", "err", err)
		}
	}
	write(ctx)
	lastBeat := time.Now()
	for {
		select {
		case <-ctx.Done():
			write(context.WithoutCancel(ctx)) // an empty lease: it left in order
			return
		case <-h.changed:
			write(ctx)
			_ = sleep(ctx, leaseGap) // the loop looks at ctx
		case <-tick.C:
			write(ctx)
		}
		if wait := h.beatEvery(); wait > 0 && time.Since(lastBeat) >= wait {
			lastBeat = time.Now()
			h.beat(log)
		}
	}
}

// leaseTTL returns the bucket's time to live, or a second where it has none.
func leaseTTL(lease jetstream.KeyValue) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if status, err := lease.Status(ctx); err == nil && status.TTL() > 0 {
		return status.TTL()
	}
	return time.Second
}

// beat extends the time of every task in hand.
func (h *hands) beat(log *slog.Logger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, msg := range h.held {
		if err := msg.InProgress(); err != nil {
			log.Debug("sign of life not sent", "subject", msg.Subject(), "err", err)
		}
	}
}

// beatEvery is a quarter of the time that the server waits, since the ticks it
// is counted in are coarse.
func (h *hands) beatEvery() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ackWait / 4
}

func (h *hands) setAckWait(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ackWait = d
}

func (h *hands) take(msg jetstream.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[msg.Reply()] = msg
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *hands) drop(msg jetstream.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, msg.Reply()) // in the lease at the next tick; until then it does no harm there
}

func (h *hands) lines() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var subjects []string
	for subject := range h.held {
		subjects = append(subjects, subject)
	}
	slices.Sort(subjects)
	return strings.Join(subjects, "\n")
}
