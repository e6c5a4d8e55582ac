package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/internal/bus"
	"xragent/rollout"
	"xragent/rollout/loop"
	"xragent/toolserver"
)

// benchFlags say what is timed.
type benchFlags struct {
	toolFlags
	url     string
	door    string
	calls   int
	clients int
	cached  bool
}

func toolsBenchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use: "bench", Short: "Time the recipe's tools and the measurements, on given images or on synthetic films", Args: cobra.NoArgs,
		Long: "Time the recipe's tools and the measurements. Without --cached nothing is remembered: every call decodes and segments its image.",
	}
	f.add(cmd)
	f.addImages(cmd)
	cmd.Flags().StringVar(&f.url, "url", "", "time the servers on this NATS")
	cmd.Flags().StringVar(&f.door, "door", "process", "without --url: process, or nats for a NATS server inside this process")
	cmd.Flags().IntVar(&f.calls, "calls", 50, "calls of each tool")
	cmd.Flags().IntVar(&f.clients, "clients", 8, "callers at a time")
	cmd.Flags().BoolVar(&f.cached, "cached", false, "let results be remembered")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) }
	return cmd
}

func (f *benchFlags) run(ctx context.Context, w io.Writer) error {
	switch {
	case f.calls < 1 || f.clients < 1:
		return usageError{fmt.Errorf("bench: --calls %d and --clients %d: want 1 or more", f.calls, f.clients)}
	case f.door != "process" && f.door != "nats":
		return usageError{fmt.Errorf("bench: --door is %q, want process or nats", f.door)}
	}
	studies, err := f.studies()
	if err != nil {
		return err
	}
	tools, done, err := f.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f.time(ctx, w, tools, studies), done())
}

// open returns what is timed.
func (f *benchFlags) open(ctx context.Context) (loop.Tools, func() error, error) {
	if f.url != "" {
		return f.tools(ctx, f.url)
	}
	cfg, err := f.read()
	if err != nil {
		return nil, nil, usageError{err}
	}
	if !f.cached {
		cfg.Cache, cfg.CacheDir, cfg.CacheDisk = 0, "", 0
	}
	s, err := toolserver.New(cfg)
	if err != nil {
		return nil, nil, usageError{err}
	}
	if f.door == "process" {
		return s, func() error { return nil }, nil
	}
	return overNATS(ctx, s, cfg.Deadline)
}

// overNATS puts a server behind a NATS server of this process.
func overNATS(ctx context.Context, s *toolserver.Server, timeout time.Duration) (tools loop.Tools, done func() error, err error) {
	dir, err := os.MkdirTemp("", "xragent-bench-")
	if err != nil {
		return nil, nil, err
	}
	var stack []func() error // undone from the last
	done = func() error {
		var errs []error
		for _, f := range slices.Backward(stack) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, done())
		}
	}()
	stack = append(stack, func() error { return os.RemoveAll(dir) })
	server, err := bus.Start(bus.Options{Dir: dir, Log: quietLog()})
	if err != nil {
		return nil, nil, err
	}
	stack = append(stack, func() error { server.Stop(); return nil })
	there, err := server.Connect("tools")
	if err != nil {
		return nil, nil, err
	}
	stack = append(stack, func() error { bus.Close(there); return nil })
	door, err := toolserver.Listen(there, s)
	if err != nil {
		return nil, nil, err
	}
	stack = append(stack, door.Stop)
	here, err := server.Connect("bench")
	if err != nil {
		return nil, nil, err
	}
	stack = append(stack, func() error { bus.Close(here); return nil })
	tools, err = toolserver.NewClient(ctx, here, timeout)
	return tools, done, err
}

// A benchStudy is one study's images.
type benchStudy struct {
	images [][]byte
	meta   []dataset.Image
}

// studies are the given images, each by itself, or eight synthetic films.
func (f *benchFlags) studies() ([]benchStudy, error) {
	images, meta, err := f.study()
	if err != nil {
		return nil, err
	}
	var out []benchStudy
	for i := range images {
		out = append(out, benchStudy{images[i : i+1], meta[i : i+1]})
	}
	if len(out) > 0 {
		return out, nil
	}
	world := phantom.Config{Seed: 1, Train: 8}
	for i := range world.Train {
		s := phantom.Generate(world, i)
		var file bytes.Buffer
		if err := png.Encode(&file, s.Image); err != nil {
			return nil, err
		}
		out = append(out, benchStudy{[][]byte{file.Bytes()}, s.Samples[0].Prompt.Images})
	}
	return out, nil
}

// benchCalls are the calls that are timed, in this order.
var benchCalls = []struct{ tool, args string }{
	{"region_parse", `{"region":"right lower zone"}`},
	{"roi_crop", `{"region":"left apex"}`},
	{"evidence_lookup", `{"query":"cardiothoracic ratio"}`},
	{"measure", ""},
}

func (f *benchFlags) time(ctx context.Context, w io.Writer, tools loop.Tools, studies []benchStudy) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "tool\tcalls\tfailed\tper second\tp50\tp99\tlongest\t")
	var first error
	for _, c := range benchCalls {
		took, wall, failed, err := f.timeOne(ctx, tools, studies, c.tool, c.args)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first == nil {
			first = err
		}
		slices.Sort(took)
		at := func(p float64) time.Duration {
			return took[min(int(p*float64(len(took))), len(took)-1)].Round(10 * time.Microsecond)
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.0f\t%v\t%v\t%v\t\n", c.tool, f.calls, failed, float64(f.calls)/wall.Seconds(), at(0.5), at(0.99), at(1))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if first != nil {
		return fmt.Errorf("bench: the first failure: %w", first)
	}
	return nil
}

// timeOne makes calls from as many callers as asked for.
func (f *benchFlags) timeOne(ctx context.Context, tools loop.Tools, studies []benchStudy, tool, args string) (took []time.Duration, wall time.Duration, failed int, first error) {
	took = make([]time.Duration, f.calls)
	errs := make([]error, f.calls)
	next := make(chan int)
	var callers sync.WaitGroup
	start := time.Now()
	for range f.clients {
		callers.Go(func() {
			for i := range next {
				began := time.Now()
				errs[i] = callOnce(ctx, tools, studies[i%len(studies)], tool, args)
				took[i] = time.Since(began)
			}
		})
	}
	for i := range f.calls {
		next <- i
	}
	close(next)
	callers.Wait()
	for _, err := range errs {
		if err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
	}
	return took, time.Since(start), failed, first
}

func callOnce(ctx context.Context, tools loop.Tools, s benchStudy, tool, args string) error {
	if tool == "measure" {
		_, err := tools.Measure(ctx, s.images, s.meta)
		return err
	}
	var obs rollout.Observation
	obs, err := tools.Call(ctx, tool, json.RawMessage(args), s.images, s.meta)
	if err == nil && (obs.Invalid || obs.Error != "") {
		err = fmt.Errorf("tool %s: %s%s", tool, obs.Text, obs.Error)
	}
	return err
}
