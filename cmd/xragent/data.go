package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"

	"xragent/configs"
	"xragent/dataset"
	"xragent/dataset/columnar"
	"xragent/dataset/jsonl"
	"xragent/dataset/phantom"
	"xragent/dataset/phantom/layout"
	"xragent/dataset/vqarad"
	"xragent/internal/blobs"
)

// samples is a loaded data set whose images are in the blob store.
type samples struct {
	all    []dataset.Sample
	digest string // of everything that a result depends on
	truth  func(study string) (phantom.Truth, bool)
}

func (d *samples) split(names ...dataset.Split) []dataset.Sample {
	var out []dataset.Sample
	for _, s := range d.all {
		if slices.Contains(names, s.Split) {
			out = append(out, s)
		}
	}
	return out
}

// dataStage makes or reads the data set and checks it for leaks.
func (s *session) dataStage(ctx context.Context) error {
	if s.cfg.Data.Source == "phantom" && !exists(s.path("data")) {
		cfg := s.cfg.Data.Phantom
		cfg.Seed = s.seed("data", cfg.Seed)
		if _, err := jsonl.WritePhantoms(ctx, s.path("data"), cfg, newProgress(s.log, "phantoms").at); err != nil {
			return err
		}
	}
	d, err := s.load(ctx)
	if err != nil {
		return err
	}
	if err := s.checkSplits(d); err != nil {
		return usageError{err}
	}
	if err := s.writeSamples(d); err != nil {
		return err
	}
	s.notice("data %s: %d train, %d validation, %d test, %d out-of-distribution questions", s.cfg.Data.Source,
		len(d.split(dataset.Train)), len(d.split(dataset.Validation)), len(d.split(dataset.Test)), len(d.split(dataset.OOD)))
	return nil
}

// checkSplits finds out now whether a later stage of the pipeline would have no
// questions.
func (s *session) checkSplits(d *samples) error {
	for _, need := range []struct {
		split  dataset.Split
		stages []string
	}{
		{dataset.Train, []string{configs.StageCorpus, configs.StageSFT, configs.StageGRPO}},
		{dataset.Validation, []string{configs.StageCorpus, configs.StageSFT}},
		{dataset.Test, []string{configs.StageEval}},
	} {
		i := slices.IndexFunc(need.stages, s.cfg.Has)
		if i >= 0 && len(d.split(need.split)) == 0 {
			return fmt.Errorf("data %s: no questions of the split %s, which the stage %s needs: add some, or leave the stage out of stages",
				s.cfg.Data.Source, need.split, need.stages[i])
		}
	}
	return nil
}

func (s *session) writeSamples(d *samples) error {
	path := s.path("samples.parquet")
	if exists(path) {
		return nil
	}
	f, err := os.Create(path + ".partial")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := columnar.WriteSamples(f, d.all); err != nil {
		return err
	}
	return os.Rename(path+".partial", path)
}

// load reads the data set once a session.
func (s *session) load(ctx context.Context) (*samples, error) {
	if s.data != nil {
		return s.data, nil
	}
	d, err := s.read(ctx)
	if err != nil {
		return nil, usageError{err}
	}
	if leaks := dataset.Leaks(d.split(dataset.Train, dataset.Validation), d.split(dataset.Test, dataset.OOD)); len(leaks) > 0 {
		return nil, usageError{fmt.Errorf("data: train and test share %d images or patients; first: %s: put all rows of an image and a patient into one split", len(leaks), leaks[0])}
	}
	s.data = d
	return d, nil
}

func (s *session) read(ctx context.Context) (*samples, error) {
	switch s.cfg.Data.Source {
	case "vqa-rad":
		set, err := vqarad.Read(s.cfg.Data.Root, vqarad.Config{Schema: vqarad.Schema(s.cfg.Data.VQARAD.Schema), Seed: s.seed("split", 0)})
		if err != nil {
			return nil, err
		}
		if set.Notice != "" {
			s.notice("%s", set.Notice)
		}
		return s.keep(ctx, set.Samples, set.Image)
	case "jsonl":
		set, err := jsonl.Read(s.cfg.Data.Root)
		if err != nil {
			return nil, err
		}
		return s.keep(ctx, set.Samples, set.Image)
	}
	dir := s.path("data")
	if !exists(dir) {
		return nil, fmt.Errorf("run %s has no data yet: run the stage data first", s.cfg.Run.Name)
	}
	set, err := jsonl.Read(dir)
	if err != nil {
		return nil, err
	}
	d, err := s.keep(ctx, set.Samples, set.Image)
	if err == nil {
		d.truth = func(study string) (phantom.Truth, bool) {
			t, err := jsonl.PhantomTruth(dir, study)
			return t, err == nil
		}
	}
	return d, err
}

// keep puts the images into the blob store, from where every stage and every
// worker reads them.
func (s *session) keep(ctx context.Context, all []dataset.Sample, image func(string) ([]byte, error)) (*samples, error) {
	for _, sample := range all {
		for _, img := range sample.Prompt.Images {
			if s.blobs.Has(img.SHA256) || s.borrow(img.SHA256) {
				continue
			}
			data, err := image(img.SHA256)
			if err == nil {
				_, err = s.blobs.Put(ctx, data)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	text, err := json.Marshal(all)
	return &samples{all: all, digest: blobs.Digest(text)}, err
}

// sheetStudies is how many studies the contact sheet shows.
const sheetStudies = 12

// phantomOut writes a phantom data set, with a contact sheet to look at, and
// where asked for the same studies in the layouts of public data sets.
func phantomOut(ctx context.Context, dir string, cfg phantom.Config, layouts bool, p *progress) error {
	if _, err := jsonl.WritePhantoms(ctx, dir, cfg, p.at); err != nil {
		return usageError{err}
	}
	for name, every := range map[string]int{"sheet.png": 2, "sheet-coarse.png": 4} {
		if err := writeSheet(filepath.Join(dir, name), cfg, every); err != nil {
			return err
		}
	}
	if !layouts {
		return nil
	}
	return layout.Write(ctx, filepath.Join(dir, "layouts"), cfg, p.at)
}

// writeSheet draws the first studies, at a scale or as the policy sees them.
func writeSheet(path string, cfg phantom.Config, every int) error {
	var films []*image.Gray
	for i := range min(sheetStudies, cfg.Studies()) {
		films = append(films, phantom.Generate(cfg, i).Image)
	}
	var sheet bytes.Buffer
	if err := png.Encode(&sheet, phantom.Sheet(films, 4, every)); err != nil {
		return err
	}
	return writeFile(path, sheet.Bytes())
}
