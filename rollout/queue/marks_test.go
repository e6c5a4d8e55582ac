package queue

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever the order of acknowledgements, no sequence below the mark lacks
// one, and the first above it does.
func TestMarksProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &marks{open: make(map[uint64]bool), changed: make(chan struct{}, 1), earlier: 3}
		var seqs []uint64
		acked := make(map[uint64]bool)
		last := uint64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(seqs) == 0 || rapid.Bool().Draw(t, "deliver") {
				last += rapid.Uint64Range(1, 3).Draw(t, "gap") // other runs' results lie between
				before, isNew := m.deliver(last)
				if !isNew || before != (last <= 3) {
					t.Fatalf("deliver(%d) = %v, %v", last, before, isNew)
				}
				if _, again := m.deliver(last); again {
					t.Fatalf("deliver(%d) twice", last)
				}
				seqs = append(seqs, last)
				continue
			}
			seq := rapid.SampledFrom(seqs).Draw(t, "ack")
			m.ack(seq)
			acked[seq] = true
			for _, s := range seqs {
				if s <= m.acked && !acked[s] {
					t.Fatalf("mark at %d, but %d is not acknowledged", m.acked, s)
				}
			}
			if len(acked) == len(seqs) && m.acked != last {
				t.Fatalf("mark at %d with everything up to %d acknowledged", m.acked, last)
			}
		}
	})
}
