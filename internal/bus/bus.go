// Package bus is the project's NATS: an embedded server in the run directory,
// or a connection to an external one.
//
// The embedded server keeps its streams in files and opens no port unless an
// address is given; the process that started it talks to it through a pipe.
// The package knows connections and the server's life only: streams, subjects
// and messages belong to the packages that use them.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// MaxPayload is the largest message in bytes, 8 MiB: the ceiling that NATS
// advises. Whatever is larger travels as a blob.
const MaxPayload = 8 << 20

const (
	startTimeout   = 10 * time.Second
	dialTimeout    = 5 * time.Second
	drainTimeout   = 5 * time.Second
	reconnectEvery = 100 * time.Millisecond
)

// Options says how the embedded server runs.
type Options struct {
	Dir    string        // where the streams live; created when missing
	Listen string        // host:port for others to join; "" opens no port; port 0 takes a free one
	Token  string        // what a joining process must show; required off loopback
	Sync   time.Duration // between fsyncs of the streams; 0: 10 s; negative: every write
	Log    *slog.Logger  // nil: slog.Default
}

// A Server is an embedded NATS server with JetStream.
type Server struct {
	ns   *server.Server
	lock *os.File
	opts Options
}

// Start starts a server on o.Dir. A directory is served by one process at a
// time; what an earlier server stored there is served again.
func Start(o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	so, err := serverOptions(o)
	if err != nil {
		return nil, err
	}
	lock, err := LockDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	ns, err := start(so, o.Log)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &Server{ns: ns, lock: lock, opts: o}, nil
}

func serverOptions(o Options) (*server.Options, error) {
	if o.Dir == "" {
		return nil, errors.New("bus: no directory for the embedded server")
	}
	so := &server.Options{
		ServerName:            "xragent",
		StoreDir:              o.Dir,
		JetStream:             true,
		MaxPayload:            MaxPayload,
		SyncInterval:          o.Sync,
		NoSigs:                true,
		DisableShortFirstPing: true,
		Authorization:         o.Token,
		DontListen:            o.Listen == "",
	}
	switch {
	case o.Sync == 0:
		so.SyncInterval = 10 * time.Second
	case o.Sync < 0:
		so.SyncInterval, so.SyncAlways = 0, true
	}
	if o.Listen == "" {
		return so, nil
	}
	host, port, err := listenAddress(o)
	if err != nil {
		return nil, err
	}
	so.Host, so.Port = host, port
	return so, nil
}

// listenAddress checks the address before the server tries it, because the
// server's own complaint comes too late and names no remedy.
func listenAddress(o Options) (string, int, error) {
	addr, err := net.ResolveTCPAddr("tcp", o.Listen)
	if err != nil {
		return "", 0, fmt.Errorf("bus: listen address %q: %w; want host:port", o.Listen, err)
	}
	if !addr.IP.IsLoopback() && o.Token == "" {
		return "", 0, fmt.Errorf("bus: listen address %q is not loopback and there is no token; set one, or listen on 127.0.0.1", o.Listen)
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return "", 0, fmt.Errorf("bus: cannot listen on %s: %w; choose another port, or 0 for a free one", o.Listen, err)
	}
	defer l.Close()
	port := addr.Port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return addr.IP.String(), port, nil
}

// CheckListen reports why a server could not listen at o.Listen now.
func CheckListen(o Options) error {
	if o.Listen == "" {
		return nil
	}
	_, _, err := listenAddress(o)
	return err
}

func start(so *server.Options, log *slog.Logger) (*server.Server, error) {
	ns, err := server.NewServer(so)
	if err != nil {
		return nil, fmt.Errorf("bus: embedded server: %w", err)
	}
	sink := &serverLog{log: log}
	ns.SetLoggerV2(sink, false, false, false)
	ns.Start()
	if ns.ReadyForConnections(startTimeout) && ns.JetStreamEnabled() {
		return ns, nil
	}
	ns.Shutdown()
	ns.WaitForShutdown()
	if fatal := sink.fatal.Load(); fatal != nil {
		return nil, fmt.Errorf("bus: embedded server in %s: %s", so.StoreDir, *fatal)
	}
	return nil, fmt.Errorf("bus: embedded server in %s not ready after %v", so.StoreDir, startTimeout)
}

// URL returns the address that others join at, without the token; "" when the
// server opened no port.
func (s *Server) URL() string {
	if s.opts.Listen == "" {
		return ""
	}
	return s.ns.ClientURL()
}

// Connect returns a connection from within this process. name shows in the
// server's records. Close it with [Close].
func (s *Server) Connect(name string) (*nats.Conn, error) {
	opts := append(connOptions(name, s.opts.Log), nats.InProcessServer(s.ns), nats.Token(s.opts.Token))
	nc, err := nats.Connect("", opts...)
	if err != nil {
		return nil, fmt.Errorf("bus: in-process connection %s: %w", name, err)
	}
	return nc, nil
}

// Stop stops the server and waits until its files are closed.
func (s *Server) Stop() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
	s.lock.Close()
}

// Dial connects to the server at url (nats://[token@]host:port). The first
// connection must succeed within five seconds; afterwards the connection comes
// back by itself for as long as it takes.
func Dial(ctx context.Context, url, name string, log *slog.Logger) (*nats.Conn, error) {
	if log == nil {
		log = slog.Default()
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dialer := nats.SetCustomDialer(contextDialer{ctx})
	nc, err := nats.Connect(url, append(connOptions(name, log), dialer)...)
	if err != nil {
		return nil, fmt.Errorf("bus: no NATS server at %s: %w; start it, or correct the address", redact(url), err)
	}
	if !nc.HeadersSupported() {
		nc.Close()
		return nil, fmt.Errorf("bus: the server at %s is too old: it has no headers; use nats-server 2.11 or later", redact(url))
	}
	return nc, nil
}

// contextDialer bounds the first connection by its context; reconnections,
// which come after it, have the timeout alone.
type contextDialer struct{ first context.Context }

func (d contextDialer) Dial(network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	if d.first.Err() != nil {
		return dialer.Dial(network, address)
	}
	return dialer.DialContext(d.first, network, address)
}

func connOptions(name string, log *slog.Logger) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.CustomInboxPrefix(Inbox(name)),
		nats.Timeout(dialTimeout),
		nats.DrainTimeout(drainTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectEvery),
		nats.ReconnectJitter(reconnectEvery/2, reconnectEvery/2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("nats connection lost, reconnecting", "conn", name, "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("nats connection back", "conn", name, "server", nc.ConnectedUrlRedacted())
		}),
		// A refused publish shows only here: the call itself just times out.
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			log.Warn("nats error", "conn", name, "subject", subject, "err", err)
		}),
	}
}

// Inbox returns the prefix of the subjects at which the connection of that name
// receives answers, so that a server can permit it these and no one else's.
func Inbox(name string) string {
	token := func(r rune) rune {
		if r <= ' ' || strings.ContainsRune(".*>", r) {
			return '_'
		}
		return r
	}
	return "_INBOX_" + strings.Map(token, name)
}

// Close drains nc and waits until it is closed, at most five seconds.
func Close(nc *nats.Conn) {
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	if nc.IsClosed() {
		return
	}
	if nc.Drain() != nil { // not connected: nothing to drain
		nc.Close()
	}
	select {
	case <-closed:
	case <-time.After(drainTimeout + time.Second):
		nc.Close()
	}
}

// serverLog carries the server's log to slog. Fatalf must not end the process:
// it keeps the message for Start.
type serverLog struct {
	log   *slog.Logger
	fatal atomic.Pointer[string]
}

func (l *serverLog) Noticef(format string, v ...any) {
	l.log.Debug("nats: " + fmt.Sprintf(format, v...))
}
func (l *serverLog) Warnf(format string, v ...any)  { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }
func (l *serverLog) Errorf(format string, v ...any) { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l *serverLog) Debugf(string, ...any)          {}
func (l *serverLog) Tracef(string, ...any)          {}
func (l *serverLog) Fatalf(format string, v ...any) {
	message := fmt.Sprintf(format, v...)
	l.fatal.CompareAndSwap(nil, &message)
}

// LockDir claims a directory, made when missing, for this process until the
// file that it returns is closed or the process ends, however it ends.
func LockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("directory %s is in use by another process: stop it, or use another directory", dir)
	}
	return f, nil
}
