// Package web serves what people and other programs watch and fetch of a run:
// Prometheus metrics, step curves as JSON, and blobs. It also generates the
// Grafana dashboard and the alert rules from its metric registry. It changes
// nothing of a run.
package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Config says where to listen.
type Config struct {
	Listen string        `yaml:"listen"` // host:port; port 0 takes a free one; "" serves nothing
	Linger time.Duration `yaml:"linger"` // how long to go on serving after the run has ended
}

// Validate names the first unusable field.
func (c Config) Validate() error {
	if c.Listen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen = %q: want host:port, e.g. 127.0.0.1:9464: %w", c.Listen, err)
	}
	return nil
}

// A Server is a listening HTTP server of one run.
type Server struct {
	URL  string
	http *http.Server
	done chan error
}

// Start listens and serves until Close. runs is the folder that holds run
// directories; blobs serves GET /blobs/<sha256>.
func Start(cfg Config, m *Metrics, runs string, blobs http.Handler) (*Server, error) {
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("web: listen on %s: %w (choose another with --set web.listen=127.0.0.1:0)", cfg.Listen, err)
	}
	s := &Server{
		URL:  "http://" + l.Addr().String(),
		http: &http.Server{Handler: routes(m, runs, blobs), ReadHeaderTimeout: 10 * time.Second},
		done: make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(l) }()
	return s, nil
}

// grace is how long requests in progress may take once the run is over.
const grace = 2 * time.Second

// Close lets requests in progress end for a while, and ends what is left then:
// a run must not fail by a connection that somebody keeps open.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if serve := <-s.done; !errors.Is(serve, http.ErrServerClosed) {
		err = errors.Join(err, serve)
	}
	return err
}

func routes(m *Metrics, runs string, blobs http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	mux.Handle("GET /blobs/", blobs)
	mux.HandleFunc("GET /api/v1/runs/{run}/steps", func(w http.ResponseWriter, r *http.Request) { serveSteps(w, r, runs) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mux
}

var runName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

// serveSteps answers with the step log as one JSON array; ?stage= keeps one stage.
func serveSteps(w http.ResponseWriter, r *http.Request, runs string) {
	run := r.PathValue("run")
	if !runName.MatchString(run) {
		http.Error(w, "no such run", http.StatusNotFound)
		return
	}
	logs, _ := filepath.Glob(filepath.Join(runs, run, "*", "steps.jsonl"))
	if len(logs) == 0 {
		http.Error(w, "no such run, or it has no steps yet", http.StatusNotFound)
		return
	}
	steps := []json.RawMessage{}
	for _, path := range logs {
		lines, err := readSteps(path, r.URL.Query().Get("stage"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			http.Error(w, "the step log cannot be read", http.StatusInternalServerError)
			return
		}
		steps = append(steps, lines...)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(steps) // the client went away
}

// readSteps returns the whole lines of a step log; a line still being written is left out.
func readSteps(path, stage string) ([]json.RawMessage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []json.RawMessage
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var head struct{ Stage string }
		if json.Unmarshal(lines.Bytes(), &head) == nil && (stage == "" || stage == head.Stage) {
			out = append(out, json.RawMessage(append([]byte(nil), lines.Bytes()...)))
		}
	}
	return out, lines.Err()
}
