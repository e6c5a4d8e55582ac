package main

import (
	"context"
	"errors"
	"fmt"
	"image"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/radcot"
	"xragent/rollout"
	"xragent/trainer/batch"
)

const (
	cropsPerFilm   = 4
	windowsPerFilm = 4
	filmsPerStudy  = 8 // films for one in the form of both turns
)

// filmRows are the rows of the phases cells and see, which share their images.
type filmRows struct{ cells, see []batch.Row }

// films makes the rows of a split's n films, once a process. Films with a
// finding are preferred, since most phantoms show none.
func (s *session) films(ctx context.Context, split string, n int, deps radcot.DrillDeps) (filmRows, error) {
	if made, ok := s.seenFilms[split]; ok {
		return made, nil
	}
	seed := s.seed(phaseName(radcot.See)+split, 0)
	cfg := phantom.Config{Seed: seed, Train: 20 * n}
	var chosen []int
	for i := 0; len(chosen) < n && i < cfg.Train; i++ {
		if worthSeeing(phantom.Describe(cfg, i).Truth, i) {
			chosen = append(chosen, i)
		}
	}
	rows := make([]filmRows, len(chosen))
	bar := newProgress(s.log, "films"+split)
	var mu sync.Mutex
	done := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * s.cfg.Policy.Embedded.ResolvedThreads())
	for k, i := range chosen {
		group.Go(func() (err error) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if rows[k], err = s.rowsOfFilm(ctx, k, phantom.Generate(cfg, i), rand.New(rand.NewPCG(seed, uint64(i))), deps); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			bar.at(done, len(chosen))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return filmRows{}, err
	}
	var all filmRows
	for _, r := range rows {
		all.cells, all.see = append(all.cells, r.cells...), append(all.see, r.see...)
	}
	if s.seenFilms == nil {
		s.seenFilms = map[string]filmRows{}
	}
	s.seenFilms[split] = all
	return all, nil
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

// rowsOfFilm makes the rows of film i: cells and a look, of some the whole form.
func (s *session) rowsOfFilm(ctx context.Context, i int, study phantom.Study, rng *rand.Rand, deps radcot.DrillDeps) (rows filmRows, err error) {
	film, err := s.film(ctx, study, rng)
	if err != nil {
		return rows, err
	}
	row, err := film.Look("look-"+study.ID, s.images.Merge, deps)
	rows.see = append(rows.see, row)
	if err == nil && study.Truth.View != phantom.Lateral {
		row, err = s.grid(ctx, study, film, rng, deps)
		rows.cells = append(rows.cells, row)
	}
	if err != nil || i%filmsPerStudy != 0 {
		return rows, err
	}
	film.Crops = film.Crops[:min(len(film.Crops), 1+rng.IntN(3))]
	row, err = film.Study("see-"+study.ID, s.images.Merge, deps)
	rows.see = append(rows.see, row)
	return rows, err
}

// grid says what the cells of a film and of windows of it hold.
func (s *session) grid(ctx context.Context, study phantom.Study, film radcot.Film, rng *rand.Rand, deps radcot.DrillDeps) (batch.Row, error) {
	atlas := radcot.NewAtlas(study.Truth)
	grids := []radcot.Grid{{Use: film.Use, Cells: atlas.Cells(image.Rect(0, 0, phantom.Size, phantom.Size))}}
	png, err := s.blobs.Get(ctx, film.Use.SHA256)
	if err != nil {
		return batch.Row{}, err
	}
	for range windowsPerFilm {
		at := atlas.Window(rng)
		crop, err := s.crop(ctx, fmt.Appendf(nil, `{"box": [%d, %d, %d, %d]}`, at.Min.X, at.Min.Y, at.Max.X, at.Max.Y), png, film.Image)
		if err != nil {
			return batch.Row{}, err
		}
		grids = append(grids, radcot.Grid{Use: crop.Use, Cells: atlas.Cells(at)})
	}
	return radcot.GridRow("grid-"+study.ID, grids, s.images.Merge, deps)
}

// film sees a study and some crops of it, those that show a finding before others.
func (s *session) film(ctx context.Context, study phantom.Study, rng *rand.Rand) (radcot.Film, error) {
	png, err := study.EncodePNG()
	if err != nil {
		return radcot.Film{}, err
	}
	film := radcot.Film{Image: study.Samples[0].Prompt.Images[0], Coarse: study.Truth.Coarse}
	if film.Use, err = s.seen(ctx, png); err != nil || study.Truth.View == phantom.Lateral {
		return film, err
	}
	for _, region := range regionsToCrop(study.Truth, rng) {
		crop, err := s.crop(ctx, fmt.Appendf(nil, `{"region": %q}`, region), png, film.Image)
		if errors.Is(err, errNoCrop) {
			return film, nil // a lung that the segmenter does not find has no regions
		}
		if err != nil {
			return film, err
		}
		crop.Region, crop.Shown = region, study.Truth.Seen(region)
		film.Crops = append(film.Crops, crop)
	}
	return film, nil
}

var errNoCrop = errors.New("roi_crop returned no image")

// crop asks the tool and keeps what it returns.
func (s *session) crop(ctx context.Context, args []byte, png []byte, img dataset.Image) (radcot.View, error) {
	obs, err := s.tools.Call(ctx, "roi_crop", args, [][]byte{png}, []dataset.Image{img})
	if err != nil {
		return radcot.View{}, err
	}
	if obs.PNG == nil {
		return radcot.View{}, fmt.Errorf("%w for %s: %s", errNoCrop, args, obs.Error)
	}
	use, err := s.seen(ctx, obs.PNG)
	return radcot.View{Returned: obs.Text, Use: use}, err
}

// regionsToCrop draws regions, in any order, among them up to two that show a finding.
func regionsToCrop(t phantom.Truth, rng *rand.Rand) []string {
	shuffled := func(list []string) []string {
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		return list
	}
	shows := shuffled(telling(t))
	out := shows[:min(len(shows), cropsPerFilm/2)]
	for _, region := range shuffled(radcot.CropRegions()) {
		if len(out) < cropsPerFilm && !slices.Contains(out, region) {
			out = append(out, region)
		}
	}
	return shuffled(out)
}

// seen keeps an image and returns how the policy sees it.
func (s *session) seen(ctx context.Context, png []byte) (rollout.ImageUse, error) {
	sha, err := s.blobs.Put(ctx, png)
	if err != nil {
		return rollout.ImageUse{}, err
	}
	return s.images.Use(png, sha)
}
