package toolserver

import (
	"context"
	"errors"
	"sync"
	"time"

	"xragent/rollout"
)

// A Record is one call for metrics: what happened, never what it was about.
type Record struct {
	Tool     string // a tool's name, "measure" or "unknown"
	Status   string // ok, invalid, error, deadline, cancelled, image or failed
	CacheHit bool
	Latency  time.Duration
	Stack    string // where a tool panicked; otherwise empty
}

func statusOf(obs rollout.Observation, err error) string {
	_, badImage := errors.AsType[*ImageError](err)
	switch {
	case badImage:
		return "image"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case err != nil:
		return "failed"
	case obs.Invalid:
		return "invalid"
	case obs.Error != "":
		return "error"
	}
	return "ok"
}

func (s *Server) observe(r Record) {
	s.tally.add(r)
	if s.cfg.Observe != nil {
		s.cfg.Observe(r)
	}
}

// Stats counts one tool's calls since the server was made.
type Stats struct {
	Calls     int            `json:"calls"`
	CacheHits int            `json:"cache_hits"`
	ByStatus  map[string]int `json:"by_status"`
	Seconds   float64        `json:"seconds"` // summed
	Slowest   float64        `json:"slowest_seconds"`
}

type tally struct {
	mu     sync.Mutex
	byTool map[string]*Stats
}

func (t *tally) add(r Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byTool == nil {
		t.byTool = map[string]*Stats{}
	}
	s := t.byTool[r.Tool]
	if s == nil {
		s = &Stats{ByStatus: map[string]int{}}
		t.byTool[r.Tool] = s
	}
	s.Calls++
	s.ByStatus[r.Status]++
	if r.CacheHit {
		s.CacheHits++
	}
	s.Seconds += r.Latency.Seconds()
	s.Slowest = max(s.Slowest, r.Latency.Seconds())
}

// Stats returns a copy of the counts of one tool, or of "measure".
func (s *Server) Stats(tool string) Stats {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	out := Stats{ByStatus: map[string]int{}}
	if st := s.tally.byTool[tool]; st != nil {
		out = *st
		out.ByStatus = map[string]int{}
		for k, v := range st.ByStatus {
			out.ByStatus[k] = v
		}
	}
	return out
}
