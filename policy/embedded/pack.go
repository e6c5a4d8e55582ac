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

// size is how many patches p has.
func (p picture) size() int { return p.grid[0] * p.grid[1] * p.grid[2] }

// A bundle is consecutive rows that begin alike. The model computes their common
// prefix once: rollouts of one prompt share its image, question and system text.
type bundle struct {
	rows   []batch.Row
	prefix int // ids that all rows have in common; 0 for a single row
}

// tokens returns the rows that the bundle takes in a graph.
func (b bundle) tokens() int {
	n := b.prefix
	for _, r := range b.rows {
		n += len(r.IDs) - b.prefix
	}
	return n
}

// targets returns the number of its loss tokens.
func (b bundle) targets() int {
	n := 0
	for _, r := range b.rows {
		n += lossTokens(r)
	}
	return n
}

func lossTokens(r batch.Row) int {
	n := 0
	for _, m := range r.LossMask {
		n += int(m)
	}
	return n
}

// leastShared is the shortest prefix worth sharing.
const leastShared = 16

// bundles joins a row to the bundle before it where that saves more than it
// costs the rows already there, and where the bundle stays within limit tokens.
// The outcome depends on the rows alone.
func (c Config) bundles(rows []batch.Row, limit int) []bundle {
	var made []bundle
	for i, r := range rows {
		if len(made) > 0 {
			last := &made[len(made)-1]
			joined := bundle{rows[i-len(last.rows) : i+1], c.common(last.rows[0], r)}
			if len(last.rows) > 1 {
				joined.prefix = min(joined.prefix, last.prefix)
			}
			saves := len(last.rows)*joined.prefix > (len(last.rows)-1)*last.prefix
			if joined.prefix >= leastShared && saves && joined.tokens() <= limit && joined.targets() <= limit {
				*last = joined
				continue
			}
		}
		made = append(made, bundle{rows: rows[i : i+1]})
	}
	return made
}

// common returns how many leading ids a and b share, images looked at, too.
func (c Config) common(a, b batch.Row) int {
	n, images := 0, 0
	for n < min(len(a.IDs), len(b.IDs)) && a.IDs[n] == b.IDs[n] {
		n++
	}
	for images < min(len(a.Images), len(b.Images)) && a.Images[images] == b.Images[images] {
		images++
	}
	return min(n, c.imageStart(a, images), c.imageStart(b, images))
}

// imageStart returns where image i of a row begins, or the row's length.
func (c Config) imageStart(r batch.Row, i int) int {
	pads := 0
	for _, use := range r.Images[:i] {
		pads += use.PadTokens(c.Vision.SpatialMergeSize)
	}
	for t, id := range r.IDs {
		if id == c.ImageTokenID {
			if pads == 0 {
				return t
			}
			pads--
		}
	}
	return len(r.IDs)
}

// split cuts bundles into micro-batches of at most limit tokens, and at most
// limit loss tokens, in order. A larger bundle has one for itself.
func split(bs []bundle, limit int) [][]bundle {
	var micro [][]bundle
	start, tokens, targets := 0, 0, 0
	for i, b := range bs {
		if i > start && (tokens+b.tokens() > limit || targets+b.targets() > limit) {
			micro = append(micro, bs[start:i])
			start, tokens, targets = i, 0, 0
		}
		tokens += b.tokens()
		targets += b.targets()
	}
	if start < len(bs) {
		micro = append(micro, bs[start:])
	}
	return micro
}

// rowsOf returns the rows of a micro-batch.
func rowsOf(bs []bundle) []batch.Row {
	var rows []batch.Row
	for _, b := range bs {
		rows = append(rows, b.rows...)
	}
	return rows
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
	case r.Targets != nil && len(r.Targets) != n:
		return fmt.Errorf("row %s: %d ids but %d targets", r.ID, n, len(r.Targets))
	case o == clipped && len(r.Logprobs) != n:
		return fmt.Errorf("row %s: %d ids but %d behaviour log-probs", r.ID, n, len(r.Logprobs))
	case r.LossMask[0] != 0:
		return fmt.Errorf("row %s: the loss mask covers the first id, which nothing predicts", r.ID)
	case !finite(r.Advantage):
		return fmt.Errorf("row %s: advantage is %v", r.ID, r.Advantage)
	}
	for i, m := range r.LossMask {
		if m > 1 {
			return fmt.Errorf("row %s: loss mask is %d at %d, want 0 or 1", r.ID, m, i)
		}
	}
	for i, lp := range r.Logprobs {
		if !finite(float64(lp)) {
			return fmt.Errorf("row %s: behaviour log-prob %d is %v", r.ID, i, lp)
		}
	}
	for i, id := range r.IDs {
		for _, id := range []int32{id, r.Target(i)} {
			if id < 0 || int(id) >= c.Text.VocabSize {
				return fmt.Errorf("row %s: id %d at %d lies outside the vocabulary of %d", r.ID, id, i, c.Text.VocabSize)
			}
		}
	}
	return nil
}

// load fills the feed with bundles, whose pictures are given by digest. The
// feed must be large enough.
func (f *feed) load(cfg Config, bs []bundle, pictures map[string]picture) error {
	f.rows, f.targets, f.families, f.scored = 0, 0, f.families[:0], f.scored[:0]
	first := f.loadPictures(cfg.Vision, images(rowsOf(bs)), pictures)
	for _, b := range bs {
		at := f.rows
		shared := segment{at, at + b.prefix}
		family := []scope{{own: shared}}
		for i, r := range b.rows {
			if err := f.loadRow(cfg, r, at, b.prefix, i > 0, first, pictures); err != nil {
				return fmt.Errorf("row %s: %w", r.ID, err)
			}
			start := f.rows - (len(r.IDs) - b.prefix)
			family = append(family, scope{shared, segment{start, f.rows}})
		}
		f.families = append(f.families, family)
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
			f.frames = append(f.frames, []scope{{own: segment{f.patches, f.patches + frame}}})
			f.patches += frame
		}
		copy(f.pixels[at*v.PatchDim():], p.patches)
		copy(f.blends[at:], v.positionBlends(p.grid))
		v.visionRope(p.grid, f.vcos[at*half:], f.vsin[at*half:])
		f.features = f.patches / merged
	}
	return first
}

// loadRow appends a row whose first shared ids lie at row at; seen says that
// they are there already.
func (f *feed) loadRow(cfg Config, r batch.Row, at, shared int, seen bool, first map[string]int32, pictures map[string]picture) error {
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
	skip := 0
	if seen {
		skip = shared
	}
	half := cfg.Text.HeadDim / 2
	cfg.Text.textRope(pos[skip:], f.cos[f.rows*half:], f.sin[f.rows*half:])
	copy(f.ids[f.rows:], r.IDs[skip:])
	copy(f.source[f.rows:], cfg.sources(r, first)[skip:])
	f.loadTargets(r, at, shared, f.rows+shared-skip)
	f.rows += len(r.IDs) - skip
	return nil
}

// sources returns the feature that stands at each of the row's ids, or -1.
func (c Config) sources(r batch.Row, first map[string]int32) []int32 {
	var features []int32
	for _, use := range r.Images {
		for k := range use.PadTokens(c.Vision.SpatialMergeSize) {
			features = append(features, first[use.SHA256]+int32(k))
		}
	}
	source := make([]int32, len(r.IDs))
	for i, id := range r.IDs {
		source[i] = -1
		if id == c.ImageTokenID {
			source[i], features = features[0], features[1:]
		}
	}
	return source
}

// loadTargets appends the row's loss tokens. Its first shared ids lie at row
// at, the others from row rest on.
func (f *feed) loadTargets(r batch.Row, at, shared, rest int) {
	first := f.targets
	for i, m := range r.LossMask {
		if m == 0 {
			continue
		}
		t := target{row: int32(at + i - 1), id: r.Target(i)}
		if i-1 >= shared {
			t.row = int32(rest + i - 1 - shared)
		}
		if r.Logprobs != nil {
			t.behaviour = r.Logprobs[i]
		}
		f.target[f.targets] = t
		f.targets++
	}
	f.scored = append(f.scored, scored{first, f.targets, float32(r.Advantage)})
}
