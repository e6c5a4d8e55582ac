package study

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

const sound = `
pipeline: ../quick.yaml
seeds: [1, 2, 3]
baseline: sft
arms:
  - {name: untrained, begin: none}
  - {name: sft}
  - {name: rl, train: grpo}
  - {name: more, train: sft, compute: rl, set: [sft.eval_every=10]}
  - {name: permuted, train: grpo, set: [grpo.permute_rewards=true]}
  - {name: additive, train: grpo, against: rl, set: [reward.variant=additive]}
claim: {arm: rl, over: sft, above: more, control: permuted, gain: 5}
`

func read(t *testing.T, text string) (Spec, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Read(path)
}

func soundSpec(t *testing.T) Spec {
	t.Helper()
	s, err := read(t, sound)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRead(t *testing.T) {
	s := soundSpec(t)
	if s.Name != "small" || filepath.Base(s.Pipeline) != "quick.yaml" || s.Parallel != 1 {
		t.Errorf("%+v", s)
	}
	against := map[string]string{}
	for _, a := range s.Arms {
		against[a.Name] = a.Against
	}
	if against["sft"] != "" || against["rl"] != "sft" || against["additive"] != "rl" {
		t.Errorf("compared with %v", against)
	}
	cells := s.Cells()
	if len(cells) != 18 || cells[0].Name() != "untrained-1" || cells[6].Name() != "untrained-2" {
		t.Errorf("cells %v", cells)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tc := range []struct{ old, new, want string }{
		{"baseline: sft", "baseline: nothing", `baseline = "nothing": that arm is missing`},
		{"  - {name: permuted, train: grpo, set: [grpo.permute_rewards=true]}\n", "", `claim.control = "permuted": that arm is missing`},
		{"against: rl", "against: lr", `against = "lr": that arm is missing`},
		{"compute: rl", "compute: sft", "compute = sft: want an arm that trains grpo"},
		{"reward.variant=additive", "data.phantom.train=5", "set data.phantom.train: the arm would no longer share data"},
		{"reward.variant=additive", "eval.questions=5", "set eval.questions: the arm would no longer share data, start and questions"},
		{"reward.variant=additive", "reward.k_max=2", "set reward.k_max: the shared corpus is made for it"},
		{"reward.variant=additive", "sft.max_steps=2", "set sft.max_steps: no effect on an arm that trains grpo"},
		{"reward.variant=additive", "reward.variant", "want key=value"},
		{"name: rl, train: grpo", "name: rl, train: ppo", `train = "ppo"`},
		{"begin: none", "begin: base", `begin = "base"`},
		{"name: untrained", "name: sft", "sft is given twice"},
		{"name: untrained", "name: shared", `not "shared"`},
		{"seeds: [1, 2, 3]", "seeds: [1, 1]", "seeds: 1 is 0 or given twice"},
		{"seeds: [1, 2, 3]", "seeds: []", "seeds is empty"},
		{"gain: 5", "gain: 0", "claim.gain = 0"},
		{"over: sft", "over: rl", "claim.over"},
		{"above: more", "above: sft", "claim.above = \"sft\": want an arm with compute: rl"},
		{"control: permuted", "control: sft", "claim.control = \"sft\": want an arm that begins and trains as rl does"},
		{"grpo.permute_rewards=true", "grpo.permute_rewards=false", "sets besides only grpo.permute_rewards=true"},
		{"grpo.permute_rewards=true", "grpo.permute_rewards=true, grpo.steps=1", "sets besides only grpo.permute_rewards=true"},
		{"baseline: sft", "basline: sft", "unknown field"},
		{"pipeline: ../quick.yaml", "pipeline: ''", "pipeline is empty"},
	} {
		if !strings.Contains(sound, tc.old) {
			t.Fatalf("%q is not in the sound study", tc.old)
		}
		if _, err := read(t, strings.Replace(sound, tc.old, tc.new, 1)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.new, err, tc.want)
		}
	}
}

// Reading never panics, and what it accepts is valid.
func FuzzRead(f *testing.F) {
	f.Add([]byte(sound))
	f.Add([]byte("arms: [{name: a}, {name: b}]\nbaseline: a\npipeline: x\nseeds: [1]\nparallel: 1\ncell_mib: 1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var s Spec
		if parse(text, &s) == nil && s.Validate() == nil && len(s.Cells()) < 2 {
			t.Errorf("a valid study without cells: %+v", s)
		}
	})
}

// Every job runs once, behind those it needs, and never more than limit at once.
func TestSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		n := rapid.IntRange(1, 12).Draw(t, "jobs")
		var mu sync.Mutex
		var ended []string
		running := 0
		var jobs []Job
		for i := range n {
			var after []string
			for k := range i {
				if rapid.IntRange(0, 3).Draw(t, "needs") == 0 {
					after = append(after, fmt.Sprint(k))
				}
			}
			name := fmt.Sprint(i)
			jobs = append(jobs, Job{name, after, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				running++
				if running > limit {
					return errors.New("too many at once")
				}
				for _, a := range after {
					if !slices.Contains(ended, a) {
						return fmt.Errorf("begun before %s ended", a)
					}
				}
				ended = append(ended, name)
				running--
				return nil
			}})
		}
		if err := Schedule(context.Background(), limit, jobs); err != nil || len(ended) != n {
			t.Fatalf("%v; %d of %d ended", err, len(ended), n)
		}
	})
}

// What fails takes along what needs it, and nothing else.
func TestScheduleGoesOnWithoutWhatFailed(t *testing.T) {
	var ran []string
	job := func(name string, err error, after ...string) Job {
		return Job{name, after, func(context.Context) error { ran = append(ran, name); return err }}
	}
	broken := errors.New("broken")
	err := Schedule(t.Context(), 1, []Job{job("a", nil), job("b", broken, "a"), job("c", nil, "b"), job("d", nil, "c"), job("e", nil, "a")})
	slices.Sort(ran)
	if !errors.Is(err, broken) || !errors.Is(err, ErrSkipped) || !slices.Equal(ran, []string{"a", "b", "e"}) {
		t.Errorf("%v; ran %v, want a, b and e", err, ran)
	}
	for _, want := range []string{"b: broken", "c: not begun", "d: not begun"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestScheduleStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	var jobs []Job
	for i := range 5 {
		jobs = append(jobs, Job{Name: fmt.Sprint(i), Do: func(context.Context) error { n++; cancel(); return nil }})
	}
	if err := Schedule(ctx, 1, jobs); !errors.Is(err, context.Canceled) || n != 1 {
		t.Errorf("%v; %d jobs ran, want the one that cancelled", err, n)
	}
}
