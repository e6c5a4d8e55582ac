package loop

import (
	"context"
	"fmt"
	"sync"
	"time"

	"xragent/rollout"
)

// callTools executes turn 1's calls at once and waits for all. It returns the
// images they gave, parallel to the calls; the first failure in call order is
// the error.
func (r *run) callTools(ctx context.Context) ([][]byte, error) {
	defer r.time("tools")()
	limit := r.cfg.KMax
	if !r.task.Tools || r.t.Stop != "" {
		limit = 0
	}
	calls := r.t.Calls
	png, errs := make([][]byte, len(calls)), make([]error, len(calls))
	var wg sync.WaitGroup
	for i := range calls {
		switch {
		case i >= limit:
			calls[i].Status = rollout.CallOverLimit
		case calls[i].Status == rollout.CallMalformed:
			calls[i].Observation = "not a tool call: want a JSON object with name and arguments"
		default:
			wg.Go(func() { png[i], errs[i] = r.call(ctx, &calls[i]) })
		}
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("tool call %d (%s): %w", i+1, calls[i].Tool, err)
		}
	}
	return png, nil
}

// call executes one call and writes down what came of it.
func (r *run) call(ctx context.Context, c *rollout.Call) ([]byte, error) {
	start := time.Now()
	obs, err := retried(ctx, r.cfg.CallTimeout, func(ctx context.Context) (rollout.Observation, error) {
		return r.tools.Call(ctx, c.Tool, c.Arguments, r.images, r.task.Prompt.Images)
	})
	if err != nil {
		return nil, err
	}
	c.LatencyMS = float64(time.Since(start)) / float64(time.Millisecond)
	c.Record(obs)
	if c.Status != rollout.CallOK {
		return nil, nil
	}
	return obs.PNG, nil
}

// attach keeps the returned images, in call order, while the trajectory may
// have more.
func (r *run) attach(png [][]byte) {
	room := r.cfg.MaxImages - len(r.images)
	for i, data := range png {
		if data == nil {
			continue
		}
		c := &r.t.Calls[i]
		if room == 0 {
			c.Observation += fmt.Sprintf("\nno image: the limit of %d is reached", r.cfg.MaxImages)
			continue
		}
		room--
		c.Image = digest(data)
		if r.attachment(c.Image) == nil {
			r.t.Attachments = append(r.t.Attachments, rollout.Attachment{SHA256: c.Image, PNG: data})
		}
	}
}

func (r *run) attachment(sha string) []byte {
	for _, a := range r.t.Attachments {
		if a.SHA256 == sha {
			return a.PNG
		}
	}
	return nil
}

// crops returns the images of the calls in order; the same image twice is two.
func (r *run) crops() [][]byte {
	var out [][]byte
	for _, c := range r.t.Calls {
		if c.Image != "" {
			out = append(out, r.attachment(c.Image))
		}
	}
	return out
}

// observed returns the calls that turn 2 is told about.
func observed(calls []rollout.Call) []rollout.Call {
	var out []rollout.Call
	for _, c := range calls {
		if c.Status != rollout.CallOverLimit {
			out = append(out, c)
		}
	}
	return out
}

// retried calls do, and once more where it failed or its deadline passed.
func retried[T any](ctx context.Context, timeout time.Duration, do func(context.Context) (T, error)) (T, error) {
	out, err := within(ctx, timeout, do)
	if err != nil && ctx.Err() == nil {
		out, err = within(ctx, timeout, do)
	}
	return out, err
}

// within calls do and waits at most timeout for it, also where do does not heed
// its context.
func within[T any](ctx context.Context, timeout time.Duration, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%w of %v", errDeadline, timeout))
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
	case res := <-done:
		if res.err != nil && ctx.Err() != nil {
			res.err = context.Cause(ctx)
		}
		return res.out, res.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}
