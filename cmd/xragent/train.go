package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"xragent/configs"
	"xragent/dataset"
	"xragent/eval"
	"xragent/internal/blobs"
	"xragent/internal/bus"
	"xragent/rollout/loop"
	"xragent/rollout/queue"
	"xragent/toolserver"
	"xragent/toolserver/measure"
	"xragent/trainer"
)

// sftStage trains on the corpus until the validation loss is flat.
func (s *session) sftStage(ctx context.Context) error {
	train, trainSum, err := s.rows(ctx, "train")
	if err != nil {
		return err
	}
	validate, validateSum, err := s.rows(ctx, "validate")
	if err != nil {
		return err
	}
	from, err := s.beforeSFT()
	if err != nil {
		return err
	}
	l, err := s.learnerFrom(ctx, from)
	if err != nil {
		return err
	}
	cfg := s.cfg.SFT
	cfg.Seed = s.seed("sft", cfg.Seed)
	res, err := trainer.RunSFT(ctx, cfg, trainer.SFTDeps{
		Learner: l, Train: train, Validation: validate, Dir: s.path("sft"), Resume: s.resume,
		Digests: map[string]string{"corpus": trainSum, "validation": validateSum, "weights": l.start, "tokenizer": blobs.Digest(s.codec.JSON())},
		Observe: s.observe, Notice: func(m string) { s.notice("%s", m) },
	})
	if err != nil {
		return err
	}
	why := "at its last step"
	if res.Plateau {
		why = "at the validation plateau"
	}
	s.notice("sft: ended %s after %d steps; best validation loss %.4f at step %d", why, res.Steps, res.BestLoss, res.BestStep)
	return nil
}

// startPoint returns the checkpoint that GRPO begins with: SFT's best; in a
// pipeline without SFT what pre-training gave, or nil for the untrained weights.
func (s *session) startPoint() (*trainer.Checkpoint, error) {
	if s.cfg.From.Begin == configs.BeginNone {
		return s.pretrained()
	}
	if !s.cfg.Has(configs.StageSFT) && !exists(s.path("sft")) {
		return s.pretrained()
	}
	c, err := trainer.BestCheckpoint(s.path("sft"))
	if err != nil {
		return nil, usageError{fmt.Errorf("no SFT checkpoint to start from: run the stage sft first, or leave it out of stages: %w", err)}
	}
	return &c, nil
}

// grpoStage trains by reinforcement over the rollout queue.
func (s *session) grpoStage(ctx context.Context) error {
	d, err := s.load(ctx)
	if err != nil {
		return err
	}
	from, err := s.startPoint()
	if err != nil {
		return err
	}
	l, err := s.learnerFrom(ctx, from)
	if err != nil {
		return err
	}
	return s.withQueue(ctx, func(ctx context.Context, q *queue.Queue) error {
		cfg := s.cfg.GRPO
		cfg.Seed = s.seed("grpo", cfg.Seed)
		res, err := trainer.RunGRPO(ctx, cfg, trainer.GRPODeps{
			Run: s.cfg.Run.Name, Learner: l, Queue: q, Samples: prompts(d.split(dataset.Train), s.cfg.GRPO.Reports), Score: s.cfg.Reward.Score,
			Blobs: s.blobs, Limits: s.limits(l.vocab), KMax: s.cfg.Reward.KMax, Dir: s.path("grpo"), Resume: s.resume,
			Digests: s.grpoDigests(d, l.start),
			Observe: func(r trainer.StepRecord, t trainer.StepTimes) {
				if depth, err := q.Depth(ctx); err == nil { // a gauge: a step without it is no loss
					t.QueueDepth = depth.Waiting + depth.Held
				}
				s.observe(r, t)
			},
			Notice: func(m string) { s.notice("%s", m) },
		})
		if err != nil {
			return err
		}
		s.notice("grpo: %d steps, %.0f %% of groups mixed", res.Steps, 100*res.Mixed)
		return s.records(d)
	})
}

// prompts returns the samples that GRPO asks: all with a short answer, and so
// many of the report style for each of them.
func prompts(train []dataset.Sample, share float64) []dataset.Sample {
	var short, reports []dataset.Sample
	for _, s := range train {
		if s.Prompt.Kind == dataset.Report {
			reports = append(reports, s)
		} else {
			short = append(short, s)
		}
	}
	n := int(math.Ceil(share * float64(len(short))))
	switch {
	case len(short) == 0 || n >= len(reports):
		return append(short, reports...)
	case n == 0:
		return short
	}
	return append(short, eval.Select(reports, n)...)
}

func (s *session) grpoDigests(d *samples, weights string) map[string]string {
	sum := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic("xragent: configuration does not marshal: " + err.Error())
		}
		return blobs.Digest(text)
	}
	return map[string]string{"data": d.digest, "weights": weights, "tokenizer": blobs.Digest(s.codec.JSON()),
		"reward": sum(s.cfg.Reward), "measurements": measure.Version, "images": s.images.Hash(), "k_max": fmt.Sprint(s.cfg.Loop.KMax)}
}

// withQueue opens the queue, starts this process's workers, and calls train.
// Everything it started has ended when it returns.
func (s *session) withQueue(ctx context.Context, train func(context.Context, *queue.Queue) error) (err error) {
	nc, url, stop, err := s.connect(ctx)
	if err != nil {
		return usageError{err}
	}
	defer stop()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := s.publishRunInfo(ctx, js); err != nil {
		return err
	}
	q, err := queue.New(ctx, js, queue.Options{Run: s.cfg.Run.Name, AckWait: s.cfg.Queue.AckWait, OnEvent: s.onEvent, Log: s.logger()})
	if err != nil {
		return err
	}
	defer q.Close()
	if s.cfg.Queue.Listen != "" { // not earlier: who joins finds the run and its streams
		s.notice("workers may join: xragent worker rollout --url %s --run %s", url, s.cfg.Run.Name)
	}
	tools, err := s.toolsFor(ctx, nc, url)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel(nil)
	for i := range s.cfg.Queue.Workers {
		workers.Go(func() {
			select {
			case <-q.Opened():
			case <-ctx.Done():
				return
			}
			if err := s.work(ctx, js, i, tools); err != nil {
				cancel(err)
			}
		})
	}
	err = train(ctx, q)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if err != nil {
		return err
	}
	return q.End(ctx)
}

// work runs the i-th worker of this process until the run or ctx ends.
func (s *session) work(ctx context.Context, js jetstream.JetStream, i int, tools loop.Tools) error {
	name := fmt.Sprintf("local-%d", i)
	r, err := s.worker(i, name, tools)
	if err != nil {
		return err
	}
	defer r.close()
	return queue.RunWorker(ctx, js, queue.WorkerOptions{Run: s.cfg.Run.Name, Name: name, Slots: s.cfg.Queue.Slots, Log: s.logger()}, r)
}

// connect returns a connection to the external server, or starts the embedded
// one, with the URL where others join. The caller calls stop.
func (s *session) connect(ctx context.Context) (nc *nats.Conn, url string, stop func(), err error) {
	name := "coordinator " + s.cfg.Run.Name
	if url = s.cfg.Queue.URL; url != "" {
		if nc, err = bus.Dial(ctx, url, name, s.logger()); err != nil {
			return nil, "", nil, err
		}
		return nc, url, func() { bus.Close(nc) }, nil
	}
	server, err := bus.Start(bus.Options{Dir: s.path("nats"), Listen: s.cfg.Queue.Listen, Token: os.Getenv("XRAGENT_TOKEN"), Log: s.logger()})
	if err != nil {
		return nil, "", nil, err
	}
	if nc, err = server.Connect(name); err != nil {
		server.Stop()
		return nil, "", nil, err
	}
	return nc, server.URL(), func() { bus.Close(nc); server.Stop() }, nil
}

// toolsFor returns the tools for the workers of this process: its own, or
// those that answer on NATS.
func (s *session) toolsFor(ctx context.Context, nc *nats.Conn, url string) (loop.Tools, error) {
	if s.cfg.Queue.Tools == "process" || s.cfg.Queue.Workers == 0 {
		return s.tools, nil
	}
	return remoteTools(ctx, nc, s.cfg.Tools.Deadline, func() {
		s.notice("waiting for the tools: xragent tools --url %s --run %s", url, s.cfg.Run.Name)
	})
}

// How long tools on NATS may take to appear: a person starts them once the run
// says where to join.
const (
	toolsWithin = 5 * time.Minute
	toolsAsk    = 500 * time.Millisecond
)

// remoteTools returns the tools that answer on nc. It waits for them, and says
// so once.
func remoteTools(ctx context.Context, nc *nats.Conn, deadline time.Duration, waiting func()) (loop.Tools, error) {
	ctx, cancel := context.WithTimeout(ctx, toolsWithin)
	defer cancel()
	for say := waiting; ; say = func() {} {
		c, err := toolserver.NewClient(ctx, nc, deadline)
		if err == nil {
			return c, nil
		}
		say()
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no tools on NATS: %w: start xragent tools, or set queue.tools=process", err)
		case <-time.After(toolsAsk):
		}
	}
}

func (s *session) onEvent(e queue.Event) {
	switch e.Kind {
	case queue.WorkerProved, queue.VersionClosed:
	default:
		s.notice("queue: %s worker=%s version=%d tasks=%d %s", e.Kind, e.Worker, e.Version, e.Tasks, e.Detail)
	}
}

// observe shows and counts one optimizer step.
func (s *session) observe(r trainer.StepRecord, t trainer.StepTimes) {
	s.metrics.Step(r, t)
	if r.Stage != configs.StageGRPO {
		if r.Step%10 != 0 && r.Validation == nil {
			return
		}
		line := fmt.Sprintf("%s %d/%d loss %.3f grad %.2f lr %.1e %.0f tok/s", r.Stage, r.Step, r.Total, r.Stats.Loss, r.Stats.GradNorm, r.LR, t.TokensPerSec)
		if r.Validation != nil {
			line += fmt.Sprintf(" validation %.4f", *r.Validation)
		}
		s.notice("%s", line)
		return
	}
	s.notice("%s", stepLine(r, t))
}

// stepLine is the one line of a GRPO step.
func stepLine(r trainer.StepRecord, t trainer.StepTimes) string {
	var b strings.Builder
	fmt.Fprintf(&b, "grpo %d/%d acc %.2f format %.2f cxr %.2f calls %.2f reward %.2f", r.Step, r.Total, r.Accuracy, r.Format, r.CXR, r.ToolCalls, r.Reward)
	groups := max(1, r.Groups.Mixed+r.Groups.AllRight+r.Groups.AllWrong)
	fmt.Fprintf(&b, " mixed %.0f %% entropy %.2f grad %.2f", 100*float64(r.Groups.Mixed)/float64(groups), r.Stats.Entropy, r.Stats.GradNorm)
	fmt.Fprintf(&b, " %.0f tok/s %.2f s", t.TokensPerSec, t.Seconds["total"])
	if r.Skipped {
		b.WriteString(" (no group had a signal)")
	}
	for _, alarm := range r.Alarms {
		b.WriteString(" ALARM " + alarm)
	}
	return b.String()
}
