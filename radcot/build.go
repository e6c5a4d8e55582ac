package radcot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/reward"
	"xragent/rollout"
)

// Build makes the corpus and hands each record to emit, kind by kind, in a
// fixed order. progress may be nil. A tool that cannot be reached after one
// retry, an unreadable image and an error of emit end the build; records that
// a rule rejects do not.
func Build(ctx context.Context, cfg Config, src Sources, emit func(Record) error, progress func(done, total int)) (Report, error) {
	if err := src.check(); err != nil {
		return Report{}, err
	}
	b := builder{cfg: cfg, src: src, report: newReport(cfg, src), emit: emit, progress: progress}
	for _, kind := range dataset.Kinds {
		if err := b.kind(ctx, kind); err != nil {
			return b.report, fmt.Errorf("corpus: %w", err)
		}
	}
	b.report.finish()
	return b.report, nil
}

// check refuses samples that may not be trained on.
func (src Sources) check() error {
	seen := map[string]bool{}
	for i, s := range src.Samples {
		if err := s.Validate(); err != nil {
			return fmt.Errorf("corpus: row %d: %w", i+1, err)
		}
		if s.Split != dataset.Train && s.Split != dataset.Validation {
			return fmt.Errorf("corpus: row %d: sample %s is of the %s split: build from train and validate only", i+1, s.ID, s.Split)
		}
		if seen[s.ID] {
			return fmt.Errorf("corpus: row %d: sample %s occurs twice: ids must be unique", i+1, s.ID)
		}
		seen[s.ID] = true
	}
	return nil
}

type builder struct {
	cfg      Config
	src      Sources
	report   Report
	emit     func(Record) error
	progress func(done, total int)
}

// kind goes through the candidates of one kind until enough are kept.
func (b *builder) kind(ctx context.Context, kind dataset.Kind) error {
	want := b.cfg.Sizes().Of(kind)
	candidates := b.candidates(kind, want)
	kept := 0
	for start := 0; start < len(candidates) && kept < want; {
		chunk := candidates[start:min(start+max(b.cfg.Parallel, want-kept), len(candidates))]
		chunk = chunk[:min(len(chunk), 16*b.cfg.Parallel)] // few enough to hold
		records, err := b.records(ctx, chunk)
		if err != nil {
			return err
		}
		for i, r := range records {
			if kept == want {
				break
			}
			ok, err := b.judge(r, chunk[i])
			if err != nil {
				return err
			}
			if ok {
				kept++
			}
		}
		start += len(chunk)
	}
	b.report.wanted(kind, want, len(candidates))
	return nil
}

// candidates returns the samples of a kind that may be tried, in the order of
// their hash, so that a smaller corpus is the start of a larger one.
func (b *builder) candidates(kind dataset.Kind, want int) []dataset.Sample {
	var out []dataset.Sample
	for _, s := range b.src.Samples {
		if s.Prompt.Kind == kind {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(x, y dataset.Sample) int {
		return cmp.Or(cmp.Compare(b.rank(x.ID), b.rank(y.ID)), cmp.Compare(x.ID, y.ID))
	})
	if limit := int(math.Ceil(b.cfg.Candidates * float64(want))); kind == dataset.Report {
		out = out[:min(len(out), limit)]
	}
	return out
}

func (b *builder) rank(id string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", b.cfg.Seed, id)
	return h.Sum64()
}

// judge filters one record, counts it, and hands it on.
func (b *builder) judge(r Record, s dataset.Sample) (bool, error) {
	rejection := b.cfg.Filters.Check(r, s)
	b.report.count(r, s, rejection)
	if b.progress != nil {
		b.progress(b.report.Kept(), b.cfg.Sizes().Total())
	}
	if rejection != nil {
		return false, nil
	}
	return true, b.emit(r)
}

// records makes the records of a chunk, several at once; they come back in order.
func (b *builder) records(ctx context.Context, chunk []dataset.Sample) ([]Record, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	records := make([]Record, len(chunk))
	slots := make(chan struct{}, b.cfg.Parallel)
	var wg sync.WaitGroup
	for i, s := range chunk {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			r, err := b.record(ctx, s)
			if err != nil {
				cancel(fmt.Errorf("sample %s: %w", s.ID, err))
			}
			records[i] = r
		})
	}
	wg.Wait()
	return records, context.Cause(ctx)
}

// record makes one record in causal order: turn 1, the calls, the
// measurements, turn 2.
func (b *builder) record(ctx context.Context, s dataset.Sample) (Record, error) {
	images, err := b.images(ctx, s)
	if err != nil {
		return Record{}, err
	}
	t, made := b.truth(s)
	l := plan(s, t.Coarse, b.cfg)
	if made {
		l.seen = t.Seen
	}
	r := Record{Sample: s, Teacher: Teacher, Turn1: l.turn1(), Suboptimal: !slices.Equal(l.asks, l.right)}
	r.Sample.Reference = ""
	for _, a := range l.asks {
		if err := b.execute(ctx, &r, a, images); err != nil {
			return Record{}, err
		}
	}
	r.Bundle, err = retried(ctx, b.cfg.Timeout, func(ctx context.Context) (rollout.Bundle, error) {
		return b.src.Tools.Measure(ctx, images, s.Prompt.Images)
	})
	if err != nil {
		return Record{}, fmt.Errorf("measurements: %w", err)
	}
	r.Bundle.Shown = r.Bundle.Admit(rollout.GateOn)
	r.Turn2 = l.turn2(r.Calls, r.Bundle)
	return r, nil
}

// truth is what the generator knows of a phantom; made is false for a real image.
func (b *builder) truth(s dataset.Sample) (t phantom.Truth, made bool) {
	if b.src.Truth == nil || s.Prompt.Images[0].Domain != "phantom" {
		return t, false
	}
	return b.src.Truth(s.Study)
}

func (b *builder) images(ctx context.Context, s dataset.Sample) ([][]byte, error) {
	var out [][]byte
	for i, img := range s.Prompt.Images {
		data, err := retried(ctx, b.cfg.Timeout, func(ctx context.Context) ([]byte, error) {
			return b.src.Images.Get(ctx, img.SHA256)
		})
		if err != nil {
			return nil, fmt.Errorf("image %d (%s): %w", i+1, img.SHA256, err)
		}
		out = append(out, data)
	}
	return out, nil
}

// execute runs one call and writes what it returned into the record.
func (b *builder) execute(ctx context.Context, r *Record, a ask, images [][]byte) error {
	c := rollout.Call{Tool: a.tool, Arguments: a.arguments()}
	obs, err := retried(ctx, b.cfg.Timeout, func(ctx context.Context) (rollout.Observation, error) {
		return b.src.Tools.Call(ctx, c.Tool, c.Arguments, images, r.Sample.Prompt.Images)
	})
	if err != nil {
		return fmt.Errorf("tool %s: %w", a.tool, err)
	}
	c.Record(obs)
	c.CacheHit = false // differs between equal builds
	if c.Status == rollout.CallOK && obs.PNG != nil {
		c.Image = digest(obs.PNG)
		if !slices.ContainsFunc(r.Attachments, func(a rollout.Attachment) bool { return a.SHA256 == c.Image }) {
			r.Attachments = append(r.Attachments, rollout.Attachment{SHA256: c.Image, PNG: obs.PNG})
		}
	}
	r.Calls = append(r.Calls, c)
	return nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// similarityTo measures how close a record's reasoning is to the reference.
func similarityTo(reference string, r Record, idf tfidf) (measures [3]float64, ok bool) {
	if reference == "" {
		return measures, false
	}
	think := rollout.ParseIntegration(r.Turn2).Think
	return [3]float64{Ratio(think, reference), RougeL(think, reference), idf.Cosine(think, reference)}, true
}

// The definitions that a corpus depends on, for its manifest.
var definitions = map[string]string{"record": Version, "teacher": Teacher, "reward": reward.Version}
