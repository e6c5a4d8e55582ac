package trainer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"xragent/trainer/batch"
)

func TestSpikeBound(t *testing.T) {
	usual := []float64{1, 2, 1, 2, 1, 2, 1, 2, 1.5, 1.5}
	for _, c := range []struct {
		name  string
		spike float64
		norms []float64
		want  float64
	}{
		{"off", 0, usual, 0},
		{"too few steps", 3, usual[1:], 0},
		{"median", 4, usual, 6},
		{"one spike is not usual", 4, append(slices.Clone(usual), 1000), 6},
		{"the last twenty only", 2, slices.Concat(slices.Repeat([]float64{100}, 30), slices.Repeat([]float64{1}, 20)), 2},
	} {
		before := slices.Clone(c.norms)
		if got := (Optimizer{Spike: c.spike}).spikeBound(c.norms); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if !slices.Equal(c.norms, before) {
			t.Errorf("%s: the history was changed", c.name)
		}
	}
}

func TestSpikeIsClipped(t *testing.T) {
	usual := slices.Repeat([]float64{2}, 10)
	for _, c := range []struct{ most, want float64 }{{0, 6}, {1, 1}, {10, 6}} {
		o := Optimizer{MaxNorm: c.most, Spike: 3}
		if got := o.objective("sft", 1, 1, usual).MaxNorm; got != c.want {
			t.Errorf("max_norm %v: clipped at %v, want %v", c.most, got, c.want)
		}
	}
}

// A spikingLearner has a gradient of another norm at one step, and keeps what
// each step was clipped at.
type spikingLearner struct {
	fakeLearner
	at      int
	clipped []float64
}

func (l *spikingLearner) Step(ctx context.Context, b batch.Batch, o batch.Objective) (batch.Stats, error) {
	st, err := l.fakeLearner.Step(ctx, b, o)
	if l.steps == l.at {
		st.GradNorm = 100
	}
	l.clipped = append(l.clipped, o.MaxNorm)
	return st, err
}

// The rule goes on behind a resumption as if there had been none.
func TestSFTSpike(t *testing.T) {
	run := func(kill string) (string, []float64, []string) {
		var notices []string
		l := &spikingLearner{at: 14}
		s := &sftScene{cfg: sftConfig(), dir: t.TempDir(), learner: l, change: func(d *SFTDeps) {
			d.Notice = func(text string) { notices = append(notices, text) }
		}}
		s.cfg.Optimizer.MaxNorm, s.cfg.Optimizer.Spike, s.cfg.Patience = 0, 5, 0
		crossed := 0
		_, err := s.start(t.Context(), func(point string) error {
			if crossed++; kill != "" && point == kill && l.steps >= 12 {
				return errKilled
			}
			return nil
		})
		if kill != "" {
			if !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			l.fakeLearner, l.clipped = fakeLearner{}, nil
		}
		r, err := s.start(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s.outcome(t, r), l.clipped, notices
	}
	want, clipped, notices := run("")
	if !slices.Equal(clipped[9:14], []float64{0, 5, 5, 5, 5}) {
		t.Errorf("clipped at %v, want 5 from step 11 on", clipped)
	}
	if n := strings.Count(want, `"spike":5`); n != 1 || len(notices) != 1 || !strings.Contains(notices[0], "step 14: gradient norm 100 is a spike, above 5") {
		t.Errorf("%d spikes recorded, notices %q", n, notices)
	}
	if got, _, _ := run("train"); got != want {
		t.Errorf("killed and resumed: %s", firstDifference(got, want))
	}
}
