package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"xragent/trainer/batch"
)

// SFTConfig says how supervised fine-tuning goes.
type SFTConfig struct {
	MaxSteps        int       `yaml:"max_steps" json:"max_steps"`
	BatchTokens     int       `yaml:"batch_tokens" json:"batch_tokens"` // ids a step, prompts and image pads included
	BatchRows       int       `yaml:"batch_rows" json:"batch_rows"`     // most rows a step; 0: no limit
	Optimizer       Optimizer `yaml:"optimizer" json:"optimizer"`
	EvalEvery       int       `yaml:"eval_every" json:"eval_every"` // steps between validations
	Patience        int       `yaml:"patience" json:"patience"`     // validations without improvement before the stop; 0: never
	MinDelta        float64   `yaml:"min_delta" json:"min_delta"`   // least fall of the validation loss that counts
	Seed            uint64    `yaml:"seed" json:"seed"`
	CheckpointEvery int       `yaml:"checkpoint_every" json:"-"` // steps; may differ when a run is continued
}

// DefaultSFT returns settings that suit the embedded policy.
func DefaultSFT() SFTConfig {
	return SFTConfig{
		MaxSteps: 400, BatchTokens: 8192,
		Optimizer: Optimizer{LR: 1e-3, WarmUp: 20, Decay: "cosine", FinalLR: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Weight: 0.01, MaxNorm: 1},
		EvalEvery: 25, Patience: 4, MinDelta: 0.002, CheckpointEvery: 50,
	}
}

// Validate reports the first setting that cannot train.
func (c SFTConfig) Validate() error {
	switch {
	case c.MaxSteps < 1:
		return fmt.Errorf("max_steps = %d: must be at least 1", c.MaxSteps)
	case c.BatchTokens < 1:
		return fmt.Errorf("batch_tokens = %d: must be at least 1", c.BatchTokens)
	case c.BatchRows < 0 || c.Patience < 0 || c.CheckpointEvery < 0:
		return fmt.Errorf("batch_rows = %d, patience = %d, checkpoint_every = %d: must not be negative", c.BatchRows, c.Patience, c.CheckpointEvery)
	case c.EvalEvery < 1:
		return fmt.Errorf("eval_every = %d: must be at least 1", c.EvalEvery)
	case !(c.MinDelta >= 0):
		return fmt.Errorf("min_delta = %v: must not be negative", c.MinDelta)
	}
	if err := c.Optimizer.Validate(); err != nil {
		return fmt.Errorf("optimizer.%w", err)
	}
	return nil
}

// SFTDeps is what supervised fine-tuning works with.
type SFTDeps struct {
	Learner           Learner
	Train, Validation []batch.Row
	Stage             string            // its name in records and messages; "": sft
	Dir               string            // of this stage
	Resume            bool              // continue what Dir holds
	Digests           map[string]string // of the data, the initial weights, ...: a continued run must have the same

	Observe func(StepRecord, StepTimes) // after each step; may be nil
	Notice  func(string)                // what a person should know; may be nil
	Now     func() time.Time            // nil: time.Now

	at boundary
}

// An SFTResult says how the stage ended. The learner holds the best weights.
type SFTResult struct {
	Steps    int
	Plateau  bool // stopped before MaxSteps, since the validation loss no longer fell
	BestStep int
	BestLoss float64
	Best     Checkpoint
}

// RunSFT trains until the validation loss no longer falls, or for MaxSteps. A
// row is seen once an epoch, in an order that follows from the seed alone. When
// ctx ends it saves and returns an [*InterruptedError].
func RunSFT(ctx context.Context, c SFTConfig, d SFTDeps) (SFTResult, error) {
	s, err := openSFT(ctx, c, d)
	if err != nil {
		return SFTResult{}, err
	}
	err = s.run(ctx)
	if cerr := s.log.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return SFTResult{}, err
	}
	return s.result(ctx)
}

// sftState is the stage's part of state.json.
type sftState struct {
	BestStep int     `json:"best_step"` // 0: no validation yet
	BestLoss float64 `json:"best_loss"`
	Bad      int     `json:"bad"` // validations since then
}

type sft struct {
	cfg        SFTConfig
	deps       SFTDeps
	store      store
	log        *stepLog
	rows       *rowBatches
	validation []batch.Batch
	step       int
	norms      []float64 // gradient norms of the steps so far
	saved      int
	done       bool
	state      sftState
	clock      stopwatch
}

func openSFT(ctx context.Context, c SFTConfig, d SFTDeps) (*sft, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("sft.%w", err)
	}
	if d.Stage == "" {
		d.Stage = "sft"
	}
	s := &sft{cfg: c, deps: d, rows: &rowBatches{rows: d.Train, order: order{seed: mix(c.Seed, 'r'), n: len(d.Train)}, tokens: c.BatchTokens, most: c.BatchRows}}
	s.deps.Notice, s.deps.Observe, s.clock = listeners(d.Notice, d.Observe, d.Now)
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Stage, err)
	}
	identity, err := identify(d.Stage, c, d.Digests)
	if err != nil {
		return nil, err
	}
	if err := claim(d.Dir, d.Stage, d.Resume, identity); err != nil {
		return nil, err
	}
	s.store = store{stage: d.Stage, dir: d.Dir, learner: d.Learner, at: d.at}
	return s, s.restore(ctx)
}

// prepare checks the rows and packs the validation batches.
func (s *sft) prepare() error {
	if len(s.deps.Train) == 0 || len(s.deps.Validation) == 0 {
		return fmt.Errorf("%d training and %d validation rows: both are needed", len(s.deps.Train), len(s.deps.Validation))
	}
	for _, r := range s.deps.Train {
		if len(r.IDs) > s.cfg.BatchTokens {
			return fmt.Errorf("row %s has %d ids, batch_tokens is %d: raise it or shorten the row", r.ID, len(r.IDs), s.cfg.BatchTokens)
		}
	}
	packs, err := batch.Pack(s.deps.Validation, s.cfg.BatchTokens)
	if err != nil {
		return fmt.Errorf("validation: %w", err)
	}
	for _, rows := range packs {
		b, err := batch.New(rows)
		if err != nil {
			return fmt.Errorf("validation: %w", err)
		}
		s.validation = append(s.validation, b)
	}
	return nil
}

func (s *sft) restore(ctx context.Context) error {
	c, err := s.store.restore(ctx, s.deps.Notice)
	if err != nil {
		return err
	}
	if c.state != nil {
		if err := json.Unmarshal(c.state, &s.state); err != nil {
			return fmt.Errorf("%s: checkpoint %s: %w", s.deps.Stage, c.Path, err)
		}
	}
	s.step, s.saved, s.done = c.Step, c.Step, c.Done
	for range s.step {
		s.rows.next()
	}
	var history []StepRecord
	s.log, history, err = openStepLog(s.deps.Dir, s.step)
	s.norms = norms(history)
	return err
}

func (s *sft) run(ctx context.Context) error {
	for !s.done {
		if err := s.takeStep(ctx); err != nil {
			if ctx.Err() != nil {
				return s.interrupted(ctx)
			}
			return err
		}
	}
	return nil
}

func (s *sft) takeStep(ctx context.Context) error {
	if err := errors.Join(ctx.Err(), s.deps.at.cross("train")); err != nil {
		return err
	}
	b, err := batch.New(s.rows.next())
	if err != nil {
		return fmt.Errorf("%s: step %d: %w", s.deps.Stage, s.step+1, err)
	}
	o := s.cfg.Optimizer.objective("sft", s.step+1, s.cfg.MaxSteps, s.norms)
	s.clock.enter("train")
	stats, err := s.deps.Learner.Step(ctx, b, o)
	if err != nil {
		s.rows.back()
		return fmt.Errorf("%s: step %d: %w", s.deps.Stage, s.step+1, err)
	}
	s.step++
	rec := StepRecord{Stage: s.deps.Stage, Step: s.step, Total: s.cfg.MaxSteps, LR: o.LR, Stats: stats}
	rec.markSpike(s.cfg.Optimizer.spikeBound(s.norms), s.deps.Notice)
	s.norms = append(s.norms, stats.GradNorm)
	return s.conclude(ctx, &rec, ids(b))
}

// conclude validates, records and saves after a step. It goes on when ctx ends
// in the middle, since the step is taken.
func (s *sft) conclude(ctx context.Context, rec *StepRecord, tokens int) error {
	ctx = context.WithoutCancel(ctx)
	improved := false
	if s.step%s.cfg.EvalEvery == 0 || s.step == s.cfg.MaxSteps {
		loss, err := s.validate(ctx)
		if err != nil {
			return fmt.Errorf("%s: validation after step %d: %w", s.deps.Stage, s.step, err)
		}
		rec.Validation = &loss
		improved = s.judge(loss)
	}
	s.done = s.step == s.cfg.MaxSteps || s.cfg.Patience > 0 && s.state.Bad >= s.cfg.Patience
	due := s.cfg.CheckpointEvery > 0 && s.step%s.cfg.CheckpointEvery == 0
	rec.Checkpoint = improved || due || s.done
	times := s.clock.lap(s.deps.Stage, s.step, tokens)
	if err := s.log.append(*rec, times); err != nil {
		return err
	}
	s.deps.Observe(*rec, times)
	if !rec.Checkpoint {
		return nil
	}
	return s.save(ctx, improved)
}

// validate returns the mean loss a loss token over all validation rows.
func (s *sft) validate(ctx context.Context) (float64, error) {
	s.clock.enter("validate")
	sum, tokens := 0.0, 0
	for _, b := range s.validation {
		loss, err := s.deps.Learner.Evaluate(ctx, b)
		if err != nil {
			return 0, err
		}
		sum += loss * float64(b.Tokens)
		tokens += b.Tokens
	}
	return sum / float64(tokens), nil
}

// judge reports whether a validation loss is the best so far. Only a fall by
// MinDelta resets the patience; any fall makes a new best.
func (s *sft) judge(loss float64) bool {
	first := s.state.BestStep == 0
	if first || loss < s.state.BestLoss-s.cfg.MinDelta {
		s.state.Bad = 0
	} else {
		s.state.Bad++
	}
	if first || loss < s.state.BestLoss {
		s.state.BestStep, s.state.BestLoss = s.step, loss
		return true
	}
	return false
}

// save writes a checkpoint. Its score is the validation loss where the step
// was validated best; other checkpoints never become the best one.
func (s *sft) save(ctx context.Context, improved bool) error {
	s.clock.enter("checkpoint")
	score := unscored
	if improved {
		score = -s.state.BestLoss
	}
	if err := s.log.sync(); err != nil {
		return err
	}
	s.saved = s.step
	return s.store.save(ctx, s.step, score, s.done, s.state)
}

// unscored ranks below every validation loss; JSON has no infinity.
const unscored = -1e300

func (s *sft) interrupted(ctx context.Context) error {
	if s.step > s.saved {
		if err := s.save(context.WithoutCancel(ctx), false); err != nil {
			return err
		}
	}
	return &InterruptedError{s.deps.Stage, s.step, s.cfg.MaxSteps, context.Cause(ctx)}
}

func (s *sft) result(ctx context.Context) (SFTResult, error) {
	best := *s.store.best
	if err := s.deps.Learner.Load(ctx, best.LearnerDir()); err != nil {
		return SFTResult{}, fmt.Errorf("%s: best checkpoint %s: %w", s.deps.Stage, best.Path, err)
	}
	return SFTResult{s.step, s.step < s.cfg.MaxSteps, s.state.BestStep, s.state.BestLoss, best}, nil
}

// rowBatches cuts the shuffled rows into batches. A batch ends with its epoch.
type rowBatches struct {
	rows         []batch.Row
	order        order
	tokens, most int
	position     int
	before       int // position before the last batch
}

func (b *rowBatches) next() []batch.Row {
	b.before = b.position
	var rows []batch.Row
	for used := 0; ; b.position++ {
		row := b.rows[b.order.at(b.position)]
		used += len(row.IDs)
		endOfEpoch := len(rows) > 0 && b.position%len(b.rows) == 0
		if endOfEpoch || used > b.tokens || b.most > 0 && len(rows) == b.most {
			return rows
		}
		rows = append(rows, row)
	}
}

// back takes the last batch back.
func (b *rowBatches) back() { b.position = b.before }
