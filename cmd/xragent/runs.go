package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"xragent/configs"
	"xragent/radcot"
	"xragent/trainer"
)

// stageFolders are the folders that stages leave in a run, in their order.
var stageFolders = []string{configs.StageData, configs.StageCorpus, phaseName(radcot.Repeat), phaseName(radcot.Lookup), phaseName(radcot.Cells), phaseName(radcot.See),
	configs.StageSFT, configs.StageGRPO, configs.StageExport, configs.StageEval}

func runsCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "runs", Short: "What runs there are and how far they came"}
	cmd.PersistentFlags().StringVar(&dir, "dir", "runs", "folder that holds runs")
	cmd.AddCommand(
		&cobra.Command{Use: "list", Short: "One line a run", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return listRuns(cmd.OutOrStdout(), dir)
		}},
		&cobra.Command{Use: "show NAME", Short: "Stages, checkpoints and the last step of a run", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			return showRun(cmd.OutOrStdout(), filepath.Join(dir, args[0]))
		}})
	return cmd
}

func listRuns(w io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return usageError{fmt.Errorf("runs: %w: name the folder with --dir", err)}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "run\tstage\tstep\tof\tdone")
	for _, e := range entries {
		if p := filepath.Join(dir, e.Name()); exists(filepath.Join(p, "config.yaml")) {
			last := lastStep(p)
			fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%v\n", e.Name(), last.Stage, last.Step, last.Total, exists(filepath.Join(p, "eval", "report.json")))
		}
	}
	return tw.Flush()
}

func showRun(w io.Writer, dir string) error {
	if !exists(filepath.Join(dir, "config.yaml")) {
		return usageError{fmt.Errorf("runs: no run in %s: xragent runs list shows what there is", dir)}
	}
	for _, name := range stageFolders {
		fmt.Fprintf(w, "%-16s %s\n", name, stageState(dir, name))
	}
	if last := lastStep(dir); last.Stage != "" {
		text, err := json.MarshalIndent(last, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "last step:\n%s\n", text)
	}
	if table, err := os.ReadFile(filepath.Join(dir, "eval", "table.txt")); err == nil {
		fmt.Fprintf(w, "%s", table)
	}
	return nil
}

func stageState(dir, stage string) string {
	p := filepath.Join(dir, stage)
	if !exists(p) {
		return "-"
	}
	if !exists(filepath.Join(p, "checkpoints")) {
		return "there"
	}
	c, notices, err := trainer.LatestCheckpoint(p)
	switch {
	case err != nil:
		return err.Error()
	case len(notices) > 0:
		return fmt.Sprintf("checkpoint of step %d; %s", c.Step, notices[0])
	case c.Done:
		return fmt.Sprintf("ended at step %d", c.Step)
	}
	return fmt.Sprintf("checkpoint of step %d", c.Step)
}

// lastStep returns the last line of the run's furthest step log; the zero
// record when there is none.
func lastStep(dir string) (last trainer.StepRecord) {
	for _, stage := range slices.Backward(stageFolders) {
		steps, err := trainer.ReadSteps(filepath.Join(dir, stage))
		if err == nil && len(steps) > 0 {
			return steps[len(steps)-1]
		}
	}
	return last
}
