//go:build integration

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/trainer"
)

// open are the settings of a run that other processes can join.
var open = []string{"--set", "queue.listen=127.0.0.1:0", "--set", "web.listen=127.0.0.1:0"}

var joinURL = regexp.MustCompile(`--url (\S+)`)

// joinable starts GRPO on a copy of the run and returns where to join it.
func joinable(t *testing.T, began run, more ...string) (r run, p *process, url string) {
	t.Helper()
	r = began.copied(t)
	p = r.start(t, "grpo", append(more, open...)...)
	match := joinURL.FindStringSubmatch(p.says(t, "workers may join"))
	if match == nil {
		t.Fatal("the run does not say where to join")
	}
	return r, p, match[1]
}

func hire(t *testing.T, url, name string) *process {
	t.Helper()
	return start(t, "worker", "rollout", "--url", url, "--run", "tiny", "--name", name, "--slots", "4")
}

// testWorkers runs GRPO on two processes that joined over TCP, one of which is
// killed again and again while it holds a task.
func testWorkers(t *testing.T, began run, ref outcome) {
	r, p, url := joinable(t, began, "--set", "queue.workers=0")
	steady := hire(t, url, "steady")
	lost := 0
	for i := 0; i < 3 && r.steps() < len(ref.steps)-1; i++ {
		name := fmt.Sprint("victim-", i)
		victim := hire(t, url, name)
		if p.until(t, func() bool { return holds(t, url, name) || r.steps() >= len(ref.steps)-1 }) && victim.kill(t) {
			lost++
		}
	}
	p.succeed(t)
	r.same(t, ref)
	exactlyOnce(t, r, ref)
	_, redelivered := r.accepted(t)
	if counted := counted(t, r); redelivered == 0 || counted < redelivered {
		t.Errorf("%d workers were killed with a task in hand: %d redelivered trajectories in the ledger, %d counted", lost, redelivered, counted)
	}
	t.Logf("%d workers killed, %d trajectories redelivered", lost, redelivered)
	steady.interrupt(t)
	steady.succeed(t)
}

// holds reports whether a worker's lease names a task.
func holds(t *testing.T, url, worker string) bool {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		return false // the run has ended
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := js.KeyValue(t.Context(), "lease_tiny")
	if err != nil {
		return false
	}
	lease, err := leases.Get(t.Context(), worker)
	return err == nil && len(lease.Value()) > 0
}

// exactlyOnce holds the ledger against the tasks that the run had.
func exactlyOnce(t *testing.T, r run, ref outcome) {
	t.Helper()
	places, _ := r.accepted(t)
	if want := strings.Count(string(ref.files["canonical.jsonl"]), "\n"); len(places) != want {
		t.Errorf("%d trajectories in the ledger, want %d", len(places), want)
	}
	for id, n := range places {
		if n != 1 {
			t.Errorf("%s is in the ledger %d times", id, n)
		}
	}
}

// counted is how many redeliveries the timings tell of.
func counted(t *testing.T, r run) (n int) {
	t.Helper()
	text, err := os.ReadFile(r.path("grpo", "timings.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var times trainer.StepTimes
		if err := json.Unmarshal(line, &times); err != nil {
			t.Fatal(err)
		}
		n += times.Redelivered
	}
	return n
}

// testTools runs GRPO with the tools in a process of their own.
func testTools(t *testing.T, began run, ref outcome) {
	r, p, url := joinable(t, began, "--set", "queue.tools=nats")
	started := time.Now()
	tools := start(t, "tools", "--url", url, "--run", "tiny")
	tools.says(t, "are served")
	p.succeed(t)
	r.same(t, ref)
	t.Logf("%.1f s with the tools over NATS", time.Since(started).Seconds())
	tools.interrupt(t)
	tools.succeed(t)
}
