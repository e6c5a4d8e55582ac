package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func TestReadWholeNumbersAndFloats(t *testing.T) {
	run, err := readText(t, "grpo: {steps: 1e3}\nreward: {lambda_m: 1}\n", "reward.lambda_t=0.1")
	if err != nil || run.GRPO.Steps != 1000 || run.Reward.LambdaM != 1 || run.Reward.LambdaT != 0.1 {
		t.Errorf("%v, %+v %+v", err, run.GRPO, run.Reward)
	}
}
