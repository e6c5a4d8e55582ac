package study

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// A Job is one piece of work. It begins once those named in After have ended
// well.
type Job struct {
	Name  string
	After []string
	Do    func(context.Context) error
}

// ErrSkipped is wrapped by the error of a job that was not begun, since one
// that it needs failed.
var ErrSkipped = errors.New("not begun")

// Schedule runs jobs, at most limit at once and in their order where they are
// free to. Jobs that do not need one that failed still run. It returns the
// errors of all, in the jobs' order, each with the job's name. A job must come
// behind those that it needs.
func Schedule(ctx context.Context, limit int, jobs []Job) error {
	states := make(map[string]*state, len(jobs))
	for _, j := range jobs {
		s := &state{done: make(chan struct{})}
		for _, name := range j.After {
			need, ok := states[name]
			if !ok {
				panic("study: job " + j.Name + " needs " + name + ", which is not before it")
			}
			s.needs = append(s.needs, need)
		}
		states[j.Name] = s
	}
	turn := newTurnstile(limit, len(jobs))
	var wg sync.WaitGroup
	errs := make([]error, len(jobs))
	for i, j := range jobs {
		wg.Go(func() {
			s := states[j.Name]
			defer close(s.done)
			if s.err = s.run(ctx, turn, i, j); s.err != nil {
				errs[i] = fmt.Errorf("%s: %w", j.Name, s.err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A state is what has become of a job; err is set before done is closed.
type state struct {
	needs []*state
	done  chan struct{}
	err   error
}

func (s *state) run(ctx context.Context, turn *turnstile, place int, j Job) error {
	for _, need := range s.needs {
		<-need.done // which ends soon once ctx has
		if need.err != nil {
			turn.leave(place)
			return fmt.Errorf("%w: one that it needs failed", ErrSkipped)
		}
	}
	turn.enter(place)
	defer turn.leave(place)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrSkipped, context.Cause(ctx))
	}
	return j.Do(ctx)
}

// A turnstile lets a number of jobs in at once; of those that wait the first
// in order goes first.
type turnstile struct {
	mu      sync.Mutex
	free    int
	inside  []bool
	waiting []chan struct{} // nil: not waiting
}

func newTurnstile(limit, jobs int) *turnstile {
	return &turnstile{free: limit, inside: make([]bool, jobs), waiting: make([]chan struct{}, jobs)}
}

func (t *turnstile) enter(place int) {
	t.mu.Lock()
	entered := make(chan struct{})
	t.waiting[place] = entered
	t.admit()
	t.mu.Unlock()
	<-entered
}

// leave gives the place of a job to the next; of one that never entered there
// is none to give.
func (t *turnstile) leave(place int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inside[place] {
		t.inside[place] = false
		t.free++
	}
	t.admit()
}

func (t *turnstile) admit() {
	for t.free > 0 {
		i := slices.IndexFunc(t.waiting, func(c chan struct{}) bool { return c != nil })
		if i < 0 {
			return
		}
		close(t.waiting[i])
		t.waiting[i], t.inside[i] = nil, true
		t.free--
	}
}
