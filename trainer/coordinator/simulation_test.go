package coordinator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"xragent/rollout"
	"xragent/trainer/coordinator"
)

const seeds = 500

// TestSimulation runs whole trainings against a hostile world: workers finish
// in any order, fail, are lost; results come twice; the process dies between
// any two actions and starts again from its last checkpoint and its ledger.
func TestSimulation(t *testing.T) {
	finished, restarts := 0, 0
	for seed := range uint64(seeds) {
		w := newWorld(t, seed)
		if w.run() {
			finished++
		}
		restarts += w.restarts
	}
	if finished < seeds*8/10 || restarts < seeds {
		t.Errorf("%d of %d runs finished with %d restarts: the simulation tests too little", finished, seeds, restarts)
	}
}

type taskKey struct{ group, index int }

// A world is the queue, the workers, the learner and the disk.
type world struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	cfg  coordinator.Config

	// What survives a crash.
	ledger   []coordinator.Arrived
	accepted map[taskKey]rollout.PolicyVersion
	tasks    []rollout.TaskID                         // published, not finished
	known    map[rollout.TaskID]rollout.PolicyVersion // ever published
	results  []coordinator.Arrived                    // finished, not acknowledged
	weights  map[rollout.PolicyVersion]string         // as published
	batches  map[int]string                           // as trained
	saved    struct {
		step    int
		weights string
	}

	// What does not.
	c        *coordinator.Coordinator
	step     int
	learner  string
	inFlight []coordinator.Event
	restarts int
	end      string
}

func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{t: t, seed: seed, rng: rng,
		accepted: map[taskKey]rollout.PolicyVersion{}, known: map[rollout.TaskID]rollout.PolicyVersion{},
		weights: map[rollout.PolicyVersion]string{}, batches: map[int]string{}}
	size := 2 + rng.IntN(3)
	w.cfg = coordinator.Config{
		Run: "t", Steps: 1 + rng.IntN(8), GroupsPerBatch: 1 + rng.IntN(4), GroupSize: size,
		MaxStaleness: rng.IntN(4), MaxAttempts: 2 + 40*rng.IntN(2),
		Rule:     []coordinator.Rule{coordinator.Fill, coordinator.Shrink, coordinator.Drop}[rng.IntN(3)],
		MinGroup: 2 + rng.IntN(size-1), Dynamic: rng.IntN(2) == 0, MaxReplacements: 2 + rng.IntN(4),
		ErrorBudget: 1 << 30, CheckpointEvery: rng.IntN(4),
	}
	return w
}

// run reports whether the run finished, rather than ran out of groups.
func (w *world) run() bool {
	w.restart()
	for range 20000 {
		if w.end != "" {
			break
		}
		w.act()
	}
	switch {
	case w.end == "finish":
		if w.saved.step != w.cfg.Steps {
			w.fail("finished with %d steps saved", w.saved.step)
		}
		return true
	case !strings.Contains(w.end, "no group left"):
		w.fail("no progress: end %q, waiting for %s", w.end, w.c.Waiting())
	}
	return false
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d, %+v: %s", w.seed, w.cfg, fmt.Sprintf(format, args...))
}

// act lets one thing happen.
func (w *world) act() {
	switch n := w.rng.IntN(20); {
	case n == 0 && w.restarts < 8:
		w.restart()
	case n < 8 && len(w.inFlight) > 0:
		w.feed(take(w.rng, &w.inFlight))
	case n < 13 && len(w.tasks) > 0:
		w.results = append(w.results, w.work(take(w.rng, &w.tasks)))
	case n == 13 && len(w.tasks) > 0:
		id := take(w.rng, &w.tasks)
		w.results = append(w.results, coordinator.Arrived{Task: id, Class: coordinator.Infrastructure, Reason: "lost"})
	case len(w.results) > 0:
		w.deliver(w.results[w.rng.IntN(len(w.results))])
	}
}

func take[T any](rng *rand.Rand, from *[]T) T {
	i := rng.IntN(len(*from))
	x := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	return x
}

// work is what a worker makes of a task. Samples of some groups are unusable.
func (w *world) work(id rollout.TaskID) coordinator.Arrived {
	switch {
	case hash(w.seed, id.Group, 1)%16 == 0:
		return coordinator.Arrived{Task: id, Class: coordinator.Data, Reason: "image"}
	case w.rng.IntN(12) == 0:
		return coordinator.Arrived{Task: id, Class: coordinator.Infrastructure, Reason: "timeout"}
	}
	return coordinator.Arrived{Task: id, OK: true}
}

func hash(seed uint64, group, salt int) uint64 {
	return rand.New(rand.NewPCG(seed, uint64(group*7+salt))).Uint64()
}

// deliver hands over a result; one in ten acknowledgements is lost.
func (w *world) deliver(r coordinator.Arrived) {
	before := w.c
	if r.Reason == "lost" {
		w.feed(coordinator.Lost{Task: r.Task, Reason: r.Reason})
	} else {
		w.feed(r)
	}
	if w.c == before && w.rng.IntN(10) > 0 {
		w.results = slices.DeleteFunc(w.results, func(x coordinator.Arrived) bool { return x.Task == r.Task })
	}
}

// restart is a crash and a new start. What ran in the learner is gone.
func (w *world) restart() {
	w.restarts++
	w.step, w.learner, w.inFlight = w.saved.step, w.saved.weights, nil
	var err error
	if w.c, err = coordinator.New(w.cfg); err != nil {
		w.fail("%v", err)
	}
	held := slices.DeleteFunc(slices.Clone(w.ledger), func(h coordinator.Arrived) bool { return h.Task.Step <= w.step })
	w.feed(coordinator.Started{Trained: w.step, Held: held})
}

// feed steps the coordinator and carries its actions out; one time in 150 the
// process dies before an action.
func (w *world) feed(e coordinator.Event) {
	if a, ok := e.(coordinator.Trained); ok {
		w.step = a.Step
	}
	c := w.c
	for _, a := range c.Step(e) {
		if w.restarts < 8 && w.rng.IntN(150) == 0 {
			w.restart()
			return
		}
		w.carryOut(a)
	}
}

func (w *world) carryOut(a coordinator.Action) {
	switch a := a.(type) {
	case coordinator.Accept:
		w.accept(a.Task)
	case coordinator.Reject:
		w.ledger = append(w.ledger, coordinator.Arrived{Task: a.Task, Class: a.Class, Reason: a.Reason})
	case coordinator.Dispatch:
		w.dispatch(a)
	case coordinator.Publish:
		w.publish(a.Version)
	case coordinator.Score:
		w.inFlight = append(w.inFlight, w.score(a.Group))
	case coordinator.Train:
		w.train(a)
	case coordinator.Checkpoint:
		if a.Step != w.step {
			w.fail("%v while the learner is at step %d", a, w.step)
		}
		w.saved.step, w.saved.weights = w.step, w.learner
		w.inFlight = append(w.inFlight, coordinator.Checkpointed{Step: a.Step})
	case coordinator.Stop:
		w.end = a.Reason
	case coordinator.Finish:
		w.end = "finish"
	}
}

func (w *world) accept(id rollout.TaskID) {
	key := taskKey{id.Group, id.Index}
	if _, twice := w.accepted[key]; twice {
		w.fail("%v accepted twice", id)
	}
	if w.rejected(id) {
		w.fail("%v accepted after it was rejected", id)
	}
	w.accepted[key] = w.known[id]
	w.ledger = append(w.ledger, coordinator.Arrived{Task: id, OK: true})
}

func (w *world) rejected(id rollout.TaskID) bool {
	return slices.ContainsFunc(w.ledger, func(h coordinator.Arrived) bool { return h.Task == id && !h.OK })
}

func (w *world) dispatch(a coordinator.Dispatch) {
	if _, ok := w.weights[a.Version]; !ok {
		w.fail("%v, but that version was never published", a)
	}
	if a.Step > w.step+1+w.cfg.MaxStaleness || a.Step <= w.step {
		w.fail("%v with the learner at step %d", a, w.step)
	}
	for _, try := range a.Tries {
		id := rollout.TaskID{Run: "t", Step: a.Step, Group: a.Group, Index: try.Index, Attempt: try.Attempt}
		before := id
		before.Attempt--
		if try.Attempt > 0 && !w.rejected(before) {
			w.fail("%v issued, but the attempt before it has no rejection on record", id)
		}
		if _, held := w.accepted[taskKey{id.Group, id.Index}]; held {
			w.fail("%v issued, but the ledger has its trajectory", id)
		}
		if _, stored := w.known[id]; !stored {
			w.known[id] = a.Version
			w.tasks = append(w.tasks, id)
		}
	}
}

// publish holds a version published again against its first publication.
func (w *world) publish(v rollout.PolicyVersion) {
	if int(v) != w.step {
		w.fail("publish version %d with the learner at step %d", v, w.step)
	}
	if before, ok := w.weights[v]; ok && before != w.learner {
		w.fail("version %d published again with other weights", v)
	}
	w.weights[v] = w.learner
	w.inFlight = append(w.inFlight, coordinator.Published{Version: v})
}

func (w *world) score(group int) coordinator.Scored {
	s := coordinator.Scored{Group: group, Mixed: hash(w.seed, group, 2)%3 > 0}
	if hash(w.seed, group, 3)%16 == 0 {
		s.Failed = []int{0}
	}
	return s
}

func (w *world) train(a coordinator.Train) {
	if a.Step != w.step+1 || !slices.IsSorted(a.Groups) {
		w.fail("%v with the learner at step %d", a, w.step)
	}
	for _, g := range a.Groups {
		if step, _ := w.cfg.Place(g); step != a.Step {
			w.fail("%v, but group %d belongs to step %d", a, g, step)
		}
		for i := range w.cfg.GroupSize {
			if v, ok := w.accepted[taskKey{g, i}]; ok && a.Step-1-int(v) > w.cfg.MaxStaleness {
				w.fail("%v: group %d was sampled with version %d, bound %d", a, g, v, w.cfg.MaxStaleness)
			}
		}
	}
	if before, ok := w.batches[a.Step]; ok && before != fmt.Sprint(a.Groups) {
		w.fail("step %d trained on %v, before the restart on %s", a.Step, a.Groups, before)
	}
	w.batches[a.Step] = fmt.Sprint(a.Groups)
	w.learner += fmt.Sprint(a.Groups)
	w.inFlight = append(w.inFlight, coordinator.Trained{Step: a.Step})
}
