package study

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A Job is one piece of work. It begins once those named in After have ended
// well.
type Job struct {
	Name  string
	After []string
	Do    func(context.Context) error
}

// ErrSkipped is wrapped by the error of a job that was not begun, since one
// that it needs failed or ctx had ended.
var ErrSkipped = errors.New("not begun")

// Schedule runs jobs, at most limit at once, each time the first that is free to
// begin. Jobs that do not need one that failed still run. It returns the errors
// of all, in the jobs' order, each with the job's name. A job must come behind
// those that it needs.
func Schedule(ctx context.Context, limit int, jobs []Job) error {
	s := &schedule{jobs: jobs, states: make([]state, len(jobs)), errs: make([]error, len(jobs)), ended: make(chan int)}
	s.check()
	for busy := 0; ; {
		for i := s.next(ctx); i >= 0 && busy < limit; i = s.next(ctx) {
			s.states[i] = running
			busy++
			go func() {
				s.errs[i] = jobs[i].Do(ctx)
				s.ended <- i
			}()
		}
		if busy == 0 {
			return s.err()
		}
		i := <-s.ended
		busy--
		s.states[i] = done
		if s.errs[i] != nil {
			s.states[i] = failed
		}
	}
}

type state int

const (
	waiting state = iota
	running
	done
	failed
)

type schedule struct {
	jobs   []Job
	states []state
	errs   []error // of a running job the job's own
	ended  chan int
}

func (s *schedule) find(name string) int {
	return slices.IndexFunc(s.jobs, func(j Job) bool { return j.Name == name })
}

func (s *schedule) check() {
	for i, j := range s.jobs {
		for _, need := range j.After {
			if at := s.find(need); at < 0 || at >= i {
				panic("study: job " + j.Name + " needs " + need + ", which is not before it")
			}
		}
	}
}

// next returns the first job that is free to begin, or -1. On its way it gives
// up those that never will be.
func (s *schedule) next(ctx context.Context) int {
	for i, j := range s.jobs {
		if s.states[i] != waiting {
			continue
		}
		free := true
		for _, need := range j.After {
			switch s.states[s.find(need)] {
			case failed:
				s.skip(i, errors.New("one that it needs failed"))
			case done:
			default:
				free = false
			}
		}
		if s.states[i] == waiting && ctx.Err() != nil {
			s.skip(i, context.Cause(ctx))
		}
		if s.states[i] == waiting && free {
			return i
		}
	}
	return -1
}

func (s *schedule) skip(i int, why error) {
	s.states[i], s.errs[i] = failed, fmt.Errorf("%w: %w", ErrSkipped, why)
}

func (s *schedule) err() error {
	var all []error
	for i, err := range s.errs {
		if err != nil {
			all = append(all, fmt.Errorf("%s: %w", s.jobs[i].Name, err))
		}
	}
	return errors.Join(all...)
}
