package bus_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/internal/bus"
	"xragent/internal/bus/bustest"
)

func TestMain(m *testing.M) { bustest.Main(m) }

func TestInProcessOpensNoPort(t *testing.T) {
	s, nc := bustest.Start(t)
	if url := s.URL(); url != "" {
		t.Errorf("URL = %q, want none", url)
	}
	if err := nc.FlushTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	if nc.MaxPayload() != bus.MaxPayload {
		t.Errorf("max payload %d, want %d", nc.MaxPayload(), bus.MaxPayload)
	}
}

func TestStreamsSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	ctx := t.Context()
	run := func(do func(js jetstream.JetStream)) {
		s, err := bus.Start(bus.Options{Dir: dir, Log: bustest.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		nc, err := s.Connect("test")
		if err != nil {
			t.Fatal(err)
		}
		defer bus.Close(nc)
		do(bustest.JetStream(t, nc))
	}
	run(func(js jetstream.JetStream) {
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(ctx, "s.1", []byte("kept")); err != nil {
			t.Fatal(err)
		}
	})
	run(func(js jetstream.JetStream) {
		stream, err := js.Stream(ctx, "S")
		if err != nil {
			t.Fatal(err)
		}
		msg, err := stream.GetLastMsgForSubject(ctx, "s.1")
		if err != nil || string(msg.Data) != "kept" {
			t.Fatalf("message %v, err %v", msg, err)
		}
	})
}

func TestDialTCPWithToken(t *testing.T) {
	s := listen(t, "127.0.0.1:0", "secret")
	if _, err := bus.Dial(t.Context(), s.URL(), "stranger", bustest.Quiet); err == nil {
		t.Error("joined without the token")
	}
	nc, err := bus.Dial(t.Context(), strings.Replace(s.URL(), "nats://", "nats://secret@", 1), "worker", bustest.Quiet)
	if err != nil {
		t.Fatal(err)
	}
	bus.Close(nc)
	if !nc.IsClosed() {
		t.Error("connection still open after Close")
	}
	bus.Close(nc) // again: nothing to wait for
}

func TestErrorsNameAddressAndRemedy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	s, _ := bustest.Start(t)
	_ = s
	held := listen(t, "127.0.0.1:0", "")
	startError := func(o bus.Options) error {
		o.Log = bustest.Quiet
		s, err := bus.Start(o)
		if err == nil {
			s.Stop()
		}
		return err
	}
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"port in use":     {startError(bus.Options{Dir: t.TempDir(), Listen: taken}), []string{taken, "choose another port"}},
		"bad address":     {startError(bus.Options{Dir: t.TempDir(), Listen: "nowhere"}), []string{"nowhere", "host:port"}},
		"open to all":     {startError(bus.Options{Dir: t.TempDir(), Listen: "0.0.0.0:0"}), []string{"0.0.0.0:0", "token"}},
		"no directory":    {startError(bus.Options{}), []string{"directory"}},
		"not a directory": {startError(bus.Options{Dir: file}), []string{file}},
		"nobody there":    {dialError("nats://secret@127.0.0.1:1"), []string{"127.0.0.1:1", "start it"}},
		"held":            {startError(bus.Options{Dir: held.dir}), []string{held.dir, "another process"}},
	} {
		if tt.err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(tt.err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, tt.err, want)
			}
		}
		if strings.Contains(tt.err.Error(), "secret") {
			t.Errorf("%s: %q shows the token", name, tt.err)
		}
	}
}

func TestInboxIsOnesOwn(t *testing.T) {
	_, nc := bustest.Start(t)
	if inbox := nc.NewInbox(); !strings.HasPrefix(inbox, bus.Inbox(t.Name())+".") {
		t.Errorf("inbox %s, want one under %s", inbox, bus.Inbox(t.Name()))
	}
	if got := bus.Inbox("a.b c>*"); got != "_INBOX_a_b_c__" {
		t.Errorf("inbox %s", got)
	}
}

func TestDialReconnects(t *testing.T) {
	dir := t.TempDir()
	first, err := bus.Start(bus.Options{Dir: dir, Listen: "127.0.0.1:0", Log: bustest.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(first.URL(), "nats://")
	nc, err := bus.Dial(t.Context(), first.URL(), "worker", bustest.Quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close(nc)
	first.Stop()
	second, err := bus.Start(bus.Options{Dir: dir, Listen: address, Log: bustest.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Stop()
	deadline := time.Now().Add(2 * time.Minute)
	for nc.Status() != nats.CONNECTED {
		if time.Now().After(deadline) {
			t.Fatalf("not reconnected: %v", nc.Status())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type listening struct {
	*bus.Server
	dir string
}

func listen(t *testing.T, address, token string) listening {
	t.Helper()
	dir := t.TempDir()
	s, err := bus.Start(bus.Options{Dir: dir, Listen: address, Token: token, Log: bustest.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return listening{s, dir}
}

func dialError(url string) error {
	nc, err := bus.Dial(context.Background(), url, "test", bustest.Quiet)
	if err == nil {
		nc.Close()
	}
	return err
}
