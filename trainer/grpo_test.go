package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/internal/bus/bustest"
	"xragent/reward"
	"xragent/rollout"
)

var every = flag.Bool("every", false, "kill at every boundary that a run crosses, not at a sample of them")

func TestMain(m *testing.M) { bustest.Main(m) }

func testConfig() GRPOConfig {
	c := DefaultGRPO()
	c.Steps, c.Prompts, c.GroupSize, c.CheckpointEvery, c.Seed = 6, 3, 3, 2, 7
	c.DynamicSampling, c.MaxReplacements, c.MaxAttempts, c.ErrorBudget = true, 3, 50, 1000
	c.StallSeconds = 120
	return c
}

// A scene is a run with everything that survives the trainer's death.
type scene struct {
	t       *testing.T
	cfg     GRPOConfig
	dir     string
	queue   *fakeQueue
	workers int
	notices []string
	change  func(*GRPODeps)
}

func newScene(t *testing.T, seed uint64, workers int) *scene {
	return &scene{t: t, cfg: testConfig(), dir: t.TempDir(), queue: newFakeQueue(seed), workers: workers}
}

// start runs the trainer once, from a learner with initial weights.
func (s *scene) start(ctx context.Context, at boundary) (GRPOResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	wait := s.queue.work(ctx, s.workers)
	defer wait()
	defer cancel()
	d := GRPODeps{
		Run: "t", Dir: s.dir, Learner: &fakeLearner{}, Queue: s.queue, Samples: fakeSamples(11), Score: fakeScore,
		Blobs: &fakeBlobs{}, Limits: rollout.Limits{Vocab: 100, ImagePad: 99, Merge: 2}, Resume: true,
		Digests: map[string]string{"data": "d1"}, Notice: func(n string) { s.notices = append(s.notices, n) }, at: at,
	}
	d.Limits.ImagePad = -1 // the fake samples any id
	if s.change != nil {
		s.change(&d)
	}
	return RunGRPO(ctx, s.cfg, d)
}

// startKilled starts the run again and again, each time killed at a boundary
// drawn from rng, until it is through.
func (s *scene) startKilled(rng *rand.Rand) GRPOResult {
	s.t.Helper()
	for {
		left := 10 + rng.IntN(120)
		r, err := s.start(s.t.Context(), func(string) error {
			if left--; left == 0 {
				return errKilled
			}
			return nil
		})
		if err == nil {
			return r
		}
		if !errors.Is(err, errKilled) {
			s.t.Fatal(err)
		}
	}
}

// An outcome is what must be the same, whatever happened on the way.
type outcome struct{ weights, canonical, steps string }

func (s *scene) outcome(r GRPOResult) outcome {
	s.t.Helper()
	path, err := Canonical(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	read := func(path string) string {
		data, err := os.ReadFile(path)
		if err != nil {
			s.t.Fatal(err)
		}
		return string(data)
	}
	return outcome{read(filepath.Join(r.Latest.LearnerDir(), "weights.json")), read(path), read(filepath.Join(s.dir, "steps.jsonl"))}
}

// undisturbed is the run that nothing happens to, and the boundaries it crosses.
func undisturbed(t *testing.T, workers int) (outcome, []string) {
	s := newScene(t, 1, workers)
	var points []string
	r, err := s.start(t.Context(), func(point string) error { points = append(points, point); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return s.outcome(r), points
}

func TestGRPOFinishes(t *testing.T) {
	s := newScene(t, 1, 2)
	var seen []int
	s.change = func(d *GRPODeps) {
		d.Observe = func(r StepRecord, times StepTimes) {
			seen = append(seen, r.Step)
			if r.Version != int64(r.Step-1) || r.Trajectories == 0 || times.Generated == 0 || times.Seconds["total"] <= 0 {
				t.Errorf("step %d: %+v %+v", r.Step, r, times)
			}
			if g := r.Groups; g.Mixed+g.AllRight+g.AllWrong > 6 || g.Mixed == 0 || g.LeftOut != g.Tied {
				t.Errorf("step %d: groups %+v", r.Step, g)
			}
		}
	}
	r, err := s.start(t.Context(), nil)
	if err != nil || r.Steps != 6 || !slices.Equal(seen, []int{1, 2, 3, 4, 5, 6}) {
		t.Fatalf("%+v, %v, steps seen %v", r, err, seen)
	}
	names, _ := checkpointNames(s.dir)
	if len(names) < 2 || len(names) > 3 || r.Latest.Step != 6 || !r.Latest.Done {
		t.Errorf("checkpoints kept: %v, latest %+v", names, r.Latest)
	}
	again, err := s.start(t.Context(), nil)
	if err != nil || again.Resumed != 6 || len(seen) != 6 {
		t.Errorf("starting a finished run again: %+v, %v; want nothing to do", again, err)
	}
}

// TestResumeIsExact kills the trainer at every kind of boundary and some more,
// starts it again, and wants what an undisturbed run gives, byte for byte.
func TestResumeIsExact(t *testing.T) {
	for _, workers := range []int{1, 3} {
		want, points := undisturbed(t, workers)
		for _, kill := range killPoints(points) {
			t.Run(fmt.Sprintf("workers=%d/%d-%s", workers, kill, strings.ReplaceAll(points[kill], "/", "-")), func(t *testing.T) {
				t.Parallel()
				compareOutcomes(t, killedAndResumed(t, workers, kill), want)
			})
		}
	}
}

// TestResumeIsExactInTrouble adds failing workers, lost tasks and redelivery,
// and kills the trainer again and again.
func TestResumeIsExactInTrouble(t *testing.T) {
	want, _ := undisturbed(t, 1)
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, seed, 3)
			s.queue.trouble = 12
			rng := rand.New(rand.NewPCG(seed, 3))
			compareOutcomes(t, s.outcome(s.startKilled(rng)), want)
		})
	}
}

// killPoints chooses crossings: one of every kind of point, which makes five
// inside a checkpoint and three inside a publication.
func killPoints(points []string) []int {
	var kills []int
	kinds := map[string]bool{}
	for _, i := range rand.New(rand.NewPCG(11, 11)).Perm(len(points)) {
		if *every || !kinds[points[i]] {
			kinds[points[i]] = true
			kills = append(kills, i)
		}
	}
	return kills
}

func killedAndResumed(t *testing.T, workers, kill int) outcome {
	s := newScene(t, uint64(kill), workers)
	crossed := 0
	_, err := s.start(t.Context(), func(string) error {
		if crossed++; crossed == kill+1 {
			return errKilled
		}
		return nil
	})
	if err != nil && !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	r, err := s.start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.outcome(r)
}

func compareOutcomes(t *testing.T, got, want outcome) {
	t.Helper()
	for _, c := range []struct{ name, got, want string }{
		{"weights", got.weights, want.weights}, {"canonical record", got.canonical, want.canonical}, {"steps.jsonl", got.steps, want.steps},
	} {
		if c.got != c.want {
			t.Errorf("the %s differs from the undisturbed run's:\n%s", c.name, firstDifference(c.got, c.want))
		}
	}
}

func firstDifference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			return fmt.Sprintf("line %d\n got %.300s\nwant %.300s", i+1, as[i], bs[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(as), len(bs))
}

func TestLedgerHoldsEachTrajectoryOnce(t *testing.T) {
	s := newScene(t, 5, 3)
	s.queue.trouble = 12
	if _, err := s.start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	accepted, rejected, trained := map[string]int{}, 0, 0
	err := ReadLedger(s.dir, func(e Entry) error {
		switch {
		case e.Accepted != nil:
			id := e.Accepted.Task
			id.Attempt = 0
			accepted[id.String()]++
			if len(e.Accepted.Attachments[0].PNG) > 0 {
				t.Errorf("%v: the image is in the ledger, not only in the blob store", id)
			}
		case e.Rejected != nil:
			rejected++
		case e.Decision.Kind == "train":
			trained++
		}
		return nil
	})
	if err != nil || rejected == 0 || trained != s.cfg.Steps {
		t.Fatalf("%v; %d rejections, %d steps trained", err, rejected, trained)
	}
	for id, n := range accepted {
		if n != 1 {
			t.Errorf("%s accepted %d times", id, n)
		}
	}
}

func TestInterruptSavesAndResumes(t *testing.T) {
	want, _ := undisturbed(t, 1)
	for _, at := range []string{"dispatch", "train", "trained", "publish/open", "checkpoint/manifest", "ack"} {
		t.Run(strings.ReplaceAll(at, "/", "-"), func(t *testing.T) {
			s := newScene(t, 2, 2)
			ctx, interrupt := context.WithCancel(t.Context())
			n := 0
			_, err := s.start(ctx, func(point string) error {
				if point == at {
					if n++; n == 2 {
						interrupt()
					}
				}
				return nil
			})
			var i *InterruptedError
			if !errors.As(err, &i) || !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v, want an InterruptedError", err)
			}
			if c, notices, err := LatestCheckpoint(s.dir); i.Step > 0 && (err != nil || c.Step != i.Step || len(notices) > 0) {
				t.Errorf("interrupted after step %d, saved %+v %v %v", i.Step, c, notices, err)
			}
			r, err := s.start(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			compareOutcomes(t, s.outcome(r), want)
		})
	}
}

func TestRefusals(t *testing.T) {
	s := newScene(t, 1, 1)
	if _, err := s.start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		config func(*GRPOConfig)
		deps   func(*GRPODeps)
		want   string
	}{
		{"other prompts", func(c *GRPOConfig) { c.Prompts = 4 }, nil, "grpo: grpo.prompts is 4, but the run began with 3"},
		{"other data", nil, func(d *GRPODeps) { d.Digests = map[string]string{"data": "d2"} }, "grpo: data is d2, but the run began with d1"},
		{"no digest", nil, func(d *GRPODeps) { d.Digests = nil }, "grpo: data is not set, but the run began with d1"},
		{"without resume", nil, func(d *GRPODeps) { d.Resume = false }, "holds a run already: continue it with --resume, or choose another name"},
		{"stale", func(c *GRPOConfig) { c.MaxStaleness = 1 }, nil, "grpo.max_staleness = 1: only synchronous training (0)"},
		{"a group of one", func(c *GRPOConfig) { c.GroupSize = 1 }, nil, "grpo.group_size = 1: must be at least 2 (a group of one has no relative advantage)"},
		{"no samples", nil, func(d *GRPODeps) { d.Samples = nil }, "grpo: no training samples"},
	} {
		s.cfg, s.change = testConfig(), tc.deps
		if tc.config != nil {
			tc.config(&s.cfg)
		}
		if _, err := s.start(t.Context(), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	s.cfg, s.change = testConfig(), nil
	s.cfg.CheckpointEvery, s.cfg.MaxAttempts = 5, 9
	if _, err := s.start(t.Context(), nil); err != nil {
		t.Errorf("changing what is free: %v", err)
	}
}

func TestTornCheckpointFallsBack(t *testing.T) {
	want, _ := undisturbed(t, 1)
	for _, file := range []string{"learner/weights.json", "state.json", "manifest.json"} {
		s := newScene(t, 3, 2)
		trained := 0
		_, err := s.start(t.Context(), func(point string) error {
			if point == "trained" {
				if trained++; trained == 6 {
					return errKilled
				}
			}
			return nil
		})
		if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		c, _, err := LatestCheckpoint(s.dir)
		if err != nil || c.Step != 4 {
			t.Fatalf("latest is %+v, %v", c, err)
		}
		if err := os.Truncate(filepath.Join(c.Path, file), 5); err != nil {
			t.Fatal(err)
		}
		r, err := s.start(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Resumed != 2 || len(s.notices) == 0 || !strings.Contains(strings.Join(s.notices, "\n"), "step-000004 is torn") {
			t.Errorf("%s: resumed from %d, notices %q", file, r.Resumed, s.notices)
		}
		compareOutcomes(t, s.outcome(r), want)
	}
}

func TestTroubleStops(t *testing.T) {
	t.Run("error budget", func(t *testing.T) {
		s := newScene(t, 1, 2)
		s.cfg.ErrorBudget, s.queue.trouble = 2, 3
		var stopped *StoppedError
		if _, err := s.start(t.Context(), nil); !errors.As(err, &stopped) || !strings.Contains(err.Error(), "error_budget is 2") {
			t.Fatalf("got %v, want a StoppedError", err)
		}
		s.cfg.ErrorBudget, s.queue.trouble = 1000, 0 // repaired
		r, err := s.start(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := undisturbed(t, 1)
		compareOutcomes(t, s.outcome(r), want)
	})
	t.Run("no workers", func(t *testing.T) {
		s := newScene(t, 1, 0)
		s.cfg.StallSeconds = 0.05
		var stalled *StalledError
		if _, err := s.start(t.Context(), nil); !errors.As(err, &stalled) || !strings.Contains(err.Error(), "9 trajectories of step 1") {
			t.Fatalf("got %v, want a StalledError", err)
		}
	})
	t.Run("rewards that fail", func(t *testing.T) {
		s := newScene(t, 1, 2)
		s.cfg.ScoreSeconds = 0.05
		release := make(chan struct{})
		defer close(release)
		s.change = func(d *GRPODeps) {
			d.Score = func(tr rollout.Trajectory, sample dataset.Sample) (reward.Score, error) {
				switch id := tr.Task; {
				case id.Group == 0 && id.Index == 0:
					panic("bad reward")
				case id.Group == 1 && id.Index == 1:
					<-release // never in time
				}
				return fakeScore(tr, sample)
			}
		}
		r, err := s.start(t.Context(), nil)
		if err != nil || r.Steps != 6 {
			t.Fatalf("%+v, %v", r, err)
		}
		said := strings.Join(s.notices, "\n")
		if !strings.Contains(said, "panic: bad reward") || !strings.Contains(said, "no result within 0.05 s") {
			t.Errorf("notices: %s", said)
		}
	})
}

func TestNoSignalIsSaid(t *testing.T) {
	s := newScene(t, 1, 2)
	s.cfg.DynamicSampling = false
	var skipped, starved int
	s.change = func(d *GRPODeps) {
		d.Score = func(rollout.Trajectory, dataset.Sample) (reward.Score, error) { return reward.Score{Total: 1}, nil }
		d.Observe = func(r StepRecord, _ StepTimes) {
			if r.Skipped {
				skipped++
			}
			if r.Starved {
				starved++
			}
		}
	}
	r, err := s.start(t.Context(), nil)
	if err != nil || skipped != 6 || starved != 2 {
		t.Fatalf("%v: %d steps skipped, want 6; %d starved, want 2: from step 5 on", err, skipped, starved)
	}
	if len(s.notices) != 1 || !strings.Contains(s.notices[0], "only 0 % of the groups are mixed") {
		t.Errorf("notices %q, want one", s.notices)
	}
	if w := s.outcome(r).weights; w != string((&fakeLearner{}).bytes()) {
		t.Errorf("weights moved without a signal: %s", w)
	}
}

// TestExamine holds results against their tasks.
func TestExamine(t *testing.T) {
	g := &grpo{cfg: testConfig(), deps: GRPODeps{Limits: rollout.Limits{Vocab: 100, ImagePad: -1, Merge: 2}, Notice: func(string) {}}}
	g.plan = g.cfg.coordinator("t")
	g.prompts = newPrompts(g.cfg, g.plan, fakeSamples(11))
	id := rollout.TaskID{Run: "t", Step: 1, Group: 1, Index: 2}
	task := rollout.Task{ID: id, Sample: g.prompts.sample(1, nil).ID, Seed: g.prompts.trajectorySeed(id)}
	for _, tc := range []struct {
		change func(*rollout.Trajectory)
		reason string
	}{
		{func(*rollout.Trajectory) {}, ""},
		{func(t *rollout.Trajectory) { t.Seed++ }, "seed"},
		{func(t *rollout.Trajectory) { t.Sample = "other" }, "sample"},
		{func(t *rollout.Trajectory) { t.Version = 1 }, "version"},
		{func(t *rollout.Trajectory) { t.Turns[1].Newest = 1 }, "version"},
		{func(t *rollout.Trajectory) { t.Stop = rollout.Timeout }, "timeout"},
		{func(t *rollout.Trajectory) { t.Turns[1].PromptIDs[0]++ }, "prefix"},
		{func(t *rollout.Trajectory) { t.Attachments[0].PNG = nil }, "attachment"},
		{func(t *rollout.Trajectory) { t.Calls[0].Arguments = json.RawMessage("{") }, "not_finite"},
		{func(t *rollout.Trajectory) { t.Task.Group = -4 }, ""}, // the coordinator ignores it
		{func(t *rollout.Trajectory) { t.Task.Group = 1 << 60 }, ""},
	} {
		tr := sampleTrajectory(task, "w")
		tc.change(&tr)
		if _, reason := g.fault(tr); reason != tc.reason {
			t.Errorf("fault = %q, want %q", reason, tc.reason)
		}
	}
}

func TestTornLedgerIsCut(t *testing.T) {
	dir := t.TempDir()
	write := func(n int) {
		l, err := openLedger(dir, nil, func(string) {}, func(Entry) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := errors.Join(l.add(Entry{Rejected: &Rejection{Task: rollout.TaskID{Step: i}}}), l.commit()); err != nil {
				t.Fatal(err)
			}
		}
		l.close()
	}
	write(2)
	path := filepath.Join(dir, ledgerName)
	whole, _ := os.ReadFile(path)
	write(1)
	longer, _ := os.ReadFile(path)
	for size := len(whole); size < len(longer); size++ {
		if err := os.WriteFile(path, longer[:size], 0o644); err != nil {
			t.Fatal(err)
		}
		said, entries := "", 0
		l, err := openLedger(dir, nil, func(n string) { said = n }, func(Entry) error { entries++; return nil })
		if err != nil || entries != 2 || (size > len(whole)) != strings.Contains(said, "torn") {
			t.Fatalf("cut at %d: %v, %d entries, said %q", size, err, entries, said)
		}
		l.close()
		if left, _ := os.ReadFile(path); !bytes.Equal(left, whole) {
			t.Fatalf("cut at %d: %d bytes left, want %d", size, len(left), len(whole))
		}
	}
	damaged := slices.Clone(longer)
	damaged[len(whole)-3] ^= 1
	os.WriteFile(path, damaged, 0o644)
	if _, err := openLedger(dir, nil, func(string) {}, func(Entry) error { return nil }); err == nil || !strings.Contains(err.Error(), "is damaged, and valid ones follow") {
		t.Errorf("damage in the middle: %v", err)
	}
}

func TestShortLedgerIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := checkLedger(dir, 0); err != nil {
		t.Errorf("a stage that begins: %v", err)
	}
	l, err := openLedger(dir, nil, func(string) {}, func(Entry) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for step := 1; step <= 2; step++ {
		if err := errors.Join(l.add(Entry{Decision: &Decision{Kind: "train", Step: step}}), l.commit()); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkLedger(dir, 2); err != nil {
		t.Errorf("a whole ledger: %v", err)
	}
	path := filepath.Join(dir, ledgerName)
	whole, _ := os.ReadFile(path)
	for name, data := range map[string][]byte{"cut": whole[:len(whole)-1], "empty": {}, "length damaged": append([]byte{255, 255, 255, 255}, whole[4:]...)} {
		os.WriteFile(path, data, 0o644)
		if err := checkLedger(dir, 2); err == nil || !strings.Contains(err.Error(), "the checkpoint is of step 2: restore it from a copy") {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadFile(path); !bytes.Equal(left, data) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := checkLedger(dir, 2); err == nil || !strings.Contains(err.Error(), "ends at step 0") {
		t.Errorf("gone: %v", err)
	}
}

func FuzzLedger(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 7})
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, ledgerName), data, 0o644)
		if l, err := openLedger(dir, nil, func(string) {}, func(Entry) error { return nil }); err == nil {
			l.close()
		}
	})
}

func TestRates(t *testing.T) {
	o := Optimizer{LR: 2, WarmUp: 4, FinalLR: 0.1}
	for _, tc := range []struct {
		decay       string
		step, total int
		want        float64
	}{
		{"constant", 1, 10, 0.5}, {"constant", 4, 10, 2}, {"constant", 10, 10, 2},
		{"linear", 7, 10, 1.1}, {"linear", 10, 10, 0.2},
		{"cosine", 7, 10, 1.1}, {"cosine", 10, 10, 0.2}, {"cosine", 3, 3, 1.5},
	} {
		o.Decay = tc.decay
		if got := o.Rate(tc.step, tc.total); got < tc.want-1e-12 || got > tc.want+1e-12 {
			t.Errorf("%s: Rate(%d, %d) = %v, want %v", tc.decay, tc.step, tc.total, got, tc.want)
		}
	}
}

func TestOrderVisitsAllOnceAnEpoch(t *testing.T) {
	a := &order{seed: 3, n: 7}
	epochs := map[string]bool{}
	for epoch := range 5 {
		var items []int
		for i := range 7 {
			items = append(items, a.at(epoch*7+i))
		}
		epochs[fmt.Sprint(items)] = true
		slices.Sort(items)
		if !slices.Equal(items, []int{0, 1, 2, 3, 4, 5, 6}) {
			t.Errorf("epoch %d visits %v", epoch, items)
		}
	}
	if len(epochs) < 4 {
		t.Errorf("%d different epochs of 5", len(epochs))
	}
	if b := (&order{seed: 3, n: 7}); b.at(30) != a.at(30) {
		t.Error("position 30 depends on what was asked before")
	}
}
