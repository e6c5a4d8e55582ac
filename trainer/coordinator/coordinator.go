// Package coordinator decides what a training run does next.
//
// A [Coordinator] is a state machine: [Coordinator.Step] takes one event and
// returns the actions to carry out, in order. It performs no I/O, reads no
// clock, draws no random numbers and starts no goroutine, so one sequence of
// events always gives one sequence of actions. Package trainer drives it.
//
// # Staleness
//
// Step n opens when version max(0, n-1-MaxStaleness) exists and all its groups,
// replacements included, are sampled with that version. Steps train in order.
// So at most MaxStaleness+1 batches are open and every batch is exactly as stale
// as its number says, whichever groups finish first. A limit on open groups
// alone would not do: a slow group that faster ones overtake ages without bound.
//
// # Exactly once
//
// An attempt is issued only after the one before it was rejected on record, and
// results that are not the attempt waited for are ignored. After a restart the
// ledger's records are given to [Started]; what they hold is not issued again.
package coordinator

import (
	"fmt"
	"slices"

	"xragent/rollout"
)

// A Coordinator is the state of one run. Use [New].
type Coordinator struct {
	cfg     Config
	trained int                   // the learner's step
	saved   int                   // the newest checkpoint's step
	newest  rollout.PolicyVersion // published since the start; -1: none
	batches []*batch              // open steps: trained+1, trained+2, ...
	slots   map[slotKey]*slot     // of every open or held trajectory
	waiting []*group              // to dispatch when their version is published
	busy    learnerState
	due     bool   // a checkpoint is due
	halt    string // why the run is to stop; "" while it goes on
	ended   bool
	out     []Action
}

// A learnerState says what occupies the learner; it does one thing at a time.
type learnerState int

const (
	idle learnerState = iota
	publishing
	training
	checkpointing
)

// New returns the coordinator of a run.
func New(c Config) (*Coordinator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Coordinator{cfg: c, newest: -1, slots: map[slotKey]*slot{}}, nil
}

// Step takes one event and returns what to do, in order. Events that cannot
// follow what was asked for, such as a step trained out of turn, panic.
func (c *Coordinator) Step(e Event) []Action {
	c.out = nil
	if c.ended {
		return nil
	}
	switch e := e.(type) {
	case Started:
		c.start(e)
	case Published:
		c.published(e.Version)
	case Arrived:
		c.arrive(e)
	case Lost:
		c.arrive(Arrived{Task: e.Task, Class: Infrastructure, Reason: e.Reason})
	case Scored:
		c.scored(e)
	case Trained:
		c.finishStep(e.Step)
	case Checkpointed:
		c.expect(checkpointing, "checkpointed")
		c.saved = e.Step
	case Interrupted:
		c.busy, c.halt = idle, "interrupted"
	default:
		panic(fmt.Sprintf("coordinator: unknown event %T", e))
	}
	c.advance()
	return c.out
}

func (c *Coordinator) emit(a Action) { c.out = append(c.out, a) }

// expect holds the learner's answers against what it was asked for.
func (c *Coordinator) expect(s learnerState, what string) {
	if c.busy != s {
		panic(fmt.Sprintf("coordinator: %s, but the learner was not asked for it", what))
	}
	c.busy = idle
}

func (c *Coordinator) start(e Started) {
	c.trained, c.saved = e.Trained, e.Trained
	for _, h := range e.Held {
		c.hold(h)
	}
	if c.trained >= c.cfg.Steps {
		return
	}
	for s := c.trained + 1; s <= c.trained+1+c.cfg.MaxStaleness; s++ {
		c.open(s)
	}
}

// open starts a step. Its groups are dispatched except for what is held.
func (c *Coordinator) open(step int) {
	if step > c.cfg.Steps || c.halt != "" {
		return
	}
	b := &batch{step: step}
	c.batches = append(c.batches, b)
	for range c.cfg.GroupsPerBatch {
		c.admit(b)
	}
}

// admit adds the next group to b.
func (c *Coordinator) admit(b *batch) {
	g := &group{number: c.cfg.number(b.step, len(b.groups)), batch: b}
	for i := range c.cfg.GroupSize {
		g.slots = append(g.slots, c.slot(slotKey{g.number, i}))
	}
	b.groups = append(b.groups, g)
	c.settle(g)
	if g.state == open {
		c.dispatch(g, g.tries())
	}
}

func (c *Coordinator) dispatch(g *group, tries []Try) {
	if c.halt != "" || len(tries) == 0 {
		return
	}
	v := c.cfg.Version(g.batch.step)
	if v <= c.newest || !c.holds(v) {
		c.emit(Dispatch{g.batch.step, g.number, v, tries})
	} else if !slices.Contains(c.waiting, g) {
		c.waiting = append(c.waiting, g)
	}
}

// holds reports whether the learner can still publish v. Where it cannot, v was
// published before a restart, since the ledger holds results sampled from it.
func (c *Coordinator) holds(v rollout.PolicyVersion) bool {
	return int(v) == c.trained && c.busy != training
}

func (c *Coordinator) published(v rollout.PolicyVersion) {
	c.expect(publishing, "published")
	c.newest = v
	waiting := c.waiting
	c.waiting = nil
	for _, g := range waiting {
		if g.state == open { // results may have come from before a restart
			c.dispatch(g, g.tries())
		}
	}
}

func (c *Coordinator) finishStep(step int) {
	c.expect(training, "trained")
	if step != c.trained+1 {
		panic(fmt.Sprintf("coordinator: step %d trained after step %d", step, c.trained))
	}
	c.trained = step
	for _, g := range c.batches[0].groups {
		for i := range g.slots {
			delete(c.slots, slotKey{g.number, i})
		}
	}
	c.batches = c.batches[1:]
	c.due = step == c.cfg.Steps || c.cfg.CheckpointEvery > 0 && step%c.cfg.CheckpointEvery == 0
	c.open(step + 1 + c.cfg.MaxStaleness)
}

// advance gives the learner its next work. Publishing goes before saving, so
// that workers sample while the checkpoint is written.
func (c *Coordinator) advance() {
	if c.busy != idle {
		return
	}
	switch {
	case len(c.waiting) > 0 && c.halt == "":
		c.busy = publishing
		c.emit(Publish{c.cfg.Version(c.waiting[0].batch.step)})
	case c.saved < c.trained && (c.due || c.halt != ""):
		c.busy, c.due = checkpointing, false
		c.emit(Checkpoint{c.trained})
	case c.halt != "":
		c.ended = true
		c.emit(Stop{c.halt})
	case c.trained >= c.cfg.Steps:
		c.ended = true
		c.emit(Finish{})
	case c.batches[0].settled():
		c.train(c.batches[0])
	}
}

func (c *Coordinator) train(b *batch) {
	if lag := b.step - 1 - int(c.cfg.Version(b.step)); lag > c.cfg.MaxStaleness || b.step != c.trained+1 {
		panic(fmt.Sprintf("coordinator: step %d after step %d at staleness %d, bound %d", b.step, c.trained, lag, c.cfg.MaxStaleness))
	}
	groups := b.numbers(kept)
	if len(groups) == 0 {
		groups = b.numbers(flat)
	}
	if len(groups) == 0 {
		c.halt = fmt.Sprintf("step %d has no group left to train on: %s", b.step, b.report())
		c.advance()
		return
	}
	c.busy = training
	c.emit(Train{b.step, groups})
}
