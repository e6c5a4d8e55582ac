package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"xragent/rollout"
	"xragent/trainer/coordinator"
)

// drainTime is how long saving may take once a run is interrupted.
const drainTime = 5 * time.Minute

var errFinished = errors.New("finished")

// drive carries out actions and takes in results until the coordinator ends
// the run. It is the one goroutine that touches learner, ledger and log.
func (g *grpo) drive(ctx context.Context, actions []coordinator.Action) error {
	for {
		err := g.carryOut(ctx, actions)
		if err == nil {
			actions, err = g.receive(ctx)
		}
		switch {
		case errors.Is(err, errFinished):
			return nil
		case err != nil && ctx.Err() != nil:
			return g.drain(ctx)
		case err != nil:
			return fmt.Errorf("grpo: %w", err)
		}
	}
}

// drain saves what is trained after ctx has ended. Results that came but are
// not acknowledged come again.
func (g *grpo) drain(ctx context.Context) error {
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err := g.carryOut(saving, g.c.Step(coordinator.Interrupted{}))
	var stopped *StoppedError
	if !errors.As(err, &stopped) {
		return fmt.Errorf("grpo: interrupted, but the state after step %d was not saved: %w", g.step, err)
	}
	return &InterruptedError{"grpo", g.step, g.cfg.Steps, context.Cause(ctx)}
}

// carryOut does the actions in order, and those that follow from them.
func (g *grpo) carryOut(ctx context.Context, actions []coordinator.Action) error {
	for len(actions) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		next, err := g.do(ctx, actions[0])
		if err != nil {
			return err
		}
		actions = actions[1:]
		if next != nil {
			actions = append(actions, g.c.Step(next)...)
		}
	}
	return nil
}

// do carries out one action and returns what to tell the coordinator.
func (g *grpo) do(ctx context.Context, a coordinator.Action) (coordinator.Event, error) {
	switch a := a.(type) {
	case coordinator.Publish:
		return coordinator.Published{Version: a.Version}, g.publish(ctx, a.Version)
	case coordinator.Dispatch:
		return nil, g.dispatch(ctx, a)
	case coordinator.Score:
		return g.score(a.Group), nil
	case coordinator.Leave:
		g.group(a.Group).flat, g.group(a.Group).dropped = a.Flat, !a.Flat
		step, _ := g.plan.Place(a.Group)
		return nil, g.decide(Decision{Kind: "leave", Step: step, Groups: []int{a.Group}, Detail: a.Reason})
	case coordinator.Train:
		return coordinator.Trained{Step: a.Step}, g.train(ctx, a)
	case coordinator.Checkpoint:
		return coordinator.Checkpointed{Step: a.Step}, g.checkpoint(ctx, a.Step)
	case coordinator.Stop:
		return nil, &StoppedError{"grpo", g.step, g.cfg.Steps, a.Reason}
	case coordinator.Finish:
		return nil, errFinished
	}
	panic(fmt.Sprintf("trainer: no way to carry out %T here", a))
}

func (g *grpo) group(number int) *groupWork {
	w := g.groups[number]
	if w == nil {
		w = newGroupWork(g.cfg.GroupSize)
		g.groups[number] = w
	}
	return w
}

// decide records a decision once. After a restart the same ones are made
// again; one that differs means that the run is not what it was.
func (g *grpo) decide(d Decision) error {
	key, value := d.identity()
	was, ok := g.decided[key]
	switch {
	case ok && was != value:
		return fmt.Errorf("%s is now %.12s…, before the restart it was %.12s…: weights, data or kernels have changed; start a new run", key, value, was)
	case ok:
		return nil
	}
	g.decided[key] = value
	return g.ledger.add(Entry{Decision: &d})
}

func (g *grpo) publish(ctx context.Context, v rollout.PolicyVersion) error {
	g.clock.enter("publish")
	if err := g.deps.at.cross("publish/weights"); err != nil {
		return err
	}
	m, err := g.deps.Learner.Publish(ctx, v)
	if err != nil {
		return fmt.Errorf("publish version %d: %w", v, err)
	}
	m.Run = g.plan.Run
	if err := g.decide(Decision{Kind: "publish", Step: int(v), Detail: m.Digest}); err != nil {
		return err
	}
	if err := g.ledger.commit(); err != nil {
		return err
	}
	if err := g.deps.at.cross("publish/open"); err != nil {
		return err
	}
	if err := g.deps.Queue.Open(ctx, m); err != nil {
		return fmt.Errorf("publish version %d: queue: %w", v, err)
	}
	return g.deps.at.cross("publish/opened")
}

func (g *grpo) dispatch(ctx context.Context, a coordinator.Dispatch) error {
	g.clock.enter("rollout")
	if err := g.deps.at.cross("dispatch"); err != nil {
		return err
	}
	if err := g.deps.Queue.Publish(ctx, g.tasks(a)); err != nil {
		return fmt.Errorf("%v: queue: %w", a, err)
	}
	return nil
}

func (g *grpo) tasks(a coordinator.Dispatch) []rollout.Task {
	sample := g.prompts.sample(a.Group, g.history)
	var tasks []rollout.Task
	for _, try := range a.Tries {
		id := rollout.TaskID{Run: g.plan.Run, Step: a.Step, Group: a.Group, Index: try.Index, Attempt: try.Attempt}
		tasks = append(tasks, rollout.Task{
			ID: id, Sample: sample.ID, Prompt: sample.Prompt, Version: a.Version, Seed: g.prompts.trajectorySeed(id),
			Sampling: rollout.Sampling{Temperature: g.cfg.Temperature, TopP: g.cfg.TopP, MaxTokens: g.cfg.MaxTokens},
			Tools:    g.cfg.Tools, Gate: g.cfg.Gate,
		})
	}
	return tasks
}

func (g *grpo) checkpoint(ctx context.Context, step int) error {
	g.clock.enter("checkpoint")
	defer g.clock.enter("rollout")
	if step != g.step {
		return fmt.Errorf("checkpoint of step %d, but the learner is at step %d", step, g.step)
	}
	if err := errors.Join(g.ledger.commit(), g.log.sync()); err != nil {
		return err
	}
	if err := g.store.save(ctx, step, recentAccuracy(g.history), step == g.cfg.Steps, nil); err != nil {
		return err
	}
	return g.forget(ctx)
}

// forget keeps the queue as large as what came since the last checkpoint. The
// ledger has all results, so that one that cannot be dropped costs room only.
func (g *grpo) forget(ctx context.Context) error {
	if err := g.deps.at.cross("forget"); err != nil {
		return err
	}
	if err := g.deps.Queue.Forget(ctx); err != nil {
		g.deps.Notice(fmt.Sprintf("grpo: results stay in the queue: %v", err))
	}
	return g.deps.at.cross("forgotten")
}

// restore loads the newest checkpoint, reads the ledger, and says what the
// coordinator must know of them.
func (g *grpo) restore(ctx context.Context) (coordinator.Started, error) {
	c, err := g.store.restore(ctx, g.deps.Notice)
	if err != nil {
		return coordinator.Started{}, err
	}
	g.step, g.resumed = c.Step, c.Step
	started := coordinator.Started{Trained: c.Step}
	if err := checkLedger(g.deps.Dir, c.Step); err != nil {
		return started, err
	}
	g.ledger, err = openLedger(g.deps.Dir, g.deps.at, g.deps.Notice, func(e Entry) error {
		if h, ok := g.recall(e); ok {
			started.Held = append(started.Held, h)
		}
		return nil
	})
	if err != nil {
		return started, err
	}
	g.log, g.history, err = openStepLog(g.deps.Dir, c.Step)
	return started, err
}

// recall takes in one entry of the ledger. Of steps that are in the checkpoint
// nothing is needed.
func (g *grpo) recall(e Entry) (coordinator.Arrived, bool) {
	switch {
	case e.Accepted != nil && e.Accepted.Task.Step > g.step:
		g.group(e.Accepted.Task.Group).trajectories[e.Accepted.Task.Index] = e.Accepted
		return coordinator.Arrived{Task: e.Accepted.Task, OK: true}, true
	case e.Rejected != nil && e.Rejected.Task.Step > g.step:
		return coordinator.Arrived{Task: e.Rejected.Task, Class: e.Rejected.Class, Reason: e.Rejected.Reason}, true
	case e.Decision != nil:
		key, value := e.Decision.identity()
		g.decided[key] = value
	}
	return coordinator.Arrived{}, false
}
