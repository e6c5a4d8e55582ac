package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"xragent/configs"
	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/internal/bus"
	"xragent/rollout/loop"
	"xragent/toolserver"
)

// toolsCommand serves a run's tools; below it are the tools by themselves.
func toolsCommand() *cobra.Command {
	var f guestFlags
	cmd := &cobra.Command{Use: "tools", Short: "The tools and measurements: serve those of a run over NATS, list, call, time or offer them", Args: cobra.NoArgs}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return asGuest(cmd, f, func(ctx context.Context, g *guest) error {
			if g.cfg.Queue.Tools != "nats" {
				return usageError{fmt.Errorf("run %s computes its tools in its workers: start it with --set queue.tools=nats", f.run)}
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "tools of run %s are served\n", f.run)
			return g.serveTools(ctx)
		})
	}
	cmd.AddCommand(toolsListCommand(), toolsCallCommand(), toolsBenchCommand(), toolsServeCommand(), toolsMCPCommand())
	return cmd
}

// toolFlags say which tools there are, and which images they look at.
type toolFlags struct {
	config  string
	set     []string
	masks   string
	phantom bool
	images  []string
	calls   string
}

func (f *toolFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.config, "config", "", "pipeline file whose section tools configures them (model servers under tools.backends)")
	c.Flags().StringArrayVar(&f.set, "set", nil, "override a key of it, e.g. --set tools.concurrency=8 (repeatable)")
	c.Flags().StringVar(&f.masks, "masks-from", "", "stored masks: a CheXmask CSV file, or a folder with NAME_right_lung.png and so on")
}

func (f *toolFlags) addImages(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.images, "image", nil, "image of the study: DICOM, PNG or JPEG (repeatable)")
	c.Flags().BoolVar(&f.phantom, "phantom", false, "the images are synthetic")
}

func (f *toolFlags) addCalls(c *cobra.Command) {
	c.Flags().StringVar(&f.calls, "calls", "", "append one JSON line a call to this file: tool, outcome and time, nothing of the content")
}

// server makes the tools, all of them. done closes what they write.
func (f *toolFlags) server() (s *toolserver.Server, done func() error, err error) {
	cfg, err := f.read()
	if err != nil {
		return nil, nil, usageError{err}
	}
	done = func() error { return nil }
	if f.calls != "" {
		log, err := openCalls(f.calls)
		if err != nil {
			return nil, nil, usageError{err}
		}
		cfg.Observe, done = log.write, log.close
	}
	if s, err = toolserver.New(cfg); err != nil {
		return nil, nil, usageError{errors.Join(err, done())}
	}
	return s, done, nil
}

func (f *toolFlags) read() (toolserver.Config, error) {
	cfg := toolserver.Default()
	if f.config == "" && len(f.set) > 0 {
		return cfg, errors.New("--set has no effect without --config")
	}
	if f.config != "" {
		run, err := configs.Read(f.config, f.set)
		if err != nil {
			return cfg, err
		}
		cfg = run.Tools
	}
	cfg.Extended, cfg.Schemas, cfg.Protocols = true, "full", phantom.Protocol
	cfg.MasksFrom = cmp.Or(f.masks, cfg.MasksFrom)
	return cfg, nil
}

// study reads the images that the flags name.
func (f *toolFlags) study() (images [][]byte, meta []dataset.Image, err error) {
	for _, path := range f.images {
		file, err := readImage(path)
		if err != nil {
			return nil, nil, usageError{fmt.Errorf("--image %s: %w", path, err)}
		}
		sum := sha256.Sum256(file)
		images = append(images, file)
		meta = append(meta, dataset.Image{SHA256: hex.EncodeToString(sum[:]), Path: path, Domain: f.domain(), SquarePx: f.phantom})
	}
	return images, meta, nil
}

func (f *toolFlags) domain() string {
	if f.phantom {
		return "phantom"
	}
	return "radiograph"
}

// readImage reads a file within the tools' limit.
func readImage(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = acceptImage(info)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

func acceptImage(info os.FileInfo) error {
	limit := int64(toolserver.Default().ImageBytes)
	switch {
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	case info.Size() > limit:
		return fmt.Errorf("%d bytes, limit %d", info.Size(), limit)
	}
	return nil
}

func toolsListCommand() *cobra.Command {
	var f toolFlags
	var asJSON bool
	cmd := &cobra.Command{Use: "list", Short: "List the tools with their arguments, and which of them lack a model server", Args: cobra.NoArgs}
	f.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line, with the whole schemas")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, done, err := f.server()
		if err != nil {
			return err
		}
		return errors.Join(listTools(cmd.OutOrStdout(), s.Tools(), asJSON), done())
	}
	return cmd
}

func listTools(w io.Writer, tools []toolserver.ToolInfo, asJSON bool) error {
	if asJSON {
		return printJSON(w, tools)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "tool\twhat it does\tlooks\tmodel server\targuments")
	for _, t := range tools {
		looks := "-"
		if t.Images {
			looks = "images"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", t.Name, t.Description, looks, cmp.Or(t.Server, "-"), t.Arguments)
	}
	return tw.Flush()
}

func toolsCallCommand() *cobra.Command {
	var f toolFlags
	var url, out string
	cmd := &cobra.Command{
		Use: "call NAME [ARGUMENTS]", Short: "Call one tool, or measure, with a JSON object of arguments", Args: cobra.RangeArgs(1, 2),
		Example: `  xragent tools call region_parse '{"region":"right lower zone"}' --image film.png
  xragent tools call measure --image film.dcm --masks-from masks/`,
	}
	f.add(cmd)
	f.addImages(cmd)
	cmd.Flags().StringVar(&url, "url", "", "ask the servers on this NATS instead of computing here")
	cmd.Flags().StringVar(&out, "out", "", "write the returned picture to this PNG file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if out != "" {
			if err := keepApart(f.images, []output{{out, "the answer"}}); err != nil {
				return err
			}
		}
		tools, done, err := f.tools(cmd.Context(), url)
		if err != nil {
			return err
		}
		defer func() { _ = done() }()
		images, meta, err := f.study()
		if err != nil {
			return err
		}
		if args[0] == "measure" {
			if len(args) > 1 {
				return usageError{errors.New("measure takes no arguments")}
			}
			return callMeasure(cmd, tools, images, meta)
		}
		return callTool(cmd, tools, append(args, "{}")[:2], images, meta, out)
	}
	return cmd
}

// callTimeout is what a call over NATS may take, a model server's time included.
const callTimeout = 5 * time.Minute

// tools returns those of this process, or those that answer on NATS.
func (f *toolFlags) tools(ctx context.Context, url string) (loop.Tools, func() error, error) {
	if url == "" {
		return f.server()
	}
	if f.config != "" || f.masks != "" {
		return nil, nil, usageError{errors.New("--config and --masks-from have no effect with --url: they are the server's")}
	}
	nc, err := bus.Dial(ctx, url, "tools", quietLog())
	if err != nil {
		return nil, nil, usageError{err}
	}
	c, err := toolserver.NewClient(ctx, nc, callTimeout)
	if err != nil {
		bus.Close(nc)
		return nil, nil, err
	}
	return c, func() error { bus.Close(nc); return nil }, nil
}

func callMeasure(cmd *cobra.Command, tools loop.Tools, images [][]byte, meta []dataset.Image) error {
	if len(images) == 0 {
		return usageError{errors.New("measure: no image: give one with --image FILE")}
	}
	b, err := tools.Measure(cmd.Context(), images, meta)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	return enc.Encode(b)
}

func callTool(cmd *cobra.Command, tools loop.Tools, args []string, images [][]byte, meta []dataset.Image, out string) error {
	obs, err := tools.Call(cmd.Context(), args[0], json.RawMessage(args[1]), images, meta)
	switch {
	case err != nil:
		return err
	case obs.Invalid:
		return usageError{fmt.Errorf("tool %s: %s", args[0], obs.Text)}
	case obs.Error != "":
		return fmt.Errorf("tool %s: %s", args[0], obs.Error)
	}
	if obs.Text != "" {
		fmt.Fprintln(cmd.OutOrStdout(), obs.Text)
	}
	if obs.PNG == nil || out == "" {
		return nil
	}
	return writeFile(out, obs.PNG)
}

func toolsServeCommand() *cobra.Command {
	var f toolFlags
	var url string
	cmd := &cobra.Command{Use: "serve", Short: "Serve all tools over NATS, apart from any run", Args: cobra.NoArgs}
	f.add(cmd)
	f.addCalls(cmd)
	cmd.Flags().StringVar(&url, "url", "nats://127.0.0.1:4222", "NATS server")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, done, err := f.server()
		if err != nil {
			return err
		}
		nc, err := bus.Dial(cmd.Context(), url, "tools", quietLog())
		if err != nil {
			return usageError{errors.Join(err, done())}
		}
		defer bus.Close(nc)
		fmt.Fprintln(cmd.ErrOrStderr(), "tools are served on NATS, subjects tool.*")
		return errors.Join(toolserver.Serve(cmd.Context(), nc, s), done())
	}
	return cmd
}

func toolsMCPCommand() *cobra.Command {
	var f toolFlags
	var address, root string
	cmd := &cobra.Command{
		Use: "mcp", Short: "Offer all tools to any agent by the Model Context Protocol", Args: cobra.NoArgs,
		Long: "Offer all tools to any agent by the Model Context Protocol: over standard input and output, or with --http over streamable HTTP,\n" +
			"where the environment variable XRAGENT_TOKEN, if set, is the bearer token that clients must send; an address that other machines\n" +
			"can reach needs one. A call names its images by files below --root, or brings them as data: URLs; one that names none is about --image.",
	}
	f.add(cmd)
	f.addImages(cmd)
	f.addCalls(cmd)
	cmd.Flags().StringVar(&address, "http", "", "serve at http://ADDRESS/mcp instead, e.g. 127.0.0.1:8765")
	cmd.Flags().StringVar(&root, "root", "", "folder whose files calls may name; none without it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, done, err := f.server()
		if err != nil {
			return err
		}
		return errors.Join(f.serveMCP(cmd, s, address, root), done())
	}
	return cmd
}

func (f *toolFlags) serveMCP(cmd *cobra.Command, s *toolserver.Server, address, root string) error {
	opts := toolserver.MCPOptions{Domain: f.domain()}
	var err error
	if opts.Images, opts.Meta, err = f.study(); err != nil {
		return err
	}
	if root != "" {
		r, err := os.OpenRoot(root)
		if err != nil {
			return usageError{fmt.Errorf("--root: %w", err)}
		}
		defer r.Close()
		opts.Open = func(name string) ([]byte, error) { return readBelow(r, root, name) }
	}
	m := toolserver.NewMCP(s, opts)
	if address == "" {
		return toolserver.RunMCP(cmd.Context(), s, m, io.NopCloser(cmd.InOrStdin()), nopWriteCloser{cmd.OutOrStdout()})
	}
	token := os.Getenv("XRAGENT_TOKEN")
	l, err := toolserver.ListenMCP(address, token)
	if err != nil {
		return usageError{err}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "tools are offered at http://%s/mcp\n", l.Addr())
	return toolserver.ServeMCP(cmd.Context(), l, toolserver.MCPHandler(s, m, token))
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

// readBelow reads an image below a folder, named from there or by its whole
// path; links that lead out of it are not followed.
func readBelow(root *os.Root, dir, name string) ([]byte, error) {
	if filepath.IsAbs(name) {
		base, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(base, name)
		if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
			return nil, errors.New("the file is not below --root")
		}
		name = rel
	}
	info, err := root.Stat(name) // first: opening a pipe would wait
	if err == nil {
		err = acceptImage(info)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; name a file below --root", err)
	}
	return root.ReadFile(name)
}

// A callLog appends one line a call.
type callLog struct {
	mu   sync.Mutex
	file *os.File
	err  error // the first
}

func openCalls(path string) (*callLog, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &callLog{file: file}, err
}

func (l *callLog) write(r toolserver.Record) {
	line, err := json.Marshal(struct {
		Time     time.Time `json:"time"`
		Tool     string    `json:"tool"`
		Status   string    `json:"status"`
		CacheHit bool      `json:"cache_hit"`
		Seconds  float64   `json:"seconds"`
	}{time.Now().UTC(), r.Tool, r.Status, r.CacheHit, r.Latency.Seconds()})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	l.err = cmp.Or(l.err, err)
}

func (l *callLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.err, l.file.Close())
}
