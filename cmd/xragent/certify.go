package main

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"xragent/dataset/phantom"
	"xragent/dataset/phantom/certify"
	"xragent/toolserver"
)

// certifyCommand examines the world of phantoms that the program makes.
func certifyCommand() *cobra.Command {
	cfg, out, quick, scale := certify.Full(), "", false, 1.0
	cmd := &cobra.Command{
		Use: "certify", Args: cobra.NoArgs,
		Short: "Examine the generator of phantoms, before anything is trained on what it makes",
	}
	cmd.Flags().StringVar(&out, "out", "certificate.json", "file to write the certificate to")
	cmd.Flags().BoolVar(&quick, "quick", false, "try the examination in a minute; certifies nothing")
	cmd.Flags().Float64Var(&scale, "scale", 1, "multiply the number of films; below 1 it certifies nothing")
	cmd.Flags().StringSliceVar(&cfg.Only, "only", nil, "do these stages only (shares, text, tools, crops, coarse); certifies nothing")
	cmd.Flags().Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of the studies and of the probes")
	cmd.Flags().IntVar(&cfg.Threads, "threads", runtime.GOMAXPROCS(0), "how many to compute with; changes no figure")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if quick {
			small := certify.Quick()
			small.Seed, small.Threads, small.Only = cfg.Seed, cfg.Threads, cfg.Only
			cfg = small
		}
		if !(scale > 0) || scale > 100 {
			return usageError{fmt.Errorf("--scale %v: want more than 0, at most 100", scale)}
		}
		cfg = cfg.Scaled(scale)
		if err := cfg.Validate(); err != nil {
			return usageError{err}
		}
		return certifyWorld(cmd.Context(), cfg, out, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// certifyWorld prints and writes a certificate; one that fails is an error,
// but for a quick look, which is no judgement.
func certifyWorld(ctx context.Context, cfg certify.Config, out string, stdout, log io.Writer) error {
	tools, err := certifyTools()
	if err != nil {
		return err
	}
	c, err := certify.Run(ctx, cfg, tools, func(stage string) { fmt.Fprintln(log, stage) })
	if err != nil {
		return err
	}
	if err := c.WriteText(stdout); err != nil {
		return err
	}
	if err := c.WriteFile(out); err != nil {
		return err
	}
	if !c.Quick && !c.Passed {
		return fmt.Errorf("the world fails its certificate: %d figures are out of bounds; see %s", len(c.Failures()), out)
	}
	return nil
}

// certifyTools are the tools as every run has them by default.
func certifyTools() (*toolserver.Server, error) {
	c := toolserver.Default()
	c.Protocols = phantom.Protocol
	return toolserver.New(c)
}
