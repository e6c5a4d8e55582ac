package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"xragent/configs"
	"xragent/internal/bus"
	"xragent/study"
)

// studyFlags are the study command's own.
type studyFlags struct {
	dir            string
	set, arms      []string
	seeds          []string
	parallel       int
	resume, dryRun bool
	judge          bool
}

func studyCommand() *cobra.Command {
	var f studyFlags
	cmd := &cobra.Command{Use: "study STUDY", Short: "Train and compare the arms of a study over its seeds", Args: func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{errors.New("study: want one study file, e.g. xragent study configs/study/smoke.yaml")}
		}
		return nil
	}}
	cmd.Flags().StringVar(&f.dir, "dir", "runs", "the study gets a folder of its name in here")
	cmd.Flags().StringArrayVar(&f.set, "set", nil, "override a key of the pipeline for all arms (repeatable)")
	cmd.Flags().StringArrayVar(&f.arms, "arm", nil, "make only the cells of this arm (repeatable)")
	cmd.Flags().StringArrayVar(&f.seeds, "seed", nil, "make only the cells of this seed (repeatable)")
	cmd.Flags().IntVar(&f.parallel, "parallel", 0, "cells at once (default: the study's)")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "go on with a study; cells that are done are kept")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "check the study and list its cells, start nothing")
	cmd.Flags().BoolVar(&f.judge, "judge", false, "make no cell, also beside a study at work: judge those that are done")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "judge")
	cmd.MarkFlagsMutuallyExclusive("resume", "judge")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := newLab(args[0], f, cmd.ErrOrStderr())
		switch {
		case err != nil:
			return usageError{err}
		case f.dryRun:
			return l.list(cmd.OutOrStdout())
		case f.judge && !exists(l.dir):
			return usageError{fmt.Errorf("--judge: no study in %s: name the folder above it with --dir", l.dir)}
		case f.judge:
			return l.report(cmd.OutOrStdout())
		}
		return l.run(cmd.Context(), cmd.OutOrStdout())
	}
	return cmd
}

// A lab carries out one study: its cells are runs in one folder.
type lab struct {
	spec  study.Spec
	file  string // of the study
	flags studyFlags
	dir   string
	world world
	only  []study.Cell // to be made now

	mu    sync.Mutex
	log   io.Writer
	done  int
	start time.Time
}

// newLab reads a study and checks every cell of it before anything starts.
func newLab(file string, f studyFlags, log io.Writer) (*lab, error) {
	spec, err := study.Read(file)
	if err != nil {
		return nil, err
	}
	spec.Set = append(spec.Set, f.set...)
	if f.parallel > 0 {
		spec.Parallel = f.parallel
	}
	l := &lab{spec: spec, file: file, flags: f, dir: filepath.Join(f.dir, spec.Name), log: log, start: time.Now()}
	for _, c := range spec.Cells() {
		if _, err := l.cellConfig(c); err != nil {
			return nil, fmt.Errorf("study %s: arm %s: %w", spec.Name, c.Arm.Name, err)
		}
	}
	if l.only, err = l.choose(); err != nil {
		return nil, err
	}
	l.world, err = l.findWorld()
	return l, err
}

// choose lists the cells that the flags ask for, and those that they need.
func (l *lab) choose() ([]study.Cell, error) {
	for _, name := range l.flags.arms {
		if _, ok := l.spec.Arm(name); !ok {
			return nil, fmt.Errorf("--arm %s: study %s has no such arm: choose of %s", name, l.spec.Name, strings.Join(l.spec.ArmNames(), ", "))
		}
	}
	for _, seed := range l.flags.seeds {
		n, err := strconv.ParseUint(seed, 10, 64)
		if err != nil || !slices.Contains(l.spec.Seeds, n) {
			return nil, fmt.Errorf("--seed %s: study %s has no such seed: choose of %v", seed, l.spec.Name, l.spec.Seeds)
		}
	}
	wanted := func(arm string) bool { return len(l.flags.arms) == 0 || slices.Contains(l.flags.arms, arm) }
	needed := func(arm string) bool {
		return slices.ContainsFunc(l.spec.Arms, func(a study.Arm) bool { return a.Compute == arm && wanted(a.Name) })
	}
	var out []study.Cell
	for _, c := range l.spec.Cells() {
		seed := len(l.flags.seeds) == 0 || slices.Contains(l.flags.seeds, fmt.Sprint(c.Seed))
		if seed && (wanted(c.Arm.Name) || needed(c.Arm.Name)) {
			out = append(out, c)
		}
	}
	return out, nil
}

// list prints the cells with the commands that make them.
func (l *lab) list(w io.Writer) error {
	for _, c := range l.only {
		trains := "evaluates"
		if c.Arm.Train != "" {
			trains = "trains " + c.Arm.Train
		}
		if _, err := fmt.Fprintf(w, "%-24s begins with %-4s, %-12s %s\n", c.Name(), c.Arm.Begin, trains, l.command(c)); err != nil {
			return err
		}
	}
	return nil
}

// command makes one cell again, with what it rests on.
func (l *lab) command(c study.Cell) string {
	words := []string{"xragent study", l.file}
	for _, s := range l.flags.set {
		words = append(words, "--set", "'"+s+"'")
	}
	return strings.Join(append(words, "--arm", c.Arm.Name, "--seed", fmt.Sprint(c.Seed), "--dir again"), " ")
}

// run makes the cells and judges all that there are.
func (l *lab) run(ctx context.Context, out io.Writer) error {
	lock, err := l.claim()
	if err != nil {
		return usageError{err}
	}
	defer lock.Close()
	limit := l.room()
	l.say("study %s in %s: %d cells, %d at once", l.spec.Name, l.dir, len(l.only), limit)
	made := study.Schedule(ctx, limit, l.jobs())
	if ctx.Err() != nil {
		return fmt.Errorf("%w (%w)", errInterrupted, made)
	}
	if made != nil { // a failure, also where what failed was refused: the others have run
		made = fmt.Errorf("study %s: %v: mend it, then go on with --resume", l.spec.Name, made)
	}
	return errors.Join(made, l.report(out))
}

// claim makes the study's folder this process's.
func (l *lab) claim() (*os.File, error) {
	if exists(l.dir) && !l.flags.resume {
		return nil, fmt.Errorf("study %s exists in %s: go on with --resume, or choose another place with --dir", l.spec.Name, l.dir)
	}
	if err := os.MkdirAll(filepath.Join(l.dir, "logs"), 0o755); err != nil {
		return nil, err
	}
	lock, err := bus.LockDir(l.dir)
	if err != nil {
		return nil, fmt.Errorf("study %s: %w", l.spec.Name, err)
	}
	return lock, nil
}

// jobs are the cells that the flags ask for, behind the shared run of their seed
// and the arm whose compute they match.
func (l *lab) jobs() []study.Job {
	var jobs []study.Job
	for _, seed := range l.spec.Seeds {
		cells := slices.DeleteFunc(slices.Clone(l.only), func(c study.Cell) bool { return c.Seed != seed })
		if len(cells) == 0 {
			continue
		}
		shared := study.Shared(seed)
		jobs = append(jobs, study.Job{Name: shared, Do: func(ctx context.Context) error { return l.makeShared(ctx, seed) }})
		slices.SortStableFunc(cells, func(a, b study.Cell) int { return len(a.Arm.Compute) - len(b.Arm.Compute) })
		for _, c := range cells {
			after := []string{shared}
			if c.Arm.Compute != "" {
				other, _ := l.spec.Arm(c.Arm.Compute)
				after = append(after, study.Cell{Arm: other, Seed: seed}.Name())
			}
			jobs = append(jobs, study.Job{Name: c.Name(), After: after, Do: func(ctx context.Context) error { return l.makeCell(ctx, c) }})
		}
	}
	return jobs
}

func (l *lab) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.log, format+"\n", args...)
}

// report judges the cells that are done, and prints and writes the table.
func (l *lab) report(out io.Writer) error {
	outcomes, err := l.outcomes()
	if err != nil {
		return err
	}
	t, err := study.Judge(l.spec, outcomes)
	if err != nil {
		return usageError{err}
	}
	t.Generator, t.Certificate = l.world.generator, l.world.certificate
	t.Marks = append(t.Marks, l.world.marks...)
	var text, markdown strings.Builder
	if err := errors.Join(t.Text(&text), t.Markdown(&markdown)); err != nil {
		return err
	}
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, "\n"+text.String())
	return errors.Join(err, writeFile(filepath.Join(l.dir, "table.txt"), []byte(text.String())),
		writeFile(filepath.Join(l.dir, "table.md"), []byte(markdown.String())),
		writeFile(filepath.Join(l.dir, "table.json"), append(data, '\n')))
}

// config resolves the pipeline for one run of the study.
func (l *lab) config(set []string, name string, seed uint64) (configs.Run, error) {
	cfg, err := configs.Read(l.spec.Pipeline, slices.Concat(l.spec.Set, set))
	if err != nil {
		return cfg, err
	}
	for _, stage := range []string{configs.StageData, configs.StageCorpus, configs.StageSFT, configs.StageGRPO, configs.StageEval} {
		if !cfg.Has(stage) {
			return cfg, fmt.Errorf("pipeline %s: without the stage %s: a study needs it", l.spec.Pipeline, stage)
		}
	}
	cfg.Run.Name, cfg.Run.Dir, cfg.Run.Seed = name, l.dir, seed
	cfg.Web.Listen, cfg.Queue.Listen = "", ""
	if cfg.Policy.Embedded.Threads == 0 {
		cfg.Policy.Embedded.Threads = max(1, cfg.Policy.Embedded.ResolvedThreads()/l.spec.Parallel)
	}
	return cfg, nil
}

// sharedConfig is the run in which a seed's data, corpus and SFT are made. What
// decides other stages is left at its default, so that a study whose GRPO or
// questions are changed keeps its SFT.
func (l *lab) sharedConfig(seed uint64) (configs.Run, error) {
	cfg, err := l.config(nil, study.Shared(seed), seed)
	other := configs.Default()
	cfg.GRPO, cfg.Eval = other.GRPO, other.Eval
	cfg.Stages = slices.DeleteFunc(cfg.Stages, func(s string) bool {
		return s == configs.StageGRPO || s == configs.StageExport || s == configs.StageEval
	})
	return cfg, err
}

// cellConfig is the run of a cell, which branches from the seed's shared one.
func (l *lab) cellConfig(c study.Cell) (configs.Run, error) {
	cfg, err := l.config(c.Arm.Set, c.Name(), c.Seed)
	cfg.From = configs.From{Run: filepath.Join(l.dir, study.Shared(c.Seed)), Begin: c.Arm.Begin}
	cfg.Stages = []string{configs.StageEval}
	if c.Arm.Train != "" {
		cfg.Stages = []string{c.Arm.Train, configs.StageEval}
	}
	return cfg, err
}
