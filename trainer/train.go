package trainer

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
	"xragent/trainer/advantage"
	"xragent/trainer/batch"
	"xragent/trainer/coordinator"
)

func newGroupWork(size int) *groupWork {
	return &groupWork{trajectories: make([]*rollout.Trajectory, size), scores: make([]*reward.Score, size)}
}

// score computes the rewards of a complete group. A reward that fails costs
// its trajectory, not the run.
func (g *grpo) score(number int) coordinator.Scored {
	g.clock.enter("reward")
	defer g.clock.enter("rollout")
	w, sample := g.group(number), g.prompts.sample(number, g.history)
	w.kind, w.template = sample.Prompt.Kind, template(sample)
	errs := make([]error, len(w.trajectories))
	parallel(g.cfg.ScoreWorkers, len(errs), func(i int) {
		if t := w.trajectories[i]; t != nil {
			w.scores[i], errs[i] = g.scoreOne(*t, sample)
		}
	})
	scored := coordinator.Scored{Group: number}
	for i, err := range errs {
		if err != nil {
			scored.Failed = append(scored.Failed, i)
			g.traffic.reject("reward_error")
			g.deps.Notice(fmt.Sprintf("grpo: reward of %v: %v", w.trajectories[i].Task, err))
		}
	}
	scored.Mixed = !advantage.ZeroVariance(w.totals())
	return scored
}

// parallel calls f for 0 … n-1 from so many goroutines and waits for them.
func parallel(workers, n int, f func(int)) {
	slots := make(chan struct{}, workers)
	for i := range n {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			f(i)
		}()
	}
	for range workers {
		slots <- struct{}{}
	}
}

// scoreOne gives a reward its deadline. One that overruns it is left to end by
// itself: a function cannot be stopped from outside.
func (g *grpo) scoreOne(t rollout.Trajectory, s dataset.Sample) (*reward.Score, error) {
	type outcome struct {
		score reward.Score
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- outcome{err: fmt.Errorf("panic: %v", p)}
			}
		}()
		score, err := g.deps.Score(t, s)
		done <- outcome{score, err}
	}()
	deadline := time.NewTimer(time.Duration(g.cfg.ScoreSeconds * float64(time.Second)))
	defer deadline.Stop()
	select {
	case o := <-done:
		if o.err == nil && (math.IsNaN(o.score.Total) || math.IsInf(o.score.Total, 0)) {
			o.err = fmt.Errorf("total is %v", o.score.Total)
		}
		if o.err != nil {
			return nil, o.err
		}
		return &o.score, nil
	case <-deadline.C:
		return nil, fmt.Errorf("no result within %v s", g.cfg.ScoreSeconds)
	}
}

// totals lists the rewards of the group that there are.
func (w *groupWork) totals() []float64 {
	var totals []float64
	for _, s := range w.scores {
		if s != nil {
			totals = append(totals, s.Total)
		}
	}
	return totals
}

// train takes the optimizer step of a batch of groups, and records it.
func (g *grpo) train(ctx context.Context, a coordinator.Train) error {
	if err := g.decide(Decision{Kind: "train", Step: a.Step, Groups: a.Groups}); err != nil {
		return err
	}
	if err := g.ledger.commit(); err != nil {
		return err
	}
	if err := g.deps.at.cross("train"); err != nil {
		return err
	}
	usual := norms(g.history)
	o := g.cfg.Optimizer.objective("grpo", a.Step, g.cfg.Steps, usual)
	o.Loss = g.cfg.Loss.Resolved(float64(2 * g.cfg.MaxTokens)) // two turns
	o.Temperature = g.cfg.Temperature
	b, permuted, err := g.batch(a.Step, a.Groups)
	if err != nil {
		return fmt.Errorf("step %d: %w", a.Step, err)
	}
	signal := slices.ContainsFunc(b.Rows, func(r batch.Row) bool { return r.Advantage != 0 })
	signal = signal || o.Loss.KL.Coef > 0 // which pulls without any advantage
	rec := StepRecord{Stage: "grpo", Step: a.Step, Total: g.cfg.Steps, LR: o.LR, Version: int64(g.plan.Version(a.Step)), Skipped: !signal, Permuted: permuted,
		PositiveWeight: g.cfg.Entropy.recorded(g.history)}
	if signal {
		if rec.Stats, err = g.update(ctx, b, o); err != nil {
			return fmt.Errorf("step %d: %w", a.Step, err)
		}
		rec.markSpike(g.cfg.Optimizer.spikeBound(usual), g.deps.Notice)
	}
	g.step = a.Step
	if err := g.deps.at.cross("trained"); err != nil {
		return err
	}
	return g.record(rec, b)
}

func (g *grpo) update(ctx context.Context, b batch.Batch, o batch.Objective) (batch.Stats, error) {
	g.clock.enter("train")
	defer g.clock.enter("rollout")
	return g.deps.Learner.Step(ctx, b, o)
}

// batch makes rows of the groups' trajectories, in the order of group and
// index, with their advantages. permuted is nil unless the run is a control.
func (g *grpo) batch(step int, groups []int) (b batch.Batch, permuted *Permutation, err error) {
	var ids []int
	var rewards []float64
	var trajectories []rollout.Trajectory
	for _, number := range groups {
		w := g.group(number)
		for i, s := range w.scores {
			if s != nil {
				ids, rewards, trajectories = append(ids, number), append(rewards, s.Total), append(trajectories, *w.trajectories[i])
			}
		}
	}
	if g.cfg.PermuteRewards {
		permuted = permutation(g.cfg.Seed, step, groups, len(rewards))
	}
	advantages, err := Advantages(g.cfg.Loss.Advantage, ids, rewards, permuted, g.cfg.Entropy.weight(g.history))
	if err != nil {
		return b, nil, err
	}
	rows := make([]batch.Row, len(trajectories))
	for i, t := range trajectories {
		rows[i] = batch.FromTrajectory(t, advantages[i])
	}
	b, err = batch.New(rows)
	return b, permuted, err
}

// Advantages returns those of the trajectories that a step trains on, given
// their groups and rewards: by a preset of package advantage, from the rewards
// that p deals out, the positive ones weighed by positive.
func Advantages(preset string, groups []int, rewards []float64, p *Permutation, positive float64) ([]float64, error) {
	values, err := advantage.Compute(preset, groups, p.Apply(rewards))
	for i, a := range values {
		if a > 0 {
			values[i] = a * positive
		}
	}
	return values, err
}

// record writes the step's lines and forgets its groups.
func (g *grpo) record(rec StepRecord, b batch.Batch) error {
	var works []*groupWork
	for _, number := range slices.Sorted(maps.Keys(g.groups)) {
		if step, _ := g.plan.Place(number); step == rec.Step {
			works = append(works, g.groups[number])
			delete(g.groups, number)
		}
	}
	describe(&rec, works)
	describeSameness(&rec, works)
	if !g.cfg.Curriculum.IsZero() {
		rec.Templates = countTemplates(works)
	}
	rec.Checkpoint = rec.Step == g.cfg.Steps || g.cfg.CheckpointEvery > 0 && rec.Step%g.cfg.CheckpointEvery == 0
	g.history = append(g.history, rec)
	last := &g.history[len(g.history)-1]
	last.MixedRecent = mixedShare(recent(g.history))
	last.Starved = last.MixedRecent < starvedBelow && rec.Step >= min(starvedFrom, g.cfg.Steps)
	g.warn()
	g.alarm()
	times := g.clock.lap("grpo", rec.Step, ids(b))
	g.traffic.flush(&times)
	if err := g.log.append(*last, times); err != nil {
		return err
	}
	g.deps.Observe(*last, times)
	return nil
}

// ids counts the token ids of all rows.
func ids(b batch.Batch) int {
	n := 0
	for _, r := range b.Rows {
		n += len(r.IDs)
	}
	return n
}

// warn says once that most groups teach nothing, and again after it was better.
func (g *grpo) warn() {
	n := len(g.history)
	now := g.history[n-1]
	if now.Starved && (n == 1 || !g.history[n-2].Starved) {
		g.deps.Notice(fmt.Sprintf("grpo: step %d: of the last %d steps only %.0f %% of the groups are mixed (right and wrong answers); the others teach little: "+
			"use prompts of middling difficulty, more rollouts a prompt, or dynamic_sampling", now.Step, min(n, window), 100*now.MixedRecent))
	}
}
