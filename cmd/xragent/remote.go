package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"xragent/chat"
	"xragent/configs"
	"xragent/internal/blobs"
	"xragent/policy/remote"
	"xragent/rollout"
	"xragent/rollout/engine"
	"xragent/rollout/loop"
	"xragent/trainer"
)

// remote reports whether the policy is trained and sampled outside this program.
func (s *session) remote() bool { return isRemote(s.cfg.Policy) }

func isRemote(p configs.Policy) bool { return p.Backend == "remote" }

// processor returns the image processor that the policy sees through.
func processor(p configs.Policy) chat.Processor {
	if isRemote(p) {
		return chat.Base
	}
	return chat.Small
}

// newCodec returns the codec over the policy's own tokenizer.
func newCodec(ctx context.Context, p configs.Policy) (*chat.Codec, error) {
	if !isRemote(p) {
		return chat.New(nil)
	}
	var codec *chat.Codec
	data, err := readTokenizer(ctx, p.Remote.Tokenizer)
	if err == nil {
		codec, err = chat.New(data)
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("policy.remote.tokenizer: %w", err)}
	}
	return codec, nil
}

// Bounds of fetching a tokenizer.json; Qwen's has 11 MB.
const (
	tokenizerBytes  = 64 << 20
	tokenizerWithin = time.Minute
)

// readTokenizer reads a tokenizer.json from a path or an http URL.
func readTokenizer(ctx context.Context, ref string) ([]byte, error) {
	if !strings.HasPrefix(ref, "http://") && !strings.HasPrefix(ref, "https://") {
		return os.ReadFile(ref)
	}
	ctx, cancel := context.WithTimeout(ctx, tokenizerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ref, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", ref, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, tokenizerBytes))
}

// reach finds out whether the learner of a remote policy is there and fits, so
// that no corpus is built for one that is not.
func (s *session) reach(ctx context.Context, stages []string) error {
	idle := func(stage string) bool { return stage == configs.StageData || stage == configs.StageCorpus }
	if !s.remote() || !slices.ContainsFunc(stages, func(stage string) bool { return !idle(stage) }) {
		return nil
	}
	_, err := s.dial(ctx)
	return err
}

// dial returns the learner, held against what this run says of it.
func (s *session) dial(ctx context.Context) (*remote.Learner, error) {
	cfg := remote.Default()
	cfg.URL = s.cfg.Policy.Remote.Learner
	l, err := remote.Dial(ctx, cfg, remote.Options{Run: s.cfg.Run.Name, Processor: s.images.Hash(), Images: s.blobs.Get, Put: s.blobs.Put})
	if err != nil {
		return nil, usageError{err}
	}
	info, rank := l.Info(), s.cfg.Policy.Remote.LoRARank
	switch {
	case info.LoRARank != rank:
		return nil, usageError{fmt.Errorf("learner %s has LoRA rank %d, policy.remote.lora_rank is %d: give both the same", cfg.URL, info.LoRARank, rank)}
	case info.Vocab < s.codec.Vocab():
		return nil, usageError{fmt.Errorf("learner %s has a model of %d ids, policy.remote.tokenizer has %d: use the tokenizer.json of its model", cfg.URL, info.Vocab, s.codec.Vocab())}
	}
	if err := s.checkPrompts(ctx, l); err != nil {
		return nil, usageError{fmt.Errorf("learner %s: %w", cfg.URL, err)}
	}
	return l, nil
}

// checkPrompts holds that the learner's tokenizer, under the template that an
// export carries, reads conversations as rollouts build them, and that its
// model takes the same ids for images.
func (s *session) checkPrompts(ctx context.Context, l *remote.Learner) error {
	probes := s.codec.Probes()
	e, err := l.Encode(ctx, probes)
	if err != nil {
		return err
	}
	for i, p := range probes {
		if err := s.codec.CheckProbe(p, e.IDs[i]); err != nil {
			return err
		}
	}
	start, end := s.codec.VisionMarks()
	if got, want := [3]int32{e.ImagePad, e.VisionStart, e.VisionEnd}, [3]int32{s.codec.ImagePad(), start, end}; got != want {
		return fmt.Errorf("its config.json has ids %v for image pad, vision start and end, policy.remote.tokenizer has %v: use the tokenizer.json of its model", got, want)
	}
	return nil
}

// remoteLearner returns the learner with the weights of c, or with those that
// it was started with. Where a stage is continued its own checkpoint follows.
func (s *session) remoteLearner(ctx context.Context, c *trainer.Checkpoint) (trainee, error) {
	l, err := s.dial(ctx)
	if err != nil {
		return trainee{}, err
	}
	dir, start := "", "untrained "+s.cfg.Policy.Remote.Model
	if c != nil {
		dir = c.LearnerDir()
		if start, err = checkpointDigest(*c); err != nil {
			return trainee{}, err
		}
	}
	keep := s.cfg.GRPO.MaxStaleness + 2 // what may be sampled, and one that a worker may still be fetching
	return trainee{&publisher{Learner: l, store: s.blobs, keep: keep}, start, l.Info().Vocab}, l.Start(ctx, dir)
}

// A publisher is a learner whose published weights are deleted once keep newer
// versions are there: a version of a large policy has gigabytes.
type publisher struct {
	*remote.Learner
	store *blobs.Store
	keep  int
	files [][]rollout.File // of the versions in the store, oldest first
}

func (p *publisher) Publish(ctx context.Context, v rollout.PolicyVersion) (rollout.WeightsManifest, error) {
	m, err := p.Learner.Publish(ctx, v)
	if err != nil {
		return m, err
	}
	p.files = append(p.files, m.Files)
	if len(p.files) <= p.keep {
		return m, nil
	}
	oldest := p.files[0]
	p.files = p.files[1:]
	kept := slices.Concat(p.files...)
	for _, f := range oldest {
		again := func(k rollout.File) bool { return k.SHA256 == f.SHA256 } // an adapter's configuration stays the same
		if slices.ContainsFunc(kept, again) {
			continue
		}
		if err := p.store.Delete(f.SHA256); err != nil {
			return m, err
		}
	}
	return m, nil
}

// checkpointDigest identifies a checkpoint by the digests of its files.
func checkpointDigest(c trainer.Checkpoint) (string, error) {
	text, err := os.ReadFile(filepath.Join(c.Path, "manifest.json"))
	return blobs.Digest(text), err
}

// A sampler runs trajectories on one inference server. It is a worker.
type sampler struct {
	name   string
	dir    string // holds the version that the server reads
	client *engine.Client
	loop   *loop.Loop
}

// newSampler returns a sampler on the server at url. Both see dir.
func newSampler(url, name, dir string, cfg configs.Run, tools loop.Tools, codec *chat.Codec, store loop.Blobs) (*sampler, error) {
	e := engine.Default()
	e.URL, e.Model, e.Weights, e.Dir = url, cfg.Policy.Remote.Model, engine.WeightsReload, dir
	if cfg.Policy.Remote.LoRARank > 0 {
		e.Weights = engine.WeightsLoRA
	}
	client, err := engine.New(e, engine.Options{Processor: processor(cfg.Policy), ImagePad: codec.ImagePad(), Files: store.Get})
	if err != nil {
		return nil, usageError{err}
	}
	return &sampler{name, dir, client, loop.New(cfg.Loop, client, tools, codec, store)}, nil
}

// sampler returns one over this session's tools and blobs.
func (s *session) sampler(url, name string, tools loop.Tools) (*sampler, error) {
	return newSampler(url, name, s.path("weights", name), s.cfg, tools, s.codec, s.blobs)
}

// Load brings the server to a published version. The files of the version
// before it are removed: nobody asks for that one while this is called.
func (r *sampler) Load(ctx context.Context, m rollout.WeightsManifest) (rollout.Proof, error) {
	if err := os.RemoveAll(r.dir); err != nil {
		return rollout.Proof{}, err
	}
	proof, err := r.client.Load(ctx, m)
	proof.Worker = r.name
	return proof, err
}

// Run attempts one task.
func (r *sampler) Run(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
	return r.loop.Run(ctx, t)
}

func (r *sampler) close() error { return os.RemoveAll(r.dir) }

// A remoteStand evaluates what the learner saved, on every sampler at once.
type remoteStand struct {
	learner  *publisher
	samplers []*sampler
	turn     atomic.Uint64
}

func (s *session) remoteStand(ctx context.Context) (*remoteStand, error) {
	l, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	r := &remoteStand{learner: &publisher{Learner: l, store: s.blobs, keep: 1}}
	for i, url := range s.cfg.Policy.Remote.Samplers {
		one, err := s.sampler(url, fmt.Sprintf("eval-%d", i), s.tools)
		if err != nil {
			return nil, err
		}
		r.samplers = append(r.samplers, one)
	}
	return r, nil
}

// take brings the learner, and through it every server, to a contender. It is
// version 0 each time, as evaluation asks; digests and canaries tell them apart.
func (r *remoteStand) take(ctx context.Context, c contender) (string, error) {
	if err := r.learner.Start(ctx, c.dir); err != nil {
		return "", err
	}
	m, err := r.learner.Publish(ctx, 0)
	if err != nil {
		return "", err
	}
	for _, one := range r.samplers {
		if _, err := one.Load(ctx, m); err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return m.Digest, nil
}

// Sample samples a turn on the next server.
func (r *remoteStand) Sample(ctx context.Context, req loop.SampleRequest) (loop.SampleResult, error) {
	return r.samplers[r.turn.Add(1)%uint64(len(r.samplers))].client.Sample(ctx, req)
}

func (r *remoteStand) close() (err error) {
	for _, one := range r.samplers {
		if e := one.close(); err == nil {
			err = e
		}
	}
	return err
}

// exportRemote makes the learner write a checkpoint as a Hugging Face folder.
func (s *session) exportRemote(ctx context.Context, dir, stage string, c trainer.Checkpoint) error {
	l, err := s.dial(ctx)
	if err != nil {
		return err
	}
	if err := l.Start(ctx, c.LearnerDir()); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	e, err := l.Export(ctx, dir)
	if err != nil {
		return err
	}
	sum, err := checkpointDigest(c)
	if err != nil {
		return err
	}
	about := card{what: "Base model " + s.cfg.Policy.Remote.Model, stage: stage, step: c.Step, weights: fmt.Sprintf("sha256 of the checkpoint's manifest %.16s", sum)}
	if err := s.accompany(dir, about); err != nil {
		return err
	}
	return notPublished(dir, compareExport(e.Loaded, e.Trained, e.First, e.Tolerance))
}
