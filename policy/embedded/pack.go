package embedded

import (
	"fmt"
	"slices"

	"xragent/trainer/batch"
)

// A picture is an image as the vision tower reads it.
type picture struct {
	patches []float32 // [t·h·w, PatchDim]
	grid    [3]int
}

// split cuts a batch into micro-batches of at most limit tokens, in order. A
// longer row has one for itself. The cut depends on the rows' lengths alone.
func split(rows []batch.Row, limit int) [][]batch.Row {
	var micro [][]batch.Row
	start, tokens := 0, 0
	for i, r := range rows {
		if i > start && tokens+len(r.IDs) > limit {
			micro = append(micro, rows[start:i])
			start, tokens = i, 0
		}
		tokens += len(r.IDs)
	}
	if start < len(rows) {
		micro = append(micro, rows[start:])
	}
	return micro
}

// images returns the distinct images of rows, in order of first use.
func images(rows []batch.Row) []string {
	var found []string
	for _, r := range rows {
		for _, use := range r.Images {
			if !slices.Contains(found, use.SHA256) {
				found = append(found, use.SHA256)
			}
		}
	}
	return found
}

// checkRow holds a row against the model's limits and the batch contract.
func (c Config) checkRow(r batch.Row, o objectiveKind) error {
	n := len(r.IDs)
	switch {
	case n < 2:
		return fmt.Errorf("row %s: %d ids, at least 2 are needed", r.ID, n)
	case n > c.Text.MaxPositionEmbeddings:
		return fmt.Errorf("row %s: %d ids, the model has %d positions", r.ID, n, c.Text.MaxPositionEmbeddings)
	case len(r.LossMask) != n:
		return fmt.Errorf("row %s: %d ids but %d loss mask entries", r.ID, n, len(r.LossMask))
	case o == clipped && len(r.Logprobs) != n:
		return fmt.Errorf("row %s: %d ids but %d behaviour log-probs", r.ID, n, len(r.Logprobs))
	case r.LossMask[0] != 0:
		return fmt.Errorf("row %s: the loss mask covers the first id, which nothing predicts", r.ID)
	case !finite(r.Advantage):
		return fmt.Errorf("row %s: advantage is %v", r.ID, r.Advantage)
	}
	for i, lp := range r.Logprobs {
		if !finite(float64(lp)) {
			return fmt.Errorf("row %s: behaviour log-prob %d is %v", r.ID, i, lp)
		}
	}
	for i, id := range r.IDs {
		if id < 0 || int(id) >= c.Text.VocabSize {
			return fmt.Errorf("row %s: id %d at %d lies outside the vocabulary of %d", r.ID, id, i, c.Text.VocabSize)
		}
	}
	return nil
}

// load fills the feed with rows, whose pictures are given by digest. The feed
// must be large enough.
func (f *feed) load(cfg Config, rows []batch.Row, pictures map[string]picture) error {
	f.rows, f.targets, f.segments = 0, 0, f.segments[:0]
	first := f.loadPictures(cfg.Vision, images(rows), pictures)
	for _, r := range rows {
		if err := f.loadRow(cfg, r, first, pictures); err != nil {
			return fmt.Errorf("row %s: %w", r.ID, err)
		}
	}
	return nil
}

// loadPictures lays the pictures into the feed and returns each one's first feature.
func (f *feed) loadPictures(v VisionConfig, names []string, pictures map[string]picture) map[string]int32 {
	f.patches, f.features, f.frames = 0, 0, f.frames[:0]
	half, merged := v.HiddenSize/v.NumHeads/2, v.SpatialMergeSize*v.SpatialMergeSize
	first := make(map[string]int32, len(names))
	for _, name := range names {
		p := pictures[name]
		first[name] = int32(f.features)
		at := f.patches
		frame := p.grid[1] * p.grid[2]
		for range p.grid[0] {
			f.frames = append(f.frames, segment{f.patches, f.patches + frame})
			f.patches += frame
		}
		copy(f.pixels[at*v.PatchDim():], p.patches)
		copy(f.blends[at:], v.positionBlends(p.grid))
		v.visionRope(p.grid, f.vcos[at*half:], f.vsin[at*half:])
		f.features = f.patches / merged
	}
	return first
}

func (f *feed) loadRow(cfg Config, r batch.Row, first map[string]int32, pictures map[string]picture) error {
	grids := make([][3]int, len(r.Images))
	for i, use := range r.Images {
		if grids[i] = use.Grid; pictures[use.SHA256].grid != use.Grid {
			return fmt.Errorf("image %d has grid %v, the processor now gives %v", i, use.Grid, pictures[use.SHA256].grid)
		}
	}
	pos, _, err := cfg.Positions(r.IDs, grids)
	if err != nil {
		return err
	}
	at, half := f.rows, cfg.Text.HeadDim/2
	cfg.Text.textRope(pos, f.cos[at*half:], f.sin[at*half:])
	copy(f.ids[at:], r.IDs)
	f.loadSources(cfg, r, at, first)
	f.loadTargets(r, at)
	f.rows += len(r.IDs)
	f.segments = append(f.segments, segment{at, f.rows})
	return nil
}

// loadSources points the row's image-pad ids at their features.
func (f *feed) loadSources(cfg Config, r batch.Row, at int, first map[string]int32) {
	var features []int32
	for _, use := range r.Images {
		for k := range use.PadTokens(cfg.Vision.SpatialMergeSize) {
			features = append(features, first[use.SHA256]+int32(k))
		}
	}
	for i, id := range r.IDs {
		f.source[at+i] = -1
		if id == cfg.ImageTokenID {
			f.source[at+i], features = features[0], features[1:]
		}
	}
}

func (f *feed) loadTargets(r batch.Row, at int) {
	for i, m := range r.LossMask {
		if m == 0 {
			continue
		}
		t := target{row: int32(at + i - 1), id: r.IDs[i], advantage: float32(r.Advantage)}
		if r.Logprobs != nil {
			t.behaviour = r.Logprobs[i]
		}
		f.target[f.targets] = t
		f.targets++
	}
}
