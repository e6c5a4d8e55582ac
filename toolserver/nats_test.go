package toolserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"xragent/internal/bus/bustest"
	"xragent/rollout"
	"xragent/toolserver/measure"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// broker starts a NATS server inside the process and returns a way to connect.
func broker(t testing.TB, payload int32) func() *nats.Conn {
	t.Helper()
	ns, err := server.NewServer(&server.Options{DontListen: true, NoLog: true, NoSigs: true, MaxPayload: payload})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server did not start")
	}
	return func() *nats.Conn {
		nc, err := nats.Connect("", nats.InProcessServer(ns))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
}

func listen(t testing.TB, nc *nats.Conn, s *Server) {
	t.Helper()
	d, err := Listen(nc, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func client(t testing.TB, nc *nats.Conn) *Client {
	t.Helper()
	c, err := NewClient(context.Background(), nc, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClientIsTheServer holds that both doors give the same.
func TestClientIsTheServer(t *testing.T) {
	connect := broker(t, 1<<20)
	s := serverFor(t, nil)
	listen(t, connect(), s)
	c := client(t, connect())
	if !reflect.DeepEqual(c.Schemas(), s.Schemas()) {
		t.Error("schemas differ")
	}
	for i := range 2 {
		_, images, meta := film(t, i)
		for _, tt := range []struct{ tool, args string }{
			{"region_parse", `{"region":"left lung"}`}, {"roi_crop", `{"box":[0,0,0.4,0.4]}`},
			{"evidence_lookup", `{"query":"P-0007"}`}, {"roi_crop", `{`}, {"roi_crop", `{"region":"moon"}`}, {"no.such > tool", `{}`},
		} {
			got, want := call(t, c, tt.tool, tt.args, images, meta), call(t, s, tt.tool, tt.args, images, meta)
			got.CacheHit, want.CacheHit = false, false
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s %s: %+v over NATS, %+v in process", tt.tool, tt.args, got, want)
			}
		}
		got, err := c.Measure(context.Background(), images, meta)
		want, _ := s.Measure(context.Background(), images, meta)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("study %d: bundle %+v over NATS (%v), %+v in process", i, got, err, want)
		}
	}
}

func TestNoServer(t *testing.T) {
	connect := broker(t, 1<<20)
	_, err := NewClient(context.Background(), connect(), time.Minute)
	if !errors.Is(err, nats.ErrNoResponders) || !strings.Contains(err.Error(), "tool.schemas") || !strings.Contains(err.Error(), "xragent tools") {
		t.Errorf("error %v, want one that names the subject and the remedy", err)
	}
}

// TestImagesTravelOnce holds that a file is sent again only to a server that
// does not have it.
func TestImagesTravelOnce(t *testing.T) {
	connect := broker(t, 1<<20)
	first, err := Listen(connect(), serverFor(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, connect())
	_, images, meta := film(t, 0)
	call(t, c, "region_parse", `{"region":"heart"}`, images, meta)
	sent := c.nc.Stats().OutBytes
	call(t, c, "region_parse", `{"region":"spine"}`, images, meta)
	if n := c.nc.Stats().OutBytes - sent; n > 2000 {
		t.Errorf("the second call sent %d bytes, want the hash only", n)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	listen(t, connect(), serverFor(t, nil)) // which has never seen the image
	if obs := call(t, c, "region_parse", `{"region":"heart"}`, images, meta); obs.Text == "" {
		t.Errorf("%+v", obs)
	}
}

func TestLargeImagesAreFetched(t *testing.T) {
	connect := broker(t, 16<<10)
	_, images, meta := film(t, 0)
	digest := fmt.Sprintf("%x", sha256.Sum256(images[0]))
	c := (*Client)(nil)
	with := func(fetch func(context.Context, string) ([]byte, error)) error {
		d, err := Listen(connect(), serverFor(t, func(cfg *Config) { cfg.Images = fetch }))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Stop()
		c = client(t, connect())
		_, err = c.Measure(context.Background(), images, meta)
		return err
	}
	if err := with(func(_ context.Context, sha string) ([]byte, error) {
		if sha != digest {
			return nil, errors.New("not found")
		}
		return images[0], nil
	}); err != nil {
		t.Errorf("with a blob store: %v", err)
	}
	if err := with(nil); err == nil || !strings.Contains(err.Error(), "blob store") {
		t.Errorf("without a blob store: error %v, want one that names the remedy", err)
	}
	if err := with(func(context.Context, string) ([]byte, error) { return []byte("other"), nil }); err == nil || !strings.Contains(err.Error(), "another hash") {
		t.Errorf("with a blob store that lies: error %v", err)
	}
}

func TestErrorsTravel(t *testing.T) {
	connect := broker(t, 1<<20)
	listen(t, connect(), withTool(t, func(c *Config) {
		c.Deadlines = map[string]time.Duration{"evidence_lookup": 10 * time.Millisecond}
	}, func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }))
	c := client(t, connect())
	_, images, meta := film(t, 0)
	_, err := c.Measure(context.Background(), [][]byte{images[0][:100]}, meta)
	if e, ok := errors.AsType[*ImageError](err); !ok || !e.Poison() {
		t.Errorf("damaged image: error %v, want an ImageError", err)
	}
	if _, err := c.Call(context.Background(), "evidence_lookup", json.RawMessage(`{"query":"x"}`), nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("slow tool: error %v, want a deadline", err)
	}
}

// TestRequestsRunSideBySide holds that one slow call does not hold up others.
func TestRequestsRunSideBySide(t *testing.T) {
	connect := broker(t, 1<<20)
	gate := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Add(3)
	listen(t, connect(), withTool(t, func(c *Config) { c.Concurrency = 3; c.Cache = 0 }, func(context.Context) (string, error) {
		waiting.Done()
		<-gate
		return "done", nil
	}))
	c := client(t, connect())
	var calls sync.WaitGroup
	for i := range 3 {
		calls.Go(func() { call(t, c, "evidence_lookup", fmt.Sprintf(`{"query":"q%d"}`, i), nil, nil) })
	}
	waiting.Wait() // hangs if they run one by one
	close(gate)
	calls.Wait()
}

func TestServiceTellsItsSchemasAndStats(t *testing.T) {
	connect := broker(t, 1<<20)
	listen(t, connect(), serverFor(t, nil))
	nc := connect()
	call(t, client(t, nc), "evidence_lookup", `{"query":"ctr"}`, nil, nil)
	var info micro.Info
	ask(t, nc, "$SRV.INFO.xragent-tools", &info)
	for _, e := range info.Endpoints {
		if e.Name == "roi_crop" && !strings.Contains(e.Metadata["schema"], "costophrenic angle") {
			t.Errorf("metadata of roi_crop: %v", e.Metadata)
		}
	}
	var stats micro.Stats
	ask(t, nc, "$SRV.STATS.xragent-tools", &stats)
	for _, e := range stats.Endpoints {
		var own Stats
		if e.Name == "evidence_lookup" {
			if err := json.Unmarshal(e.Data, &own); err != nil || own.Calls != 1 || own.ByStatus["ok"] != 1 {
				t.Errorf("stats %s: %v", e.Data, err)
			}
		}
	}
}

func ask(t *testing.T, nc *nats.Conn, subject string, out any) {
	t.Helper()
	msg, err := nc.Request(subject, nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(msg.Data, out); err != nil {
		t.Fatal(err)
	}
}

func TestServeDrains(t *testing.T) {
	connect := broker(t, 1<<20)
	started, gate := make(chan struct{}), make(chan struct{})
	s := withTool(t, nil, func(context.Context) (string, error) { close(started); <-gate; return "late", nil })
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, connect(), s) }()
	nc := connect()
	var c *Client
	for c == nil {
		c, _ = NewClient(context.Background(), nc, time.Second)
	}
	answers := make(chan rollout.Observation, 1)
	go func() {
		obs, _ := c.Call(context.Background(), "evidence_lookup", json.RawMessage(`{"query":"x"}`), nil, nil)
		answers <- obs
	}()
	<-started
	cancel()
	close(gate)
	if obs := <-answers; obs.Text != "late" {
		t.Errorf("a request taken before the end was answered with %+v", obs)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	connect := broker(f, 1<<20)
	nc := connect()
	listen(f, nc, serverFor(f, nil))
	f.Add([]byte(`{"arguments":{"region":"heart"},"images":[{"sha256":"00","meta":{}}]}`))
	f.Add([]byte(`{"images":[{"sha256":"zz","file":"AAAA"}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		msg, err := nc.Request("tool.roi_crop", data, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if msg.Header.Get(micro.ErrorCodeHeader) == codeFailed {
			t.Errorf("%q: %s", data, msg.Header.Get(micro.ErrorHeader))
		}
	})
}

// TestOtherResultsAreRefused holds that servers share the work only where they
// give the same results.
func TestOtherResultsAreRefused(t *testing.T) {
	connect := broker(t, 1<<20)
	listen(t, connect(), serverFor(t, nil))
	listen(t, connect(), serverFor(t, func(c *Config) { c.Concurrency, c.Cache = 1, 0 }))
	for name, change := range map[string]func(*Config){
		"noise": func(c *Config) { c.Noise.Miss = 0.3 }, "gate": func(c *Config) { c.Gate = measure.PerMeasurement }, "tools": func(c *Config) { c.Extended = true },
	} {
		d, err := Listen(connect(), serverFor(t, change))
		if err == nil {
			_ = d.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), "other results") {
			t.Errorf("another %s: error %v", name, err)
		}
	}
}
