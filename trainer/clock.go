package trainer

import "time"

// A stopwatch adds up the seconds of a step by phase.
type stopwatch struct {
	now     func() time.Time
	phase   string
	since   time.Time
	start   time.Time
	seconds map[string]float64
}

// enter ends the current phase and begins another.
func (w *stopwatch) enter(phase string) {
	now := w.now()
	if w.start.IsZero() {
		w.start = now
	}
	if w.phase != "" {
		w.add(w.phase, now.Sub(w.since).Seconds())
	}
	w.phase, w.since = phase, now
}

func (w *stopwatch) add(phase string, seconds float64) {
	if w.seconds == nil {
		w.seconds = map[string]float64{}
	}
	w.seconds[phase] += seconds
}

// lap ends a step of so many tokens. What follows counts for the next one.
func (w *stopwatch) lap(stage string, step, tokens int) StepTimes {
	w.enter("")
	end := w.since
	total := end.Sub(w.start).Seconds()
	w.add("total", total)
	t := StepTimes{Stage: stage, Step: step, Time: end.UTC().Format(time.RFC3339Nano), Seconds: w.seconds}
	if total > 0 {
		t.TokensPerSec = float64(tokens) / total
	}
	w.seconds, w.start = nil, end
	return t
}

// listeners fills in what was left out.
func listeners(notice func(string), observe func(StepRecord, StepTimes), now func() time.Time) (func(string), func(StepRecord, StepTimes), stopwatch) {
	if notice == nil {
		notice = func(string) {}
	}
	if observe == nil {
		observe = func(StepRecord, StepTimes) {}
	}
	if now == nil {
		now = time.Now
	}
	return notice, observe, stopwatch{now: now}
}
