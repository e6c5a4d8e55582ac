package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"xragent/configs"
	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/internal/blobs"
	"xragent/policy/embedded"
	"xragent/radcot"
	"xragent/trainer"
	"xragent/trainer/batch"
)

// A phase is one part of pre-training; its folder in the run is its name.
type phase struct {
	drill radcot.Drill
	cfg   trainer.SFTConfig
	rows  int // generated; seen again when the steps ask for more
}

func (p phase) name() string { return phaseName(p.drill) }

func phaseName(d radcot.Drill) string { return configs.StagePre + "-" + string(d) }

const (
	validationDrills = 100
	// Among the films, so that what was drilled before is not forgotten.
	lookupsPerFilm = 0.25
	cellsPerFilm   = 2 // of the rows with cells one in so many
)

func (s *session) phases() []phase {
	pre := s.cfg.Pre
	return []phase{{radcot.Repeat, pre.Repeat, 20000}, {radcot.Lookup, pre.Lookup, 8000}, {radcot.Cells, pre.Cells, pre.Films}, {radcot.See, pre.See, pre.Films}}
}

// pretrainStage takes the untrained policy through the drills.
func (s *session) pretrainStage(ctx context.Context) error {
	deps, err := s.drillDeps(ctx)
	if err != nil {
		return err
	}
	w := s.untrained()
	for _, p := range s.phases() {
		if err := s.drill(ctx, p, deps, w.Clone()); err != nil {
			return err
		}
		c, err := trainer.BestCheckpoint(s.path(p.name()))
		if err != nil {
			return err
		}
		trained, err := s.weights(c.LearnerDir())
		if err != nil {
			return err
		}
		if w, err = behind(p.drill, w, trained); err != nil {
			return err
		}
	}
	return nil
}

// behind returns the weights to go on with behind a drill. Of the cells' only
// the eyes: their rows hold no text, and the language model forgets it.
func behind(kind radcot.Drill, before, trained *embedded.Weights) (*embedded.Weights, error) {
	if kind != radcot.Cells {
		return trained, nil
	}
	return before, before.TakeVision(trained)
}

func (s *session) drill(ctx context.Context, p phase, deps radcot.DrillDeps, w *embedded.Weights) error {
	train, err := s.drills(ctx, p.drill, "", p.rows, deps)
	if err != nil {
		return err
	}
	validate, err := s.drills(ctx, p.drill, " validation", validationDrills, deps)
	if err != nil {
		return err
	}
	start := w.Digest()
	l, err := s.learner(w)
	if err != nil {
		return err
	}
	cfg := p.cfg
	cfg.Seed = s.seed(p.name(), cfg.Seed)
	res, err := trainer.RunSFT(ctx, cfg, trainer.SFTDeps{
		Stage: p.name(), Learner: l, Train: train, Validation: validate, Dir: s.path(p.name()), Resume: s.resume,
		Digests: map[string]string{"weights": start, "tokenizer": blobs.Digest(s.codec.JSON()), "options": blobs.Digest(fmt.Append(nil, deps.Options)),
			"generator": phantom.Hash(), "rows": fmt.Sprint(p.rows)},
		Observe: s.observe, Notice: func(m string) { s.notice("%s", m) },
	})
	if err != nil {
		return err
	}
	s.notice("%s: %d steps, best validation loss %.4f at step %d", p.name(), res.Steps, res.BestLoss, res.BestStep)
	return nil
}

// drills makes the rows of one kind and split, "" or " validation".
func (s *session) drills(ctx context.Context, kind radcot.Drill, split string, n int, deps radcot.DrillDeps) ([]batch.Row, error) {
	seed := s.seed(phaseName(kind)+split, 0)
	if kind == radcot.Repeat || kind == radcot.Lookup {
		return radcot.Drills(kind, seed, n, deps)
	}
	films, err := s.films(ctx, split, n, deps)
	if err != nil {
		return nil, err
	}
	if kind == radcot.Cells {
		return films.cells, nil
	}
	lookups, err := radcot.Drills(radcot.Lookup, seed, int(lookupsPerFilm*float64(n)), deps)
	return slices.Concat(films.see, films.cells[:len(films.cells)/cellsPerFilm], lookups), err
}

// drillDeps draws option texts from the training questions.
func (s *session) drillDeps(ctx context.Context) (radcot.DrillDeps, error) {
	d, err := s.load(ctx)
	if err != nil {
		return radcot.DrillDeps{}, err
	}
	options := slices.Clone(commonOptions)
	for _, sample := range d.split(dataset.Train) {
		options = append(options, sample.Prompt.Options...)
	}
	slices.Sort(options)
	return radcot.DrillDeps{Codec: s.codec, Tools: s.schemas(), Plain: s.codec.EndOfText(), Options: slices.Compact(options)}, nil
}

// commonOptions stand beside those of the data, which may have none.
var commonOptions = []string{"right", "left", "both sides", "neither side", "cannot be determined", "normal", "enlarged"}

// pretrained returns the last checkpoint of pre-training; nil in a run without it.
func (s *session) pretrained() (*trainer.Checkpoint, error) {
	last := s.path(phaseName(radcot.See))
	if !s.cfg.Has(configs.StagePre) && !exists(last) {
		return nil, nil
	}
	c, err := trainer.BestCheckpoint(last)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usageError{fmt.Errorf("no pre-trained checkpoint to start from: run the stage pretrain first, or leave it out of stages: %w", err)}
	}
	return &c, err
}
