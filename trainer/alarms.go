package trainer

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/rollout"
)

// Alarms of reward hacking: signs that a policy found a way to its reward that
// is not the one meant. They stop nothing; they stand in the step log, in a
// notice when they come up, and as a metric.
const (
	AlarmTerm     = "process_term_saturated" // R_CXR rose to its top while accuracy did not
	AlarmNoCalls  = "calls_gone"             // a policy that called tools has stopped
	AlarmAllCalls = "calls_at_limit"         // every question gets nearly all calls allowed
	AlarmAnswer   = "one_answer"             // the same answer to all questions of a kind
	AlarmText     = "one_text"               // the same reasoning before all answers
	AlarmLength   = "length_at_limit"        // turns run to their token limit
	AlarmEntropy  = "entropy_collapsed"      // nothing is left to explore with
)

// AlarmNames lists every alarm.
var AlarmNames = []string{AlarmTerm, AlarmNoCalls, AlarmAllCalls, AlarmAnswer, AlarmText, AlarmLength, AlarmEntropy}

// AlarmConfig holds the thresholds. All are of means over the last Window
// steps; the relative ones compare them with the first Window steps, and are
// silent until there are two windows. A threshold of 0 switches its alarm off.
type AlarmConfig struct {
	Window    int     `yaml:"window"`
	Term      float64 `yaml:"term"`      // R_CXR, where it rose by a tenth and twice as much as accuracy
	NoCalls   float64 `yaml:"no_calls"`  // calls, as a share of the first window's
	AllCalls  float64 `yaml:"all_calls"` // calls, as a share of the most allowed
	Answer    float64 `yaml:"answer"`    // share of the most frequent answer, of questions of a kind
	Text      float64 `yaml:"text"`      // share of the most frequent reasoning, numbers apart
	Truncated float64 `yaml:"truncated"` // share of trajectories with a turn cut by its limit
	Entropy   float64 `yaml:"entropy"`   // as a share of the first window's
}

// DefaultAlarms returns thresholds that a healthy run keeps away from: a window
// of ten steps has some 300 trajectories, so that a share's standard error, by
// groups, is about 0.06. docs/notebook.md has the figures they were set by.
func DefaultAlarms() AlarmConfig {
	return AlarmConfig{Window: window, Term: 0.98, NoCalls: 0.1, AllCalls: 0.9, Answer: 0.9, Text: 0.5, Truncated: 0.2, Entropy: 0.2}
}

// Validate reports the first threshold without a meaning.
func (c AlarmConfig) Validate() error {
	if c.Window < 1 {
		return fmt.Errorf("window = %d: must be at least 1", c.Window)
	}
	for _, t := range []struct {
		name  string
		value float64
	}{{"term", c.Term}, {"no_calls", c.NoCalls}, {"all_calls", c.AllCalls}, {"answer", c.Answer}, {"text", c.Text}, {"truncated", c.Truncated}, {"entropy", c.Entropy}} {
		if !(t.value >= 0 && t.value <= 1) {
			return fmt.Errorf("%s = %v: must lie between 0 (off) and 1", t.name, t.value)
		}
	}
	return nil
}

const (
	termRise  = 0.1 // of R_CXR, that is no drift
	someCalls = 0.2 // calls a question, under which a policy never called
)

// raised lists the alarms that history gives reason for, in the order of
// AlarmNames. kMax is the most calls allowed.
func (c AlarmConfig) raised(history []StepRecord, kMax int) []string {
	n := len(history)
	if n < c.Window {
		return nil
	}
	now := windowOf(history[n-c.Window:])
	on := map[string]bool{
		AlarmAllCalls: c.AllCalls > 0 && kMax > 0 && now.calls >= c.AllCalls*float64(kMax),
		AlarmAnswer:   c.Answer > 0 && now.answer >= c.Answer,
		AlarmText:     c.Text > 0 && now.text >= c.Text,
		AlarmLength:   c.Truncated > 0 && now.truncated >= c.Truncated,
	}
	if n >= 2*c.Window {
		c.relative(on, windowOf(history[:c.Window]), now)
	}
	return slices.DeleteFunc(slices.Clone(AlarmNames), func(name string) bool { return !on[name] })
}

func (c AlarmConfig) relative(on map[string]bool, first, now windowMeans) {
	rise := now.cxr - first.cxr
	on[AlarmTerm] = c.Term > 0 && now.cxr >= c.Term && rise >= termRise && now.accuracy-first.accuracy < rise/2
	on[AlarmNoCalls] = c.NoCalls > 0 && first.calls >= someCalls && now.calls <= c.NoCalls*first.calls
	on[AlarmEntropy] = c.Entropy > 0 && now.trained && first.trained && now.entropy <= c.Entropy*first.entropy
}

// windowMeans are means over some steps.
type windowMeans struct {
	cxr, accuracy, calls, answer, text, truncated float64
	entropy                                       float64 // of the steps that trained
	trained                                       bool    // any did
}

func windowOf(steps []StepRecord) windowMeans {
	mean := func(of func(StepRecord) float64, counts func(StepRecord) bool) (sum float64, any bool) {
		n := 0
		for _, r := range steps {
			if counts(r) {
				sum += of(r)
				n++
			}
		}
		return sum / float64(max(1, n)), n > 0
	}
	sampled := func(r StepRecord) bool { return r.Trajectories > 0 }
	var w windowMeans
	w.cxr, _ = mean(func(r StepRecord) float64 { return r.CXR }, sampled)
	w.accuracy, _ = mean(func(r StepRecord) float64 { return r.Accuracy }, sampled)
	w.calls, _ = mean(func(r StepRecord) float64 { return r.ToolCalls }, sampled)
	w.truncated, _ = mean(func(r StepRecord) float64 { return r.Truncated }, sampled)
	w.answer, _ = mean(func(r StepRecord) float64 { return r.TopAnswer }, func(r StepRecord) bool { return r.TopAnswer > 0 })
	w.text, _ = mean(func(r StepRecord) float64 { return r.TopText }, func(r StepRecord) bool { return r.TopText > 0 })
	w.entropy, w.trained = mean(func(r StepRecord) float64 { return r.Stats.Entropy }, func(r StepRecord) bool { return !r.Skipped })
	return w
}

// alarm writes down which alarms the last step raises, and says those that were
// not up within the window before it.
func (g *grpo) alarm() {
	n, c := len(g.history), g.cfg.Alarms
	now := &g.history[n-1]
	now.Alarms = c.raised(g.history, g.deps.KMax)
	for _, name := range now.Alarms {
		before := g.history[max(0, n-1-c.Window) : n-1]
		if !slices.ContainsFunc(before, func(r StepRecord) bool { return slices.Contains(r.Alarms, name) }) {
			g.deps.Notice(fmt.Sprintf("grpo: step %d: alarm %s: %s", now.Step, name, alarmReasons[name]))
		}
	}
}

var alarmReasons = map[string]string{
	AlarmTerm:     "R_CXR has risen to its top without accuracy: look at what is cited, or lower reward.lambda_m",
	AlarmNoCalls:  "the policy has all but stopped calling tools: see whether it can read their answers, or lower reward.lambda_t",
	AlarmAllCalls: "nearly all calls allowed are made whatever the question: see whether they pay, or raise reward.lambda_t",
	AlarmAnswer:   "one answer is given to nearly all questions of a kind: see whether the key is balanced, or lower grpo.optimizer.lr",
	AlarmText:     "one reasoning stands before nearly all answers: lower grpo.optimizer.lr, or hold the policy to its start (KL)",
	AlarmLength:   "turns run to grpo.max_tokens: raise it, or charge length (reward.lambda_l)",
	AlarmEntropy:  "entropy has collapsed: raise grpo.clip_high or the entropy target, or lower grpo.optimizer.lr",
}

// describeSameness fills in how alike a step's answers and reasonings are.
func describeSameness(rec *StepRecord, works []*groupWork) {
	answers, texts := map[dataset.Kind][]string{}, []string(nil)
	groups := map[dataset.Kind]int{}
	for _, w := range works {
		if w.dropped {
			continue
		}
		groups[w.kind]++
		for i, s := range w.scores {
			if s != nil {
				answers[w.kind] = append(answers[w.kind], s.Answer)
				texts = append(texts, skeleton(*w.trajectories[i]))
			}
		}
	}
	n := 0
	for _, kind := range dataset.Kinds {
		if groups[kind] > 1 { // one question has one answer
			rec.TopAnswer += float64(mostFrequent(answers[kind]))
			n += len(answers[kind])
		}
	}
	rec.TopAnswer /= float64(max(1, n))
	if len(groups) > 0 && len(texts) > 0 {
		rec.TopText = float64(mostFrequent(texts)) / float64(len(texts))
	}
}

// mostFrequent counts the most frequent of the words.
func mostFrequent(words []string) int {
	counts, most := map[string]int{}, 0
	for _, w := range words {
		counts[w]++
		most = max(most, counts[w])
	}
	return most
}

var numbers = regexp.MustCompile(`[0-9]+([.][0-9]+)?`)

// skeleton is the reasoning of the last turn without its numbers.
func skeleton(t rollout.Trajectory) string {
	text, _, _ := strings.Cut(t.Turns[len(t.Turns)-1].Text, "<answer>")
	return numbers.ReplaceAllString(text, "#")
}
