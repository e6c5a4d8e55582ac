//go:build integration

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xragent/trainer"
)

// TestIntegration ends runs of the real program in every way that a run is
// ended, and holds what they come to against one that was left alone.
func TestIntegration(t *testing.T) {
	began, ref := prepare(t)
	t.Run("KillPoints", func(t *testing.T) { testKillPoints(t, began, ref) })
	t.Run("Interrupt", func(t *testing.T) { testInterrupt(t, began, ref) })
	t.Run("Workers", func(t *testing.T) { testWorkers(t, began, ref) })
	t.Run("Tools", func(t *testing.T) { testTools(t, began, ref) })
}

// An outcome is what runs of equal result have in common, byte by byte.
type outcome struct {
	files   map[string][]byte
	steps   []trainer.StepRecord
	seconds float64 // that GRPO took
}

// share is so many times what a step took.
func (o outcome) share(of float64) time.Duration {
	return time.Duration(of * o.seconds / float64(len(o.steps)) * float64(time.Second))
}

// results are the files of an outcome, below the stage's folder.
var results = []string{"checkpoints/step-000008/learner/model.safetensors", "canonical.jsonl", "steps.jsonl"}

func (r run) outcome(t *testing.T) outcome {
	t.Helper()
	o := outcome{files: map[string][]byte{}}
	for _, name := range results {
		data, err := os.ReadFile(r.path("grpo", name))
		if err != nil {
			t.Fatal(err)
		}
		o.files[name] = data
	}
	var err error
	if o.steps, err = trainer.ReadSteps(r.path("grpo")); err != nil {
		t.Fatal(err)
	}
	return o
}

// same holds a run's files against the reference.
func (r run) same(t *testing.T, ref outcome) {
	t.Helper()
	got := r.outcome(t)
	for _, name := range results {
		if !bytes.Equal(got.files[name], ref.files[name]) {
			t.Errorf("%s: %d bytes differ from the %d of the run that was left alone", name, len(got.files[name]), len(ref.files[name]))
		}
	}
}

// prepare runs the pipeline without any disturbance. What it had made before
// GRPO is what every other run begins with.
func prepare(t *testing.T) (began run, ref outcome) {
	t.Helper()
	r := run{filepath.Join(t.TempDir(), "tiny.yaml"), t.TempDir()}
	if err := os.WriteFile(r.config, []byte(pipeline), 0o644); err != nil {
		t.Fatal(err)
	}
	p := r.start(t, "run")
	p.says(t, "── grpo")
	started := time.Now()
	p.succeed(t)
	ref = r.outcome(t)
	ref.seconds = time.Since(started).Seconds()
	t.Logf("left alone, %d steps took %.1f s", len(ref.steps), ref.seconds)
	for _, later := range []string{"grpo", "nats", "blobs", "trajectories.parquet"} {
		if err := os.RemoveAll(r.path(later)); err != nil {
			t.Fatal(err)
		}
	}
	mustHaveLearned(t, r, ref)
	return r, ref
}

// mustHaveLearned makes sure that equal results mean something: the weights
// are not those that GRPO began with, and steps had a signal.
func mustHaveLearned(t *testing.T, began run, ref outcome) {
	t.Helper()
	best, err := trainer.BestCheckpoint(began.path("sft"))
	if err != nil {
		t.Fatal(err)
	}
	start, err := os.ReadFile(filepath.Join(best.LearnerDir(), "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(start, ref.files[results[0]]) {
		t.Fatal("GRPO left the weights as they were: a run that lost everything would pass")
	}
	if _, moved := ref.moved(1, len(ref.steps)); moved < len(ref.steps)/2 {
		t.Fatalf("%d of %d steps had a signal, want at least half", moved, len(ref.steps))
	}
}

// moved returns the first step that changed the weights among steps from to
// last, and how many did.
func (o outcome) moved(from, last int) (first, n int) {
	for _, s := range o.steps[from-1 : last] {
		if s.Skipped {
			continue
		}
		if n++; first == 0 {
			first = s.Step
		}
	}
	return first, n
}

// A killPoint is a moment at which the process is killed.
type killPoint struct {
	name   string
	now    func(t *testing.T, r run) bool // the moment has come
	after  time.Duration                  // and a little later
	landed func(t *testing.T, r run) bool // what the kill left shows that it came in time; nil: no need
	again  time.Duration                  // after which the resumed run is killed as well; 0: it is not
}

func testKillPoints(t *testing.T, began run, ref outcome) {
	for _, workers := range []int{1, 3} {
		for _, k := range killPoints(uint64(workers), ref) {
			t.Run(fmt.Sprintf("workers=%d/%s", workers, k.name), func(t *testing.T) {
				set := []string{"--set", fmt.Sprint("queue.workers=", workers)}
				r := k.strike(t, began, set)
				if k.again > 0 {
					p := r.start(t, "grpo", append(set, "--resume")...)
					time.Sleep(k.again)
					p.kill(t)
				}
				r.finish(t, set...)
				r.same(t, ref)
			})
		}
	}
}

// tries is how often a test may come too late for the moment that it is about,
// as it does where the machine stalls it.
const tries = 20

// strike kills a fresh copy of the run at the point, and tries again where the
// kill came too late to hit it.
func (k killPoint) strike(t *testing.T, began run, set []string) run {
	t.Helper()
	for try := range tries {
		r := began.copied(t)
		p := r.start(t, "grpo", set...)
		if p.until(t, func() bool { return k.now(t, r) }) {
			time.Sleep(k.after)
			if p.kill(t) && (k.landed == nil || k.landed(t, r)) {
				return r
			}
		}
		p.kill(t)
		if code := p.cmd.ProcessState.ExitCode(); code > 0 {
			t.Fatalf("exit code %d before the kill", code)
		}
		t.Logf("try %d came too late", try+1)
	}
	t.Fatalf("missed the point %d times", tries)
	panic("unreachable")
}

// killPoints are ten moments: two within a checkpoint, two within a
// publication, and six anywhere.
func killPoints(seed uint64, ref outcome) []killPoint {
	stored, _ := ref.moved(3, len(ref.steps))
	_, blobs := ref.moved(1, stored)
	points := []killPoint{
		{name: "checkpoint of step 2, begun", now: checkpointHas(2, "learner"), landed: halfCheckpoint},
		{name: "checkpoint of step 6, without manifest", now: checkpointHas(6, "state.json"), landed: halfCheckpoint},
		{name: fmt.Sprintf("version %d, weights stored", stored), now: weightsStored(1 + blobs), landed: notDecided(stored)},
		{name: "version 5, recorded", now: decided(5), landed: noResults(6), again: 2 * time.Second},
	}
	chance := rand.New(rand.NewPCG(seed, 0))
	for i := range 6 {
		step := chance.IntN(len(ref.steps) - 1)
		k := killPoint{after: ref.share(0.8 * chance.Float64()), now: func(_ *testing.T, r run) bool { return r.steps() >= step }}
		k.name = fmt.Sprintf("step %d and %v", step, k.after.Round(time.Millisecond))
		if i%2 == 0 {
			k.again = ref.share(1 + 2*chance.Float64())
			k.name += fmt.Sprintf(", again after %v", k.again.Round(time.Millisecond))
		}
		points = append(points, k)
	}
	return points
}

// checkpointHas waits for a file of a checkpoint that is being written aside.
func checkpointHas(step int, file string) func(*testing.T, run) bool {
	return func(_ *testing.T, r run) bool {
		return exists(r.path("grpo", "checkpoints", fmt.Sprintf("tmp-step-%06d", step), file))
	}
}

func halfCheckpoint(_ *testing.T, r run) bool {
	aside, err := filepath.Glob(r.path("grpo", "checkpoints", "tmp-*"))
	return err == nil && len(aside) == 1
}

// weightsStored waits until the weights of n versions are there. Those of a
// step without a signal are the ones before it.
func weightsStored(n int) func(*testing.T, run) bool {
	return func(t *testing.T, r run) bool { return largeBlobs(r) >= n }
}

// largeBlobs counts blobs as large as weights; images are far smaller.
func largeBlobs(r run) int {
	n := 0
	_ = filepath.WalkDir(r.path("blobs"), func(path string, d fs.DirEntry, err error) error { // what vanishes under the walk is no blob
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Size() > 1<<20 {
			n++
		}
		return nil
	})
	return n
}

// decided waits until the ledger holds a version's digest; only then is the
// version opened to workers.
func decided(version int) func(*testing.T, run) bool {
	return func(t *testing.T, r run) bool {
		found := false
		r.ledger(t, func(e trainer.Entry) {
			found = found || e.Decision != nil && e.Decision.Kind == "publish" && e.Decision.Step == version
		})
		return found
	}
}

func notDecided(version int) func(*testing.T, run) bool {
	return func(t *testing.T, r run) bool { return !decided(version)(t, r) }
}

// noResults holds while no trajectory of a step is in the ledger.
func noResults(step int) func(*testing.T, run) bool {
	return func(t *testing.T, r run) bool {
		n := 0
		r.ledger(t, func(e trainer.Entry) {
			if e.Accepted != nil && e.Accepted.Task.Step == step {
				n++
			}
		})
		return n == 0
	}
}

// testInterrupt stops runs as Ctrl-C does, once and twice.
func testInterrupt(t *testing.T, began run, ref outcome) {
	t.Run("once", func(t *testing.T) {
		r := interrupted(t, began, func(p *process) bool { return p.wait(t) != 0 })
		c, notices, err := trainer.LatestCheckpoint(r.path("grpo"))
		if err != nil || len(notices) > 0 || c.Step != r.steps() {
			t.Errorf("checkpoint of step %d after %d steps, %v %v", c.Step, r.steps(), notices, err)
		}
		r.finish(t)
		r.same(t, ref)
	})
	t.Run("twice", func(t *testing.T) {
		r := interrupted(t, began, func(p *process) bool {
			if !p.until(t, func() bool { return strings.Contains(p.stderr(), "once more to stop at once") }) {
				return false
			}
			p.interrupt(t)
			return p.wait(t) != 0 && !strings.Contains(p.stderr(), "drained")
		})
		r.finish(t)
		r.same(t, ref)
	})
}

// interrupted interrupts a fresh copy of the run after its third step, and
// tries again while inTime says that what followed came too late. The run must
// end as an interrupted one does.
func interrupted(t *testing.T, began run, inTime func(*process) bool) run {
	t.Helper()
	for try := range tries {
		r := began.copied(t)
		p := r.start(t, "grpo")
		if p.until(t, func() bool { return r.steps() >= 3 }) {
			p.interrupt(t)
			if inTime(p) {
				if code := p.wait(t); code != exitInterrupted {
					t.Fatalf("exit code %d, want %d", code, exitInterrupted)
				}
				return r
			}
		}
		if code := p.wait(t); code != 0 && code != exitInterrupted {
			t.Fatalf("exit code %d, want 0 or %d", code, exitInterrupted)
		}
		t.Logf("try %d came too late", try+1)
	}
	t.Fatalf("came too late %d times", tries)
	panic("unreachable")
}
