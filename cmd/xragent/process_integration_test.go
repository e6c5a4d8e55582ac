//go:build integration

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"xragent/trainer"
)

// pipeline is as small as a run can be that still learns: enough SFT that
// turns come to an end, cite and call, so that the additive reward differs
// within a group and every GRPO step moves the weights.
const pipeline = `
run: {name: tiny, seed: 7}
stages: [data, corpus, sft, grpo]
data: {phantom: {train: 40, validation: 8, test: 8}}
corpus: {samples: 40}
policy: {embedded: {threads: 1}}
sft: {max_steps: 100, eval_every: 50, batch_tokens: 2048, optimizer: {lr: 0.002, warm_up: 10}}
grpo: {steps: 8, prompts: 2, group_size: 4, checkpoint_every: 2, max_tokens: 96}
reward: {variant: additive}
tools: {deadline: 5m}
queue: {ack_wait: 5s}
web: {listen: ""}
`

// limit bounds one process; none needs a tenth of it on an idle machine.
const limit = 30 * time.Minute

// A run is a run's folder under test, and how it is started.
type run struct {
	config string // pipeline file
	dir    string // holds the run's folder
}

func (r run) path(parts ...string) string {
	return filepath.Join(append([]string{r.dir, "tiny"}, parts...)...)
}

// copied returns a copy of a run that the test removes at its end.
func (r run) copied(t *testing.T) run {
	t.Helper()
	to := run{r.config, t.TempDir()}
	if err := os.CopyFS(to.dir, os.DirFS(r.dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// start starts a command on the run, such as grpo.
func (r run) start(t *testing.T, command string, more ...string) *process {
	t.Helper()
	return start(t, append([]string{command, r.config, "--set", "run.dir=" + r.dir}, more...)...)
}

// finish continues the run to its end.
func (r run) finish(t *testing.T, more ...string) {
	t.Helper()
	r.start(t, "grpo", append(more, "--resume")...).succeed(t)
}

// accepted counts the ledger's trajectories by place, and those that were
// delivered more than once.
func (r run) accepted(t *testing.T) (places map[string]int, redelivered int) {
	t.Helper()
	places = map[string]int{}
	r.ledger(t, func(e trainer.Entry) {
		if e.Accepted == nil {
			return
		}
		id := e.Accepted.Task
		id.Attempt = 0
		places[id.String()]++
		if e.Redelivered {
			redelivered++
		}
	})
	return places, redelivered
}

// ledger reads what the ledger holds so far. It may not be there yet.
func (r run) ledger(t *testing.T, each func(trainer.Entry)) {
	t.Helper()
	err := trainer.ReadLedger(r.path("grpo"), func(e trainer.Entry) error {
		each(e)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// steps is how many whole lines the step log has.
func (r run) steps() int {
	text, _ := os.ReadFile(r.path("grpo", "steps.jsonl")) // not there yet: no step
	return bytes.Count(text, []byte("\n"))
}

// A process is the program, started, with what it said on stderr.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu  sync.Mutex
	log bytes.Buffer
}

// start starts the program under test. It is killed at the test's end.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	bin := os.Getenv("XRAGENT_BIN")
	if bin == "" {
		t.Fatal("XRAGENT_BIN names no program: run make integration, or set it to a built xragent")
	}
	p := &process{cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit state is looked at by the test
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // ended already, mostly
		<-p.done
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), p.stderr())
		}
	})
	return p
}

// Write keeps what the process says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// until waits until there is what is looked for. It reports false when the
// process ended first.
func (p *process) until(t *testing.T, there func() bool) bool {
	t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if there() {
			return true
		}
		if p.ended() {
			return false
		}
	}
	t.Fatalf("not seen within %v", limit)
	return false
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// says waits for a line that holds text and returns it.
func (p *process) says(t *testing.T, text string) (line string) {
	t.Helper()
	ok := p.until(t, func() bool {
		for l := range strings.Lines(p.stderr()) {
			if strings.Contains(l, text) && strings.HasSuffix(l, "\n") {
				line = l
				return true
			}
		}
		return false
	})
	if !ok {
		t.Fatalf("ended without saying %q", text)
	}
	return line
}

// wait waits for the end and returns the exit code; -1 when a signal ended it.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		t.Fatalf("still running after %v", limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) succeed(t *testing.T) {
	t.Helper()
	if code := p.wait(t); code != 0 {
		t.Fatalf("exit code %d, want 0", code)
	}
}

// kill ends the process as a crash would. It reports whether it still ran.
func (p *process) kill(t *testing.T) bool {
	t.Helper()
	_ = p.cmd.Process.Kill() // fails when it has ended
	return p.wait(t) == -1
}

func (p *process) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}
