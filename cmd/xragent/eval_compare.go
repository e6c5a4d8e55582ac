package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"xragent/dataset"
	"xragent/eval"
)

func compareCommand() *cobra.Command {
	var policy string
	cmd := &cobra.Command{Use: "compare RUN RUN…", Short: "Compare evaluated runs on the same questions, each with the first", RunE: func(cmd *cobra.Command, dirs []string) error {
		if len(dirs) < 2 {
			return usageError{fmt.Errorf("compare: want two runs' folders or more, e.g. runs/a runs/b")}
		}
		var results []eval.Result
		for _, dir := range dirs {
			r, err := plainResult(dir, policy)
			if err != nil {
				return usageError{err}
			}
			results = append(results, r)
		}
		c, err := eval.Against(results[0], results[1:])
		if err != nil {
			return usageError{err}
		}
		return eval.WriteComparison(cmd.OutOrStdout(), c)
	}}
	cmd.Flags().StringVar(&policy, "policy", "", "the policy to compare, e.g. sft (default: each run's last)")
	return cmd
}

// plainResult reads a run's plain result of one policy, or of its last.
func plainResult(dir, policy string) (eval.Result, error) {
	text, err := os.ReadFile(filepath.Join(dir, "eval", "report.json"))
	if err != nil {
		return eval.Result{}, fmt.Errorf("run %s: no evaluation: %w", dir, err)
	}
	var rep report
	if err := json.Unmarshal(text, &rep); err != nil {
		return eval.Result{}, fmt.Errorf("run %s: report.json: %w: evaluate it again", dir, err)
	}
	name := cmp.Or(policy, rep.Policy())
	if name == "" {
		return eval.Result{}, fmt.Errorf("run %s: report.json has version %q, want %s: evaluate it again", dir, rep.Version, eval.Version)
	}
	k, err := readKept(filepath.Join(dir, "eval", resultName(eval.Job{Policy: name, Condition: eval.Plain, Split: dataset.Test})))
	if err != nil {
		return k.Result, fmt.Errorf("run %s: policy %s: %w", dir, name, err)
	}
	k.Name = fmt.Sprintf("%s/%s", filepath.Base(filepath.Clean(dir)), name)
	return k.Result, nil
}
