// Package layout writes phantom studies in the file layouts of the field's data
// sets, so that readers and tools made for those can be tried on films with
// exact truth: MIMIC-CXR-JPG with the reports of MIMIC-CXR, VQA-RAD, SLAKE and
// ChestAgentBench.
//
// Only the layouts are theirs: names, columns and keys. Every pixel, word and
// number is made here, and each folder's manifest says so, with the hash of the
// generator. Studies of the out-of-distribution split stand in folders of their
// own, since the layouts know no such split. Equal configurations give equal
// bytes.
package layout

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image/jpeg"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

// A Layout is a data set whose file layout can be written.
type Layout string

// The layouts, by the names of their folders.
const (
	MIMIC     Layout = "mimic-cxr-jpg"
	VQARAD    Layout = "vqa-rad"
	SLAKE     Layout = "slake"
	AgentTest Layout = "chest-agent-bench"
)

// All lists every layout.
var All = []Layout{MIMIC, VQARAD, SLAKE, AgentTest}

// quality of the JPEG files: high enough that fine texture survives.
const quality = 97

// A film is a study with what the layouts share of it.
type film struct {
	phantom.Study
	number int    // place in the data set, from 0
	sha    string // of the PNG file, by which samples name the image
	jpg    []byte
}

// A form is one layout in the making: it writes the files of each study as it
// comes, and its tables at the end.
type form interface {
	add(dir string, f film) error
	// finish writes the tables and returns the one that the manifest's hash is of.
	finish(dir string) (table string, counts map[string]int, err error)
}

func (l Layout) form() form {
	switch l {
	case MIMIC:
		return &mimic{}
	case VQARAD:
		return &vqa{}
	case SLAKE:
		return &slake{rows: map[dataset.Split][]slakeRow{}}
	case AgentTest:
		return &bench{}
	}
	panic("layout: no layout " + string(l))
}

// Write makes the studies of cfg and writes them below dir, which must not
// exist, in every layout: in dir/<layout>, and those of the out-of-distribution
// split in dir/ood/<layout>. It writes aside and renames, so that dir is whole
// or absent. Progress may be nil.
func Write(ctx context.Context, dir string, cfg phantom.Config, progress func(done, total int)) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists: remove it or choose another directory", dir)
	}
	aside := dir + ".partial"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	defer os.RemoveAll(aside) // after the rename there is nothing left to remove
	w := writer{cfg: cfg, progress: progress}
	inside := cfg.Studies() - cfg.OOD
	if err := w.studies(ctx, aside, 0, inside); err != nil {
		return fmt.Errorf("write layouts %s: %w", dir, err)
	}
	if err := w.studies(ctx, filepath.Join(aside, "ood"), inside, cfg.Studies()); err != nil {
		return fmt.Errorf("write layouts %s: %w", dir, err)
	}
	return os.Rename(aside, dir)
}

type writer struct {
	cfg      phantom.Config
	progress func(done, total int)
}

// studies writes the studies from one index to before another.
func (w writer) studies(ctx context.Context, dir string, from, to int) error {
	if from == to {
		return nil
	}
	forms := make([]form, len(All))
	for i, l := range All {
		forms[i] = l.form()
	}
	round := make([]film, 4*runtime.GOMAXPROCS(0))
	for start := from; start < to; start += len(round) {
		end := min(to, start+len(round))
		if err := w.films(ctx, round, start, end); err != nil {
			return err
		}
		for _, f := range round[:end-start] {
			for i, l := range All {
				if err := forms[i].add(filepath.Join(dir, string(l)), f); err != nil {
					return fmt.Errorf("study %s: %w", f.ID, err)
				}
			}
		}
		if w.progress != nil {
			w.progress(end, w.cfg.Studies())
		}
	}
	for i, l := range All {
		if err := w.finish(filepath.Join(dir, string(l)), l, forms[i]); err != nil {
			return err
		}
	}
	return nil
}

// films makes the films of [start, end), in parallel.
func (w writer) films(ctx context.Context, round []film, start, end int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := start; i < end; i++ {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			s := phantom.Generate(w.cfg, i)
			png, err := s.EncodePNG()
			if err != nil {
				return err
			}
			var jpg bytes.Buffer
			if err := jpeg.Encode(&jpg, s.Image, &jpeg.Options{Quality: quality}); err != nil {
				return err
			}
			round[i-start] = film{s, i, digest(png), jpg.Bytes()}
			return nil
		})
	}
	return g.Wait()
}

// finish writes a layout's tables and its manifest.
func (w writer) finish(dir string, l Layout, f form) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	table, counts, err := f.finish(dir)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(dir, table))
	if err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "manifest.json"), dataset.Manifest{
		Name: string(l) + " layout of phantoms", Source: "phantom/" + phantom.Version, Generator: phantom.Hash(),
		Seed: w.cfg.Seed, Counts: counts, SHA256: digest(data), Licence: "Apache-2.0",
	})
}

// part is the split's name in layouts that know three.
func part(s dataset.Split) string {
	if s == dataset.OOD {
		return string(dataset.Test)
	}
	return string(s)
}

// words returns the answer of a short question in words; ok is false for
// questions that the layouts have no form for.
func words(s dataset.Sample) (answer string, ok bool) {
	switch s.Prompt.Kind {
	case dataset.Report:
		return "", false
	case dataset.MultipleChoice:
		answer = s.Prompt.Options[s.Answer[0]-'A']
	default:
		answer = s.Answer
	}
	return answer, answer != phantom.CannotTell
}

func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return write(path, append(data, '\n'))
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
