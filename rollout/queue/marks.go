package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// marks remember how far the results of TRAJ have been delivered and
// acknowledged, so that a later Queue can go on from there. The server could
// keep the same in a durable consumer, but would then hold back for as long as
// its AckWait whatever it sent into a connection that broke; here a reader
// that lost its connection goes on at once behind what it delivered last.
//
// The marks are written a little after the fact. What an acknowledgement in
// the last moments before a crash left unwritten is delivered once more, and
// the ledger knows it.
type marks struct {
	mu        sync.Mutex
	acked     uint64 // every result up to this sequence is acknowledged
	delivered uint64 // the last sequence delivered
	earlier   uint64 // delivered by an earlier Queue
	open      map[uint64]bool
	changed   chan struct{}
}

const (
	marksKey = "marks"
	marksGap = 100 * time.Millisecond
)

// A markRecord is how marks are stored.
type markRecord struct {
	Acked     uint64 `json:"acked"`
	Delivered uint64 `json:"delivered"`
}

// readMarks restores the marks; last is the newest sequence of the stream,
// behind which no mark can lie unless the stream was made anew.
func readMarks(ctx context.Context, kv jetstream.KeyValue, last uint64) (*marks, error) {
	m := &marks{open: make(map[uint64]bool), changed: make(chan struct{}, 1)}
	entry, err := kv.Get(ctx, marksKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", kv.Bucket(), err)
	}
	var r markRecord
	if err := json.Unmarshal(entry.Value(), &r); err != nil {
		return nil, fmt.Errorf("bucket %s, key %s: %w", kv.Bucket(), marksKey, err)
	}
	if r.Acked <= last {
		m.acked, m.delivered, m.earlier = r.Acked, r.Acked, r.Delivered
	}
	return m, nil
}

// deliver notes the delivery of a sequence and reports whether it was
// delivered before. Sequences that this Queue has delivered are not new.
func (m *marks) deliver(seq uint64) (before, isNew bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seq <= m.delivered {
		return true, false
	}
	m.delivered = seq
	m.open[seq] = true
	return seq <= m.earlier, true
}

func (m *marks) ack(seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, seq)
	m.acked = m.delivered
	for s := range m.open {
		m.acked = min(m.acked, s-1)
	}
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// settled is the sequence up to which every result is acknowledged.
func (m *marks) settled() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.acked
}

func (m *marks) next() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.delivered + 1
}

func (m *marks) record() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return json.Marshal(markRecord{m.acked, max(m.delivered, m.earlier)})
}

// keep writes the marks after each change, until ctx ends, and then once more.
func (m *marks) keep(ctx context.Context, kv jetstream.KeyValue, log *slog.Logger) {
	for ctx.Err() == nil {
		select {
		case <-m.changed:
			m.write(kv, log)
			_ = sleep(ctx, marksGap) // the loop looks at ctx
		case <-ctx.Done():
		}
	}
	m.write(kv, log)
}

func (m *marks) write(kv jetstream.KeyValue, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	data, err := m.record()
	if err == nil {
		_, err = kv.Put(ctx, marksKey, data)
	}
	if err != nil {
		log.Warn("acknowledgements not written, some results will come again after a restart", "err", err)
	}
}
