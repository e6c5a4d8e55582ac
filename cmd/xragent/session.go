package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"xragent/chat"
	"xragent/configs"
	"xragent/dataset/phantom"
	"xragent/internal/blobs"
	"xragent/internal/bus"
	"xragent/policy/embedded"
	"xragent/toolserver"
	"xragent/web"
)

// A session is one run opened by this process: what its stages share.
type session struct {
	cfg    configs.Run
	dir    string // runs/<name>
	resume bool
	out    io.Writer // results
	log    io.Writer // progress and notices

	blobs   *blobs.Store
	codec   *chat.Codec
	images  chat.Processor
	tools   *toolserver.Server
	metrics *web.Metrics
	web     *web.Server
	data    *samples          // nil until loaded
	base    *folder           // that the embedded policy begins with; nil where it is small or none
	begin   *embedded.Weights // that the embedded policy begins with; nil for a remote one

	seenFilms map[string]filmRows // made by this process for pre-training, by split

	lock *os.File // held while this process works on the run
	made bool     // by this process, and no stage has ended yet
}

// openSession claims the run's folder and starts what every stage needs.
func openSession(ctx context.Context, cfg configs.Run, resume bool, out, log io.Writer) (*session, error) {
	s := &session{cfg: cfg, dir: filepath.Join(cfg.Run.Dir, cfg.Run.Name), resume: resume, out: out, log: log,
		metrics: web.NewMetrics(cfg.Run.Name)}
	err := s.openPolicy(ctx)
	if err != nil {
		return nil, err
	}
	if err = s.codec.CheckTemplate(chat.Template); err != nil {
		return nil, usageError{err}
	}
	if err = s.checkFrom(); err != nil {
		return nil, usageError{err}
	}
	if err = s.claim(); err == nil {
		err = s.start()
	}
	if err != nil {
		return nil, s.release(err)
	}
	return s, nil
}

// openPolicy finds how the policy reads text and images.
func (s *session) openPolicy(ctx context.Context) (err error) {
	s.images = processor(s.cfg.Policy)
	dir := s.cfg.Policy.Embedded.Folder()
	if s.remote() || dir == "" {
		s.codec, err = newCodec(ctx, s.cfg.Policy)
		return err
	}
	base, err := readFolder(dir)
	if err == nil && base.codec == nil {
		err = fmt.Errorf("%s has no tokenizer.json: put the model's own there, and its preprocessor_config.json", dir)
	}
	if err != nil {
		return usageError{fmt.Errorf("policy.embedded.base: %w", err)}
	}
	s.base, s.codec, s.images = &base, base.codec, base.images
	return nil
}

func (s *session) start() (err error) {
	if s.blobs, err = blobs.Open(s.path("blobs"), false); err != nil {
		return err
	}
	if s.tools, err = newTools(s.cfg, s.metrics); err != nil {
		return err
	}
	if !s.remote() {
		if s.begin, err = s.firstWeights(); err != nil {
			return usageError{err}
		}
	}
	if s.cfg.Web.Listen == "" {
		return nil
	}
	if s.web, err = web.Start(s.cfg.Web, s.metrics, s.cfg.Run.Dir, blobs.Handler(s.blobs)); err != nil {
		return usageError{err}
	}
	s.notice("metrics %s/metrics, curves %s/api/v1/runs/%s/steps", s.web.URL, s.web.URL, s.cfg.Run.Name)
	return nil
}

// newTools returns the tool server that a configuration describes. m may be nil.
func newTools(cfg configs.Run, m *web.Metrics) (*toolserver.Server, error) {
	c := cfg.Tools
	c.Protocols = phantom.Protocol
	if m != nil {
		c.Observe = func(r toolserver.Record) { m.Tool(r.Tool, r.Latency.Seconds()) }
	}
	return toolserver.New(c)
}

// path returns a path inside the run's folder, or inside that of the run it
// branches from where the first part is a folder that it shares with it.
func (s *session) path(parts ...string) string {
	dir := s.dir
	if len(parts) > 0 && s.shares(parts[0]) {
		dir = s.cfg.From.Run
	}
	return filepath.Join(append([]string{dir}, parts...)...)
}

func (s *session) notice(format string, args ...any) { fmt.Fprintf(s.log, format+"\n", args...) }

// claim makes the run's folder, or takes up an existing one with --resume when
// nothing that decides the result has changed. The folder is this process's
// alone until release.
func (s *session) claim() error {
	text, err := s.cfg.File()
	if err != nil {
		return err
	}
	if err := s.checkFolder(); err != nil {
		return usageError{err}
	}
	if s.lock, err = bus.LockDir(s.dir); err != nil {
		return usageError{fmt.Errorf("run %s: %w (--set run.dir=…, --set run.name=…)", s.cfg.Run.Name, err)}
	}
	path := s.path("config.yaml")
	began, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.made = true
		return writeFile(path, text)
	case err != nil:
		return err
	}
	if err := configs.SameResult(began, text); err != nil {
		return usageError{fmt.Errorf("run %s: %w", s.cfg.Run.Name, err)}
	}
	return nil
}

// checkFolder refuses a run that exists, unless it is to be continued, and a
// folder of something else.
func (s *session) checkFolder() error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("run %s: %w: choose another place with --set run.dir=…", s.cfg.Run.Name, err)
	}
	if exists(s.path("config.yaml")) {
		if s.resume {
			return nil
		}
		return fmt.Errorf("run %s exists in %s: continue it with --resume, or choose another name with --set run.name=…", s.cfg.Run.Name, s.dir)
	}
	for _, e := range entries {
		if n := e.Name(); n != "lock" && n != "config.yaml.partial" { // what a crash at the very start leaves
			return fmt.Errorf("run %s: %s holds %s but no config.yaml, so it is no run: choose another name with --set run.name=…", s.cfg.Run.Name, s.dir, n)
		}
	}
	return nil
}

// release lets go of the run's folder. It removes one that this process made
// where bad input was refused before any stage ended.
func (s *session) release(err error) error {
	var bad usageError
	if s.made && errors.As(err, &bad) {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// close ends what the session started. Where the configuration says so it
// first goes on serving metrics for a while.
func (s *session) close(ctx context.Context) error {
	if s.web == nil {
		return nil
	}
	if s.cfg.Web.Linger > 0 && ctx.Err() == nil {
		s.notice("serving %s for another %v", s.web.URL, s.cfg.Web.Linger)
		select {
		case <-ctx.Done():
		case <-time.After(s.cfg.Web.Linger):
		}
	}
	return s.web.Close()
}

// logger writes warnings of the packages below to the log.
func (s *session) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// writeFile replaces a small file as a whole. What is no file, a terminal or a
// pipe, is written to.
func writeFile(path string, data []byte) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, data, 0o644)
	}
	aside := fmt.Sprintf("%s.%d.partial", path, os.Getpid())
	_ = os.Remove(aside) // whatever it is: it is not written through
	f, err := os.OpenFile(aside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	return os.Rename(aside, path)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
