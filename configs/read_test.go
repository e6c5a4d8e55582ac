package configs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xragent/trainer/loss"
)

func readText(t *testing.T, text string, settings ...string) (Run, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Read(path, settings)
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ text, setting, want string }{
		{"grpo:\n  stepz: 3\n", "", `x.yaml:2:3: unknown field "stepz": did you mean steps?`},
		{"grpo:\n  qqq: 3\n", "", `x.yaml:2:3: unknown field "qqq"`},
		{"grpo: {steps: abc}\n", "", "x.yaml:1:15: string where a whole number is wanted"},
		{"grpo: {steps: 99999999999999999999}\n", "", "x.yaml:1:15: 99999999999999999999 is outside the range of a whole number"},
		{"run: {seed: -1}\n", "", "x.yaml:1:13: -1 is outside the range of a whole number of at least 0"},
		{"queue: {ack_wait: 3}\n", "", "where a duration such as 30s is wanted"},
		{"grpo: {group_size: 2.5}\n", "", "x.yaml: grpo.group_size = 2.5: want a whole number"},
		{"grpo: {steps: }\n", "", "x.yaml: grpo.steps has no value: give one, or remove the key"},
		{"", "grpo.steps=", "config: --set grpo.steps=: grpo.steps has no value"},
		{"", "run.name=#x", "run.name has no value"},
		{"", "grpo.steps=2.5", "config: --set grpo.steps=2.5: grpo.steps = 2.5: want a whole number"},
		{"", "data={root: x}", "data.root has no effect with data.source phantom"},
		{"run: {seed: 1}\n---\nrun: {seed: 2}\n", "", "more than one document"},
		{strings.Repeat("#", maxBytes+1), "", "has more than the"},
		{"stages: !0 0\n", "", "x.yaml: not readable as YAML"}, // on which the decoder panics
		{"policy: {backend: remote}\ngrpo: {temperature: 0.5}\n", "", "grpo: temperature = 0.5 with policy.backend remote"},
		{"grpo: {reports: 2}\n", "", "grpo: reports = 2: must lie in [0, 1]"},
		{"- run\n", "", "x.yaml:1:1: sequence was used where mapping is expected"},
	} {
		var settings []string
		if c.setting != "" {
			settings = []string{c.setting}
		}
		if _, err := readText(t, c.text, settings...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q with %q: %v, want %q", c.text, c.setting, err, c.want)
		}
	}
}

func TestReadKeepsDefaults(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "grpo:\n", "\ufeffgrpo: {prompts: 8}\n", "grpo: {prompts: 8}\r\n"} {
		run, err := readText(t, text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if want := Default().GRPO; run.GRPO != want {
			t.Errorf("%q: grpo is %+v, want %+v", text, run.GRPO, want)
		}
	}
}

// What a run writes down of itself can be given as its pipeline file, with keys
// that this run does not heed; settings over it are held to what it heeds.
func TestReadsWhatARunResolved(t *testing.T) {
	began, err := readText(t, "", "stages=[corpus, sft]", "policy.embedded.threads=1", "run.dir=elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	text, err := began.File()
	if err != nil {
		t.Fatal(err)
	}
	again, err := readText(t, string(text))
	if err != nil {
		t.Fatalf("a run's own file is refused: %v", err)
	}
	if was, err := again.File(); err != nil || !bytes.Equal(was, text) {
		t.Errorf("%v; read again it is\n%s\nnot\n%s", err, was, text)
	}
	if _, err := readText(t, string(text), "data.root=x"); err == nil || !strings.Contains(err.Error(), "data.root has no effect") {
		t.Errorf("a setting without effect over it: %v", err)
	}
}

func TestReadWholeNumbersAndFloats(t *testing.T) {
	run, err := readText(t, "grpo: {steps: 1e3}\nreward: {lambda_m: 1}\n", "reward.lambda_t=0.1")
	if err != nil || run.GRPO.Steps != 1000 || run.Reward.LambdaM != 1 || run.Reward.LambdaT != 0.1 {
		t.Errorf("%v, %+v %+v", err, run.GRPO, run.Reward)
	}
}

// A preset gives every setting of the loss; the file and --set stand over it,
// whatever their order.
func TestLossPresets(t *testing.T) {
	for _, name := range loss.Presets {
		want, err := loss.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, given := range [][2]string{{"grpo: {loss: {preset: " + name + "}}", ""}, {"", "grpo.loss.preset=" + name}} {
			var settings []string
			if given[1] != "" {
				settings = []string{given[1]}
			}
			run, err := readText(t, given[0], settings...)
			if err != nil || run.GRPO.Loss != want {
				t.Errorf("%s: %v\n%+v, want\n%+v", name, err, run.GRPO.Loss, want)
			}
		}
	}
	run, err := readText(t, "grpo:\n  loss: {kl: {coef: 0.01}, clip_high: 0.5, preset: gspo}\n", "grpo.loss.clip_low=0.1")
	want, _ := loss.Preset("gspo")
	want.KL.Coef, want.ClipHigh, want.ClipLow = 0.01, 0.5, 0.1
	if err != nil || run.GRPO.Loss != want {
		t.Errorf("%v, %+v, want %+v", err, run.GRPO.Loss, want)
	}
	text, err := run.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Parse(text); err != nil || again.GRPO.Loss != want {
		t.Errorf("read back: %v, %+v", err, again.GRPO.Loss)
	}
}

func TestLossRefused(t *testing.T) {
	for text, want := range map[string]string{
		"{preset: ppo}":                                `grpo: loss.preset = "ppo": must be one of`,
		"{preset: }":                                   "grpo.loss.preset has no value",
		"{presett: verl}":                              `unknown field "presett": did you mean preset?`,
		"{advantage: gae}":                             `grpo: loss.advantage = "gae": must be one of`,
		"{clip_low: 2}":                                "grpo: loss.clip_low = 2",
		"{preset: verl, clip_high: 0.3}":               "grpo.loss.clip_high has no effect with grpo.loss.old learner",
		"{kl: {estimator: k1}}":                        "grpo.loss.kl.estimator has no effect with grpo.loss.kl.coef 0",
		"{kl: {coef: -1}}":                             "grpo: loss.kl.coef = -1",
		"{correction: {mode: mask}}":                   "grpo.loss.correction.mode has no effect with grpo.loss.correction.level none",
		"{correction: {level: token, high: 2}}":        "every weight is 1 with old behaviour",
		"{preset: trl, correction: {low: 4}}":          "correction.low = 4, high = 3",
		"{aggregate: seq-mean-token-sum, length: 100}": "length = 100: no effect",
		"{surrogate: cispo, dual_clip: 3}":             "no effect with surrogate cispo",
		"{aggregate: mean}":                            "must be one of [token-mean token-sum seq-mean-token-mean",
	} {
		if _, err := readText(t, "grpo: {loss: "+text+"}\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
