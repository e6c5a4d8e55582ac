package loop

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"xragent/rollout"
)

// A Loop runs trajectories; it is safe for concurrent use.
type Loop struct {
	cfg     Config
	sampler Sampler
	tools   Tools
	codec   Codec
	blobs   Blobs
}

// New returns a loop over its parts. cfg must be valid.
func New(cfg Config, s Sampler, t Tools, c Codec, b Blobs) *Loop {
	return &Loop{cfg, s, t, c, b}
}

// Run makes one trajectory of task. What the policy does wrong is in the
// trajectory; what a tool reports as its own error is an observation. A tool
// that cannot be reached, or not in time, after one retry gives a trajectory
// with Stop [rollout.ToolDown], a turn that is not sampled in time one with
// [rollout.Timeout]: the task may be attempted again. An error means that no
// trajectory can be made: an image is missing or damaged, the prompt does not
// fit, the sampler failed or broke the contract (*[rollout.RejectError]), or
// ctx has ended.
//
// Equal tasks give equal trajectories up to [rollout.Trajectory.Canonical], in
// whatever order tools return.
func (l *Loop) Run(ctx context.Context, task rollout.Task) (rollout.Trajectory, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Loop: l, task: task, seconds: map[string]float64{}}
	r.t = rollout.Trajectory{
		Task: task.ID, Sample: task.Sample, Version: task.Version, Seed: task.Seed,
		Bundle: rollout.Bundle{Image: -1},
	}
	defer r.time("total")()
	if err := r.steps(ctx); err != nil {
		return rollout.Trajectory{}, fmt.Errorf("rollout %v: %w", task.ID, err)
	}
	r.t.Seconds = r.seconds
	return r.t, nil
}

// A run is the state of one trajectory on its way.
type run struct {
	*Loop
	task    rollout.Task
	images  [][]byte // encoded, in order of appearance
	prompt  []int32  // turn 1's, compact
	t       rollout.Trajectory
	seconds map[string]float64
}

// time measures a stage from the call to that of the returned function.
func (r *run) time(stage string) func() {
	start := time.Now()
	return func() { r.seconds[stage] = time.Since(start).Seconds() }
}

// steps runs both turns. It ends early, without an error, once Stop is set.
func (r *run) steps(ctx context.Context) error {
	if err := r.fetch(ctx); err != nil {
		return err
	}
	measured := r.measure(ctx)
	if err := r.triage(ctx); err != nil || r.t.Stop.Infrastructure() {
		return err
	}
	png, err := r.callTools(ctx)
	if err != nil {
		return r.toolDown(ctx, err)
	}
	m := <-measured
	r.seconds["measure"] = m.seconds
	if m.err != nil {
		return r.toolDown(ctx, m.err)
	}
	r.t.Bundle = m.bundle
	r.attach(png)
	if r.t.Stop != "" {
		return nil
	}
	return r.integrate(ctx)
}

// toolDown ends the trajectory for another attempt, unless the whole run ended.
func (r *run) toolDown(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	r.t.Stop = rollout.ToolDown
	return nil
}

// fetch gets the prompt's images and holds them against their hashes.
func (r *run) fetch(ctx context.Context) error {
	defer r.time("fetch")()
	if n := len(r.task.Prompt.Images); n > r.cfg.MaxImages {
		return fmt.Errorf("sample %s has %d images, max_images is %d", r.task.Sample, n, r.cfg.MaxImages)
	}
	for i, img := range r.task.Prompt.Images {
		data, err := retried(ctx, r.cfg.CallTimeout, func(ctx context.Context) ([]byte, error) {
			return r.blobs.Get(ctx, img.SHA256)
		})
		if err != nil {
			return fmt.Errorf("sample %s: image %d (%s): %w", r.task.Sample, i+1, img.SHA256, err)
		}
		if got := digest(data); got != img.SHA256 {
			return fmt.Errorf("sample %s: image %d should be %s but its bytes are %s: the store is damaged",
				r.task.Sample, i+1, img.SHA256, got)
		}
		r.images = append(r.images, data)
	}
	return nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

type measurement struct {
	bundle  rollout.Bundle
	seconds float64
	err     error
}

// measure starts the measurements beside the policy.
func (r *run) measure(ctx context.Context) <-chan measurement {
	done := make(chan measurement, 1)
	images, start := slices.Clone(r.images), time.Now()
	go func() {
		b, err := retried(ctx, r.cfg.MeasureTimeout, func(ctx context.Context) (rollout.Bundle, error) {
			return r.tools.Measure(ctx, images, r.task.Prompt.Images)
		})
		done <- measurement{b, time.Since(start).Seconds(), err}
	}()
	return done
}

// triage samples turn 1 and reads its calls. Where the turn was cut it is the
// last one.
func (r *run) triage(ctx context.Context) error {
	defer r.time("triage")()
	schemas := r.tools.Schemas()
	if !r.task.Tools {
		schemas = nil
	}
	r.prompt = r.codec.Triage(r.task.Prompt, schemas)
	if need := r.length(len(r.prompt), len(r.images)); need > r.cfg.MaxContext {
		return fmt.Errorf("sample %s: turn 1 needs up to %d ids with %d to sample, max_context is %d: raise it or lower max_tokens",
			r.task.Sample, need, r.task.Sampling.MaxTokens, r.cfg.MaxContext)
	}
	if err := r.sample(ctx, r.prompt); err != nil || r.t.Stop != "" {
		return err
	}
	first := r.t.Turns[0]
	r.t.Calls = rollout.ParseTriage(first.Text).Calls
	if first.Finish != rollout.FinishStop {
		r.t.Stop = rollout.MaxTokens
	}
	return nil
}

// length is the most ids that a turn takes: n ids besides the pads of its
// images, each of which stands for one id in n, and the output.
func (r *run) length(n, images int) int {
	return n + images*(r.cfg.ImageTokens-1) + r.task.Sampling.MaxTokens
}

// integrate samples turn 2, unless its prompt does not fit. Its images are
// added only once that is certain.
func (r *run) integrate(ctx context.Context) error {
	defer r.time("integration")()
	first, bundle := r.t.Turns[0], r.t.Bundle
	bundle.Shown = bundle.Admit(r.task.Gate)
	more := r.codec.Integration(observed(r.t.Calls), bundle)
	crops := len(r.crops())
	if r.length(len(first.PromptIDs)+len(first.OutputIDs)+len(more), crops) > r.cfg.MaxContext {
		r.t.Stop = rollout.MaxContext
		return nil
	}
	r.t.Bundle = bundle
	r.images = append(r.images, r.crops()...)
	if err := r.sample(ctx, slices.Concat(r.prompt, first.OutputIDs, more)); err != nil || r.t.Stop != "" {
		return err
	}
	r.t.Stop = rollout.Answered
	if r.t.Turns[1].Finish != rollout.FinishStop {
		r.t.Stop = rollout.MaxTokens
	}
	return nil
}

var errDeadline = errors.New("no answer before its deadline")

// sample adds one turn to the trajectory, or sets Stop to Timeout.
func (r *run) sample(ctx context.Context, prompt []int32) error {
	number := len(r.t.Turns) + 1
	req := SampleRequest{
		Version: r.task.Version, IDs: prompt, Images: r.images, Stop: []int32{r.codec.EndOfTurn()},
		Seed: turnSeed(r.task.Seed, number), Sampling: r.task.Sampling,
	}
	res, err := within(ctx, r.cfg.SampleTimeout, func(ctx context.Context) (SampleResult, error) {
		return r.sampler.Sample(ctx, req)
	})
	if errors.Is(err, errDeadline) && ctx.Err() == nil {
		r.t.Stop = rollout.Timeout
		return nil
	}
	if err != nil {
		return fmt.Errorf("sample turn %d: %w", number, err)
	}
	return r.accept(res)
}

// accept holds a sampled turn against what was asked for.
func (r *run) accept(res SampleResult) error {
	number := len(r.t.Turns) + 1
	reject := func(format string, args ...any) error {
		return &rollout.RejectError{Task: r.task.ID, Reason: "images", Detail: fmt.Sprintf("turn %d: ", number) + fmt.Sprintf(format, args...)}
	}
	if len(res.Images) != len(r.images) {
		return reject("the sampler saw %d images of %d", len(res.Images), len(r.images))
	}
	if n := len(r.t.Images); n > len(res.Images) || !slices.Equal(res.Images[:n], r.t.Images) {
		return reject("the sampler saw other images than in turn 1")
	}
	if slices.Contains(res.Turn.OutputIDs, r.codec.ImagePad()) {
		return reject("the policy sampled an image-pad id")
	}
	turn := res.Turn
	turn.Images = len(res.Images)
	if turn.Text == "" {
		turn.Text = r.codec.Decode(turn.OutputIDs)
	}
	r.t.Turns = append(r.t.Turns, turn)
	r.t.Images = res.Images
	return nil
}

// turnSeed gives each turn its own stream: one step of SplitMix64 (Steele et
// al. 2014) from the trajectory's seed.
func turnSeed(seed uint64, turn int) uint64 {
	z := seed + uint64(turn)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
