// Command xragent trains and evaluates tool-using vision-language agents for
// chest radiographs: it builds the Rad-CoT corpus, runs SFT and GRPO over
// NATS, exports Hugging Face checkpoints, and evaluates them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes that scripts may rely on.
const (
	exitFailure     = 1   // something failed
	exitUsage       = 2   // bad flags, configuration or data: nothing was started
	exitInterrupted = 130 // stopped by a signal after draining and a checkpoint
)

func main() {
	os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr))
}

// Main runs one command line and returns its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	stderr = inTurn(stderr)
	ctx, stop := interruptible(stderr)
	defer stop()
	root := rootCommand()
	started := false
	guard(root, &started)
	root.SetArgs(args)
	out := &printed{w: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("standard output: %w", out.err)
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(stoppedError)):
		fmt.Fprintf(stderr, "xragent: %v\n", err)
		return exitInterrupted
	case errors.Is(err, errInterrupted) || ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintf(stderr, "xragent: %v\n", errInterrupted)
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "xragent: %v\n", err)
	if _, ok := errors.AsType[partlyError](err); ok {
		return exitPartly
	}
	var bad usageError
	if errors.As(err, &bad) || !started {
		return exitUsage
	}
	return exitFailure
}

// printed remembers the first failure to print: a command that prints line by
// line has not done its work when nobody could read it.
type printed struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.w.Write(b)
	if p.err == nil {
		p.err = err
	}
	return n, err
}

// A turnWriter takes one Write at a time: notices, the queue's log and its
// events come from many goroutines.
type turnWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *turnWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(b)
}

// inTurn returns w, safe for many writers. A file is so by itself, and must
// stay one to be known as a terminal.
func inTurn(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		return f
	}
	return &turnWriter{w: w}
}

// guard has every command below c set started when it starts, after its
// arguments were accepted, and has a group of commands refuse one it lacks.
func guard(c *cobra.Command, started *bool) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			*started = true
			return run(c, args)
		}
	} else if c.HasParent() {
		c.RunE = chooseCommand
	}
	for _, sub := range c.Commands() {
		guard(sub, started)
	}
}

// chooseCommand is what a group of commands does by itself.
func chooseCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	return usageError{fmt.Errorf("unknown command %q for %q: see %s --help", args[0], c.CommandPath(), c.CommandPath())}
}

var errInterrupted = errors.New("interrupted: drained and checkpointed; go on with --resume")

// stoppedError says how much of a command was done when it was interrupted, where
// there is nothing to go on with.
type stoppedError struct{ done, of int }

func (e stoppedError) Error() string {
	return fmt.Sprintf("interrupted: %d of %d files done", e.done, e.of)
}

// usageError marks what the user must change before anything can start.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// interruptible returns a context that the first SIGINT or SIGTERM cancels.
// The second ends the process at once.
func interruptible(stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-signals; !ok {
			return
		}
		fmt.Fprintln(stderr, "xragent: stopping after the work in hand; once more to stop at once")
		cancel()
		if _, ok := <-signals; ok {
			os.Exit(exitInterrupted)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "xragent",
		Short:         "Post-training of tool-using vision-language agents for chest radiographs",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(runCommand(), phantomCommand(), corpusCommand(), pretrainCommand(), sftCommand(), grpoCommand(),
		exportCommand(), importCommand(), evalCommand(), studyCommand(), workerCommand(), toolsCommand(), inspectCommand(), measureCommand(), runsCommand(), configCommand())
	return root
}
