package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
	"xragent/trainer/advantage"
	"xragent/trainer/coordinator"
	"xragent/trainer/loss"
)

// GRPOConfig says how reinforcement learning goes. What is marked free may
// differ when a run is continued; everything else may not.
type GRPOConfig struct {
	Steps           int              `yaml:"steps" json:"steps"`
	Prompts         int              `yaml:"prompts" json:"prompts"`             // groups a step
	GroupSize       int              `yaml:"group_size" json:"group_size"`       // rollouts a prompt
	MaxStaleness    int              `yaml:"max_staleness" json:"max_staleness"` // 0: synchronous
	GroupRule       coordinator.Rule `yaml:"group_rule" json:"group_rule"`       // fill, shrink, drop
	MinGroup        int              `yaml:"min_group" json:"min_group"`         // under shrink
	DynamicSampling bool             `yaml:"dynamic_sampling" json:"dynamic_sampling"`
	MaxReplacements int              `yaml:"max_replacements" json:"max_replacements"` // further groups a step, for dynamic sampling and fill

	Loss      loss.Config `yaml:"loss" json:"loss"`
	Optimizer Optimizer   `yaml:"optimizer" json:"optimizer"`

	Temperature float64          `yaml:"temperature" json:"temperature"`
	TopP        float64          `yaml:"top_p" json:"top_p"`
	MaxTokens   int              `yaml:"max_tokens" json:"max_tokens"` // a turn
	Tools       bool             `yaml:"tools" json:"tools"`           // false: ablation
	Gate        rollout.GateMode `yaml:"gate" json:"gate"`             // on; off, empty: ablations
	Seed        uint64           `yaml:"seed" json:"seed"`

	Curriculum     Curriculum     `yaml:"curriculum" json:"curriculum,omitzero"` // of prompts
	Entropy        EntropyControl `yaml:"entropy" json:"entropy,omitzero"`
	Reports        float64        `yaml:"reports" json:"reports"`                           // report-style prompts for one with a short answer
	PermuteRewards bool           `yaml:"permute_rewards" json:"permute_rewards,omitempty"` // control: see Permutation
	Alarms         AlarmConfig    `yaml:"alarms" json:"-"`                                  // free; of reward hacking

	MaxAttempts     int     `yaml:"max_attempts" json:"-"`     // free; at one trajectory
	ErrorBudget     int     `yaml:"error_budget" json:"-"`     // free; failed attempts that a step survives
	CheckpointEvery int     `yaml:"checkpoint_every" json:"-"` // free; steps
	ScoreWorkers    int     `yaml:"score_workers" json:"-"`    // free
	ScoreSeconds    float64 `yaml:"score_seconds" json:"-"`    // free; deadline of one reward
	StallSeconds    float64 `yaml:"stall_seconds" json:"-"`    // free; without any result, the run ends
}

// DefaultGRPO returns the recipe at the embedded policy's size.
func DefaultGRPO() GRPOConfig {
	return GRPOConfig{
		Steps: 100, Prompts: 8, GroupSize: 4, GroupRule: coordinator.Fill, MinGroup: 2, MaxReplacements: 8,
		Loss:        loss.Default(),
		Optimizer:   Optimizer{LR: 1e-4, WarmUp: 5, Decay: "constant", FinalLR: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, MaxNorm: 1},
		Temperature: 1, TopP: 1, MaxTokens: 160, Tools: true, Gate: rollout.GateOn,
		MaxAttempts: 4, ErrorBudget: 16, CheckpointEvery: 20, ScoreWorkers: 2, ScoreSeconds: 10, StallSeconds: 600,
		Reports:    1000.0 / 3715, // the recipe's shares
		Curriculum: Curriculum{Floor: 0.1}, Entropy: EntropyControl{Least: 0.1}, Alarms: DefaultAlarms(),
	}
}

// Validate reports the first setting that cannot train.
func (c GRPOConfig) Validate() error {
	if c.MaxStaleness > 0 {
		return fmt.Errorf("max_staleness = %d: only synchronous training (0) is carried out so far", c.MaxStaleness)
	}
	if c.Prompts < 1 {
		return fmt.Errorf("prompts = %d: must be at least 1", c.Prompts)
	}
	if err := c.coordinator("").Validate(); err != nil {
		return err
	}
	if err := c.Optimizer.Validate(); err != nil {
		return fmt.Errorf("optimizer.%w", err)
	}
	if err := c.Loss.Validate(); err != nil {
		return fmt.Errorf("loss.%w", err)
	}
	if err := c.validateControl(); err != nil {
		return err
	}
	return c.validateSampling()
}

func (c GRPOConfig) validateControl() error {
	if !(c.Reports >= 0 && c.Reports <= 1) {
		return fmt.Errorf("reports = %v: must lie in [0, 1], prompts for a report to one with a short answer", c.Reports)
	}
	if err := c.Curriculum.Validate(); err != nil {
		return fmt.Errorf("curriculum.%w", err)
	}
	if err := c.Entropy.Validate(); err != nil {
		return fmt.Errorf("entropy.%w", err)
	}
	if err := c.Alarms.Validate(); err != nil {
		return fmt.Errorf("alarms.%w", err)
	}
	return nil
}

func (c GRPOConfig) validateSampling() error {
	switch {
	case !slices.Contains(advantage.Presets, c.Loss.Advantage):
		return fmt.Errorf("loss.advantage = %q: must be one of %v", c.Loss.Advantage, advantage.Presets)
	case !(c.Temperature > 0):
		return fmt.Errorf("temperature = %v: must be positive, or all rollouts of a group are the same", c.Temperature)
	case !(c.TopP > 0 && c.TopP <= 1):
		return fmt.Errorf("top_p = %v: must lie in (0, 1]", c.TopP)
	case c.MaxTokens < 1:
		return fmt.Errorf("max_tokens = %d: must be at least 1", c.MaxTokens)
	case c.Gate != rollout.GateOn && c.Gate != rollout.GateOff && c.Gate != rollout.GateEmpty:
		return fmt.Errorf("gate = %q: must be on, off or empty", c.Gate)
	case c.ScoreWorkers < 1 || !(c.ScoreSeconds > 0) || !(c.StallSeconds > 0):
		return fmt.Errorf("score_workers = %d, score_seconds = %v, stall_seconds = %v: must be positive", c.ScoreWorkers, c.ScoreSeconds, c.StallSeconds)
	case c.DynamicSampling && c.MaxReplacements == 0:
		return fmt.Errorf("dynamic_sampling is on but max_replacements = 0: allow some, or switch it off")
	}
	return nil
}

func (c GRPOConfig) coordinator(run string) coordinator.Config {
	replacements := 0
	if c.DynamicSampling || c.GroupRule == coordinator.Fill {
		replacements = c.MaxReplacements
	}
	return coordinator.Config{
		Run: run, Steps: c.Steps, GroupsPerBatch: c.Prompts, GroupSize: c.GroupSize, MaxStaleness: c.MaxStaleness,
		MaxAttempts: c.MaxAttempts, Rule: c.GroupRule, MinGroup: c.MinGroup,
		Dynamic: c.DynamicSampling, MaxReplacements: replacements,
		ErrorBudget: c.ErrorBudget, CheckpointEvery: c.CheckpointEvery,
	}
}

// GRPODeps is what reinforcement learning works with.
type GRPODeps struct {
	Run     string // first part of every task id
	Learner Learner
	Queue   Queue
	Samples []dataset.Sample
	Score   func(rollout.Trajectory, dataset.Sample) (reward.Score, error)
	Blobs   Blobs
	Limits  rollout.Limits
	KMax    int               // most tool calls of turn 1, for the alarms
	Dir     string            // of this stage
	Resume  bool              // continue what Dir holds
	Digests map[string]string // of the data, the initial weights, the reward, ...: a continued run must have the same

	Observe func(StepRecord, StepTimes) // after each step; may be nil
	Notice  func(string)                // what a person should know; may be nil
	Now     func() time.Time            // nil: time.Now

	at boundary
}

// Blobs keeps the images that trajectories bring with them.
type Blobs interface {
	Put(ctx context.Context, data []byte) (sha256 string, err error)
}

// A GRPOResult says how the stage ended. The learner holds the last weights.
type GRPOResult struct {
	Steps   int
	Resumed int        // the step that the run was continued from; 0: from the start
	Mixed   float64    // share of groups with right and wrong answers, over all steps
	Latest  Checkpoint // of the last step
	Best    Checkpoint // by mean accuracy over the ten steps before it
}

// RunGRPO trains for c.Steps optimizer steps. Tasks go out by the queue and
// results come back by it, in any order and more than once; package
// coordinator decides what they mean. When ctx ends, the run saves what is
// trained and returns an [*InterruptedError]; where the coordinator gives up, a
// [*StoppedError]; where nothing arrives, a [*StalledError].
//
// Every goroutine that RunGRPO starts has ended when it returns, except a
// reward that overran its deadline.
func RunGRPO(ctx context.Context, c GRPOConfig, d GRPODeps) (GRPOResult, error) {
	g, err := openGRPO(ctx, c, d)
	if err != nil {
		return GRPOResult{}, err
	}
	err = g.run(ctx)
	if cerr := g.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return GRPOResult{}, err
	}
	if g.step != c.Steps {
		return GRPOResult{}, fmt.Errorf("grpo: finished with %d steps, %d were asked for", g.step, c.Steps)
	}
	return g.result()
}

type grpo struct {
	cfg     GRPOConfig
	plan    coordinator.Config
	deps    GRPODeps
	c       *coordinator.Coordinator
	store   store
	ledger  *ledger
	log     *stepLog
	clock   stopwatch
	prompts prompts
	step    int
	resumed int

	groups    map[int]*groupWork // of open steps, by number
	decided   map[string]string  // decisions on record: Decision.identity
	history   []StepRecord       // of all steps, for the windows over the last ten
	traffic   traffic            // since the last step
	delivered chan received
}

// A groupWork holds what came of one group so far. Slices are by index.
type groupWork struct {
	trajectories []*rollout.Trajectory
	scores       []*reward.Score
	kind         dataset.Kind // of the question; known once scored
	template     string       // of the question; known once scored
	flat         bool         // left out for want of variance
	dropped      bool         // left out since a trajectory was given up
}

func openGRPO(ctx context.Context, c GRPOConfig, d GRPODeps) (*grpo, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("grpo.%w", err)
	}
	if len(d.Samples) == 0 {
		return nil, errors.New("grpo: no training samples")
	}
	identity, err := identify("grpo", c, d.Digests)
	if err != nil {
		return nil, err
	}
	if err := claim(d.Dir, "grpo", d.Resume, identity); err != nil {
		return nil, err
	}
	plan := c.coordinator(d.Run)
	g := &grpo{cfg: c, plan: plan, deps: d, prompts: newPrompts(c, plan, d.Samples),
		store:  store{stage: "grpo", dir: d.Dir, learner: d.Learner, at: d.at},
		groups: map[int]*groupWork{}, decided: map[string]string{}, delivered: make(chan received, 64)}
	g.deps.Notice, g.deps.Observe, g.clock = listeners(d.Notice, d.Observe, d.Now)
	if g.c, err = coordinator.New(plan); err != nil {
		return nil, fmt.Errorf("grpo.%w", err)
	}
	return g, nil
}

// run restores the stage and drives it to its end.
func (g *grpo) run(ctx context.Context) error {
	started, err := g.restore(ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait() // deferred first, so it runs last: after cancel
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { g.listen(listening) })
	return g.drive(ctx, g.c.Step(started))
}

// close closes the files that were opened.
func (g *grpo) close() (err error) {
	if g.ledger != nil {
		err = g.ledger.close()
	}
	if g.log != nil {
		err = errors.Join(err, g.log.close())
	}
	return err
}

func (g *grpo) result() (GRPOResult, error) {
	latest, notices, err := LatestCheckpoint(g.deps.Dir)
	if err != nil || len(notices) > 0 {
		return GRPOResult{}, fmt.Errorf("grpo: the last checkpoint does not hold: %v %w", notices, err)
	}
	best, err := BestCheckpoint(g.deps.Dir)
	if err != nil {
		return GRPOResult{}, fmt.Errorf("grpo: %w", err)
	}
	return GRPOResult{g.step, g.resumed, mixedShare(g.history), latest, best}, nil
}

// prompts says which sample a group asks about. First groups walk through
// epochs of the samples, replacements through epochs of their own, so that using
// one moves nothing else. Without a curriculum the sample follows from the
// group's number alone; with one, from the records of the steps before it too.
type prompts struct {
	samples      []dataset.Sample
	plan         coordinator.Config
	curriculum   Curriculum
	first, spare *order
	seed         uint64
	rates        map[string]passRate // from the steps before ratesFor
	ratesFor     int
}

func newPrompts(c GRPOConfig, plan coordinator.Config, samples []dataset.Sample) prompts {
	return prompts{samples: samples, plan: plan, curriculum: c.Curriculum, seed: c.Seed,
		first: &order{seed: mix(c.Seed, 'p'), n: len(samples)}, spare: &order{seed: mix(c.Seed, 's'), n: len(samples)}}
}

// candidates lists the samples that the group may ask about.
func (p *prompts) candidates(group int) []dataset.Sample {
	step, place := p.plan.Place(group)
	n := max(1, p.curriculum.Candidates)
	from, position := p.first, (step-1)*p.plan.GroupsPerBatch+place
	if extra := place - p.plan.GroupsPerBatch; extra >= 0 {
		from, position = p.spare, (step-1)*p.plan.MaxReplacements+extra
	}
	out := make([]dataset.Sample, n)
	for i := range out {
		out[i] = p.samples[from.at(position*n+i)]
	}
	return out
}

// known is how many steps are on record when a step's groups are dispatched.
func (p *prompts) known(step int) int { return max(0, step-1-p.plan.MaxStaleness) }

// sample returns the group's sample. history holds at least the steps known at
// its dispatch.
func (p *prompts) sample(group int, history []StepRecord) dataset.Sample {
	candidates := p.candidates(group)
	if len(candidates) == 1 {
		return candidates[0]
	}
	step, _ := p.plan.Place(group)
	if p.ratesFor != step {
		p.rates, p.ratesFor = passRates(history[:p.known(step)]), step
	}
	u := float64(mix(p.seed, 'c', uint64(group))>>11) / (1 << 53)
	return p.curriculum.draw(candidates, p.rates, p.plan.GroupSize, u)
}

// may reports whether a sample can be the group's. It is certain where the
// steps known at its dispatch are on record; of others a result may come after a
// restart, and is held against the group's sample when it is scored.
func (p *prompts) may(group int, id string, history []StepRecord) bool {
	if step, _ := p.plan.Place(group); len(history) >= p.known(step) {
		return p.sample(group, history).ID == id
	}
	return slices.ContainsFunc(p.candidates(group), func(s dataset.Sample) bool { return s.ID == id })
}

// trajectorySeed is the same for every attempt at a trajectory.
func (p prompts) trajectorySeed(id rollout.TaskID) uint64 {
	return mix(p.seed, 't', uint64(id.Step), uint64(id.Group), uint64(id.Index))
}
