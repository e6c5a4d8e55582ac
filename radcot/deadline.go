package radcot

import (
	"context"
	"fmt"
	"time"
)

// retried calls do with a deadline, and once more where it failed.
func retried[T any](ctx context.Context, timeout time.Duration, do func(context.Context) (T, error)) (T, error) {
	out, err := within(ctx, timeout, do)
	if err != nil && ctx.Err() == nil {
		out, err = within(ctx, timeout, do)
	}
	return out, err
}

// within waits at most timeout for do, also where do does not heed its context.
func within[T any](ctx context.Context, timeout time.Duration, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	type result struct {
		out T
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := do(ctx)
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}
