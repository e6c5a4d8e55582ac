// Package eval measures a policy on held-out questions, under controls, and says
// what the figures can bear.
//
// The denominator is fixed: every question counts, and one without a usable
// answer after its retries is wrong. Scores stand beside the strongest constant
// answer per template, so that a skewed key is not mistaken for skill. [Controls]
// lists the conditions, [Plan] which of them a policy is put under, and [Analyse]
// makes one [Report] of their results: priors, routing, tools, gate, rescue and
// damage against the churn of sampling, and distribution shift. Statistics name
// their source where they stand; each is an interval or comes with one.
//
// The package refuses to compare results of different questions and to rest a
// claim on one seed ([Pool], [Pooled.Claim]). It computes no reward, trains
// nothing, and wraps no part of a rollout; package control does that.
package eval

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
)

// Config says how to evaluate.
type Config struct {
	Questions   int     `yaml:"questions"`   // 0: all
	Temperature float64 `yaml:"temperature"` // 0: greedy
	MaxTokens   int     `yaml:"max_tokens"`  // a turn
	Retries     int     `yaml:"retries"`     // fresh seeds for unusable answers; none when greedy
	Parallel    int     `yaml:"parallel"`    // rollouts at once
	Seed        uint64  `yaml:"seed"`
	Controls    Set     `yaml:"controls"`          // full, minimal or none
	Asked       int     `yaml:"control_questions"` // of a control, at most; 0: 200
}

// defaultAsked questions tell a control from the policy as it is where they are
// some ten points apart.
const defaultAsked = 200

// ControlQuestions is how many of n questions a control is asked.
func (c Config) ControlQuestions(n int) int { return min(n, cmp.Or(c.Asked, defaultAsked)) }

// Default is the configuration of the shipped pipelines.
var Default = Config{Questions: 400, MaxTokens: 160, Retries: 3, Parallel: 64, Seed: 1, Controls: Full}

// Validate names the first unusable field.
func (c Config) Validate() error {
	switch {
	case c.Questions < 0:
		return fmt.Errorf("questions = %d: want 0 (all) or more", c.Questions)
	case c.Temperature < 0:
		return fmt.Errorf("temperature = %v: want 0 (greedy) or more", c.Temperature)
	case c.MaxTokens < 1:
		return fmt.Errorf("max_tokens = %d: want at least 1", c.MaxTokens)
	case c.Retries < 0 || c.Retries > 10:
		return fmt.Errorf("retries = %d: want 0 to 10", c.Retries)
	case c.Parallel < 1:
		return fmt.Errorf("parallel = %d: want at least 1", c.Parallel)
	case !slices.Contains([]Set{NoControls, Minimal, Full}, c.Controls):
		return fmt.Errorf("controls = %q: want %s, %s or %s", c.Controls, NoControls, Minimal, Full)
	case c.Asked < 0:
		return fmt.Errorf("control_questions = %d: want 0 (%d at most) or more", c.Asked, defaultAsked)
	}
	return nil
}

// Rollout makes one trajectory; it is the training loop's own.
type Rollout func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error)

// A Row is the terminal record of one question.
type Row struct {
	Sample     string       `json:"sample"`
	Kind       dataset.Kind `json:"kind"`
	Capability string       `json:"capability"`
	Template   string       `json:"template"`
	Need       string       `json:"need,omitempty"`
	Cluster    string       `json:"cluster"` // patient or study: what is not independent of what
	Key        string       `json:"key"`     // reference answer as text, for the majority baseline
	Answer     string       `json:"answer"`
	Given      string       `json:"given"`   // the answer as text, to be held against Key; "" when invalid
	Strict     bool         `json:"strict"`  // right by the strict extractor
	Lenient    bool         `json:"lenient"` // right by the lenient one
	Invalid    bool         `json:"invalid"` // no usable answer after all retries
	Error      string       `json:"error,omitempty"`
	Calls      int          `json:"calls"`
	Reward     float64      `json:"reward"`
	Shown      bool         `json:"shown"`      // at least one measurement was shown
	Admitted   bool         `json:"admitted"`   // the gate admits at least one, whether turn 2 came to it or not
	Relevant   bool         `json:"relevant"`   // a measurement bears on the question
	Fabricated int          `json:"fabricated"` // numbers claimed for withheld measurements
	Attempts   int          `json:"attempts"`
	// Seen identifies all that the policy was given before its answer: equal in
	// two conditions, the control did not touch this question.
	Seen string `json:"seen"`
}

// Called reports whether a tool was called.
func (r Row) Called() bool { return r.Calls > 0 }

// A Result is one condition's rows, in the order of the samples.
type Result struct {
	Name      string        `json:"name"` // of the policy: untrained, sft, grpo, …
	Condition Condition     `json:"condition"`
	Split     dataset.Split `json:"split"`
	Questions string        `json:"questions"` // digest of the questions with their answers
	Rows      []Row         `json:"rows"`
}

// Run puts every sample under one condition. progress may be nil.
func Run(ctx context.Context, cfg Config, name string, cond Condition, samples []dataset.Sample, version rollout.PolicyVersion, roll Rollout, score reward.Config, progress func(done, total int)) (Result, error) {
	samples = Select(samples, cfg.Questions)
	asked := put(cond, samples, cfg.Seed)
	result := Result{Name: name, Condition: cond, Questions: QuestionsDigest(samples), Rows: make([]Row, len(samples))}
	if len(samples) > 0 {
		result.Split = samples[0].Split
	}
	e := evaluator{cfg, cond, version, roll, score}
	err := parallel(ctx, cfg.Parallel, len(samples), progress, func(ctx context.Context, i int) error {
		row, err := e.ask(ctx, asked[i])
		result.Rows[i] = row
		return err
	})
	return result, err
}

// Select returns the first n samples by the hash of their ids, so that a
// smaller evaluation is a fixed part of a larger one whatever the file order.
func Select(samples []dataset.Sample, n int) []dataset.Sample {
	out := slices.Clone(samples)
	slices.SortFunc(out, func(a, b dataset.Sample) int {
		return cmp.Or(cmp.Compare(hash(a.ID), hash(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	if n > 0 && n < len(out) {
		out = out[:n]
	}
	return out
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// QuestionsDigest identifies questions with their images and answers, in order.
func QuestionsDigest(samples []dataset.Sample) string {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(samples); err != nil {
		panic(fmt.Sprintf("eval: samples have no JSON form: %v", err)) // they have been read from it
	}
	return hex.EncodeToString(h.Sum(nil))
}

type evaluator struct {
	cfg     Config
	cond    Condition
	version rollout.PolicyVersion
	roll    Rollout
	score   reward.Config
}

// ask returns the terminal record of s. An unusable answer is retried with a
// fresh seed, none when greedy; a rollout that the world lost is made again with
// the same one. What still has no answer then is wrong; only a cancelled context
// is an error.
func (e evaluator) ask(ctx context.Context, s dataset.Sample) (Row, error) {
	row := Row{Sample: s.ID, Kind: s.Prompt.Kind, Capability: s.Capability, Template: s.Template,
		Need: s.Need, Cluster: cmp.Or(s.Patient, s.Study, s.ID), Relevant: len(s.Relevant) > 0, Key: AnswerText(s), Invalid: true}
	retries := e.cfg.Retries
	if e.cfg.Temperature == 0 || e.cond.sampled() {
		retries = 0
	}
	answers, lost := 0, 0
	for row.Invalid && answers <= retries && lost <= e.cfg.Retries {
		row.Attempts++
		if err := e.attempt(ctx, s, answers, &row); err != nil {
			return row, err
		}
		if row.Error != "" {
			lost++
		} else {
			answers++
		}
	}
	return row, nil
}

func (e evaluator) attempt(ctx context.Context, s dataset.Sample, attempt int, row *Row) error {
	t, err := e.roll(ctx, e.task(s, attempt))
	if err == nil && t.Stop.Infrastructure() {
		err = fmt.Errorf("rollout stopped by %s", t.Stop)
	}
	if err != nil {
		row.Error = err.Error()
		return context.Cause(ctx)
	}
	sc, err := e.score.Score(t, s)
	if err != nil {
		return fmt.Errorf("eval: sample %s: %w", s.ID, err)
	}
	row.Error, row.Calls, row.Reward, row.Shown, row.Fabricated = "", sc.Calls, sc.Total, len(t.Bundle.Shown) > 0, sc.Fabricated
	row.Answer, row.Strict, row.Invalid = sc.Answer, sc.Accuracy == 1, sc.Answer == ""
	row.Given, row.Seen = givenText(sc.Answer, s), seen(t)
	row.Admitted = len(t.Bundle.Admit(rollout.GateOn)) > 0
	row.Lenient = row.Strict || reward.LenientlyRight(t, s)
	return nil
}

func (e evaluator) task(s dataset.Sample, attempt int) rollout.Task {
	t := rollout.Task{
		ID:     rollout.TaskID{Run: "eval", Group: int(hash(s.ID) >> 33), Attempt: attempt},
		Sample: s.ID, Prompt: s.Prompt, Version: e.version,
		Seed:     hash(fmt.Sprintf("%d/%s/%d", e.cfg.Seed, s.ID, attempt)),
		Sampling: rollout.Sampling{Temperature: e.cfg.Temperature, TopP: 1, MaxTokens: e.cfg.MaxTokens},
		Tools:    true,
		Gate:     rollout.GateOn,
	}
	e.cond.change(&t)
	return t
}

// seen digests the prompts of both turns, and the images that they hold.
func seen(t rollout.Trajectory) string {
	h := fnv.New64a()
	for _, turn := range t.Turns {
		fmt.Fprintln(h, turn.PromptIDs)
	}
	for _, img := range t.Images {
		fmt.Fprintln(h, img.SHA256)
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// parallel calls do(0..n-1) from at most limit goroutines and stops at the first error.
func parallel(ctx context.Context, limit, n int, progress func(done, total int), do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		done int
		next = make(chan int)
	)
	for range min(limit, n) {
		wg.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				done++
				if progress != nil {
					progress(done, n)
				}
				mu.Unlock()
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return ctx.Err()
}
