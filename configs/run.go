// Package configs composes each package's configuration into one pipeline
// file, reads it strictly, and holds the files that ship.
//
// It decides nothing about training. A key that is unknown, given twice, or
// without effect for the chosen backend is an error, never a warning.
package configs

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"xragent/dataset/phantom"
	"xragent/eval"
	"xragent/radcot"
	"xragent/reward"
	"xragent/rollout/loop"
	"xragent/toolserver"
	"xragent/trainer"
	"xragent/trainer/loss"
	"xragent/web"
)

// A Run is one pipeline: data → corpus → (pretrain) → sft → grpo → export → eval.
type Run struct {
	Run    General            `yaml:"run"`
	From   From               `yaml:"from"`
	Stages []string           `yaml:"stages"`
	Data   Data               `yaml:"data"`
	Corpus radcot.Config      `yaml:"corpus"`
	Policy Policy             `yaml:"policy"`
	Pre    Pretrain           `yaml:"pretrain"`
	SFT    trainer.SFTConfig  `yaml:"sft"`
	GRPO   trainer.GRPOConfig `yaml:"grpo"`
	Reward reward.Config      `yaml:"reward"`
	Loop   loop.Config        `yaml:"loop"`
	Tools  toolserver.Config  `yaml:"tools"`
	Queue  Queue              `yaml:"queue"`
	Eval   eval.Config        `yaml:"eval"`
	Export Export             `yaml:"export"`
	Web    web.Config         `yaml:"web"`
}

// General names the run and where it lives.
type General struct {
	Name string `yaml:"name"` // default: the file's name
	Dir  string `yaml:"dir"`  // holds one folder a run
	Seed uint64 `yaml:"seed"` // every other seed is derived from it
}

// From says which run this one branches from, sharing its data, its corpus and
// the training that it has behind it.
type From struct {
	Run   string `yaml:"run"`   // its folder; "": none
	Begin string `yaml:"begin"` // sft ("" as well): from its best SFT checkpoint; none: untrained
}

// What a branch begins with.
const (
	BeginSFT  = "sft"
	BeginNone = "none"
)

// The stages, in their order.
const (
	StageData   = "data"
	StageCorpus = "corpus"
	StagePre    = "pretrain" // of a policy that begins from nothing
	StageSFT    = "sft"
	StageGRPO   = "grpo"
	StageExport = "export"
	StageEval   = "eval"
)

// Stages lists every stage in the order in which they run.
var Stages = []string{StageData, StageCorpus, StagePre, StageSFT, StageGRPO, StageExport, StageEval}

// Data says which samples to use.
type Data struct {
	Source  string         `yaml:"source"` // phantom, vqa-rad or jsonl
	Root    string         `yaml:"root"`   // folder of vqa-rad or jsonl data
	Phantom phantom.Config `yaml:"phantom"`
	VQARAD  VQARAD         `yaml:"vqa_rad"`
}

// VQARAD says how to read VQA-RAD.
type VQARAD struct {
	Schema string `yaml:"schema"` // public (one file) or split (trainset.json and testset.json)
}

// Policy says what is trained, and on what.
type Policy struct {
	Backend  string   `yaml:"backend"` // embedded or remote
	Embedded Embedded `yaml:"embedded"`
	Remote   Remote   `yaml:"remote"`
}

// Embedded configures the small Qwen3-VL of this program.
type Embedded struct {
	Base        string `yaml:"base"`         // small: the built-in pre-trained weights; none: random ones; a path: what xragent import wrote
	Threads     int    `yaml:"threads"`      // 0: one a core
	MicroTokens int    `yaml:"micro_tokens"` // tokens of a training micro-batch
	MaxBatch    int    `yaml:"max_batch"`    // sequences decoded together
}

// Remote configures a GPU learner and its inference servers.
type Remote struct {
	Model     string   `yaml:"model"`     // the base model's name, under which the samplers serve it
	Tokenizer string   `yaml:"tokenizer"` // path or URL of its tokenizer.json
	Learner   string   `yaml:"learner"`   // URL of the learner process
	Samplers  []string `yaml:"samplers"`  // URLs of vLLM-style servers, one a worker
	LoRARank  int      `yaml:"lora_rank"` // the learner's; 0: all weights
}

// Pretrain is the curriculum of drills that a policy without pre-training goes
// through before SFT (docs/adr/0005).
type Pretrain struct {
	Films  int               `yaml:"films"` // made for the phases cells and see
	Repeat trainer.SFTConfig `yaml:"repeat"`
	Lookup trainer.SFTConfig `yaml:"lookup"`
	Cells  trainer.SFTConfig `yaml:"cells"`
	See    trainer.SFTConfig `yaml:"see"`
}

func defaultPretrain() Pretrain {
	c := trainer.DefaultSFT()
	c.BatchTokens, c.EvalEvery, c.CheckpointEvery, c.Patience = 2048, 100, 200, 0
	c.Optimizer.LR = 1e-3
	p := Pretrain{Films: 3000, Repeat: c, Lookup: c, Cells: c, See: c}
	p.Repeat.MaxSteps, p.Repeat.Optimizer.Decay = 500, "constant"
	p.Lookup.MaxSteps, p.Lookup.Optimizer.Decay = 300, "constant"
	p.Cells.MaxSteps, p.Cells.BatchTokens, p.Cells.Optimizer.LR, p.Cells.Optimizer.FinalLR = 600, 1024, 5e-4, 0.02
	p.See.MaxSteps = 600
	return p
}

// Queue says where NATS is and who works on it.
type Queue struct {
	URL     string        `yaml:"url"`      // an external server; "" embeds one in the run's folder
	Listen  string        `yaml:"listen"`   // host:port on which the embedded server admits other processes; "" admits none
	Workers int           `yaml:"workers"`  // rollout workers inside this process
	Slots   int           `yaml:"slots"`    // trajectories a worker runs at once
	Tools   string        `yaml:"tools"`    // process, or nats: answered by xragent tools
	AckWait time.Duration `yaml:"ack_wait"` // a silent worker's task is given to another after this
}

// Export says where the checkpoint goes.
type Export struct {
	Dir string `yaml:"dir"` // "": export/ in the run's folder
}

// Default is what a pipeline file overrides.
func Default() Run {
	return Run{
		Run:    General{Dir: "runs", Seed: 1},
		Stages: slices.DeleteFunc(slices.Clone(Stages), func(s string) bool { return s == StagePre }),
		Data: Data{Source: "phantom", VQARAD: VQARAD{Schema: "public"},
			Phantom: phantom.Config{Train: 1000, Validation: 100, Test: 400, OOD: 0}},
		Corpus: radcot.Default(),
		Policy: Policy{Backend: "embedded", Embedded: Embedded{Base: "small", MicroTokens: 2048, MaxBatch: 64}},
		Pre:    defaultPretrain(),
		SFT:    trainer.DefaultSFT(),
		GRPO:   trainer.DefaultGRPO(),
		Reward: reward.Default(),
		Loop:   loop.Default(),
		Tools:  toolserver.Default(),
		Queue:  Queue{Workers: 1, Slots: 32, Tools: "process", AckWait: 15 * time.Second},
		Eval:   eval.Default,
		Web:    web.Config{Listen: "127.0.0.1:0"},
	}
}

// ResolvedThreads resolves Embedded.Threads.
func (e Embedded) ResolvedThreads() int {
	if e.Threads > 0 {
		return e.Threads
	}
	return runtime.NumCPU()
}

// Has reports whether the pipeline has the stage.
func (r Run) Has(stage string) bool { return slices.Contains(r.Stages, stage) }

var names = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

func (r Run) validate(path string, given []string) error {
	var errs []error
	section := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("config: %s: %s: %w", path, name, err))
		}
	}
	section("run", r.Run.validate())
	section("stages", validateStages(r.Stages))
	if r.Has(StagePre) && (r.Policy.Backend == "remote" || r.Policy.Embedded.Base != "none") {
		section("stages", fmt.Errorf("pretrain is for a policy that begins from nothing: leave it out, or set policy.backend embedded and policy.embedded.base none"))
	}
	section("from", r.validateFrom())
	section("data", r.Data.validate())
	section("policy", r.Policy.validate())
	section("queue", r.Queue.validate())
	section("queue", r.validateWorkers())
	section("grpo", r.validateTemperature())
	section("corpus", r.Corpus.Validate())
	section("pretrain.repeat", r.Pre.Repeat.Validate())
	section("pretrain.lookup", r.Pre.Lookup.Validate())
	section("pretrain.cells", r.Pre.Cells.Validate())
	section("pretrain.see", r.Pre.See.Validate())
	section("pretrain", r.Pre.validate())
	section("sft", r.SFT.Validate())
	section("grpo", r.GRPO.Validate())
	section("reward", r.Reward.Validate())
	section("loop", r.Loop.Validate())
	section("tools", r.Tools.Validate())
	section("eval", r.Eval.Validate())
	section("web", r.Web.Validate())
	for _, err := range r.withoutEffect(given) {
		errs = append(errs, fmt.Errorf("config: %s: %w", path, err))
	}
	return errors.Join(errs...)
}

// derive copies what one section decides for others.
func (r *Run) derive() {
	r.Loop.KMax, r.Corpus.KMax = r.Reward.KMax, r.Reward.KMax
}

func (g General) validate() error {
	switch {
	case !names.MatchString(g.Name):
		return fmt.Errorf("name = %q: want lower-case letters, digits, - and _, at most 64, as in --set run.name=try-2", g.Name)
	case g.Dir == "":
		return fmt.Errorf("dir is empty: name the folder that holds runs")
	}
	return nil
}

// validateFrom refuses a branch that would make what it shares.
func (r Run) validateFrom() error {
	switch b := r.From.Begin; {
	case b != "" && b != BeginSFT && b != BeginNone:
		return fmt.Errorf("begin = %q: want %s or %s", b, BeginSFT, BeginNone)
	case r.From.Run == "" && b != "":
		return fmt.Errorf("begin has no effect without run: name the folder of the run to branch from")
	case r.From.Run == "":
		return nil
	}
	for _, stage := range []string{StageData, StageCorpus, StagePre} {
		if r.Has(stage) {
			return fmt.Errorf("run = %s: the stage %s is that run's: leave it out of stages", r.From.Run, stage)
		}
	}
	return nil
}

func validateStages(stages []string) error {
	last := -1
	for _, s := range stages {
		at := slices.Index(Stages, s)
		switch {
		case at < 0:
			return fmt.Errorf("%q is no stage: want some of %v", s, Stages)
		case at <= last:
			return fmt.Errorf("%q is out of order or given twice: the order is %v", s, Stages)
		}
		last = at
	}
	if len(stages) == 0 {
		return fmt.Errorf("empty: want some of %v", Stages)
	}
	return nil
}

func (p Pretrain) validate() error {
	if p.Films < 20 {
		return fmt.Errorf("films = %d: want at least 20", p.Films)
	}
	return nil
}

func (d Data) validate() error {
	switch d.Source {
	case "phantom":
		return d.Phantom.Validate()
	case "vqa-rad", "jsonl":
		if d.Root == "" {
			return fmt.Errorf("root is empty: name the data's folder, e.g. --set data.root=../data")
		}
	default:
		return fmt.Errorf("source = %q: want phantom, vqa-rad or jsonl", d.Source)
	}
	if s := d.VQARAD.Schema; s != "public" && s != "split" {
		return fmt.Errorf("vqa_rad.schema = %q: want public or split", s)
	}
	return nil
}

func (p Policy) validate() error {
	switch p.Backend {
	case "embedded":
		return p.Embedded.validate()
	case "remote":
		return p.Remote.validate()
	}
	return fmt.Errorf("backend = %q: want embedded or remote", p.Backend)
}

func (e Embedded) validate() error {
	switch {
	case e.Folder() != "" && !strings.ContainsRune(e.Base, '/'):
		return fmt.Errorf("embedded.base = %q: want small, the built-in pre-trained weights, none, or the path of a model's folder, as in ./%s", e.Base, e.Base)
	case e.Threads < 0:
		return fmt.Errorf("embedded.threads = %d: want 0 (one a core) or more", e.Threads)
	case e.MicroTokens < 256:
		return fmt.Errorf("embedded.micro_tokens = %d: want at least 256", e.MicroTokens)
	case e.MaxBatch < 1:
		return fmt.Errorf("embedded.max_batch = %d: want at least 1", e.MaxBatch)
	}
	return nil
}

// Folder returns the folder of the model to begin with, "" where it is built in
// or made of nothing.
func (e Embedded) Folder() string {
	if e.Base == "small" || e.Base == "none" {
		return ""
	}
	return e.Base
}

func (m Remote) validate() error {
	switch {
	case m.Model == "":
		return fmt.Errorf("remote.model is empty: name the base model")
	case m.Tokenizer == "":
		return fmt.Errorf("remote.tokenizer is empty: give the path or URL of the base model's tokenizer.json")
	case m.Learner == "":
		return fmt.Errorf("remote.learner is empty: give the learner's URL")
	case len(m.Samplers) == 0:
		return fmt.Errorf("remote.samplers is empty: give at least one inference server's URL")
	case m.LoRARank < 0:
		return fmt.Errorf("remote.lora_rank = %d: want the learner's, 0 where it trains all weights", m.LoRARank)
	}
	return nil
}

func (q Queue) validate() error {
	switch {
	case q.Workers < 0:
		return fmt.Errorf("workers = %d: want 0 (external workers only) or more", q.Workers)
	case q.Workers == 0 && q.URL == "" && q.Listen == "":
		return fmt.Errorf("workers = 0 without url or listen: no worker could ever join; set queue.listen=127.0.0.1:4222")
	case q.Tools != "process" && q.Tools != "nats":
		return fmt.Errorf("tools = %q: want process or nats", q.Tools)
	case q.Slots < 1:
		return fmt.Errorf("slots = %d: want at least 1", q.Slots)
	case q.AckWait < time.Second:
		return fmt.Errorf("ack_wait = %v: want at least 1s", q.AckWait)
	}
	return nil
}

// validateWorkers holds the workers of this process against the samplers, of
// which each worker has one.
func (r Run) validateWorkers() error {
	workers, samplers := r.Queue.Workers, len(r.Policy.Remote.Samplers)
	if r.Policy.Backend != "remote" || workers == 0 || workers == samplers {
		return nil
	}
	return fmt.Errorf("workers = %d with %d policy.remote.samplers: want %d, one a sampler, or 0 where workers join from elsewhere", workers, samplers, samplers)
}

// validateTemperature holds sampling against what servers return: log-probs at
// temperature 1, while the loss needs those at the temperature sampled at.
func (r Run) validateTemperature() error {
	if r.Policy.Backend == "remote" && r.Has(StageGRPO) && r.GRPO.Temperature != 1 {
		return fmt.Errorf("temperature = %v with policy.backend remote: inference servers return log-probs at temperature 1; set it to 1", r.GRPO.Temperature)
	}
	return nil
}

// withoutEffect refuses keys that this pipeline would ignore.
func (r Run) withoutEffect(given []string) []error {
	var errs []error
	ignored := func(when bool, prefix, why string) {
		if key := under(given, prefix); when && key != "" {
			errs = append(errs, fmt.Errorf("%s has no effect %s: remove it", key, why))
		}
	}
	ignored(r.Data.Source != "phantom", "data.phantom", "with data.source "+r.Data.Source)
	ignored(r.Data.Source != "vqa-rad", "data.vqa_rad", "with data.source "+r.Data.Source)
	ignored(r.Data.Source == "phantom", "data.root", "with data.source phantom")
	ignored(r.Policy.Backend != "embedded", "policy.embedded", "with policy.backend "+r.Policy.Backend)
	ignored(r.Policy.Backend != "remote", "policy.remote", "with policy.backend "+r.Policy.Backend)
	ignored(r.Queue.URL != "", "queue.listen", "with queue.url, an external server")
	ignored(r.Queue.Workers == 0, "queue.slots", "with queue.workers 0")
	ignored(r.Web.Listen == "", "web.linger", "without web.listen")
	ignored(!r.Has(StagePre), "pretrain", "without the stage pretrain")
	ignored(!r.Has(StageSFT), "sft", "without the stage sft")
	ignored(!r.Has(StageGRPO), "grpo", "without the stage grpo")
	for _, key := range []string{"ratio", "clip_low", "clip_high", "dual_clip", "delta", "log_clamp"} {
		ignored(r.GRPO.Loss.Old == loss.Learner, "grpo.loss."+key, "with grpo.loss.old learner, to which the ratio is 1 as each batch is one step")
	}
	ignored(r.GRPO.Loss.KL.Coef == 0, "grpo.loss.kl.estimator", "with grpo.loss.kl.coef 0")
	ignored(r.GRPO.Loss.Correction.Level == loss.NoCorrection, "grpo.loss.correction.mode", "with grpo.loss.correction.level none")
	ignored(r.Eval.Controls == eval.NoControls, "eval.control_questions", "with eval.controls none")
	ignored(!r.Has(StageEval), "eval", "without the stage eval")
	ignored(!r.Has(StageExport), "export", "without the stage export")
	return errs
}
