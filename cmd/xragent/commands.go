package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"xragent/configs"
	"xragent/dataset/phantom"
	"xragent/internal/bus"
	"xragent/rollout/queue"
	"xragent/trainer"
)

// pipelineFlags are the flags of every command that takes a pipeline file.
type pipelineFlags struct {
	set    []string
	dryRun bool
	resume bool
}

func (f *pipelineFlags) add(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.set, "set", nil, "override a key, e.g. --set grpo.steps=50 (repeatable)")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "check and print the resolved configuration, start nothing")
	c.Flags().BoolVar(&f.resume, "resume", false, "continue a run from its last checkpoint")
}

// pipelineCommand is a command over a pipeline file. only, when given, is the
// one stage that it runs, in a run that may exist already.
func pipelineCommand(use, short string, only string, more func(*cobra.Command) func(*session, context.Context) error) *cobra.Command {
	var flags pipelineFlags
	cmd := &cobra.Command{Use: use + " CONFIG", Short: short, Args: oneFile}
	flags.add(cmd)
	var instead func(*session, context.Context) error
	if more != nil {
		instead = more(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := configs.Read(args[0], flags.set)
		if err != nil {
			return usageError{err}
		}
		if flags.dryRun {
			return printConfig(cmd, cfg)
		}
		stages := cfg.Stages
		if only != "" {
			stages = []string{only}
		}
		return runStages(cmd, cfg, flags.resume, only != "", stages, instead)
	}
	return cmd
}

func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("%s: want one pipeline file, e.g. %s configs/quickstart.yaml", cmd.Name(), cmd.CommandPath())}
	}
	return nil
}

func printConfig(cmd *cobra.Command, cfg configs.Run) error {
	text, err := cfg.File()
	if err == nil {
		_, err = cmd.OutOrStdout().Write(text)
	}
	return err
}

// runStages opens the run and carries its stages out in order, or does
// something instead.
func runStages(cmd *cobra.Command, cfg configs.Run, resume, single bool, stages []string, instead func(*session, context.Context) error) error {
	return withSession(cmd.Context(), cfg, resume || single, cmd.OutOrStdout(), cmd.ErrOrStderr(), func(s *session) error {
		s.resume = resume
		if resume && s.made {
			s.notice("run %s is new: there is nothing to resume", cfg.Run.Name)
		}
		if instead != nil {
			return marked(instead(s, cmd.Context()))
		}
		return s.carryOut(cmd.Context(), stages)
	})
}

// withSession opens a run for as long as do takes.
func withSession(ctx context.Context, cfg configs.Run, resume bool, out, log io.Writer, do func(*session) error) (err error) {
	s, err := openSession(ctx, cfg, resume, out, log)
	if err != nil {
		return err
	}
	defer func() { err = s.release(errors.Join(err, s.close(ctx))) }()
	return do(s)
}

// carryOut runs stages in order.
func (s *session) carryOut(ctx context.Context, stages []string) error {
	if err := errors.Join(s.reach(ctx, stages), s.reachQueue(ctx, stages)); err != nil {
		return err
	}
	for _, stage := range stages {
		if err := s.stage(ctx, stage); err != nil {
			return marked(err)
		}
		s.made = false // from here on there is work to keep
	}
	return nil
}

// reachQueue finds out before the first stage whether the queue will be there
// for the one that needs it.
func (s *session) reachQueue(ctx context.Context, stages []string) error {
	if !slices.Contains(stages, configs.StageGRPO) {
		return nil
	}
	if url := s.cfg.Queue.URL; url != "" {
		nc, err := bus.Dial(ctx, url, "coordinator "+s.cfg.Run.Name, s.logger())
		if err != nil {
			return usageError{err}
		}
		defer bus.Close(nc)
		js, err := jetstream.New(nc)
		if err == nil {
			_, err = s.checkOwner(ctx, js)
		}
		return err
	}
	if err := bus.CheckListen(bus.Options{Listen: s.cfg.Queue.Listen, Token: os.Getenv("XRAGENT_TOKEN")}); err != nil {
		return usageError{err}
	}
	return nil
}

// marked marks what a signal ended as such, and what the user must change.
func marked(err error) error {
	var stopped *trainer.InterruptedError
	var refused *trainer.RefusedError
	switch {
	case errors.As(err, &stopped):
		return fmt.Errorf("%w (%w)", errInterrupted, err)
	case errors.As(err, &refused):
		return usageError{err}
	}
	return err
}

func (s *session) stage(ctx context.Context, name string) error {
	s.notice("── %s", name)
	if err := ctx.Err(); err != nil {
		return err
	}
	switch name {
	case configs.StageData:
		return s.dataStage(ctx)
	case configs.StageCorpus:
		return s.corpusStage(ctx)
	case configs.StagePre:
		return s.pretrainStage(ctx)
	case configs.StageSFT:
		return s.sftStage(ctx)
	case configs.StageGRPO:
		return s.grpoStage(ctx)
	case configs.StageExport:
		return s.exportStage(ctx)
	case configs.StageEval:
		return s.evalStage(ctx)
	}
	panic("xragent: no stage " + name)
}

func runCommand() *cobra.Command {
	return pipelineCommand("run", "Run a pipeline: data → corpus → pretrain → sft → grpo → export → eval", "", nil)
}

func pretrainCommand() *cobra.Command {
	return pipelineCommand("pretrain", "Text-only drills for a policy that begins from nothing", configs.StagePre, nil)
}

func sftCommand() *cobra.Command {
	return pipelineCommand("sft", "Supervised fine-tuning on the run's corpus", configs.StageSFT, nil)
}

func grpoCommand() *cobra.Command {
	return pipelineCommand("grpo", "GRPO over the rollout queue, from the run's SFT checkpoint", configs.StageGRPO, nil)
}

func exportCommand() *cobra.Command {
	return pipelineCommand("export", "Write the trained policy as a Hugging Face folder", configs.StageExport, nil)
}

func evalCommand() *cobra.Command {
	cmd := pipelineCommand("eval", "Evaluate the run's checkpoints, or exported ones, on held-out questions", configs.StageEval,
		func(cmd *cobra.Command) func(*session, context.Context) error {
			checkpoints := cmd.Flags().StringArray("checkpoint", nil, "evaluate this export instead, as NAME=DIR (repeatable; neighbours are compared)")
			return func(s *session, ctx context.Context) error {
				if len(*checkpoints) == 0 {
					return s.stage(ctx, configs.StageEval)
				}
				list, err := s.exports(*checkpoints)
				if err != nil {
					return err
				}
				return s.evaluate(ctx, list)
			}
		})
	cmd.AddCommand(compareCommand())
	return cmd
}

func corpusCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "corpus", Short: "The Rad-CoT corpus"}
	cmd.AddCommand(pipelineCommand("build", "Build the corpus of a run's data", configs.StageCorpus, nil))
	return cmd
}

func phantomCommand() *cobra.Command {
	cfg := phantom.Config{Seed: 1}
	cmd := &cobra.Command{Use: "phantom DIR", Short: "Write synthetic radiographs with exact truth and questions", Args: func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("phantom: want one folder to write to")}
		}
		return nil
	}}
	cmd.Flags().Uint64Var(&cfg.Seed, "seed", 1, "seed of the generator")
	cmd.Flags().IntVar(&cfg.Train, "train", 100, "studies of the train split")
	cmd.Flags().IntVar(&cfg.Validation, "validation", 20, "studies of the validation split")
	cmd.Flags().IntVar(&cfg.Test, "test", 50, "studies of the test split")
	cmd.AddCommand(certifyCommand())
	cmd.Flags().IntVar(&cfg.OOD, "ood", 0, "studies of the out-of-distribution split")
	layouts := cmd.Flags().Bool("layouts", true, "also write DIR/layouts: the files of MIMIC-CXR-JPG, VQA-RAD, SLAKE and ChestAgentBench")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return phantomOut(cmd.Context(), args[0], cfg, *layouts, newProgress(cmd.ErrOrStderr(), "phantoms"))
	}
	return cmd
}

// guestFlags say which run a process joins.
type guestFlags struct{ url, run string }

func (f *guestFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.url, "url", "nats://127.0.0.1:4222", "NATS server of the run")
	c.Flags().StringVar(&f.run, "run", "", "name of the run")
	_ = c.MarkFlagRequired("run") // the flag exists
}

func quietLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func workerCommand() *cobra.Command {
	var f guestFlags
	var name, server string
	var slots int
	roll := &cobra.Command{Use: "rollout", Short: "Join a run as a rollout worker, from any machine", Args: cobra.NoArgs}
	f.add(roll)
	roll.Flags().StringVar(&name, "name", "", "unique name of this worker (default: worker-<process id>)")
	roll.Flags().IntVar(&slots, "slots", 0, "trajectories at once (default: the run's)")
	roll.Flags().StringVar(&server, "sampler", "", "inference server of this worker, where the run's policy is remote")
	roll.RunE = func(cmd *cobra.Command, _ []string) error {
		if name == "" {
			name = fmt.Sprintf("worker-%d", os.Getpid())
		}
		if err := queue.CheckWorker(name); err != nil {
			return usageError{err}
		}
		if slots < 0 {
			return usageError{fmt.Errorf("--slots %d: want 1 or more, or 0 for the run's", slots)}
		}
		return asGuest(cmd, f, func(ctx context.Context, g *guest) error {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s joined run %s\n", name, f.run)
			return g.work(ctx, name, server, slots, quietLog())
		})
	}
	cmd := &cobra.Command{Use: "worker", Short: "Processes that do a run's work"}
	cmd.AddCommand(roll)
	return cmd
}

func asGuest(cmd *cobra.Command, f guestFlags, do func(context.Context, *guest) error) error {
	g, err := join(cmd.Context(), f.url, f.run, quietLog())
	if err != nil {
		return err
	}
	defer g.leave()
	return do(cmd.Context(), g)
}

func configCommand() *cobra.Command {
	var set []string
	check := &cobra.Command{Use: "check CONFIG", Short: "Check a pipeline file and print what it resolves to", Args: oneFile}
	check.Flags().StringArrayVar(&set, "set", nil, "override a key (repeatable)")
	check.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := configs.Read(args[0], set)
		if err != nil {
			return usageError{err}
		}
		return printConfig(cmd, cfg)
	}
	cmd := &cobra.Command{Use: "config", Short: "Pipeline files"}
	cmd.AddCommand(check)
	return cmd
}
