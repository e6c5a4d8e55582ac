package jsonl

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

// A Study is what the writer stores of one study. The samples name their
// images by the hash of one of PNGs.
type Study struct {
	ID      string
	Samples []dataset.Sample
	PNGs    [][]byte
	Truth   any // written to the truth directory; nil: none
}

// Write makes n studies, in parallel, and stores them in dir, which must not
// exist. It writes aside and renames at the end, so that dir is whole or absent;
// rows stand in the order of the studies however many run at once. Progress,
// which may be nil, is called from one goroutine at a time. Counts and hash of
// the returned manifest are those of what was written.
func Write(ctx context.Context, dir string, m dataset.Manifest, n int,
	study func(i int) (Study, error), progress func(done, total int),
) (dataset.Manifest, error) {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("%s exists: remove it or choose another directory", dir)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return m, err
	}
	aside, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".partial-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(aside) // after the rename there is nothing left to remove
	w, err := newWriter(aside, m)
	if err != nil {
		return m, err
	}
	if err := w.studies(ctx, n, study, progress); err != nil {
		return m, fmt.Errorf("write data set %s: %w", dir, err)
	}
	if err := w.finish(); err != nil {
		return m, fmt.Errorf("write data set %s: %w", dir, err)
	}
	return w.manifest, os.Rename(aside, dir)
}

// WritePhantoms makes the phantom studies of cfg and stores them in dir.
func WritePhantoms(ctx context.Context, dir string, cfg phantom.Config, progress func(done, total int)) (dataset.Manifest, error) {
	m := dataset.Manifest{
		Name: filepath.Base(dir), Source: "phantom/" + phantom.Version, Generator: phantom.Hash(), Seed: cfg.Seed, Licence: "Apache-2.0",
	}
	if err := cfg.Validate(); err != nil {
		return m, err
	}
	return Write(ctx, dir, m, cfg.Studies(), func(i int) (Study, error) {
		s := phantom.Generate(cfg, i)
		png, err := s.EncodePNG()
		return Study{ID: s.ID, Samples: s.Samples, PNGs: [][]byte{png}, Truth: s.Truth}, err
	}, progress)
}

// A writer appends studies to an unfinished data set.
type writer struct {
	dir      string
	manifest dataset.Manifest
	file     *os.File
	rows     *bufio.Writer
	ids      map[string]bool
}

func newWriter(dir string, m dataset.Manifest) (*writer, error) {
	for _, sub := range []string{imagesDir, truthDir} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	f, err := os.Create(filepath.Join(dir, samplesFile))
	if err != nil {
		return nil, err
	}
	m.Counts = map[string]int{}
	return &writer{dir: dir, manifest: m, file: f, rows: bufio.NewWriter(f), ids: map[string]bool{}}, os.Chmod(dir, 0o755)
}

// studies makes the studies in rounds: within a round in parallel, their rows
// afterwards in order, so that memory stays bounded.
func (w *writer) studies(ctx context.Context, n int, study func(int) (Study, error), progress func(done, total int)) error {
	round := make([][]dataset.Sample, 8*runtime.GOMAXPROCS(0))
	for start := 0; start < n; start += len(round) {
		end := min(n, start+len(round))
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(runtime.GOMAXPROCS(0))
		for i := start; i < end; i++ {
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				samples, err := w.store(i, study)
				round[i-start] = samples
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		for _, samples := range round[:end-start] {
			if err := w.append(samples); err != nil {
				return err
			}
		}
		if progress != nil {
			progress(end, n)
		}
	}
	return nil
}

// store writes the images and the truth of study i and returns its samples.
func (w *writer) store(i int, study func(int) (Study, error)) ([]dataset.Sample, error) {
	s, err := study(i)
	if err != nil {
		return nil, err
	}
	for _, png := range s.PNGs {
		if err := os.WriteFile(imagePath(w.dir, digest(png)), png, 0o644); err != nil {
			return nil, err
		}
	}
	if s.Truth == nil {
		return s.Samples, nil
	}
	data, err := json.Marshal(s.Truth)
	if err != nil {
		return nil, fmt.Errorf("study %s: truth: %w", s.ID, err)
	}
	return s.Samples, os.WriteFile(TruthPath(w.dir, s.ID), append(data, '\n'), 0o644)
}

func (w *writer) append(samples []dataset.Sample) error {
	for _, s := range samples {
		if err := s.Validate(); err != nil {
			return err
		}
		if w.ids[s.ID] {
			return fmt.Errorf("sample %s: field id occurs twice", s.ID)
		}
		w.ids[s.ID] = true
		line, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("sample %s: %w", s.ID, err)
		}
		if _, err := w.rows.Write(append(line, '\n')); err != nil {
			return err
		}
		w.manifest.Counts[string(s.Split)]++
	}
	return nil
}

// finish closes the rows and writes the manifest.
func (w *writer) finish() error {
	if err := errors.Join(w.rows.Flush(), w.file.Sync(), w.file.Close()); err != nil {
		return err
	}
	sha, err := digestFile(w.file.Name())
	if err != nil {
		return err
	}
	w.manifest.SHA256 = sha
	data, err := json.MarshalIndent(w.manifest, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.dir, manifestFile), append(data, '\n'), 0o644)
}

func digestFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
