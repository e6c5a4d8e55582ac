package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// A progress shows how far long work has come: a bar on a terminal, a plain
// line at most every few seconds elsewhere.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	name  string
	bar   *progressbar.ProgressBar
	start time.Time
	last  time.Time
	done  bool
}

const plainInterval = 10 * time.Second

func newProgress(w io.Writer, name string) *progress {
	now := time.Now()
	return &progress{w: w, name: name, start: now, last: now}
}

// at reports that done of total are finished.
func (p *progress) at(done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || total == 0 {
		return
	}
	p.done = done >= total
	if isTerminal(p.w) {
		p.draw(done, total)
		return
	}
	if now := time.Now(); p.done || now.Sub(p.last) >= plainInterval {
		p.last = now
		fmt.Fprintf(p.w, "%s %d/%d (%.0f s)\n", p.name, done, total, now.Sub(p.start).Seconds())
	}
}

func (p *progress) draw(done, total int) {
	if p.bar == nil {
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(p.w), progressbar.OptionSetDescription(p.name),
			progressbar.OptionSetWidth(30), progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionOnCompletion(func() { fmt.Fprintln(p.w) }))
	}
	_ = p.bar.Set(done) // drawing may fail on a closed terminal; the work goes on
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
