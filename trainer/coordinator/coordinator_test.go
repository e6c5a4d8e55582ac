package coordinator_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"xragent/rollout"
	"xragent/trainer/coordinator"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the transcripts; commit only changes that you understand")

// TestTranscripts replays testdata/*.txt: a paragraph is a command, a line of
// dashes, and the actions that the command caused.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
			}
		})
	}
}

// replay carries out the commands of a transcript and writes it anew.
func replay(t *testing.T, transcript string) string {
	var w strings.Builder
	var c *coordinator.Coordinator
	answer := false // inside the old answer, which is written anew
	for line := range strings.Lines(transcript) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
			answer = false
			fmt.Fprintln(&w)
		case answer:
		case line == "----":
			answer = true
		case strings.HasPrefix(line, "#"):
			fmt.Fprintln(&w, line)
		default:
			fmt.Fprintf(&w, "%s\n----\n", line)
			c = command(t, &w, c, strings.Fields(line))
		}
	}
	return w.String()
}

func command(t *testing.T, w *strings.Builder, c *coordinator.Coordinator, args []string) *coordinator.Coordinator {
	if args[0] == "new" {
		c, err := coordinator.New(parseConfig(t, args[1:]))
		if err != nil {
			fmt.Fprintln(w, "error:", err)
		}
		return c
	}
	for _, a := range c.Step(parseEvent(t, args)) {
		fmt.Fprintln(w, a)
	}
	return c
}

func parseConfig(t *testing.T, args []string) coordinator.Config {
	c := coordinator.Config{Run: "t", Steps: 1, GroupsPerBatch: 1, GroupSize: 2, MaxAttempts: 2, Rule: coordinator.Drop, ErrorBudget: 9}
	fields := map[string]*int{
		"steps": &c.Steps, "groups": &c.GroupsPerBatch, "size": &c.GroupSize, "staleness": &c.MaxStaleness,
		"attempts": &c.MaxAttempts, "min": &c.MinGroup, "replacements": &c.MaxReplacements,
		"budget": &c.ErrorBudget, "checkpoint": &c.CheckpointEvery,
	}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch {
		case key == "rule":
			c.Rule = coordinator.Rule(value)
		case key == "dynamic":
			c.Dynamic = true
		case fields[key] != nil:
			*fields[key] = number(t, value)
		default:
			t.Fatalf("unknown setting %q", arg)
		}
	}
	return c
}

// parseEvent reads: start N [held…], arrive ID ok, arrive ID class:reason,
// lost ID reason, scored G mixed|flat [failed…], published N, trained N,
// saved N, interrupt.
func parseEvent(t *testing.T, args []string) coordinator.Event {
	switch args[0] {
	case "start":
		s := coordinator.Started{Trained: number(t, args[1])}
		for i := 2; i+1 < len(args); i += 2 {
			s.Held = append(s.Held, arrived(t, args[i], args[i+1]))
		}
		return s
	case "arrive":
		return arrived(t, args[1], args[2])
	case "lost":
		return coordinator.Lost{Task: task(t, args[1]), Reason: args[2]}
	case "scored":
		s := coordinator.Scored{Group: number(t, args[1]), Mixed: args[2] == "mixed"}
		for _, i := range args[3:] {
			s.Failed = append(s.Failed, number(t, i))
		}
		return s
	case "published":
		return coordinator.Published{Version: rollout.PolicyVersion(number(t, args[1]))}
	case "trained":
		return coordinator.Trained{Step: number(t, args[1])}
	case "saved":
		return coordinator.Checkpointed{Step: number(t, args[1])}
	case "interrupt":
		return coordinator.Interrupted{}
	}
	t.Fatalf("unknown command %q", args)
	return nil
}

func arrived(t *testing.T, id, outcome string) coordinator.Arrived {
	class, reason, _ := strings.Cut(outcome, ":")
	if outcome == "ok" {
		return coordinator.Arrived{Task: task(t, id), OK: true}
	}
	return coordinator.Arrived{Task: task(t, id), Class: coordinator.Class(class), Reason: reason}
}

// task reads step/group/index/attempt.
func task(t *testing.T, s string) rollout.TaskID {
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		t.Fatalf("task %q, want step/group/index/attempt", s)
	}
	return rollout.TaskID{Run: "t", Step: number(t, parts[0]), Group: number(t, parts[1]),
		Index: number(t, parts[2]), Attempt: number(t, parts[3])}
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestConfigRefusals(t *testing.T) {
	good := coordinator.Config{Steps: 1, GroupsPerBatch: 1, GroupSize: 2, MaxAttempts: 1, Rule: coordinator.Drop}
	for _, tc := range []struct {
		change func(*coordinator.Config)
		want   string
	}{
		{func(c *coordinator.Config) {}, "<nil>"},
		{func(c *coordinator.Config) { c.GroupSize = 1 }, "group_size = 1: must be at least 2 (a group of one has no relative advantage)"},
		{func(c *coordinator.Config) { c.Steps = 0 }, "steps = 0: must be at least 1"},
		{func(c *coordinator.Config) { c.Rule = "keep" }, `group_rule = "keep": must be fill, shrink or drop`},
		{func(c *coordinator.Config) { c.Rule, c.MinGroup = coordinator.Shrink, 3 }, "min_group = 3: must lie between 2 and group_size = 2"},
	} {
		c := good
		tc.change(&c)
		if _, err := coordinator.New(c); fmt.Sprint(err) != tc.want {
			t.Errorf("New(%+v): %v, want %s", c, err, tc.want)
		}
	}
}

func TestUnaskedEventsPanic(t *testing.T) {
	for _, e := range []coordinator.Event{
		coordinator.Trained{Step: 1}, coordinator.Published{}, coordinator.Checkpointed{Step: 1}, coordinator.Scored{Group: 0},
	} {
		c, _ := coordinator.New(coordinator.Config{Steps: 1, GroupsPerBatch: 1, GroupSize: 2, MaxAttempts: 1, Rule: coordinator.Drop})
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%T was taken though nothing asked for it", e)
				}
			}()
			c.Step(e)
		}()
	}
}
