package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xragent/trainer/batch"
)

func sftRows(n int, prefix string) []batch.Row {
	var rows []batch.Row
	for i := range n {
		length := 3 + i%5
		r := batch.Row{ID: fmt.Sprint(prefix, i), IDs: make([]int32, length), LossMask: make([]uint8, length)}
		for j := range r.IDs {
			r.IDs[j] = int32(i*3 + j)
		}
		r.LossMask[length-1] = 1
		rows = append(rows, r)
	}
	return rows
}

func sftConfig() SFTConfig {
	c := DefaultSFT()
	c.MaxSteps, c.BatchTokens, c.EvalEvery, c.Patience, c.CheckpointEvery = 20, 20, 3, 2, 4
	c.Optimizer.WarmUp = 2
	return c
}

type sftScene struct {
	cfg     SFTConfig
	dir     string
	learner Learner
	change  func(*SFTDeps)
}

func (s *sftScene) start(ctx context.Context, at boundary) (SFTResult, error) {
	d := SFTDeps{Learner: &fakeLearner{}, Train: sftRows(13, "t"), Validation: sftRows(4, "v"), Dir: s.dir, Resume: true, at: at}
	if s.learner != nil {
		d.Learner = s.learner
	}
	if s.change != nil {
		s.change(&d)
	}
	return RunSFT(ctx, s.cfg, d)
}

func (s *sftScene) outcome(t *testing.T, r SFTResult) string {
	t.Helper()
	c, _, err := LatestCheckpoint(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, path := range []string{filepath.Join(c.LearnerDir(), "weights.json"), filepath.Join(r.Best.LearnerDir(), "weights.json"), filepath.Join(s.dir, "steps.jsonl")} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(data))
	}
	return strings.Join(all, "\n")
}

func TestSFTResumeIsExact(t *testing.T) {
	whole := &sftScene{cfg: sftConfig(), dir: t.TempDir()}
	var points []string
	r, err := whole.start(t.Context(), func(point string) error { points = append(points, point); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := whole.outcome(t, r)
	for _, kill := range killPoints(points) {
		s := &sftScene{cfg: sftConfig(), dir: t.TempDir()}
		crossed := 0
		_, err := s.start(t.Context(), func(string) error {
			if crossed++; crossed == kill+1 {
				return errKilled
			}
			return nil
		})
		if !errors.Is(err, errKilled) {
			t.Fatalf("kill %d: %v", kill, err)
		}
		r, err := s.start(t.Context(), nil)
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		if got := s.outcome(t, r); got != want {
			t.Errorf("killed at %d, %s: %s", kill, points[kill], firstDifference(got, want))
		}
	}
}

func TestSFTInterrupt(t *testing.T) {
	s := &sftScene{cfg: sftConfig(), dir: t.TempDir()}
	ctx, interrupt := context.WithCancel(t.Context())
	s.change = func(d *SFTDeps) {
		d.Observe = func(r StepRecord, _ StepTimes) {
			if r.Step == 5 {
				interrupt()
			}
		}
	}
	var i *InterruptedError
	if _, err := s.start(ctx, nil); !errors.As(err, &i) || i.Step != 5 {
		t.Fatalf("got %v, want an interruption after step 5", err)
	}
	s.change = nil
	r, err := s.start(t.Context(), nil)
	if err != nil || r.Steps != 20 {
		t.Fatalf("%+v, %v", r, err)
	}
}

// A plateauLearner's validation loss falls until step 9 and then rises.
type plateauLearner struct{ fakeLearner }

func (l *plateauLearner) Evaluate(context.Context, batch.Batch) (float64, error) {
	d := float64(l.steps - 9)
	return 1 + d*d/100, nil
}

func TestSFTStopsAtPlateauWithTheBestWeights(t *testing.T) {
	l := &plateauLearner{}
	s := &sftScene{cfg: sftConfig(), dir: t.TempDir(), learner: l}
	for range 2 { // a finished stage that is started again has nothing to do
		r, err := s.start(t.Context(), nil)
		if err != nil || r.Steps != 15 || !r.Plateau || r.BestStep != 9 || r.BestLoss != 1 || l.steps != 9 || r.Best.Step != 9 {
			t.Fatalf("%+v, %v; learner at step %d; want the weights of step 9, stopped at 15", r, err, l.steps)
		}
	}
}

func TestSFTRefusals(t *testing.T) {
	for _, tc := range []struct {
		name   string
		config func(*SFTConfig)
		deps   func(*SFTDeps)
		want   string
	}{
		{"no rows", nil, func(d *SFTDeps) { d.Validation = nil }, "sft: 13 training and 0 validation rows"},
		{"long row", func(c *SFTConfig) { c.BatchTokens = 6 }, nil, "sft: row t4 has 7 ids, batch_tokens is 6"},
		{"no steps", func(c *SFTConfig) { c.MaxSteps = 0 }, nil, "sft.max_steps = 0: must be at least 1"},
		{"rate", func(c *SFTConfig) { c.Optimizer.LR = 0 }, nil, "sft.optimizer.lr = 0: must be a positive number"},
	} {
		s := &sftScene{cfg: sftConfig(), dir: t.TempDir(), change: tc.deps}
		if tc.config != nil {
			tc.config(&s.cfg)
		}
		if _, err := s.start(t.Context(), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

// TestBatchesCoverEveryEpoch: each row once an epoch, no batch over its limits
// or across an epoch's end.
func TestBatchesCoverEveryEpoch(t *testing.T) {
	rows := sftRows(13, "t")
	b := &rowBatches{rows: rows, order: order{seed: 1, n: 13}, tokens: 20, most: 4}
	for epoch := range 3 {
		seen := map[string]int{}
		for total := 0; total < 13; {
			next, used := b.next(), 0
			for _, r := range next {
				seen[r.ID]++
				used += len(r.IDs)
			}
			if len(next) == 0 || len(next) > 4 || used > 20 {
				t.Fatalf("a batch of %d rows and %d ids", len(next), used)
			}
			total += len(next)
		}
		if len(seen) != 13 {
			t.Errorf("epoch %d has %d different rows of 13", epoch, len(seen))
		}
	}
}
