package coordinator

import (
	"fmt"
	"strings"

	"xragent/rollout"
)

// A Class says whose fault a failure was, and thereby what is done about it.
type Class string

// The failure classes. A policy that answers wrongly is no failure: that is a
// low reward.
const (
	Infrastructure Class = "infrastructure" // worker, transport: the work is done again
	Data           Class = "data"           // the sample is unusable: its group is dropped
	Policy         Class = "policy"         // the trajectory breaks a contract: the work is done again
)

// An Event is something that happened in the world.
type Event interface{ event() }

// The events.
type (
	// Started is the first event. Trained is the step of the restored weights;
	// Held is what the ledger has of later steps, in ledger order.
	Started struct {
		Trained int
		Held    []Arrived
	}
	// Published says that workers may now sample from Version.
	Published struct{ Version rollout.PolicyVersion }
	// Arrived says that a result came, and whether it may be trained on.
	Arrived struct {
		Task   rollout.TaskID
		OK     bool
		Class  Class  // where not OK
		Reason string // where not OK
	}
	// Lost says that a task came to nothing.
	Lost struct {
		Task   rollout.TaskID
		Reason string
	}
	// Scored says that a group has rewards. Failed lists the indices that could
	// not be scored; Mixed says that the rewards differ.
	Scored struct {
		Group  int
		Failed []int
		Mixed  bool
	}
	// Trained says that the learner took Step.
	Trained struct{ Step int }
	// Checkpointed says that the state after Step is safe.
	Checkpointed struct{ Step int }
	// Interrupted asks for an orderly end. What was under way in the learner
	// has ended, without effect where no event told of one.
	Interrupted struct{}
)

func (Started) event()      {}
func (Published) event()    {}
func (Arrived) event()      {}
func (Lost) event()         {}
func (Scored) event()       {}
func (Trained) event()      {}
func (Checkpointed) event() {}
func (Interrupted) event()  {}

// An Action is something to carry out.
type Action interface{ action() }

// A Try is one attempt at one trajectory of a group.
type Try struct{ Index, Attempt int }

// The actions. They are carried out in order. Accept, Reject and Leave are
// written to the ledger; the actions that follow rely on that.
type (
	// Publish makes the learner's weights available as Version.
	Publish struct{ Version rollout.PolicyVersion }
	// Dispatch puts attempts on the queue.
	Dispatch struct {
		Step, Group int
		Version     rollout.PolicyVersion
		Tries       []Try
	}
	// Accept records the result that arrived as the one that counts.
	Accept struct{ Task rollout.TaskID }
	// Reject records that an attempt failed.
	Reject struct {
		Task   rollout.TaskID
		Class  Class
		Reason string
	}
	// Ignore acknowledges a result that changes nothing.
	Ignore struct {
		Task rollout.TaskID
		Why  string // duplicate, late, unknown
	}
	// Score computes the rewards of a complete group.
	Score struct{ Group int }
	// Leave takes a group out of its batch: for want of variance (Flat), or
	// since its trajectories were given up.
	Leave struct {
		Group  int
		Flat   bool
		Reason string
	}
	// Train takes the optimizer step on these groups, in this order.
	Train struct {
		Step   int
		Groups []int
	}
	// Checkpoint saves the state after Step.
	Checkpoint struct{ Step int }
	// Stop ends the run before its last step.
	Stop struct{ Reason string }
	// Finish ends the run: all steps are trained and saved.
	Finish struct{}
)

func (Publish) action()    {}
func (Dispatch) action()   {}
func (Accept) action()     {}
func (Reject) action()     {}
func (Ignore) action()     {}
func (Score) action()      {}
func (Leave) action()      {}
func (Train) action()      {}
func (Checkpoint) action() {}
func (Stop) action()       {}
func (Finish) action()     {}

func (a Publish) String() string { return fmt.Sprintf("publish version %d", a.Version) }

func (a Dispatch) String() string {
	tries := make([]string, len(a.Tries))
	for i, t := range a.Tries {
		tries[i] = fmt.Sprintf("%d/%d", t.Index, t.Attempt)
	}
	return fmt.Sprintf("dispatch step %d group %d version %d: %s", a.Step, a.Group, a.Version, strings.Join(tries, " "))
}

func (a Accept) String() string { return fmt.Sprintf("accept %v", a.Task) }
func (a Reject) String() string { return fmt.Sprintf("reject %v: %s: %s", a.Task, a.Class, a.Reason) }
func (a Ignore) String() string { return fmt.Sprintf("ignore %v: %s", a.Task, a.Why) }
func (a Score) String() string  { return fmt.Sprintf("score group %d", a.Group) }
func (a Leave) String() string  { return fmt.Sprintf("leave out group %d: %s", a.Group, a.Reason) }
func (a Train) String() string  { return fmt.Sprintf("train step %d on groups %v", a.Step, a.Groups) }

func (a Checkpoint) String() string { return fmt.Sprintf("checkpoint step %d", a.Step) }
func (a Stop) String() string       { return "stop: " + a.Reason }
func (a Finish) String() string     { return "finish" }
