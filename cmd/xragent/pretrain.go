package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"xragent/configs"
	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/internal/blobs"
	"xragent/radcot"
	"xragent/rollout"
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
	lookupsPerFilm   = 0.25 // look-ups among the captions, so that they are not forgotten
)

func (s *session) phases() []phase {
	pre := s.cfg.Pre
	return []phase{{radcot.Repeat, pre.Repeat, 20000}, {radcot.Lookup, pre.Lookup, 8000}, {radcot.See, pre.See, pre.Films}}
}

// pretrainStage takes the untrained policy through the drills.
func (s *session) pretrainStage(ctx context.Context) error {
	deps, err := s.drillDeps(ctx)
	if err != nil {
		return err
	}
	var from *trainer.Checkpoint
	for _, p := range s.phases() {
		if err := s.drill(ctx, p, deps, from); err != nil {
			return err
		}
		c, err := trainer.BestCheckpoint(s.path(p.name()))
		if err != nil {
			return err
		}
		from = &c
	}
	return nil
}

func (s *session) drill(ctx context.Context, p phase, deps radcot.DrillDeps, from *trainer.Checkpoint) error {
	train, err := s.drills(ctx, p.drill, p.name(), p.rows, deps)
	if err != nil {
		return err
	}
	validate, err := s.drills(ctx, p.drill, p.name()+" validation", validationDrills, deps)
	if err != nil {
		return err
	}
	l, err := s.learnerFrom(ctx, from)
	if err != nil {
		return err
	}
	cfg := p.cfg
	cfg.Seed = s.seed(p.name(), cfg.Seed)
	res, err := trainer.RunSFT(ctx, cfg, trainer.SFTDeps{
		Stage: p.name(), Learner: l, Train: train, Validation: validate, Dir: s.path(p.name()), Resume: s.resume,
		Digests: map[string]string{"weights": l.start, "tokenizer": blobs.Digest(s.codec.JSON()), "options": blobs.Digest(fmt.Append(nil, deps.Options)),
			"generator": phantom.Hash(), "rows": fmt.Sprint(p.rows)},
		Observe: s.observe, Notice: func(m string) { s.notice("%s", m) },
	})
	if err != nil {
		return err
	}
	s.notice("%s: %d steps, best validation loss %.4f at step %d", p.name(), res.Steps, res.BestLoss, res.BestStep)
	return nil
}

// drills makes the rows of one kind from the seed of that name.
func (s *session) drills(ctx context.Context, kind radcot.Drill, name string, n int, deps radcot.DrillDeps) ([]batch.Row, error) {
	seed := s.seed(name, 0)
	if kind != radcot.See {
		return radcot.Drills(kind, seed, n, deps)
	}
	films, err := s.captions(ctx, name, seed, n, deps)
	if err != nil {
		return nil, err
	}
	lookups, err := radcot.Drills(radcot.Lookup, seed, int(lookupsPerFilm*float64(n)), deps)
	return append(films, lookups...), err
}

// captions makes n films with what their coarse view shows, and with most of
// them a crop and what it shows. Films with a finding are preferred, since most
// phantoms show none.
func (s *session) captions(ctx context.Context, name string, seed uint64, n int, deps radcot.DrillDeps) ([]batch.Row, error) {
	cfg := phantom.Config{Seed: seed, Train: 20 * n}
	var chosen []int
	for i := 0; len(chosen) < n && i < cfg.Train; i++ {
		if worthSeeing(phantom.Describe(cfg, i).Truth, i) {
			chosen = append(chosen, i)
		}
	}
	rows := make([][]batch.Row, len(chosen))
	bar := newProgress(s.log, "films "+name)
	var mu sync.Mutex
	done := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.cfg.Policy.Embedded.ResolvedThreads())
	for k, i := range chosen {
		group.Go(func() (err error) {
			if rows[k], err = s.caption(ctx, phantom.Generate(cfg, i), rand.New(rand.NewPCG(seed, uint64(i))), deps); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			bar.at(done, len(chosen))
			return ctx.Err()
		})
	}
	return slices.Concat(rows...), group.Wait()
}

// worthSeeing keeps films with a finding that the coarse view or a crop shows,
// and one in eight of the others.
func worthSeeing(t phantom.Truth, i int) bool {
	for _, c := range t.Coarse {
		for _, sign := range []string{"opaque", "edge free", "nodule", "small", "tube", "object"} {
			if strings.Contains(c, sign) && !strings.HasPrefix(c, "heart") {
				return true
			}
		}
	}
	return len(telling(t)) > 0 || i%8 == 0
}

// telling returns the regions of which a crop shows a finding.
func telling(t phantom.Truth) []string {
	return slices.DeleteFunc(radcot.CropRegions(), func(region string) bool {
		return slices.Contains([]string{"", "no nodule", "no pleural line", "no tube", "sharp angle", "scar"}, t.Seen(region))
	})
}

// caption makes the rows of one film.
func (s *session) caption(ctx context.Context, study phantom.Study, rng *rand.Rand, deps radcot.DrillDeps) ([]batch.Row, error) {
	png, err := study.EncodePNG()
	if err != nil {
		return nil, err
	}
	use, err := s.seen(ctx, png)
	if err != nil {
		return nil, err
	}
	img := study.Samples[0].Prompt.Images[0]
	row, err := radcot.Caption("see-"+study.ID, img, study.Truth.Coarse, use, s.images.Merge, deps)
	if err != nil || study.Truth.View == phantom.Lateral {
		return []batch.Row{row}, err
	}
	region := radcot.CropRegions()[rng.IntN(len(radcot.CropRegions()))]
	if shows := telling(study.Truth); len(shows) > 0 && rng.IntN(5) < 3 {
		region = shows[rng.IntN(len(shows))]
	}
	crop, err := s.tools.Call(ctx, "roi_crop", fmt.Appendf(nil, `{"region": %q}`, region), [][]byte{png}, []dataset.Image{img})
	if err != nil || crop.PNG == nil {
		return []batch.Row{row}, err // a lung that the segmenter does not find has no regions
	}
	cropUse, err := s.seen(ctx, crop.PNG)
	if err != nil {
		return nil, err
	}
	second, err := radcot.CropCaption("crop-"+study.ID, img, study.Truth.Coarse, region, study.Truth.Seen(region), crop.Text,
		[2]rollout.ImageUse{use, cropUse}, s.images.Merge, deps)
	return []batch.Row{row, second}, err
}

// seen keeps an image and returns how the policy sees it.
func (s *session) seen(ctx context.Context, png []byte) (rollout.ImageUse, error) {
	sha, err := s.blobs.Put(ctx, png)
	if err != nil {
		return rollout.ImageUse{}, err
	}
	return s.images.Use(png, sha)
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
