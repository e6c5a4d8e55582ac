package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"xragent/toolserver"
	"xragent/toolserver/dicom"
)

// exitPartly is the exit code when some of several inputs failed, and the
// others were worked on.
const exitPartly = 3

// partlyError says that some inputs failed; each has been reported.
type partlyError struct{ failed, of int }

func (e partlyError) Error() string { return fmt.Sprintf("%d of %d files failed", e.failed, e.of) }

// inspected is what inspect prints of one file.
type inspected struct {
	File        string   `json:"file"`
	Error       string   `json:"error,omitempty"`
	Reason      string   `json:"reason,omitempty"` // of a refusal, for counting
	Format      string   `json:"format,omitempty"`
	Width       int      `json:"width,omitempty"`
	Height      int      `json:"height,omitempty"`
	Modality    string   `json:"modality,omitempty"`
	BodyPart    string   `json:"body_part,omitempty"`
	View        string   `json:"view,omitempty"`
	ViewSource  string   `json:"view_source,omitempty"`
	Mirrored    bool     `json:"mirrored,omitempty"` // as the file says
	AgeYears    float64  `json:"age_years,omitempty"`
	SpacingMM   float64  `json:"spacing_mm,omitempty"`
	SpacingFrom string   `json:"spacing_from,omitempty"`
	SquarePx    bool     `json:"square_px"`
	Syntax      string   `json:"transfer_syntax,omitempty"`
	Photometric string   `json:"photometric,omitempty"`
	Bits        int      `json:"bits,omitempty"`
	Shown       string   `json:"shown,omitempty"`
	BurntIn     string   `json:"burnt_in,omitempty"`
	Notes       []string `json:"notes,omitempty"`
}

func inspectCommand() *cobra.Command {
	var asJSON bool
	var pngDir string
	cmd := &cobra.Command{
		Use: "inspect FILE...", Short: "Show what is read of radiographs (DICOM, PNG, JPEG), or why not", Args: cobra.MinimumNArgs(1),
		Long: "Show what is read of radiographs, or why they are refused. Of a DICOM file only pixels and the facts shown here leave the reader.\n" +
			"Exit status 3 when some file could not be read.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if pngDir != "" {
				var pictures []output
				for _, path := range args {
					pictures = append(pictures, output{picturePath(pngDir, path), path})
				}
				if err := keepApart(args, pictures); err != nil {
					return err
				}
				if err := os.MkdirAll(pngDir, 0o755); err != nil {
					return usageError{err}
				}
			}
			var rows []inspected
			failed := 0
			for _, path := range args {
				if cmd.Context().Err() != nil {
					break
				}
				row := inspect(path, pngDir)
				if rows = append(rows, row); row.Error != "" {
					failed++
				}
			}
			if err := printInspected(cmd.OutOrStdout(), rows, asJSON); err != nil {
				return err
			}
			switch {
			case len(rows) < len(args):
				return stoppedError{len(rows), len(args)}
			case failed > 0:
				return partlyError{failed, len(args)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	cmd.Flags().StringVar(&pngDir, "png", "", "write each film as it is displayed to this folder, as NAME.png")
	return cmd
}

func inspect(path, pngDir string) inspected {
	row := inspected{File: path}
	film, err := readFilm(path)
	if err == nil && pngDir != "" {
		err = writePNG(picturePath(pngDir, path), film)
	}
	if err != nil {
		row.Error, row.Reason = err.Error(), dicom.ReasonOf(err)
		return row
	}
	a := film.About
	row.Format, row.Width, row.Height, row.View, row.ViewSource = film.Format, a.Width, a.Height, a.View, a.ViewFrom
	row.AgeYears, row.SpacingMM, row.SquarePx, row.BurntIn = a.AgeYears, a.SpacingMM, a.SquarePx, string(dicom.BurntInUnknown)
	if d := film.DICOM; d != nil {
		row.Modality, row.BodyPart, row.Syntax, row.Photometric, row.Bits = d.Modality, d.BodyPart, d.Syntax, d.Photometric, d.Bits
		row.View, row.ViewSource, row.Mirrored = string(d.View), d.ViewFrom, d.Mirrored
		row.SpacingFrom, row.Shown, row.BurntIn, row.Notes = d.Spacing.From, d.Shown, string(d.BurntIn), d.Notes
	}
	return row
}

// readFilm reads a file within the tools' limits.
func readFilm(path string) (toolserver.Film, error) {
	limits := toolserver.Default()
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return toolserver.Film{}, err
	case !info.Mode().IsRegular():
		return toolserver.Film{}, errors.New("not a regular file")
	case info.Size() > int64(limits.ImageBytes):
		return toolserver.Film{}, fmt.Errorf("%d bytes, limit %d", info.Size(), limits.ImageBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return toolserver.Film{}, err
	}
	return toolserver.ReadFilm(data, limits.ImageBytes, limits.ImagePixels)
}

func picturePath(dir, film string) string { return filepath.Join(dir, filepath.Base(film)+".png") }

func writePNG(path string, film toolserver.Film) error {
	data, err := film.PNG()
	if err != nil {
		return err
	}
	return writeFile(path, data)
}

// printJSON writes one object a line.
func printJSON[T any](w io.Writer, rows []T) error {
	enc := json.NewEncoder(w)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func printInspected(w io.Writer, rows []inspected, asJSON bool) error {
	if asJSON {
		return printJSON(w, rows)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "file\tformat\tsize\tview\tspacing\tage\tburnt-in text\tshown by")
	for _, r := range rows {
		if r.Error != "" {
			fmt.Fprintf(tw, "%s\trefused: %s\n", r.File, r.Error)
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t%dx%d\t%s\t%s\t%s\t%s\t%s\n", r.File, r.kind(), r.Width, r.Height,
			orUnknown(r.View, r.ViewSource), orUnknown(number(r.SpacingMM, "%.4g mm"), r.SpacingFrom), orUnknown(number(r.AgeYears, "%.3g"), ""), r.BurntIn, orUnknown(r.Shown, ""))
	}
	return tw.Flush()
}

// kind names format, modality, body part and encoding.
func (r inspected) kind() string {
	if r.Format != "dicom" {
		return r.Format
	}
	return strings.Join(strings.Fields(fmt.Sprintf("dicom %s %s %s %d bits, %s", r.Modality, r.BodyPart, r.Photometric, r.Bits, r.Syntax)), " ")
}

func number(v float64, format string) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf(format, v)
}

// orUnknown returns a value with its source in brackets, or a dash.
func orUnknown(value, source string) string {
	switch {
	case value == "":
		return "-"
	case source == "":
		return value
	}
	return value + " (" + source + ")"
}
