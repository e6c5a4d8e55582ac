package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"xragent/dataset"
	"xragent/rollout"
	"xragent/toolserver"
	"xragent/toolserver/backend"
	"xragent/toolserver/masks"
	"xragent/toolserver/measure"
	"xragent/toolserver/segment"
)

// measureFlags are the choices of the measure command.
type measureFlags struct {
	asJSON    bool
	variant   string
	gate      string
	view      string
	masksFrom string
	network   string
	server    backend.Config
	masks     string
	overlay   string
	phantom   bool
}

// measured is what measure prints of one file. Numbers stand also where they
// are not admitted.
type measured struct {
	File         string           `json:"file"`
	Error        string           `json:"error,omitempty"`
	View         string           `json:"view"`
	ViewSource   string           `json:"view_source"`
	Admitted     bool             `json:"admitted"` // something may be shown
	Shown        []string         `json:"shown"`    // which measurements
	Reasons      []measuredReason `json:"reasons"`
	CTR          *float64         `json:"ctr"`
	CTRVariant   string           `json:"ctr_variant"`
	CTRCategory  string           `json:"ctr_category,omitempty"`
	CTRNote      string           `json:"ctr_note,omitempty"` // why a ratio has no category
	LnAsymmetry  *float64         `json:"ln_asymmetry"`
	Shift        *float64         `json:"shift"`
	Measurements []measure.Number `json:"measurements,omitempty"`
	bundle       rollout.Bundle
}

// measuredReason is a check that did not pass.
type measuredReason struct {
	Check     string          `json:"check"`
	Verdict   rollout.Verdict `json:"verdict"`
	Value     float64         `json:"value"`
	Threshold float64         `json:"threshold"`
	Reason    string          `json:"reason,omitempty"`
}

func measureCommand() *cobra.Command {
	var f measureFlags
	cmd := &cobra.Command{
		Use: "measure FILE...", Short: "Measure radiographs (DICOM, PNG, JPEG), and say which numbers are valid", Args: cobra.MinimumNArgs(1),
		Long: "Measure radiographs, and say which numbers may be shown and why others may not.\n" +
			"Lungs and heart are found by the embedded network, or read with --masks-from, a CheXmask CSV file or a folder\n" +
			"with NAME_right_lung.png, NAME_left_lung.png, NAME_heart.png; synthetic films need --phantom. A model server (learner/model_server.py) is asked for a second look with\n" +
			"--server URL, and for the masks themselves with --network remote as well.\n" +
			"No number is a clinical claim. Exit status 3 when some file could not be measured.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return measureFiles(cmd.Context(), cmd.OutOrStdout(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.asJSON, "json", false, "one JSON object a line")
	flags.StringVar(&f.variant, "ctr", measure.ColumnExtent, "the cardiothoracic ratio's variant: "+strings.Join(measure.Variants, ", "))
	flags.StringVar(&f.gate, "gate", string(measure.AllOrNothing), "all_or_nothing or per_measurement")
	flags.StringVar(&f.view, "view", "", "the films' view where a file does not say: PA, AP, LATERAL or OTHER")
	flags.StringVar(&f.masksFrom, "masks-from", "", "read masks from this folder, or from a CheXmask CSV file")
	flags.StringVar(&f.network, "network", "", "weights of another network, none, or remote (see --server); default: the embedded one")
	flags.StringVar(&f.server.URL, "server", "", "URL of a server that segments")
	flags.StringVar(&f.server.KeyEnv, "server-key-env", "", "environment variable that holds its bearer token")
	flags.DurationVar(&f.server.Timeout, "server-timeout", time.Minute, "of one film")
	flags.StringVar(&f.masks, "masks", "", "write the masks to this folder")
	flags.StringVar(&f.overlay, "overlay", "", "write pictures with outlines, lines and verdicts to this folder")
	flags.BoolVar(&f.phantom, "phantom", false, "the films are synthetic")
	return cmd
}

func (f measureFlags) validate() error {
	switch {
	case !slices.Contains(measure.Variants, f.variant):
		return usageError{fmt.Errorf("measure: --ctr is %q, want one of %v", f.variant, measure.Variants)}
	case f.gate != string(measure.AllOrNothing) && f.gate != string(measure.PerMeasurement):
		return usageError{fmt.Errorf("measure: --gate is %q, want %s or %s", f.gate, measure.AllOrNothing, measure.PerMeasurement)}
	case !slices.Contains([]string{"", "PA", "AP", "LATERAL", "OTHER"}, f.view):
		return usageError{fmt.Errorf("measure: --view is %q, want PA, AP, LATERAL or OTHER", f.view)}
	case f.phantom && (f.masksFrom != "" || f.network != "" || f.server.URL != ""):
		return usageError{errors.New("measure: --phantom excludes --masks-from, --network and --server")}
	case f.masksFrom != "" && f.server.URL != "":
		return usageError{errors.New("measure: --masks-from excludes --server, which would not be asked")}
	case f.server.URL == "" && f.server.KeyEnv != "":
		return usageError{errors.New("measure: --server-key-env has no effect without --server")}
	}
	return nil
}

// A measurer measures films, one after the other.
type measurer struct {
	measureFlags
	by     segment.Segmenter     // nil: none
	stored toolserver.MaskSource // nil: masks are found
}

func (f measureFlags) open() (m measurer, err error) {
	m.measureFlags = f
	if f.masksFrom != "" {
		if m.stored, err = toolserver.OpenMasks(f.masksFrom); err != nil {
			return m, usageError{fmt.Errorf("measure: --masks-from: %w", err)}
		}
		return m, nil
	}
	m.by, err = f.segmenter()
	return m, err
}

func measureFiles(ctx context.Context, w io.Writer, f measureFlags, paths []string) error {
	if err := f.validate(); err != nil {
		return err
	}
	if err := keepApart(f.files(paths)); err != nil {
		return err
	}
	m, err := f.open()
	if err != nil {
		return err
	}
	for _, dir := range []string{f.masks, f.overlay} {
		if dir != "" {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return usageError{err}
			}
		}
	}
	return m.all(ctx, w, paths)
}

// all measures files until it is interrupted. A JSON line is written as soon as
// its film is measured; a table is as wide as its widest row.
func (m measurer) all(ctx context.Context, w io.Writer, paths []string) error {
	var rows []measured
	failed := 0
	for _, path := range paths {
		if ctx.Err() != nil {
			break
		}
		row := m.measure(path)
		if row.Error != "" {
			failed++
		}
		if rows = append(rows, row); !m.asJSON {
			continue
		}
		if err := printJSON(w, rows[len(rows)-1:]); err != nil {
			return err
		}
	}
	if !m.asJSON {
		if err := printMeasured(w, rows); err != nil {
			return err
		}
	}
	switch {
	case len(rows) < len(paths):
		return stoppedError{len(rows), len(paths)}
	case failed > 0:
		return partlyError{failed, len(paths)}
	}
	return nil
}

// measure measures one file; what goes wrong stands in the row.
func (m measurer) measure(path string) measured {
	row := measured{File: path, CTRVariant: m.variant, Shown: []string{}, Reasons: []measuredReason{}}
	film, err := readFilm(path)
	if err != nil {
		row.Error = err.Error()
		return row
	}
	in := measure.Input{Image: film.Gray, Meta: m.about(film), CTR: m.variant}
	if err := m.find(&in, path); err != nil {
		row.Error = err.Error()
		return row
	}
	row.fill(in, measure.Assess(in, measure.Preset(m.gate)))
	if d := film.DICOM; d != nil && d.View != "" { // the gate may know better: another body part, stored mirrored
		row.View, row.ViewSource = string(d.View), d.ViewFrom
	}
	if err := m.write(path, in, row); err != nil {
		row.Error = err.Error()
	}
	return row
}

// about joins what the file and the flags say.
func (f measureFlags) about(film toolserver.Film) dataset.Image {
	m := film.About
	m.Domain = "radiograph"
	if f.phantom {
		m.Domain, m.SquarePx = "phantom", true
	}
	if m.View == "" && f.view != "" {
		m.View, m.ViewFrom = f.view, "label"
	}
	return m
}

// find fills in masks: stored ones, or those that a segmenter finds; nil: none.
func (m measurer) find(in *measure.Input, path string) error {
	if m.stored != nil {
		return m.take(in, path)
	}
	if m.by == nil {
		return nil
	}
	in.InDomain = true
	found, second, err := toolserver.SegmentTwice(m.by, in.Image)
	switch {
	case toolserver.ServerFailed(err):
		return err
	case err != nil:
		in.Failed = err.Error()
	case m.phantom:
		in.Masks = measure.Masks(found)
	default:
		in.Structures, in.Second = toolserver.StructuresOf(&found), toolserver.StructuresOf(second)
	}
	return nil
}

// take fills in masks that are stored.
func (m measurer) take(in *measure.Input, path string) error {
	set, found, err := toolserver.FindMasks(m.stored, path, in.Image.Rect.Size())
	if err == nil && !found {
		err = fmt.Errorf("%s has none: want %s and so on, or a row of it", m.masksFrom, filepath.Base(maskPath("", stem(path), masks.Parts[0])))
	}
	if err != nil {
		return fmt.Errorf("masks: %w", err)
	}
	in.Structures, in.InDomain = &measure.Structures{RightLung: set.RightLung, LeftLung: set.LeftLung, Heart: set.Heart}, true
	return nil
}

// segmenter returns the one that the flags ask for, nil for none.
func (f measureFlags) segmenter() (segment.Segmenter, error) {
	if f.phantom {
		return segment.Phantom{}, nil
	}
	by, err := toolserver.OpenRadiograph(f.network, f.server)
	if err != nil {
		return nil, usageError{fmt.Errorf("measure: --network: %w", err)}
	}
	return by, nil
}

// structures are the masks that an input has, for drawing and writing.
func structures(in measure.Input) measure.Structures {
	if in.Structures != nil {
		return *in.Structures
	}
	return measure.Structures{RightLung: in.Masks.RightLung, LeftLung: in.Masks.LeftLung, Heart: in.Masks.Heart}
}

func (m *measured) fill(in measure.Input, b rollout.Bundle) {
	m.bundle = b
	m.View, m.ViewSource = in.Meta.View, in.Meta.ViewFrom
	if m.View == "" {
		if m.View = viewFromPixels(b); m.View != "" {
			m.ViewSource = "pixels"
		}
	}
	seen := map[string]bool{}
	for _, x := range b.Measurements {
		if x.Admitted {
			m.Admitted, m.Shown = true, append(m.Shown, x.Name)
		}
		for _, c := range x.Checks {
			if c.Verdict != rollout.Pass && !seen[c.Name] {
				seen[c.Name] = true
				m.Reasons = append(m.Reasons, measuredReason{c.Name, c.Verdict, c.Value, c.Threshold, c.Reason})
			}
		}
		m.value(x)
	}
	if in.Structures != nil {
		m.Measurements = measure.Numbers(*in.Structures, in.CTR, in.Meta)
	}
}

// uncategorised says why a ratio has no category.
func uncategorised(view string) string {
	if view == "AP" {
		return fmt.Sprintf("AP magnifies: from %.2f to %.2f the ratio has no category", measure.NormalBelowAP, measure.EnlargedFromAP)
	}
	return "nothing says PA or AP: the ratio has no category"
}

// viewFromPixels names what pixels alone can tell: a frontal chest has the
// pattern of one, and lungs and heart in their places; what lacks the pattern is
// something else. A leg between two dark sides has the pattern alone.
func viewFromPixels(b rollout.Bundle) string {
	verdicts := map[string]rollout.Verdict{}
	for _, x := range b.Measurements {
		for _, c := range x.Checks {
			verdicts[c.Name] = c.Verdict
		}
	}
	if verdicts["chest_pattern"] == rollout.Fail {
		return "OTHER"
	}
	for _, name := range []string{"chest_pattern", "lungs_found", "polarity", "upright"} {
		if verdicts[name] != rollout.Pass {
			return ""
		}
	}
	return "frontal"
}

func (m *measured) value(x rollout.Measurement) {
	if !x.Computed {
		return
	}
	switch x.Name {
	case rollout.CTR:
		m.CTR, m.CTRCategory = &x.Value, x.Category
		if x.Category == "" {
			m.CTRNote = uncategorised(m.View)
		}
	case rollout.Asymmetry:
		m.LnAsymmetry = &x.Value
	case rollout.Shift:
		m.Shift = &x.Value
	}
}

// files lists what is read of films and what is written of them.
func (f measureFlags) files(paths []string) (inputs []string, outputs []output) {
	if f.masksFrom != "" {
		inputs = append(inputs, f.masksFrom)
	}
	for _, path := range paths {
		inputs = append(inputs, path)
		for _, part := range masks.Parts {
			if f.masksFrom != "" {
				inputs = append(inputs, maskPath(f.masksFrom, stem(path), part))
			}
			if f.masks != "" {
				outputs = append(outputs, output{maskPath(f.masks, stem(path), part), path})
			}
		}
		if f.overlay != "" {
			outputs = append(outputs, output{f.overlayPath(path), path})
		}
	}
	return inputs, outputs
}

func (f measureFlags) overlayPath(film string) string {
	return filepath.Join(f.overlay, stem(film)+".png")
}

func stem(path string) string {
	base := filepath.Base(path)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

func maskPath(dir, name, part string) string { return filepath.Join(dir, name+"_"+part+".png") }

// write writes masks and the overlay where they are wanted.
func (f measureFlags) write(path string, in measure.Input, row measured) error {
	s := structures(in)
	if f.masks != "" && s.RightLung != nil {
		for i, m := range []*image.Alpha{s.RightLung, s.LeftLung, s.Heart} {
			gray := &image.Gray{Pix: m.Pix, Stride: m.Stride, Rect: m.Rect}
			if err := encodePNG(maskPath(f.masks, stem(path), masks.Parts[i]), gray); err != nil {
				return err
			}
		}
	}
	if f.overlay == "" {
		return nil
	}
	return encodePNG(f.overlayPath(path), toolserver.Overlay(in.Image, s, row.Measurements, row.caption()))
}

func encodePNG(path string, img image.Image) error {
	var file bytes.Buffer
	if err := png.Encode(&file, img); err != nil {
		return err
	}
	return writeFile(path, file.Bytes())
}

// caption says in a few lines what was measured and decided.
func (m measured) caption() []string {
	lines := []string{fmt.Sprintf("view %s", orUnknown(m.View, m.ViewSource))}
	for _, x := range m.bundle.Measurements {
		state := "withheld"
		if x.Admitted {
			state = strings.TrimSpace("shown " + x.Category)
		}
		if x.Computed {
			lines = append(lines, fmt.Sprintf("%s %.3f %s", x.Name, x.Value, state))
		}
	}
	if m.CTRNote != "" {
		lines = append(lines, m.CTRNote)
	}
	for _, r := range m.Reasons {
		lines = append(lines, fmt.Sprintf("%s %s: %.3g, threshold %.3g", r.Check, r.Verdict, r.Value, r.Threshold))
	}
	return lines
}

func printMeasured(w io.Writer, rows []measured) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "file\tview\tctr\tln asymmetry\tshift\tshown\twithheld by")
	for _, r := range rows {
		if r.Error != "" {
			fmt.Fprintf(tw, "%s\tfailed: %s\n", r.File, r.Error)
			continue
		}
		var by []string
		for _, x := range r.Reasons {
			by = append(by, x.Check)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.File, orUnknown(r.View, r.ViewSource), figure(r.CTR), figure(r.LnAsymmetry), figure(r.Shift),
			orUnknown(strings.Join(r.Shown, " "), ""), orUnknown(strings.Join(by, " "), ""))
	}
	return tw.Flush()
}

func figure(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *v)
}
