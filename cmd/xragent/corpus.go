package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"

	"xragent/dataset"
	"xragent/internal/blobs"
	"xragent/radcot"
	"xragent/rollout"
	"xragent/trainer/batch"
)

// validationShare is how many validation records there are for one of training.
const validationShare = 0.1

// corpusStage builds the Rad-CoT corpus from the train split and a smaller one
// from the validation split, by which SFT knows when to stop.
func (s *session) corpusStage(ctx context.Context) error {
	if exists(s.path("corpus", "manifest.json")) && exists(s.path("corpus", "train.jsonl")) && exists(s.path("corpus", "validate.jsonl")) {
		s.notice("corpus: %s is there already", s.path("corpus"))
		return nil
	}
	d, err := s.load(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.path("corpus"), 0o755); err != nil {
		return err
	}
	cfg := s.cfg.Corpus
	cfg.Seed = s.seed("corpus", cfg.Seed)
	small := cfg
	small.Samples, small.Size = 0, scaled(cfg.Sizes(), validationShare)
	if _, err := s.buildCorpus(ctx, "validate", small, d, dataset.Validation); err != nil {
		return err
	}
	m, err := s.buildCorpus(ctx, "train", cfg, d, dataset.Train)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	s.notice("corpus: %d records, %d calls, measurements shown in %d", m.Records, m.Report.Calls, m.Report.Shown)
	for _, rule := range m.Report.Rules {
		if rule.Rejected > 0 {
			s.notice("corpus: %s rejected %d (%.1f %%)", rule.Rule, rule.Rejected, 100*rule.Rate)
		}
	}
	return writeFile(s.path("corpus", "manifest.json"), append(text, '\n'))
}

// scaled is a size with every kind's count times share, rounded up.
func scaled(s radcot.Size, share float64) radcot.Size {
	scale := func(n int) int { return int(math.Ceil(share * float64(n))) }
	return radcot.Size{MultipleChoice: scale(s.MultipleChoice), Closed: scale(s.Closed), Binary: scale(s.Binary), Report: scale(s.Report)}
}

// buildCorpus writes corpus/<name>.jsonl aside and renames it.
func (s *session) buildCorpus(ctx context.Context, name string, cfg radcot.Config, d *samples, split dataset.Split) (radcot.Manifest, error) {
	path := s.path("corpus", name+".jsonl")
	f, err := os.Create(path + ".partial")
	if err != nil {
		return radcot.Manifest{}, err
	}
	defer f.Close()
	w := radcot.NewWriter(f)
	src := radcot.Sources{Samples: d.split(split), Images: s.blobs, Tools: s.tools, Truth: d.truth}
	report, err := radcot.Build(ctx, cfg, src, w.Write, newProgress(s.log, "corpus "+name).at)
	if err != nil {
		return radcot.Manifest{}, err
	}
	if err := f.Sync(); err != nil {
		return radcot.Manifest{}, err
	}
	return radcot.NewManifest(cfg, src, report, w), os.Rename(path+".partial", path)
}

// rows reads corpus/<name>.jsonl as supervised rows and returns their digest.
func (s *session) rows(ctx context.Context, name string) ([]batch.Row, string, error) {
	path := s.path("corpus", name+".jsonl")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, "", usageError{fmt.Errorf("run %s has no corpus yet: run the stage corpus first (%w)", s.cfg.Run.Name, err)}
	}
	var rows []batch.Row
	grids := map[string]rollout.ImageUse{}
	for rec, err := range radcot.Read(bytes.NewReader(text)) {
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", path, err)
		}
		row, err := s.row(ctx, rec, grids)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", path, err)
		}
		rows = append(rows, row)
	}
	return rows, blobs.Digest(text), nil
}

func (s *session) row(ctx context.Context, rec radcot.Record, grids map[string]rollout.ImageUse) (batch.Row, error) {
	for _, a := range rec.Attachments {
		if _, err := s.blobs.Put(ctx, a.PNG); err != nil {
			return batch.Row{}, err
		}
	}
	var uses []rollout.ImageUse
	for _, sha := range rec.Images() {
		use, ok := grids[sha]
		if !ok {
			if !s.blobs.Has(sha) {
				s.borrow(sha) // Get says where it is missing
			}
			data, err := s.blobs.Get(ctx, sha)
			if err != nil {
				return batch.Row{}, err
			}
			if use, err = s.images.Use(data, sha); err != nil {
				return batch.Row{}, fmt.Errorf("image %.12s: %w", sha, err)
			}
			grids[sha] = use
		}
		uses = append(uses, use)
	}
	return radcot.Row(rec, s.codec, s.schemas(), uses, s.images.Merge)
}

// schemas are the tool schemas of the run's prompts; none when tools are off.
func (s *session) schemas() []json.RawMessage {
	if !s.cfg.GRPO.Tools {
		return nil
	}
	return s.tools.Schemas()
}
