package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"xragent/chat"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// EngineOptions sets what an [Engine] may use. None of it changes a result.
type EngineOptions struct {
	Processor  Processor // nil: requests with images are refused
	MaxBatch   int       // sequences decoded at a time; 0: 64
	Threads    int       // 0: GOMAXPROCS
	CacheBytes int       // finished sequences kept for their prefixes; 0: 256 MiB, negative: none
}

func (o EngineOptions) withDefaults() EngineOptions {
	if o.MaxBatch == 0 {
		o.MaxBatch = 64
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 256 << 20
	}
	return o
}

// An Engine samples turns from one version of the weights at a time; it is a
// [loop.Sampler]. One goroutine owns the batch: requests join it at any step
// and leave it when they end.
//
// What it returns depends on the weights and the request alone, bit for bit:
// not on what shares the batch, the number of threads, or whether a prefix was
// found in the cache.
//
// Log-probs are those of the sampled ids under a softmax over the whole
// vocabulary at the temperature of the sampling, 1 where decoding is greedy, as
// the learner recomputes them. With top-p they are not the probabilities that
// ids were drawn with. The
// image and video pad ids are never sampled.
type Engine struct {
	cfg      Config
	opts     EngineOptions
	images   imageCache
	counters counters

	arrivals chan *sequence
	controls chan *control
	closing  chan struct{} // closed by Close
	closed   chan struct{} // closed when the owner has stopped
	once     sync.Once
}

// EngineStats counts what an engine has done since it started.
type EngineStats struct {
	Sequences int64 // turns begun
	Prompt    int64 // prompt rows asked for
	Reused    int64 // of those, taken over from a cache
	Sampled   int64 // ids sampled
}

var (
	_ loop.Sampler = (*Engine)(nil)
	_ Processor    = chat.Processor{}
)

type counters struct{ sequences, prompt, reused, sampled atomic.Int64 }

var errClosed = errors.New("the engine is closed")

// NewEngine starts an engine for models of configuration cfg. It holds no
// weights until [Engine.Load]; the caller must Close it.
func NewEngine(cfg Config, opts EngineOptions) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if opts.MaxBatch < 0 || opts.Threads < 0 {
		return nil, fmt.Errorf("engine: max batch %d and threads %d must not be negative (0: the default)", opts.MaxBatch, opts.Threads)
	}
	e := &Engine{
		cfg:      cfg,
		opts:     opts.withDefaults(),
		arrivals: make(chan *sequence, 256),
		controls: make(chan *control),
		closing:  make(chan struct{}),
		closed:   make(chan struct{}),
	}
	e.images.lru.limit = 64 << 20
	go e.run()
	return e, nil
}

// Close ends the engine; turns in progress fail. It returns when the engine's
// goroutine has stopped.
func (e *Engine) Close() error {
	e.once.Do(func() { close(e.closing) })
	<-e.closed
	return nil
}

// Stats returns the counters.
func (e *Engine) Stats() EngineStats {
	c := &e.counters
	return EngineStats{c.sequences.Load(), c.prompt.Load(), c.reused.Load(), c.sampled.Load()}
}

// Load replaces the weights by a copy of w, as version v, once the turns in
// progress have ended. Caches of the version before are dropped.
func (e *Engine) Load(w *Weights, v rollout.PolicyVersion) error {
	if !bytes.Equal(w.cfg.JSON(), e.cfg.JSON()) {
		return fmt.Errorf("engine: version %d has another model configuration than the engine; start an engine for it", v)
	}
	d := newDecoder(w)
	return e.control(context.Background(), true, func(s *scheduler) error {
		s.load(d, v)
		return nil
	})
}

// Score returns the log-softmax of ids[1:], each given the ids before it, under
// the loaded weights. ids are text.
func (e *Engine) Score(ctx context.Context, ids []int32) ([]float32, error) {
	if err := e.checkIDs(ids); err != nil {
		return nil, fmt.Errorf("score: %w", err)
	}
	var logprobs []float32
	err := e.control(ctx, false, func(s *scheduler) (err error) {
		logprobs, err = s.score(ctx, ids)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("score: %w", err)
	}
	return logprobs, nil
}

// Sample samples one turn. A request for another version than the loaded one,
// a prompt that does not fit, and images that cannot be read are errors. When
// ctx ends, Sample returns and the turn is dropped.
func (e *Engine) Sample(ctx context.Context, req loop.SampleRequest) (loop.SampleResult, error) {
	q, err := e.prepare(ctx, req)
	if err != nil {
		return loop.SampleResult{}, fmt.Errorf("sample: %w", err)
	}
	select {
	case e.arrivals <- q:
	case <-ctx.Done():
		return loop.SampleResult{}, ctx.Err()
	case <-e.closing:
		return loop.SampleResult{}, fmt.Errorf("sample: %w", errClosed)
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		return loop.SampleResult{}, ctx.Err()
	case <-e.closed:
		return loop.SampleResult{}, fmt.Errorf("sample: %w", errClosed)
	}
	if q.err != nil {
		return loop.SampleResult{}, fmt.Errorf("sample: %w", q.err)
	}
	return q.result(), nil
}

func (e *Engine) checkIDs(ids []int32) error {
	if len(ids) == 0 {
		return errors.New("prompt is empty")
	}
	if limit := e.cfg.Text.MaxPositionEmbeddings; len(ids) >= limit {
		return fmt.Errorf("prompt has %d ids, the model takes fewer than %d; shorten it", len(ids), limit)
	}
	for i, id := range ids {
		if id < 0 || int(id) >= e.cfg.Text.VocabSize {
			return fmt.Errorf("prompt id %d at %d lies outside the vocabulary of %d", id, i, e.cfg.Text.VocabSize)
		}
	}
	return nil
}

// A control is work for the owner between two steps.
type control struct {
	drain bool // only when no turn is in progress
	run   func(*scheduler) error
	done  chan error
}

// control has the owner run f. It returns early when ctx ends; f may then
// still run.
func (e *Engine) control(ctx context.Context, drain bool, f func(*scheduler) error) error {
	c := &control{drain, f, make(chan error, 1)}
	select {
	case e.controls <- c:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.closing:
		return errClosed
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-e.closed:
		return errClosed
	}
}

// run is the owner.
func (e *Engine) run() {
	defer close(e.closed)
	s := newScheduler(e.cfg, e.opts, &e.counters)
	for e.receive(s) {
		s.step()
	}
}

// gather takes the requests that come right behind one another: the turns of a
// step are asked for at once, and a batch that began with the first alone would
// keep one thread busy.
func (e *Engine) gather(s *scheduler) {
	patience := time.NewTimer(burst)
	defer patience.Stop()
	for len(s.waiting) < s.opts.MaxBatch {
		select {
		case q := <-e.arrivals:
			s.waiting = append(s.waiting, q)
			patience.Reset(burst)
		case <-patience.C:
			return
		case <-e.closing:
			return
		}
	}
}

// burst is how long a request may come behind another and still be of the same
// batch: far less than a prefill takes.
const burst = 500 * time.Microsecond

// receive takes what has arrived, and waits only where there is nothing to
// step. It returns false when the engine closes.
func (e *Engine) receive(s *scheduler) bool {
	for {
		if s.idle() {
			select {
			case q := <-e.arrivals:
				s.waiting = append(s.waiting, q)
				e.gather(s)
			case c := <-e.controls:
				s.take(c)
			case <-e.closing:
				return false
			}
			continue
		}
		select {
		case q := <-e.arrivals:
			s.waiting = append(s.waiting, q)
		case c := <-e.controls:
			s.take(c)
		case <-e.closing:
			return false
		default:
			return true
		}
	}
}
