package toolserver

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// A flight computes values by key: from the cache, or once for all that ask at
// the same time, within a number of slots and a deadline.
type flight[V any] struct {
	group singleflight.Group
	cache *cache[V]
	slots chan struct{} // nil: unlimited
}

func newFlight[V any](c *cache[V], slots chan struct{}) *flight[V] {
	return &flight[V]{cache: c, slots: slots}
}

// notCached is the size of a value that is not to be kept.
const notCached = -1

// do returns the value of k, and whether it came from the cache. compute also
// returns the value's size for the cache. A caller that gives up leaves the
// computation to the others. One past its deadline goes on, because a goroutine
// cannot be stopped from outside, but gives its slot back: what hangs must not
// hold up the rest for ever.
func (f *flight[V]) do(ctx context.Context, k key, deadline time.Duration, compute func(context.Context) (V, int, error)) (value V, hit bool, err error) {
	if value, hit = f.cache.get(k); hit {
		return value, true, nil
	}
	wait, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("no result within %v: %w", deadline, context.DeadlineExceeded))
	defer cancel()
	done := f.group.DoChan(string(k[:]), func() (any, error) {
		return f.run(context.WithoutCancel(ctx), k, deadline, compute)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return value, false, r.Err
		}
		return r.Val.(V), false, nil
	case <-wait.Done():
		return value, false, context.Cause(wait)
	}
}

func (f *flight[V]) run(ctx context.Context, k key, deadline time.Duration, compute func(context.Context) (V, int, error)) (value V, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if f.slots != nil {
		select {
		case f.slots <- struct{}{}:
			release := sync.OnceFunc(func() { <-f.slots })
			context.AfterFunc(ctx, release)
			defer release()
		case <-ctx.Done():
			return value, fmt.Errorf("no free slot of %d within %v: %w", cap(f.slots), deadline, ctx.Err())
		}
	}
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
	}()
	value, bytes, err := compute(ctx)
	if err == nil && bytes != notCached {
		f.cache.put(k, value, bytes)
	}
	return value, err
}

// A panicError is a panic in a tool, kept from taking the others down.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }
