package coordinator

import (
	"fmt"
	"slices"
	"strings"

	"xragent/rollout"
)

// A batch is one open step.
type batch struct {
	step     int
	groups   []*group // in dispatch order
	failures []string // attempts that failed since the start, for the report
}

type groupState int

const (
	open    groupState = iota // results are outstanding
	scoring                   // complete
	kept                      // scored, will be trained on
	flat                      // scored, without variance, left out
	dropped                   // its trajectories were given up
)

// A group is the attempts at one prompt.
type group struct {
	number int
	batch  *batch
	state  groupState
	slots  []*slot
}

type slotKey struct{ group, index int }

type slotState int

const (
	pending  slotState = iota
	accepted           // a valid result is in the ledger
	givenUp            // its last attempt was rejected, or its reward failed
	poisoned           // its sample is unusable
)

// A slot is one trajectory of a group: the attempt that is waited for or that
// decided it.
type slot struct {
	attempt int
	state   slotState
	reason  string // of the last rejection
}

func (c *Coordinator) slot(k slotKey) *slot {
	if c.slots[k] == nil {
		c.slots[k] = &slot{}
	}
	return c.slots[k]
}

// find returns the open group of that number, or nil.
func (c *Coordinator) find(number int) *group {
	step, place := c.cfg.Place(number)
	i := step - c.trained - 1
	if i < 0 || i >= len(c.batches) || place >= len(c.batches[i].groups) {
		return nil
	}
	return c.batches[i].groups[place]
}

// arrive takes one result. Steps that are not yet open are recorded too: after
// a restart the queue may hand out results of steps that are trained again.
func (c *Coordinator) arrive(e Arrived) {
	if why := c.unwanted(e.Task); why != "" {
		c.emit(Ignore{e.Task, why})
		return
	}
	g := c.find(e.Task.Group)
	if e.OK {
		c.emit(Accept{e.Task})
	} else {
		c.emit(Reject{e.Task, e.Class, e.Reason})
		c.charge(g, fmt.Sprintf("%v: %s: %s", e.Task, e.Class, e.Reason))
	}
	c.hold(e)
	if g == nil {
		return
	}
	c.settle(g)
	if s := g.slots[e.Task.Index]; !e.OK && g.state == open && s.state == pending {
		c.dispatch(g, []Try{{e.Task.Index, s.attempt}})
	}
}

// unwanted says why a result changes nothing; "" when it is waited for.
func (c *Coordinator) unwanted(id rollout.TaskID) string {
	step, _ := c.cfg.Place(id.Group)
	if id.Run != c.cfg.Run || id.Group < 0 || id.Step != step || step > c.cfg.Steps ||
		id.Index < 0 || id.Index >= c.cfg.GroupSize {
		return "unknown"
	}
	g := c.find(id.Group)
	if id.Step <= c.trained || g != nil && g.state == dropped {
		return "late"
	}
	var s slot
	if known := c.slots[slotKey{id.Group, id.Index}]; known != nil {
		s = *known
	}
	switch {
	case id.Attempt < s.attempt:
		return "late"
	case id.Attempt > s.attempt:
		return "unknown"
	case s.state != pending:
		return "duplicate"
	}
	return ""
}

// hold notes a recorded result in its slot.
func (c *Coordinator) hold(e Arrived) {
	s := c.slot(slotKey{e.Task.Group, e.Task.Index})
	s.attempt = e.Task.Attempt
	switch {
	case e.OK:
		s.state = accepted
	case e.Class == Data:
		s.state, s.reason = poisoned, e.Reason
	case e.Task.Attempt+1 >= c.cfg.MaxAttempts:
		s.state, s.reason = givenUp, e.Reason
	default:
		s.attempt, s.reason = e.Task.Attempt+1, e.Reason
	}
}

// charge counts a failure against the error budget of the group's step.
// Failures before a restart do not count, so that a repaired run can go on.
func (c *Coordinator) charge(g *group, failure string) {
	if g == nil {
		return
	}
	b := g.batch
	b.failures = append(b.failures, failure)
	if len(b.failures) > c.cfg.ErrorBudget && c.halt == "" {
		c.halt = fmt.Sprintf("step %d had %d failed attempts, error_budget is %d: %s",
			b.step, len(b.failures), c.cfg.ErrorBudget, b.report())
	}
}

// settle decides whether a group is complete, or out.
func (c *Coordinator) settle(g *group) {
	if g.state != open {
		return
	}
	if reason := c.broken(g); reason != "" {
		c.leave(g, dropped, reason, c.cfg.Rule == Fill)
		return
	}
	if g.count(pending) == 0 {
		g.state = scoring
		c.emit(Score{g.number})
	}
}

// broken says why the group rule gives up on g; "" when it does not.
func (c *Coordinator) broken(g *group) string {
	lost := 0
	for i, s := range g.slots {
		switch {
		case s.state == poisoned:
			return fmt.Sprintf("index %d: data: %s", i, s.reason)
		case s.state == givenUp:
			lost++
			if c.cfg.Rule != Shrink || c.cfg.GroupSize-lost < c.cfg.MinGroup {
				return fmt.Sprintf("index %d given up: %s", i, s.reason)
			}
		}
	}
	return ""
}

// leave takes g out of its batch and admits another in its place if it may.
func (c *Coordinator) leave(g *group, to groupState, reason string, replace bool) {
	g.state = to
	c.emit(Leave{g.number, to == flat, reason})
	width := c.cfg.GroupsPerBatch + c.cfg.MaxReplacements
	if replace && c.halt == "" && len(g.batch.groups) < width {
		c.admit(g.batch)
	}
}

func (c *Coordinator) scored(e Scored) {
	g := c.find(e.Group)
	if g == nil || g.state != scoring {
		panic(fmt.Sprintf("coordinator: group %d scored, but it was not asked for", e.Group))
	}
	for _, i := range e.Failed {
		g.slots[i].state, g.slots[i].reason = givenUp, "reward_error"
		c.charge(g, fmt.Sprintf("group %d index %d: %s: reward_error", e.Group, i, Policy))
	}
	reason := c.broken(g)
	switch {
	case reason != "":
		c.leave(g, dropped, reason, c.cfg.Rule == Fill)
	case c.cfg.Dynamic && !e.Mixed:
		c.leave(g, flat, "no variance", true)
	default:
		g.state = kept
	}
}

func (g *group) count(s slotState) int {
	n := 0
	for _, slot := range g.slots {
		if slot.state == s {
			n++
		}
	}
	return n
}

// tries lists the attempts that g waits for.
func (g *group) tries() []Try {
	var tries []Try
	for i, s := range g.slots {
		if s.state == pending {
			tries = append(tries, Try{i, s.attempt})
		}
	}
	return tries
}

func (b *batch) settled() bool {
	return !slices.ContainsFunc(b.groups, func(g *group) bool { return g.state == open || g.state == scoring })
}

func (b *batch) numbers(s groupState) []int {
	var numbers []int
	for _, g := range b.groups {
		if g.state == s {
			numbers = append(numbers, g.number)
		}
	}
	return numbers
}

// report lists the step's last failures, at most five.
func (b *batch) report() string {
	if len(b.failures) == 0 {
		return "see the rejections in the ledger"
	}
	last := b.failures[max(0, len(b.failures)-5):]
	return "last failures: " + strings.Join(last, "; ")
}

// Waiting says what the run waits for, for people: the attempts outstanding of
// the first open step.
func (c *Coordinator) Waiting() string {
	if len(c.batches) == 0 {
		return "nothing"
	}
	b := c.batches[0]
	n := 0
	for _, g := range b.groups {
		if g.state == open {
			n += g.count(pending)
		}
	}
	return fmt.Sprintf("%d trajectories of step %d", n, b.step)
}
