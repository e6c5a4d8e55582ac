package embedded

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"xragent/internal/simd"
	"xragent/rollout"
)

// prefillRows is how many rows go through the decoder at a time: enough to keep
// the kernels busy, few enough for activations to stay in the caches.
const prefillRows = 128

// A scheduler is the owner's state: the loaded weights, the sequences waiting
// and in the batch, and what is kept between them.
type scheduler struct {
	cfg      Config
	opts     EngineOptions
	counters *counters

	decoder  *decoder // nil before the first load
	pool     *kvPool
	version  rollout.PolicyVersion
	waiting  []*sequence
	active   []*sequence
	draining []*control // waiting for active to empty
	prefixes prefixCache
	features lru[*features]
	workers  []*worker
}

// A worker pushes its share of the batch through the decoder.
type worker struct {
	workspace workspace
	sampler   sampler
	share     []*sequence
}

func newScheduler(cfg Config, opts EngineOptions, c *counters) *scheduler {
	s := &scheduler{cfg: cfg, opts: opts, counters: c, pool: &kvPool{cfg: cfg.Text}}
	for range opts.Threads {
		s.workers = append(s.workers, &worker{sampler: sampler{barred: cfg.barred()}})
	}
	s.reset()
	return s
}

// barred lists the ids that stand for images and video.
func (c Config) barred() []int32 {
	ids := []int32{c.ImageTokenID}
	if v := c.VideoTokenID; v >= 0 && int(v) < c.Text.VocabSize {
		ids = append(ids, v)
	}
	return ids
}

// reset drops everything that belongs to a version.
func (s *scheduler) reset() {
	s.prefixes.clear()
	s.prefixes.limit = s.opts.CacheBytes
	s.features = lru[*features]{limit: 64 << 20}
}

func (s *scheduler) load(d *decoder, v rollout.PolicyVersion) {
	s.decoder, s.version = d, v
	s.reset()
}

// take runs a control now, or queues it until the batch is empty.
func (s *scheduler) take(c *control) {
	if c.drain && len(s.active) > 0 {
		s.draining = append(s.draining, c)
		return
	}
	c.done <- c.run(s)
}

// idle says that a step would do nothing.
func (s *scheduler) idle() bool { return len(s.waiting)+len(s.active)+len(s.draining) == 0 }

// step admits, pushes one span of every sequence, and lets go of those that
// ended.
func (s *scheduler) step() {
	s.active = slices.DeleteFunc(s.active, func(q *sequence) bool {
		if err := q.ctx.Err(); err != nil {
			s.release(q, err)
			return true
		}
		return false
	})
	if len(s.active) == 0 {
		for _, c := range s.draining {
			c.done <- c.run(s)
		}
		s.draining = nil
	}
	if len(s.draining) == 0 {
		s.admit()
	}
	s.see()
	s.push()
	s.active = slices.DeleteFunc(s.active, func(q *sequence) bool {
		if q.finish != "" || q.err != nil {
			s.release(q, q.err)
			return true
		}
		return false
	})
}

// release hands q back to its caller and keeps its cache for others, unless
// the decoder failed on it.
func (s *scheduler) release(q *sequence, err error) {
	s.counters.sampled.Add(int64(len(q.logprobs)))
	if q.err == nil {
		s.prefixes.keep(q.keys[:q.cache.n], q.cache)
	} else {
		q.cache.drop()
	}
	q.end(err)
}

// admit moves waiting sequences into the batch. One that shares most of its
// prompt with a sequence whose own prefill has not run waits a step for it.
func (s *scheduler) admit() {
	kept := s.waiting[:0]
	for _, q := range s.waiting {
		if err := s.refuse(q); err != nil {
			q.end(err)
			continue
		}
		if len(s.active) >= s.opts.MaxBatch || !s.start(q) {
			kept = append(kept, q)
		}
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
}

func (s *scheduler) refuse(q *sequence) error {
	switch {
	case q.ctx.Err() != nil:
		return q.ctx.Err()
	case s.decoder == nil:
		return fmt.Errorf("version %d asked for, but no weights are loaded", q.req.Version)
	case q.req.Version != s.version:
		return fmt.Errorf("version %d asked for, but version %d is loaded", q.req.Version, s.version)
	}
	return nil
}

// start puts q into the batch with the longest prefix that is at hand. It
// returns false where waiting a step promises much more.
func (s *scheduler) start(q *sequence) bool {
	var from *kvCache
	reuse, promised := 0, 0
	if s.opts.CacheBytes >= 0 {
		from, reuse, promised = s.longest(q)
	}
	if promised-reuse > (q.prompt-reuse)/2 {
		return false
	}
	rows := min(q.prompt+q.req.Sampling.MaxTokens, s.cfg.Text.MaxPositionEmbeddings)
	if reuse > 0 {
		q.cache = from.extend(rows, reuse)
	} else {
		q.cache = s.pool.newCache(rows)
	}
	s.settle(q)
	s.counters.sequences.Add(1)
	s.counters.prompt.Add(int64(q.prompt))
	s.counters.reused.Add(int64(reuse))
	return true
}

// longest finds the longest prefix of q's prompt, short of its last row, whose
// logits are needed; and how long one the batch is about to compute.
func (s *scheduler) longest(q *sequence) (from *kvCache, reuse, promised int) {
	wanted := q.keys[:q.prompt-1]
	from, reuse = s.prefixes.find(wanted)
	for _, other := range s.active {
		n := common(wanted, other.keys)
		promised = max(promised, n)
		if n = min(n, other.cache.n); n > reuse {
			from, reuse = other.cache, n
		}
	}
	return from, reuse, promised
}

// see gives the sequences the features of the images that they are about to
// need, and computes the missing ones.
func (s *scheduler) see() {
	var missing []*sourceImage
	for _, q := range s.active {
		for i := q.unseen(); i < len(q.images); i++ {
			if q.features[i] = s.recall(q.images[i]); q.features[i] == nil && !slices.Contains(missing, q.images[i]) {
				missing = append(missing, q.images[i])
			}
		}
	}
	if len(missing) == 0 {
		return
	}
	made := make([]*features, len(missing))
	simd.For(len(s.workers), len(missing), func(lo, hi int) {
		for lo < hi {
			var images []picture
			for _, im := range missing[lo : lo+together(missing[lo:hi])] {
				images = append(images, im.picture)
			}
			lo += copy(made[lo:], s.decoder.tower.features(images...))
		}
	})
	for i, im := range missing {
		s.features.put(im.use.SHA256, made[i], made[i].bytes())
	}
	for _, q := range s.active {
		q.see(missing, made)
	}
}

func (s *scheduler) recall(im *sourceImage) *features {
	f, _ := s.features.get(im.use.SHA256)
	return f
}

// push shares the batch out and runs the workers. Sequences that read the same
// rows go one behind another, to one worker where the shares allow it.
func (s *scheduler) push() {
	total := 0
	for _, q := range s.active {
		total += q.pending()
	}
	rows, at := 0, 0
	for i, w := range s.workers {
		w.share = w.share[:0]
		for end := total * (i + 1) / len(s.workers); at < len(s.active) && rows < end; at++ {
			w.share = append(w.share, s.active[at])
			rows += s.active[at].pending()
		}
	}
	simd.For(len(s.workers), len(s.workers), func(lo, hi int) {
		for _, w := range s.workers[lo:hi] {
			w.run(s.decoder)
		}
	})
}

// pending returns the rows of the next span to push.
func (q *sequence) pending() int { return min(len(q.ids)-q.cache.n, prefillRows) }

// settle puts a sequence into the batch, behind one that reads the same rows.
func (s *scheduler) settle(q *sequence) {
	at := len(s.active)
	for i, other := range s.active {
		if other.cache.root() == q.cache.root() {
			at = i + 1
		}
	}
	s.active = slices.Insert(s.active, at, q)
}

// run pushes the worker's sequences, a bounded number of rows at a time.
func (w *worker) run(d *decoder) {
	for lo := 0; lo < len(w.share); {
		var spans []span
		rows, hi := 0, lo
		for ; hi < len(w.share) && rows < prefillRows; hi++ {
			spans = append(spans, w.share[hi].span(prefillRows))
			rows += len(spans[len(spans)-1].ids)
		}
		logits := d.forward(&w.workspace, spans)
		for i, q := range w.share[lo:hi] {
			if spans[i].wanted == 1 {
				w.choose(q, logits[:d.cfg.Text.VocabSize], d.cfg.Text.MaxPositionEmbeddings)
				logits = logits[d.cfg.Text.VocabSize:]
			}
		}
		lo = hi
	}
}

func (w *worker) choose(q *sequence, logits []float32, maxPositions int) {
	c, err := w.sampler.draw(logits, q.req.Sampling, uniform(q.req.Seed, len(q.logprobs)))
	if err != nil {
		q.err = err
		return
	}
	q.take(c, maxPositions)
}

// score returns the log-probs of ids[1:].
func (s *scheduler) score(ctx context.Context, ids []int32) ([]float32, error) {
	if s.decoder == nil {
		return nil, errors.New("no weights are loaded")
	}
	pos, _, err := s.cfg.Positions(ids, nil)
	if err != nil {
		return nil, err
	}
	v, w, cache := s.cfg.Text.VocabSize, &s.workers[0].workspace, s.pool.newCache(len(ids))
	defer cache.drop()
	logprobs := make([]float32, 0, len(ids)-1)
	for lo := 0; lo < len(ids)-1; lo += queryBlock {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hi := min(lo+queryBlock, len(ids)-1)
		logits := s.decoder.forward(w, []span{{cache: cache, ids: ids[lo:hi], pos: pos[lo:hi], wanted: hi - lo}})
		for i := lo; i < hi; i++ {
			logprobs = append(logprobs, logSoftmax(logits[(i-lo)*v:(i-lo+1)*v], ids[i+1]))
		}
	}
	return logprobs, nil
}

// logSoftmax returns the log-probability of id; it overwrites the logits.
func logSoftmax(logits []float32, id int32) float32 {
	own, top := logits[id], simd.Max(logits)
	return float32(float64(own) - float64(top) - math.Log(float64(simd.ExpSub(logits, logits, top))))
}
