// Package bustest gives each test a NATS server of its own, without a port.
package bustest

import (
	"io"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/internal/bus"
)

// Quiet is a logger that says nothing.
var Quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// Start returns a server on a temporary directory and a connection to it. Both
// end with the test.
func Start(t testing.TB) (*bus.Server, *nats.Conn) {
	t.Helper()
	s, err := bus.Start(bus.Options{Dir: t.TempDir(), Log: Quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s, Connect(t, s)
}

// Connect returns a further connection that ends with the test.
func Connect(t testing.TB, s *bus.Server) *nats.Conn {
	t.Helper()
	nc, err := s.Connect(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bus.Close(nc) })
	return nc
}

// JetStream returns the JetStream context of nc.
func JetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}
