package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"

	"xragent/chat"
	"xragent/internal/blobs"
	"xragent/internal/simd"
	"xragent/policy/embedded"
	"xragent/rollout"
	"xragent/rollout/loop"
	"xragent/rollout/queue"
	"xragent/trainer"
)

// seed derives a seed for one use from the run's, unless one is configured.
func (s *session) seed(use string, configured uint64) uint64 {
	if configured != 0 {
		return configured
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", s.cfg.Run.Seed, use))
	return binary.BigEndian.Uint64(sum[:]) >> 1 // fits a YAML integer
}

// smallModel is the embedded policy's architecture for a tokenizer.
func smallModel(c *chat.Codec) embedded.Config {
	cfg := embedded.Small(c.Vocab())
	cfg.ImageTokenID = c.ImagePad()
	cfg.VideoTokenID, _ = c.ID("<|video_pad|>") // every Qwen-VL tokenizer has it
	cfg.VisionStartID, cfg.VisionEndID = c.VisionMarks()
	return cfg
}

// model is the embedded policy's architecture in this run.
func (s *session) model() embedded.Config {
	if s.base != nil {
		return s.base.weights.Config()
	}
	return smallModel(s.codec)
}

// firstWeights are the weights that the run begins with: a folder's, those of
// the built-in base, or random ones.
func (s *session) firstWeights() (*embedded.Weights, error) {
	if s.base != nil {
		return s.base.weights, nil
	}
	if s.cfg.Policy.Embedded.Base == "none" {
		return embedded.Init(s.model(), s.seed("weights", 0)), nil
	}
	w, _, err := embedded.Base(s.model(), blobs.Digest(s.codec.JSON()))
	return w, err
}

// untrained returns a copy of the weights that the run begins with.
func (s *session) untrained() *embedded.Weights { return s.begin.Clone() }

// A trainee is a learner that holds the weights that a stage begins with.
type trainee struct {
	trainer.Learner
	start string // digest that identifies those weights
	vocab int    // ids that the policy may sample
}

// learnerFrom returns a learner with the weights of c, or with the untrained
// ones for nil.
func (s *session) learnerFrom(ctx context.Context, c *trainer.Checkpoint) (trainee, error) {
	if s.remote() {
		return s.remoteLearner(ctx, c)
	}
	w := s.untrained()
	if c != nil {
		var err error
		if w, err = s.weights(c.LearnerDir()); err != nil {
			return trainee{}, err
		}
	}
	l, err := s.learner(w)
	return trainee{l, w.Digest(), s.codec.Vocab()}, err
}

// learner returns a learner that owns w.
func (s *session) learner(w *embedded.Weights) (*embedded.Learner, error) {
	e := s.cfg.Policy.Embedded
	return embedded.NewLearner(s.model(), w, embedded.LearnerOptions{
		Run: s.cfg.Run.Name, Threads: e.ResolvedThreads(), MicroTokens: e.MicroTokens,
		Reference: s.cfg.GRPO.Loss.KL.Coef > 0, Images: s.blobs.Get, Processor: s.images, Put: (&publishedWeights{store: s.blobs}).Put,
		Repro: s.path("repro"), Notice: func(text string) { s.notice("%s", text) },
	})
}

// weights reads the weights that a learner saved or an export holds.
func (s *session) weights(dir string) (*embedded.Weights, error) {
	return embedded.ReadSafetensors(filepath.Join(dir, "model.safetensors"), s.model())
}

// limits is what arriving trajectories are checked against.
func (s *session) limits(vocab int) rollout.Limits {
	return rollout.Limits{Vocab: vocab, ImagePad: s.codec.ImagePad(), Merge: s.images.Merge, MaxIDs: s.cfg.Loop.MaxContext}
}

// A worker runs trajectories on one version of the policy.
type worker interface {
	queue.Engine
	close() error
}

// worker returns the i-th worker of this process over this session's blobs.
func (s *session) worker(i int, name string, tools loop.Tools) (worker, error) {
	if s.remote() {
		return s.sampler(s.cfg.Policy.Remote.Samplers[i], name, tools)
	}
	return s.roller(name, tools)
}

// A roller runs trajectories on one version of the embedded policy. It
// implements queue.Engine.
type roller struct {
	name   string
	model  embedded.Config
	engine *embedded.Engine
	loop   *loop.Loop
	blobs  loop.Blobs
}

// newRoller starts an engine with the run's loop around it. The caller closes it.
func newRoller(name string, model embedded.Config, opts embedded.EngineOptions, cfg loop.Config, tools loop.Tools, codec loop.Codec, store loop.Blobs) (*roller, error) {
	e, err := embedded.NewEngine(model, opts)
	if err != nil {
		return nil, err
	}
	return &roller{name, model, e, loop.New(cfg, e, tools, codec, store), store}, nil
}

// roller returns one over this session's tools and blobs.
func (s *session) roller(name string, tools loop.Tools) (*roller, error) {
	e := s.cfg.Policy.Embedded
	opts := embedded.EngineOptions{Processor: s.images, MaxBatch: e.MaxBatch, Threads: e.ResolvedThreads()}
	return newRoller(name, s.model(), opts, s.cfg.Loop, tools, s.codec, s.blobs)
}

func (r *roller) close() error { return r.engine.Close() }

// Load fetches a published version and returns the proof of holding it: the
// digest of what was fetched and the canary's log-probs under it.
func (r *roller) Load(ctx context.Context, m rollout.WeightsManifest) (rollout.Proof, error) {
	if len(m.Files) != 1 {
		return rollout.Proof{}, fmt.Errorf("version %d has %d files, the embedded policy has one", m.Version, len(m.Files))
	}
	f := m.Files[0]
	data, err := r.blobs.Get(ctx, f.SHA256)
	if err != nil {
		return rollout.Proof{}, fmt.Errorf("version %d: %w", m.Version, err)
	}
	w, err := embedded.ReadWeights(r.model, f.Name, data)
	if err != nil {
		return rollout.Proof{}, fmt.Errorf("version %d: %w", m.Version, err)
	}
	if err := r.engine.Load(w, m.Version); err != nil {
		return rollout.Proof{}, err
	}
	logprobs, err := r.engine.Score(ctx, m.Canary.IDs)
	return rollout.Proof{Worker: r.name, Version: m.Version, Digest: rollout.FilesDigest(m.Files), Kernels: simd.Kernels(), Logprobs: logprobs}, err
}

// Run attempts one task.
func (r *roller) Run(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
	return r.loop.Run(ctx, t)
}
