//go:build integration

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"xragent/study"
)

// studyFile has every kind of arm once.
const studyFile = `
pipeline: tiny.yaml
set: [eval.controls=none, eval.questions=8, eval.max_tokens=64]
seeds: [1, 2]
baseline: sft
arms:
  - {name: untrained, begin: none}
  - {name: sft, set: [eval.controls=minimal, eval.control_questions=4]}
  - {name: rl-only, begin: none, train: grpo}
  - {name: sft-rl, train: grpo}
  - {name: sft-more, train: sft, compute: sft-rl, set: [sft.optimizer.lr=1e-3]}
  - {name: permuted, train: grpo, set: [grpo.permute_rewards=true]}
  - {name: gated, train: grpo, against: sft-rl, set: [reward.variant=gated]}
  - {name: tools-off, train: grpo, against: sft-rl, set: [grpo.tools=false]}
  - {name: gate-off, train: grpo, against: sft-rl, set: [grpo.gate=off]}
claim: {arm: sft-rl, over: sft, above: sft-more, control: permuted, gain: 5}
`

const studyPipeline = `
data: {phantom: {train: 40, validation: 8, test: 8}}
corpus: {samples: 40}
policy: {embedded: {threads: 1}}
sft: {max_steps: 20, eval_every: 10, batch_tokens: 2048}
grpo: {steps: 4, prompts: 2, group_size: 4, checkpoint_every: 2, max_tokens: 64}
reward: {variant: additive}
tools: {deadline: 5m}
`

// TestIntegrationStudy kills a study again and again; gone on with, it ends in
// the table of one that was left alone, manifests included. So does a cell made
// again by its command.
func TestIntegrationStudy(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"study.yaml": studyFile, "tiny.yaml": studyPipeline} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, calm, rough := filepath.Join(dir, "study.yaml"), filepath.Join(dir, "calm"), filepath.Join(dir, "rough")
	start(t, "study", file, "--dir", calm, "--parallel", "2").succeed(t)
	want := readTable(t, calm)
	for _, at := range []string{"shared-1: begun", "shared-1: done", "sft-rl-1: begun", "gate-off-1: done", "sft-more-1: begun", "permuted-2: begun"} {
		p := start(t, "study", file, "--dir", rough, "--resume")
		reaches(t, p, at)
		p.kill(t)
	}
	p := start(t, "study", file, "--dir", rough, "--resume")
	reaches(t, p, "rl-only-2: begun")
	p.interrupt(t)
	if code := p.wait(t); code != exitInterrupted {
		t.Errorf("interrupted, exit code %d, want %d", code, exitInterrupted)
	}
	start(t, "study", file, "--dir", rough, "--resume").succeed(t)
	if got := readTable(t, rough); !bytes.Equal(got, want) {
		t.Errorf("after kills the table is\n%s\nleft alone it is\n%s", got, want)
	}

	published := filepath.Join(dir, "published")
	publish(t, filepath.Join(calm, "study"), filepath.Join(published, "study"))
	start(t, "study", file, "--dir", published, "--judge").succeed(t)
	if got := readTable(t, published); !bytes.Equal(got, want) {
		t.Errorf("judged from what is published of it the table is\n%s\nit was\n%s", got, want)
	}

	again := filepath.Join(dir, "again")
	start(t, "study", file, "--arm", "permuted", "--seed", "2", "--dir", again).succeed(t)
	var all, one study.Table
	if err := json.Unmarshal(want, &all); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(readTable(t, again), &one); err != nil {
		t.Fatal(err)
	}
	if len(all.Cells) != 18 || len(one.Cells) != 1 {
		t.Fatalf("%d cells and %d, want 18 and 1", len(all.Cells), len(one.Cells))
	}
	for _, c := range all.Cells {
		if c.Arm == "permuted" && c.Seed == 2 && c.Manifest != one.Cells[0].Manifest {
			t.Errorf("made again the cell's manifest is %s, it was %s", one.Cells[0].Manifest, c.Manifest)
		}
	}
}

// publish copies what scripts/study-outcomes.sh packs: all that a table is
// judged from, without weights, films or trajectories.
func publish(t *testing.T, from, to string) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "outcomes.tar.gz")
	for _, c := range []*exec.Cmd{
		exec.Command("../../scripts/study-outcomes.sh", from, archive),
		exec.Command("tar", "xzf", archive, "-C", filepath.Dir(to)),
	} {
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
	}
}

// reaches waits for a moment of a cell, or for its end where an earlier kill
// came too late to be before it.
func reaches(t *testing.T, p *process, moment string) {
	t.Helper()
	name, _, _ := strings.Cut(moment, ":")
	if !p.until(t, func() bool {
		said := p.stderr()
		return strings.Contains(said, moment) || strings.Contains(said, name+": was done already")
	}) {
		t.Fatalf("ended without saying %q", moment)
	}
}

func readTable(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "study", "table.json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
