package toolserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestKilledServer holds that a tool server that dies costs the calls in its
// hands one retry, and nothing else.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	connect := broker(t, 1<<20)
	doomed := connect()
	taken, never := make(chan struct{}, 64), make(chan struct{})
	defer close(never)
	hangs := withTool(t, func(c *Config) { c.Concurrency = 64 }, func(context.Context) (string, error) {
		taken <- struct{}{}
		<-never
		return "", nil
	})
	if _, err := Listen(doomed, hangs); err != nil {
		t.Fatal(err)
	}
	c := client(t, connect())
	c.timeout = 8 * time.Second // the first try has half of it
	const n = 8
	var calls sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		calls.Go(func() {
			obs, err := c.Call(context.Background(), "evidence_lookup", json.RawMessage(fmt.Sprintf(`{"query":"q%d"}`, i)), nil, nil)
			if err == nil && obs.Text != "alive" {
				err = fmt.Errorf("%+v", obs)
			}
			errs[i] = err
		})
	}
	for range n {
		<-taken
	}
	doomed.Close() // as a kill would, in the middle of every call
	listen(t, connect(), withTool(t, func(c *Config) { c.Concurrency = 64 }, func(context.Context) (string, error) { return "alive", nil }))
	calls.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// TestServerRestarts holds that a call finds a server that is away for a moment.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	connect := broker(t, 1<<20)
	first := connect()
	if _, err := Listen(first, serverFor(t, nil)); err != nil {
		t.Fatal(err)
	}
	c := client(t, connect())
	first.Close()
	for nc := connect(); ; { // until the broker knows
		if _, err := nc.Request("tool.schemas", nil, 100*time.Millisecond); errors.Is(err, nats.ErrNoResponders) {
			break
		}
	}
	_, err := c.Call(context.Background(), "evidence_lookup", json.RawMessage(`{"query":"x"}`), nil, nil)
	if !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("with no server at all: error %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.Call(context.Background(), "evidence_lookup", json.RawMessage(`{"query":"x"}`), nil, nil)
		done <- err
	}()
	listen(t, connect(), serverFor(t, nil))
	if err := <-done; err != nil && !errors.Is(err, nats.ErrNoResponders) { // a machine slower than the pause
		t.Error(err)
	}
}

// TestSlowCallIsJoined holds that what a caller gave up on is not begun again
// when it asks once more, as corpus builds and rollouts do.
func TestSlowCallIsJoined(t *testing.T) {
	taken, release := make(chan struct{}, 2), make(chan struct{})
	s := withTool(t, nil, func(context.Context) (string, error) {
		taken <- struct{}{}
		<-release
		return "late", nil
	})
	ctx, leave := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, "evidence_lookup", json.RawMessage(`{"query":"x"}`), nil, nil)
		gone <- err
	}()
	<-taken
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(release)
	if obs := call(t, s, "evidence_lookup", `{"query":"x"}`, nil, nil); obs.Text != "late" || len(taken) != 0 {
		t.Errorf("%+v after %d more computations", obs, len(taken))
	}
}

// TestHangingTool holds that a tool which never returns costs its callers their
// deadline, and the other tools nothing.
func TestHangingTool(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	s := withTool(t, func(c *Config) {
		c.Concurrency = 1
		c.Deadlines = map[string]time.Duration{"evidence_lookup": 10 * time.Millisecond}
	}, func(context.Context) (string, error) { <-never; return "", nil })
	for range 3 {
		if _, err := s.Call(context.Background(), "evidence_lookup", json.RawMessage(`{"query":"x"}`), nil, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	}
	_, images, meta := film(t, 0)
	if obs := call(t, s, "region_parse", `{"region":"heart"}`, images, meta); obs.Text == "" {
		t.Errorf("%+v", obs)
	}
}

// TestFloodAndNonsense holds that what is no request is refused, and that the
// server goes on.
func TestFloodAndNonsense(t *testing.T) {
	connect := broker(t, 1<<20)
	listen(t, connect(), serverFor(t, nil))
	nc := connect()
	for subject, bodies := range map[string][]string{
		"tool.region_parse": {"{", `{"images":[{"sha256":"zz"}]}`, `{"images":[{"sha256":"` + strings.Repeat("00", 32) + `","file":"AAAA"}]}`, `[]`, strings.Repeat("x", 1<<19)},
		"tool.measure":      {"", `{"images":7}`, `{"images":[]}`},
	} {
		for _, body := range bodies {
			msg, err := nc.Request(subject, []byte(body), time.Minute)
			if err != nil {
				t.Errorf("%s %.40s: %v", subject, body, err)
			} else if code := msg.Header.Get("Nats-Service-Error-Code"); code == "" && body != `{"images":[]}` && body != "" {
				t.Errorf("%s %.40s was answered with %.100s", subject, body, msg.Data)
			}
		}
	}
	for range 2000 { // and nobody waits for these
		if err := nc.PublishRequest("tool.evidence_lookup", "nobody", []byte(`{"arguments":{"query":"x"}}`)); err != nil {
			t.Fatal(err)
		}
	}
	for { // as soon as it has room
		c, err := NewClient(context.Background(), connect(), time.Minute)
		if err != nil {
			if !strings.Contains(err.Error(), "requests pending") {
				t.Fatal(err)
			}
			continue
		}
		if obs := call(t, c, "evidence_lookup", `{"query":"ctr"}`, nil, nil); obs.Text == "" {
			t.Errorf("after the flood: %+v", obs)
		}
		return
	}
}
