package trainer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"xragent/rollout"
	"xragent/trainer/coordinator"
)

// received is a delivery or the queue's failure.
type received struct {
	Delivery
	err error
}

// listen passes deliveries on until ctx ends or the queue fails.
func (g *grpo) listen(ctx context.Context) {
	for {
		d, err := g.deps.Queue.Next(ctx)
		select {
		case g.delivered <- received{d, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// mostTogether is how many results share one sync of the ledger at most.
const mostTogether = 256

// receive waits for results, takes in all that are there, makes what they mean
// durable with one sync, and only then acknowledges them. It returns what else
// there is to do.
func (g *grpo) receive(ctx context.Context) ([]coordinator.Action, error) {
	first, err := g.await(ctx)
	if err != nil {
		return nil, err
	}
	batch := []Delivery{first}
	for more := true; more && len(batch) < mostTogether; {
		select {
		case r := <-g.delivered:
			if r.err != nil {
				return nil, fmt.Errorf("queue: %w", r.err)
			}
			batch = append(batch, r.Delivery)
		default:
			more = false
		}
	}
	return g.takeIn(ctx, batch)
}

// sayAfter is how long a wait lasts before the run says what it waits for, and
// between saying so again.
const sayAfter = time.Minute

// await waits for one result, and no longer than a run may stand still.
func (g *grpo) await(ctx context.Context) (Delivery, error) {
	stall := time.NewTimer(time.Duration(g.cfg.StallSeconds * float64(time.Second)))
	defer stall.Stop()
	say := time.NewTicker(sayAfter)
	defer say.Stop()
	for waited := sayAfter; ; waited += sayAfter {
		select {
		case r := <-g.delivered:
			if r.err != nil {
				return Delivery{}, fmt.Errorf("queue: %w", r.err)
			}
			return r.Delivery, nil
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		case <-stall.C:
			return Delivery{}, &StalledError{g.c.Waiting(), g.cfg.StallSeconds}
		case <-say.C:
			g.deps.Notice(fmt.Sprintf("grpo: waiting for %s, nothing came for %v", g.c.Waiting(), waited))
		}
	}
}

func (g *grpo) takeIn(ctx context.Context, batch []Delivery) ([]coordinator.Action, error) {
	var todo []coordinator.Action
	var decided []Delivery
	for _, d := range batch {
		actions, ok, err := g.judge(ctx, d)
		if err != nil {
			return nil, err
		}
		if ok {
			decided = append(decided, d)
		}
		todo = append(todo, actions...)
	}
	if err := g.ledger.commit(); err != nil {
		return nil, err
	}
	for _, d := range decided {
		if err := g.deps.at.cross("ack"); err != nil {
			return nil, err
		}
		if err := d.Ack(); err != nil {
			return nil, fmt.Errorf("queue: acknowledge: %w", err)
		}
	}
	return todo, nil
}

// judge asks the coordinator about one delivery and records the answer. What
// is left to do is returned. A run that has ended decides nothing; then the
// delivery must stay with the queue.
func (g *grpo) judge(ctx context.Context, d Delivery) (left []coordinator.Action, decided bool, err error) {
	if d.Redelivered {
		g.traffic.redelivered++
	}
	for _, a := range g.c.Step(g.examine(d)) {
		verdict := true
		switch a := a.(type) {
		case coordinator.Accept:
			err = g.accept(ctx, d)
		case coordinator.Reject:
			g.traffic.reject(a.Reason)
			err = g.ledger.add(Entry{Rejected: &Rejection{a.Task, a.Class, a.Reason}})
		case coordinator.Ignore:
			g.traffic.duplicates++
		default:
			left, verdict = append(left, a), false
		}
		if err != nil {
			return nil, false, err
		}
		decided = decided || verdict
	}
	return left, decided, nil
}

// accept keeps a trajectory in memory until its step is trained, and in the
// ledger. Its images go to the blob store first.
func (g *grpo) accept(ctx context.Context, d Delivery) error {
	t := *d.Trajectory
	t.Attachments = slices.Clone(t.Attachments)
	for i, a := range t.Attachments {
		if _, err := g.deps.Blobs.Put(ctx, a.PNG); err != nil {
			return fmt.Errorf("trajectory %v: image %.12s…: %w", t.Task, a.SHA256, err)
		}
		t.Attachments[i].PNG = nil
	}
	g.group(t.Task.Group).trajectories[t.Task.Index] = &t
	g.traffic.generated += sampledTokens(t)
	return g.ledger.add(Entry{Accepted: &t, Redelivered: d.Redelivered})
}

// examine says what a delivery is: a result that may be trained on, one that
// may not and why, or a loss.
func (g *grpo) examine(d Delivery) coordinator.Event {
	if d.Lost != nil {
		return coordinator.Lost{Task: d.Lost.Task, Reason: d.Lost.Reason}
	}
	t := d.Trajectory
	class, reason := g.fault(*t)
	return coordinator.Arrived{Task: t.Task, OK: reason == "", Class: class, Reason: reason}
}

// fault holds a result against its contracts and against its task.
func (g *grpo) fault(t rollout.Trajectory) (coordinator.Class, string) {
	if t.Stop.Infrastructure() {
		return coordinator.Infrastructure, string(t.Stop)
	}
	var rejected *rollout.RejectError
	if err := t.Check(g.deps.Limits); errors.As(err, &rejected) {
		g.deps.Notice("grpo: " + err.Error())
		return coordinator.Policy, rejected.Reason
	}
	if step, _ := g.plan.Place(t.Task.Group); t.Task.Group < 0 || step > g.plan.Steps || step != t.Task.Step {
		return "", "" // not a task of this run: for the coordinator to ignore
	}
	switch {
	case t.Seed != g.prompts.trajectorySeed(t.Task):
		return coordinator.Infrastructure, "seed"
	case !g.prompts.may(t.Task.Group, t.Sample, g.history):
		return coordinator.Infrastructure, "sample"
	case !sampledBy(t, g.plan.Version(t.Task.Step)):
		return coordinator.Infrastructure, "version"
	case !intact(t.Attachments):
		return coordinator.Infrastructure, "attachment"
	case !recordable(t):
		return coordinator.Data, "not_finite"
	}
	return "", ""
}

func intact(attachments []rollout.Attachment) bool {
	return !slices.ContainsFunc(attachments, func(a rollout.Attachment) bool {
		sum := sha256.Sum256(a.PNG)
		return hex.EncodeToString(sum[:]) != a.SHA256
	})
}

// recordable reports whether t has a JSON form: finite numbers, and arguments
// that are JSON themselves.
func recordable(t rollout.Trajectory) bool {
	t.Turns, t.Attachments = nil, nil // token ids and checked log-probs
	_, err := json.Marshal(t)
	return err == nil
}

func sampledBy(t rollout.Trajectory, v rollout.PolicyVersion) bool {
	if t.Version != v {
		return false
	}
	for _, turn := range t.Turns {
		if turn.Oldest != v || turn.Newest != v {
			return false
		}
	}
	return true
}

func sampledTokens(t rollout.Trajectory) int {
	n := 0
	for _, turn := range t.Turns {
		n += len(turn.OutputIDs)
	}
	return n
}
