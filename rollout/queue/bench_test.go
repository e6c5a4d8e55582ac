package queue

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"xragent/rollout"
)

// padded returns an engine whose results are about size bytes on the wire.
func padded(size int) *engine {
	pad := make([]byte, size-200)
	return &engine{run: func(_ context.Context, t rollout.Task) (rollout.Trajectory, error) {
		tr := trajectory(t)
		tr.Attachments = []rollout.Attachment{{SHA256: "x", PNG: pad}}
		return tr, nil
	}}
}

func crew(b *testing.B, workers, slots, size int) *bench {
	w := newBench(b, Options{})
	w.open(0)
	for i := range workers {
		w.worker(fmt.Sprintf("w%d", i), slots, padded(size))
	}
	eventually(b, "workers proved", func() bool { return w.count(WorkerProved) == workers })
	b.ResetTimer()
	return w
}

// BenchmarkDurable counts trajectories from publication to the coordinator's
// acknowledgement, stored on the way.
func BenchmarkDurable(b *testing.B) {
	for _, size := range []int{16 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("%dKB/8workers", size>>10), func(b *testing.B) {
			w := crew(b, 8, 4, size)
			done := make(chan error, 1)
			go func() {
				for step := 0; step*64 < b.N; step++ {
					if err := w.queue.Publish(context.Background(), tasks(0, step, min(64, b.N-step*64))); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for range b.N {
				if err := w.next().Ack(); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trajectories/s")
		})
	}
}

// BenchmarkOverhead measures what the queue adds to a task that takes no time,
// with one task under way.
func BenchmarkOverhead(b *testing.B) {
	w := crew(b, 8, 4, 16<<10)
	took := make([]time.Duration, b.N)
	for i := range b.N {
		begin := time.Now()
		w.publish(task(0, i, 0))
		d := w.next()
		took[i] = time.Since(begin)
		if err := d.Ack(); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[b.N/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(took[b.N*99/100].Microseconds())/1000, "ms-p99")
}
