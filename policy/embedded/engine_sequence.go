package embedded

import (
	"context"
	"fmt"
	"slices"

	"xragent/chat"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// A sequence is one turn being sampled. The caller's goroutine prepares it; the
// owner has it until done is closed.
type sequence struct {
	ctx      context.Context
	req      loop.SampleRequest
	images   []*sourceImage
	features []*features // of images, as far as they are needed
	prompt   int         // rows of the prompt, pads expanded
	pos      [][3]int32  // of the prompt
	next     int32       // position behind the prompt
	places   []place     // image row behind each prompt row; nil without images

	ids      []int32  // prompt and sampled
	keys     []uint64 // identity of each row: equal prefixes have equal caches
	logprobs []float32
	cache    *kvCache
	finish   rollout.Finish
	err      error
	done     chan struct{}
}

// A place is the merged patch at a prompt row; text has image -1.
type place struct{ image, row int }

func (e *Engine) prepare(ctx context.Context, req loop.SampleRequest) (*sequence, error) {
	if err := checkSampling(req.Sampling); err != nil {
		return nil, err
	}
	q := &sequence{ctx: ctx, req: req, done: make(chan struct{})}
	var grids [][3]int
	var pads []int
	for i, encoded := range req.Images {
		im, err := e.images.get(e.opts.Processor, encoded)
		if err != nil {
			return nil, fmt.Errorf("image %d: %w", i, err)
		}
		q.images = append(q.images, im)
		grids = append(grids, im.grid)
		pads = append(pads, im.use.PadTokens(e.cfg.Vision.SpatialMergeSize))
	}
	var err error
	if q.ids, err = chat.Expand(req.IDs, pads, e.cfg.ImageTokenID); err != nil {
		return nil, err
	}
	if err := e.checkIDs(q.ids); err != nil {
		return nil, err
	}
	if q.pos, q.next, err = e.cfg.Positions(q.ids, grids); err != nil {
		return nil, err
	}
	q.prompt = len(q.ids)
	q.features = make([]*features, len(q.images))
	q.identify(e.cfg.ImageTokenID)
	return q, nil
}

// identify fills keys and places for the prompt.
func (q *sequence) identify(pad int32) {
	image, row := -1, 0
	for i, id := range q.ids {
		if id != pad {
			q.keys = append(q.keys, uint64(id))
			q.places = append(q.places, place{-1, 0})
			continue
		}
		if i == 0 || q.ids[i-1] != pad {
			image, row = image+1, 0
		}
		q.keys = append(q.keys, mix64(q.images[image].identity+uint64(row))|1<<63)
		q.places = append(q.places, place{image, row})
		row++
	}
}

// span returns the next rows to push, at most limit.
func (q *sequence) span(limit int) span {
	lo := q.cache.n
	hi := min(len(q.ids), lo+limit)
	s := span{cache: q.cache, ids: q.ids[lo:hi]}
	if hi == len(q.ids) {
		s.wanted = 1
	}
	for i := lo; i < hi; i++ {
		s.pos = append(s.pos, q.position(i))
		if i >= q.prompt || q.places[i].image < 0 {
			continue
		}
		if s.visual == nil {
			s.visual = make([]visualRow, hi-lo)
		}
		s.visual[i-lo] = visualRow{q.features[q.places[i].image], q.places[i].row}
	}
	return s
}

func (q *sequence) position(i int) [3]int32 {
	if i < q.prompt {
		return q.pos[i]
	}
	p := q.next + int32(i-q.prompt)
	return [3]int32{p, p, p}
}

// unseen returns the first image with rows that are yet to be pushed.
func (q *sequence) unseen() int {
	for i := q.cache.n; i < q.prompt; i++ {
		if at := q.places[i].image; at >= 0 {
			return at
		}
	}
	return len(q.images)
}

// see takes the features just made that q waits for.
func (q *sequence) see(images []*sourceImage, made []*features) {
	for i := q.unseen(); i < len(q.images); i++ {
		if at := slices.Index(images, q.images[i]); at >= 0 {
			q.features[i] = made[at]
		}
	}
}

// take appends a sampled id and says whether the turn ends with it.
func (q *sequence) take(c choice, maxPositions int) (ended bool) {
	q.ids = append(q.ids, c.id)
	q.keys = append(q.keys, uint64(c.id))
	q.logprobs = append(q.logprobs, c.logprob)
	switch {
	case slices.Contains(q.req.Stop, c.id):
		q.finish = rollout.FinishStop
	case len(q.logprobs) == q.req.Sampling.MaxTokens, len(q.ids) == maxPositions:
		q.finish = rollout.FinishLength
	default:
		return false
	}
	return true
}

func (q *sequence) end(err error) {
	q.err = err
	close(q.done)
}

func (q *sequence) result() loop.SampleResult {
	r := loop.SampleResult{Turn: rollout.Turn{
		PromptIDs: slices.Clip(q.ids[:q.prompt]),
		OutputIDs: slices.Clone(q.ids[q.prompt:]),
		Logprobs:  q.logprobs,
		Finish:    q.finish,
		Images:    len(q.images),
		Oldest:    q.req.Version,
		Newest:    q.req.Version,
	}}
	for _, im := range q.images {
		r.Images = append(r.Images, im.use)
	}
	return r
}
