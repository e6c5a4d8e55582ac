package trainer

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
)

// controlled switches on everything that depends on the steps before.
func controlled(s *scene) *scene {
	s.cfg.Curriculum = Curriculum{Candidates: 3, Floor: 0.1}
	s.cfg.Entropy = EntropyControl{Target: 0.5, Least: 0.2}
	s.cfg.PermuteRewards = true
	s.change = func(d *GRPODeps) {
		for i := range d.Samples {
			d.Samples[i].Template = "t" + d.Samples[i].ID[len(d.Samples[i].ID)-1:]
		}
	}
	return s
}

// TestControlledResumeIsExact kills a run under curriculum, entropy control and
// permuted rewards again and again.
func TestControlledResumeIsExact(t *testing.T) {
	calm := controlled(newScene(t, 1, 2))
	r, err := calm.start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := calm.outcome(r)
	for seed := range uint64(2) {
		s := controlled(newScene(t, seed, 3))
		s.queue.trouble = 12
		rng := rand.New(rand.NewPCG(seed, 5))
		compareOutcomes(t, s.outcome(s.startKilled(rng)), want)
	}
}

// TestPermutedRewardsAreOnRecord derives the step's permutation again.
func TestPermutedRewardsAreOnRecord(t *testing.T) {
	s := newScene(t, 1, 2)
	s.cfg.PermuteRewards = true
	if _, err := s.start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	steps, err := ReadSteps(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range steps {
		p := r.Permuted
		if p == nil || len(p.Groups) == 0 || len(p.Order) != len(p.Groups)*s.cfg.GroupSize {
			t.Fatalf("step %d: permutation %+v", r.Step, p)
		}
		if again := permutation(s.cfg.Seed, r.Step, p.Groups, len(p.Order)); !slices.Equal(again.Order, p.Order) {
			t.Errorf("step %d: order %v, derived again %v", r.Step, p.Order, again.Order)
		}
	}
	if slices.Equal(permutation(7, 1, nil, 9).Order, permutation(7, 2, nil, 9).Order) {
		t.Error("two steps have the same permutation")
	}
}

func TestPermutationKeepsRewards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rewards := rapid.SliceOfN(rapid.Float64Range(-3, 3), 1, 40).Draw(t, "rewards")
		got := permutation(rapid.Uint64().Draw(t, "seed"), 1, nil, len(rewards)).Apply(rewards)
		if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(rewards))) {
			t.Fatalf("%v became %v", rewards, got)
		}
	})
	var none *Permutation
	if got := none.Apply([]float64{1, 2}); !slices.Equal(got, []float64{1, 2}) {
		t.Errorf("no permutation gives %v", got)
	}
}

// The prompts of a template that is sometimes right are drawn most; those of one
// that always or never is, by the floor.
func TestCurriculumPrefersMixed(t *testing.T) {
	history := []StepRecord{{Templates: []TemplateCount{{"always", 400, 400}, {"never", 0, 400}, {"half", 200, 400}}}}
	var candidates []dataset.Sample
	for _, name := range []string{"always", "never", "half"} {
		candidates = append(candidates, dataset.Sample{ID: name, Template: name})
	}
	c, rates, drawn := Curriculum{Candidates: 3, Floor: 0.1}, passRates(history), map[string]int{}
	const n = 10000
	for i := range n {
		drawn[c.draw(candidates, rates, 4, (float64(i)+0.5)/n).ID]++
	}
	mixed := 1 - 2*math.Pow(0.5, 4)
	for name, want := range map[string]float64{"always": 0.1, "never": 0.1, "half": mixed} {
		if got := float64(drawn[name]) / n; math.Abs(got-want/(0.2+mixed)) > 0.01 {
			t.Errorf("%s drawn in %.3f of the cases, want %.3f", name, got, want/(0.2+mixed))
		}
	}
}

func TestPassRatesForget(t *testing.T) {
	history := []StepRecord{{Templates: []TemplateCount{{"a", 0, 8}}}}
	for range 100 {
		history = append(history, StepRecord{Templates: []TemplateCount{{"a", 8, 8}}})
	}
	if r := passRates(history)["a"]; r.right/r.n < 0.99 || math.Abs(r.n-8/(1-memory)) > 1 {
		t.Errorf("after 100 steps of right answers the rate is %v", r)
	}
}

func TestEntropyControl(t *testing.T) {
	c := EntropyControl{Target: 0.4, Least: 0.25}
	steps := func(entropy ...float64) (out []StepRecord) {
		for _, h := range entropy {
			r := StepRecord{Skipped: h == 0}
			r.Stats.Entropy = h
			out = append(out, r)
		}
		return out
	}
	for _, tc := range []struct {
		control EntropyControl
		history []StepRecord
		want    float64
	}{
		{c, nil, 1}, {c, steps(0.5, 0.5), 1}, {c, steps(0.2), 0.5}, {c, steps(0.2, 0), 0.5}, {c, steps(0.01), 0.25}, {EntropyControl{}, steps(0.01), 1},
	} {
		if got := tc.control.weight(tc.history); math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("%+v after %d steps: %v, want %v", tc.control, len(tc.history), got, tc.want)
		}
	}
}

// Each alarm comes up by its own sign and by no other's; a healthy run has none.
func TestAlarms(t *testing.T) {
	healthy := func(i int) StepRecord {
		r := StepRecord{Step: i + 1, Trajectories: 32, CXR: 0.7, Accuracy: 0.5 + 0.01*float64(i), ToolCalls: 1.2, Truncated: 0.01, TopAnswer: 0.5, TopText: 0.1}
		r.Stats.Entropy = 0.4 - 0.01*float64(i)
		return r
	}
	for _, tc := range []struct {
		want string // "": none
		late func(*StepRecord)
	}{
		{"", func(*StepRecord) {}},
		{"", func(r *StepRecord) { r.CXR, r.Accuracy = 1, 0.9 }},
		{"", func(r *StepRecord) { r.Skipped, r.Stats.Entropy = true, 0 }},
		{AlarmTerm, func(r *StepRecord) { r.CXR, r.Accuracy = 0.99, 0.5 }},
		{AlarmNoCalls, func(r *StepRecord) { r.ToolCalls = 0.05 }},
		{AlarmAllCalls, func(r *StepRecord) { r.ToolCalls = 4.8 }},
		{AlarmAnswer, func(r *StepRecord) { r.TopAnswer = 0.97 }},
		{AlarmText, func(r *StepRecord) { r.TopText = 0.8 }},
		{AlarmLength, func(r *StepRecord) { r.Truncated = 0.4 }},
		{AlarmEntropy, func(r *StepRecord) { r.Stats.Entropy = 0.02 }},
	} {
		var history []StepRecord
		for i := range 24 {
			r := healthy(i)
			if i >= 12 {
				tc.late(&r)
			}
			history = append(history, r)
			got := strings.Join(DefaultAlarms().raised(history, 5), " ")
			if i < 12 && got != "" || i == 23 && got != tc.want {
				t.Errorf("%q: step %d raises %q", tc.want, i+1, got)
			}
		}
	}
}

// A threshold of 0 is off, also where the sign is at its strongest.
func TestAlarmsOff(t *testing.T) {
	history := make([]StepRecord, 40)
	for i := range history {
		history[i] = StepRecord{Trajectories: 1, ToolCalls: 5, TopAnswer: 1, TopText: 1, Truncated: 1, Skipped: i >= 20}
	}
	if got := (AlarmConfig{Window: 10}).raised(history, 5); got != nil && len(got) > 0 {
		t.Errorf("raised %v with every threshold at 0", got)
	}
}

func TestAlarmIsSaidOnce(t *testing.T) {
	s := newScene(t, 1, 2)
	s.cfg.Alarms = AlarmConfig{Window: 2, AllCalls: 0.1}
	s.change = func(d *GRPODeps) { d.KMax = 5 }
	if _, err := s.start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	said := slices.DeleteFunc(slices.Clone(s.notices), func(n string) bool { return !strings.Contains(n, AlarmAllCalls) })
	if len(said) != 1 || !strings.HasPrefix(said[0], "grpo: step 2: alarm "+AlarmAllCalls) {
		t.Errorf("notices %q, want one at step 2", said)
	}
	steps, err := ReadSteps(s.dir)
	if err != nil || len(steps[0].Alarms) != 0 || !slices.Equal(steps[5].Alarms, []string{AlarmAllCalls}) {
		t.Errorf("%v; alarms of the steps: %+v", err, steps)
	}
}

// Sameness is counted within kinds, and over groups that could differ.
func TestSameness(t *testing.T) {
	work := func(kind dataset.Kind, think string, answers ...string) *groupWork {
		w := newGroupWork(len(answers))
		w.kind = kind
		for i, a := range answers {
			w.scores[i] = &reward.Score{Answer: a}
			w.trajectories[i] = &rollout.Trajectory{Turns: []rollout.Turn{{Text: think + "<answer>" + a + "</answer>"}}}
		}
		return w
	}
	var rec StepRecord
	describeSameness(&rec, []*groupWork{
		work(dataset.Binary, "ctr 0.51 is large.", "yes", "yes"), work(dataset.Binary, "ctr 0.44 is large.", "yes", "no"),
		work(dataset.Closed, "the left.", "left", "left"),
	})
	if rec.TopAnswer != 0.75 || math.Abs(rec.TopText-4.0/6) > 1e-12 {
		t.Errorf("top answer %v, top text %v; want 3/4 of the binary ones, 4/6 of the reasonings", rec.TopAnswer, rec.TopText)
	}
}

func TestControlRefuses(t *testing.T) {
	for want, edit := range map[string]func(*GRPOConfig){
		"grpo.curriculum.candidates = 1": func(c *GRPOConfig) { c.Curriculum.Candidates = 1 },
		"grpo.curriculum.floor = 0":      func(c *GRPOConfig) { c.Curriculum = Curriculum{Candidates: 4} },
		"grpo.entropy.target = -1":       func(c *GRPOConfig) { c.Entropy.Target = -1 },
		"grpo.alarms.window = 0":         func(c *GRPOConfig) { c.Alarms.Window = 0 },
		"grpo.alarms.answer = 2":         func(c *GRPOConfig) { c.Alarms.Answer = 2 },
	} {
		s := newScene(t, 1, 1)
		edit(&s.cfg)
		if _, err := s.start(t.Context(), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
