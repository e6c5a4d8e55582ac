package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/chat"
	"xragent/configs"
	"xragent/internal/blobs"
	"xragent/internal/bus"
	"xragent/policy/embedded"
	"xragent/rollout/loop"
	"xragent/rollout/queue"
	"xragent/toolserver"
)

// A runInfo is what another process needs to join a run.
type runInfo struct {
	Folder    string `json:"folder"`    // id of the run's folder, of which there is one
	Blobs     string `json:"blobs"`     // base URL of the blob server
	Config    string `json:"config"`    // the resolved configuration
	Tokenizer string `json:"tokenizer"` // sha256 of tokenizer.json, a blob
	Images    string `json:"images"`    // hash of the image processor's configuration

	// What an embedded policy is: the text of its config.json, and its image processor.
	Model     string         `json:"model,omitempty"`
	Processor chat.Processor `json:"processor"`
}

func (s *session) publishRunInfo(ctx context.Context, js jetstream.JetStream) error {
	text, err := s.cfg.Marshal()
	if err != nil {
		return err
	}
	folder, err := s.checkOwner(ctx, js)
	if err != nil {
		return err
	}
	tokenizer, err := s.blobs.Put(ctx, s.codec.JSON())
	if err != nil {
		return err
	}
	info := runInfo{Folder: folder, Config: string(text), Tokenizer: tokenizer, Images: s.images.Hash()}
	info.Processor = s.images
	if !s.remote() {
		info.Model = string(s.model().JSON())
	}
	if s.web != nil {
		info.Blobs = s.web.URL
	}
	doc, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return queue.PutRunInfo(ctx, js, s.cfg.Run.Name, doc)
}

// checkOwner refuses a server on which another folder's run has this name: the
// two would take each other's tasks and trajectories. It returns this folder's id.
func (s *session) checkOwner(ctx context.Context, js jetstream.JetStream) (string, error) {
	folder, err := s.folderID()
	if err != nil || s.cfg.Queue.URL == "" { // the embedded server is the folder's own
		return folder, err
	}
	doc, err := queue.GetRunInfo(ctx, js, s.cfg.Run.Name)
	if errors.Is(err, queue.ErrNoRun) {
		return folder, nil
	}
	if err != nil {
		return "", err
	}
	var there runInfo
	if err := json.Unmarshal(doc, &there); err != nil || there.Folder != "" && there.Folder != folder {
		return "", usageError{fmt.Errorf("run %s: this NATS server holds a run of that name from another folder than %s: choose another name with --set run.name=…, or another server", s.cfg.Run.Name, s.dir)}
	}
	return folder, nil
}

// folderID returns what tells this run's folder from every other one.
func (s *session) folderID() (string, error) {
	path := s.path("folder-id")
	if id, err := os.ReadFile(path); err == nil {
		return string(id), nil
	}
	id := rand.Text()
	return id, writeFile(path, []byte(id))
}

// A guest is this process as part of another process's run.
type guest struct {
	cfg   configs.Run
	codec *chat.Codec
	info  runInfo
	model embedded.Config // of an embedded policy
	nc    *nats.Conn
	js    jetstream.JetStream
	blobs *blobs.Client
	cache string
}

// join connects to a run. The caller calls leave.
func join(ctx context.Context, url, run string, log *slog.Logger) (_ *guest, err error) {
	g := &guest{}
	defer func() {
		if err != nil {
			g.leave()
		}
	}()
	if g.nc, err = bus.Dial(ctx, url, "guest of "+run, log); err != nil {
		return nil, usageError{err}
	}
	if g.js, err = jetstream.New(g.nc); err != nil {
		return nil, err
	}
	doc, err := queue.GetRunInfo(ctx, g.js, run)
	if err != nil {
		return nil, usageError{err}
	}
	var info runInfo
	if err := json.Unmarshal(doc, &info); err != nil {
		return nil, fmt.Errorf("run %s: its record cannot be read: %w", run, err)
	}
	return g, g.open(ctx, run, info)
}

func (g *guest) open(ctx context.Context, run string, info runInfo) (err error) {
	if info.Blobs == "" {
		return usageError{fmt.Errorf("run %s serves no blobs: start it with --set web.listen=host:port", run)}
	}
	if g.cfg, err = configs.Parse([]byte(info.Config)); err != nil {
		return usageError{fmt.Errorf("run %s: %w: use the same version of xragent", run, err)}
	}
	g.info = info
	if own := info.Processor.Hash(); info.Images != own {
		return usageError{fmt.Errorf("run %s uses image processor %.12s, this program has %.12s: use the same version of xragent", run, info.Images, own)}
	}
	if !isRemote(g.cfg.Policy) {
		if g.model, err = embedded.ReadConfig([]byte(info.Model)); err != nil {
			return usageError{fmt.Errorf("run %s: %w: use the same version of xragent", run, err)}
		}
	}
	if g.cache, err = os.MkdirTemp("", "xragent-worker-"); err != nil {
		return err
	}
	store, err := blobs.Open(filepath.Join(g.cache, "blobs"), false)
	if err != nil {
		return err
	}
	g.blobs = blobs.NewClient(info.Blobs, store, blobs.ClientOptions{})
	tokenizer, err := g.blobs.Get(ctx, info.Tokenizer)
	if err != nil {
		return err
	}
	g.codec, err = chat.New(tokenizer)
	return err
}

func (g *guest) leave() {
	if g.nc != nil {
		bus.Close(g.nc)
	}
	if g.cache != "" {
		_ = os.RemoveAll(g.cache) // a cache; the system clears it otherwise
	}
}

// work takes tasks until ctx ends. A remote policy is sampled at server.
func (g *guest) work(ctx context.Context, name, server string, slots int, log *slog.Logger) error {
	tools, err := g.tools(ctx, log)
	if err != nil {
		return err
	}
	r, err := g.worker(name, server, tools)
	if err != nil {
		return err
	}
	defer r.close()
	if slots == 0 {
		slots = g.cfg.Queue.Slots
	}
	err = queue.RunWorker(ctx, g.js, queue.WorkerOptions{Run: g.cfg.Run.Name, Name: name, Slots: slots, Log: log}, r)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// worker returns one on an engine of this process, or on a server of its own.
func (g *guest) worker(name, server string, tools loop.Tools) (worker, error) {
	switch remote := isRemote(g.cfg.Policy); {
	case remote && server == "":
		return nil, usageError{fmt.Errorf("run %s has a remote policy: name the inference server of this worker with --sampler http://host:port", g.cfg.Run.Name)}
	case remote:
		return newSampler(server, name, filepath.Join(g.cache, "weights"), g.cfg, tools, g.codec, g.blobs)
	case server != "":
		return nil, usageError{fmt.Errorf("--sampler has no effect in run %s, whose policy is embedded: remove it", g.cfg.Run.Name)}
	}
	e := g.cfg.Policy.Embedded
	opts := embedded.EngineOptions{Processor: g.info.Processor, MaxBatch: e.MaxBatch, Threads: e.ResolvedThreads()}
	return newRoller(name, g.model, opts, g.cfg.Loop, tools, g.codec, g.blobs)
}

func (g *guest) tools(ctx context.Context, log *slog.Logger) (loop.Tools, error) {
	if g.cfg.Queue.Tools == "nats" {
		return remoteTools(ctx, g.nc, g.cfg.Tools.Deadline, func() { log.Warn("waiting for the tools of the run", "start", "xragent tools") })
	}
	return newTools(g.cfg, nil)
}

// serveTools answers tool requests until ctx ends.
func (g *guest) serveTools(ctx context.Context) error {
	c := g.cfg.Tools
	c.Images = g.blobs.Get
	cfg := g.cfg
	cfg.Tools = c
	s, err := newTools(cfg, nil)
	if err != nil {
		return err
	}
	return toolserver.Serve(ctx, g.nc, s)
}
