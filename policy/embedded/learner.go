package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"xragent/trainer/batch"
	"xragent/trainer/loss"
)

// A Processor turns an encoded image into patches [t·h·w, PatchDim] and its
// grid (time, height, width). Equal hashes stand for equal processing.
type Processor interface {
	Process(encoded []byte) (patches []float32, grid [3]int, err error)
	Hash() string
}

// LearnerOptions is what a learner needs beside its model.
type LearnerOptions struct {
	Run         string // named in manifests
	Threads     int    // 0: 2; the result has the same bits for any number
	MicroTokens int    // most tokens of a micro-batch; 0: 2048
	// Images fetches an encoded image by its sha256; Processor reads it.
	Images    func(ctx context.Context, sha256 string) ([]byte, error)
	Processor Processor
	// Put stores published weights by content and returns their sha256.
	Put func(ctx context.Context, data []byte) (sha256 string, err error)
	// Reference keeps a copy of the weights that the learner begins with, which
	// a loss with KL is taken against.
	Reference bool
	// Repro is a directory for steps that break: repro-N.json, see [ReadRepro].
	// Empty: none is kept.
	Repro string
	// Notice says what a person should know: that a run goes on with other
	// kernels, and so with other bits. Nil: that is an error.
	Notice func(string)
}

// A Learner trains the embedded policy. It implements trainer.Learner, and is
// safe for concurrent use; calls run one after another.
type Learner struct {
	mu       sync.Mutex
	opts     LearnerOptions
	weights  *Weights
	first    *Weights  // reference policy; nil: none is kept
	gradient []float32 // a slab like the weights'
	params   []parameter
	adam     adamW
	graphs   map[graphKind]*graph
	pictures pictureCache
}

// A graphKind tells graphs apart that a learner keeps.
type graphKind struct{ trains, sees, first bool }

// NewLearner returns a learner that owns w, which must belong to cfg.
func NewLearner(cfg Config, w *Weights, opts LearnerOptions) (*Learner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if got, want := w.cfg.fingerprint(), cfg.fingerprint(); got != want {
		return nil, errors.New("weights were made for another config.json")
	}
	if opts.Threads <= 0 {
		opts.Threads = 2
	}
	if opts.MicroTokens <= 0 {
		opts.MicroTokens = 2048
	}
	l := &Learner{opts: opts, weights: w, gradient: make([]float32, w.Len()), graphs: map[graphKind]*graph{}}
	if opts.Reference {
		l.first = w.Clone()
	}
	l.params = parameters(w, l.gradient)
	l.adam = newAdamW(w.Len(), opts.Threads)
	return l, nil
}

// Weights returns a copy of the current weights.
func (l *Learner) Weights() *Weights {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.weights.Clone()
}

// Step takes one optimizer step. The gradient is summed over micro-batches that
// the rows and MicroTokens alone determine, in their order. Any error, among
// them weights, a loss or a gradient that is not finite, names the rows and
// leaves weights and optimizer unchanged.
func (l *Learner) Step(ctx context.Context, b batch.Batch, o batch.Objective) (batch.Stats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stats, err := l.step(ctx, b, o)
	if err != nil {
		err = l.keep(ctx, err, b, o)
	}
	return stats, err
}

func (l *Learner) step(ctx context.Context, b batch.Batch, o batch.Objective) (batch.Stats, error) {
	var stats batch.Stats
	if err := checkObjective(o); err != nil {
		return stats, err
	}
	if o.Kind == "grpo" && o.Loss.KL.Coef > 0 && l.first == nil {
		return stats, fmt.Errorf("objective: loss.kl.coef = %v, but the learner keeps no reference: make it with Reference", o.Loss.KL.Coef)
	}
	if err := l.checkWeights(b.Rows); err != nil {
		return stats, err
	}
	clear(l.gradient)
	total, err := l.accumulate(ctx, b, o, true, func(_ *graph, rows []batch.Row) error { return l.checkGradient(rows) })
	if err != nil {
		return stats, err
	}
	stats = total.stats(b, o)
	if stats.GradNorm, err = l.clip(b, o); err != nil {
		return stats, err
	}
	return stats, l.adam.take(l.params, o)
}

// Evaluate returns the mean of −log p over the batch's loss tokens.
func (l *Learner) Evaluate(ctx context.Context, b batch.Batch) (float64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	total, err := l.accumulate(ctx, b, batch.Objective{Kind: "sft"}, false, nil)
	return total.loss, err
}

// Logprobs returns the log-probs of ids[1:], a text without images, under the
// current weights.
func (l *Learner) Logprobs(ctx context.Context, ids []int32) ([]float32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logprobs(ctx, ids)
}

func (l *Learner) logprobs(ctx context.Context, ids []int32) ([]float32, error) {
	row := batch.Row{ID: "text", IDs: ids, LossMask: slices.Repeat([]uint8{1}, len(ids))}
	if len(ids) > 0 {
		row.LossMask[0] = 0
	}
	var lp []float32
	b := batch.Batch{Rows: []batch.Row{row}, Tokens: len(ids) - 1}
	_, err := l.accumulate(ctx, b, batch.Objective{Kind: "sft"}, false, func(g *graph, _ []batch.Row) error {
		lp = slices.Clone(g.logprobs[:len(ids)-1])
		return nil
	})
	return lp, err
}

// accumulate runs the model over the batch, one micro-batch after another, and
// calls after, where given, behind each.
func (l *Learner) accumulate(ctx context.Context, b batch.Batch, o batch.Objective, trains bool, after func(*graph, []batch.Row) error) (sums, error) {
	var total sums
	kind, err := parseObjective(o)
	if err != nil {
		return total, err
	}
	cfg := l.weights.cfg
	if err := cfg.checkBatch(b, kind); err != nil {
		return total, err
	}
	terms := single(o.Loss)
	count := loss.Count{Tokens: b.Tokens, Rows: len(b.Rows)}
	teaching, silent := partition(b.Rows, kind == clipped && terms.KL.Coef == 0)
	for _, part := range []struct {
		rows   []batch.Row
		trains bool
	}{{teaching, trains}, {silent, false}} {
		for _, micro := range split(cfg.bundles(part.rows, l.opts.MicroTokens), l.opts.MicroTokens) {
			if err := ctx.Err(); err != nil {
				return total, fmt.Errorf("learner stopped between micro-batches: %w", err)
			}
			g, err := l.prepare(ctx, micro, graphKind{trains: part.trains})
			if err != nil {
				return total, err
			}
			g.feed.kind, g.feed.loss, g.feed.count, g.feed.inverse = kind, terms, count, float32(1/cmp.Or(o.Temperature, 1))
			if err := l.refer(ctx, g.feed, micro); err != nil {
				return total, err
			}
			if err := runChecked(g, rowsOf(micro), after); err != nil {
				return total, err
			}
			total.add(g.feed.sums)
		}
	}
	return total, nil
}

// runChecked runs a prepared graph and holds its loss to be finite.
func runChecked(g *graph, rows []batch.Row, after func(*graph, []batch.Row) error) error {
	if err := g.run(); err != nil {
		return fmt.Errorf("model over %s: %w", rowIDs(rows), err)
	}
	if !finite(g.feed.sums.loss) {
		return broken("loss is %v in %s; nothing was changed", g.feed.sums.loss, g.culprits(rows))
	}
	if after == nil {
		return nil
	}
	return after(g, rows)
}

// refer gives the feed the log-probs of its targets under the first weights,
// where the loss needs them: one forward pass.
func (l *Learner) refer(ctx context.Context, f *feed, micro []bundle) error {
	if f.kind == likelihood || f.loss.KL.Coef == 0 {
		return nil
	}
	g, err := l.prepare(ctx, micro, graphKind{first: true})
	if err != nil {
		return err
	}
	g.feed.kind, g.feed.count, g.feed.inverse = likelihood, f.count, f.inverse
	if err := runChecked(g, rowsOf(micro), nil); err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	for i, lp := range g.logprobs[:f.targets] {
		f.target[i].reference = lp
	}
	return nil
}

// partition drops rows without a loss token. Where rows of advantage 0 teach
// nothing, it sets them apart: their gradient is exactly 0, so they are only
// evaluated, for the statistics.
func partition(rows []batch.Row, needsAdvantage bool) (teaching, silent []batch.Row) {
	for _, r := range rows {
		switch {
		case lossTokens(r) == 0:
		case needsAdvantage && r.Advantage == 0:
			silent = append(silent, r)
		default:
			teaching = append(teaching, r)
		}
	}
	return teaching, silent
}

// prepare returns a graph with bundles loaded into its feed.
func (l *Learner) prepare(ctx context.Context, micro []bundle, kind graphKind) (*graph, error) {
	pictures, patches, err := l.fetch(ctx, rowsOf(micro))
	if err != nil {
		return nil, err
	}
	tokens, targets := 0, 0
	for _, b := range micro {
		tokens += b.tokens()
		targets += b.targets()
	}
	kind.sees = patches > 0
	g, err := l.graphFor(kind, max(tokens, targets), patches)
	if err != nil {
		return nil, err
	}
	return g, g.feed.load(l.weights.cfg, micro, pictures)
}

// graphFor returns a graph of that kind with room for the tokens and patches,
// replacing one that has become too small.
func (l *Learner) graphFor(kind graphKind, tokens, patches int) (*graph, error) {
	old := l.graphs[kind]
	if old != nil && old.rows >= tokens && old.patches >= patches {
		return old, nil
	}
	tokens, patches = bucket(tokens, l.opts.MicroTokens), bucket(patches, 256)
	if old != nil {
		tokens, patches = max(tokens, old.rows), max(patches, old.patches)
		old.close()
		delete(l.graphs, kind)
	}
	weights, gradient := l.weights, []float32(nil)
	if kind.first {
		weights = l.first
	}
	if kind.trains {
		gradient = l.gradient
	}
	g, err := newGraph(weights, gradient, l.opts.Threads, tokens, patches)
	if err == nil {
		l.graphs[kind] = g
	}
	return g, err
}

// bucket rounds n up to least times a power of two; 0 stays.
func bucket(n, least int) int {
	if n == 0 {
		return 0
	}
	for least < n {
		least *= 2
	}
	return least
}

func (c Config) checkBatch(b batch.Batch, kind objectiveKind) error {
	tokens := 0
	for _, r := range b.Rows {
		if err := c.checkRow(r, kind); err != nil {
			return err
		}
		tokens += lossTokens(r)
	}
	switch {
	case tokens == 0:
		return fmt.Errorf("batch of %d rows has no loss token", len(b.Rows))
	case tokens != b.Tokens:
		return fmt.Errorf("batch says %d loss tokens, its rows have %d", b.Tokens, tokens)
	}
	return nil
}

// fetch returns the rows' pictures by digest and how many patches they have.
func (l *Learner) fetch(ctx context.Context, rows []batch.Row) (map[string]picture, int, error) {
	found, patches := map[string]picture{}, 0
	for _, r := range rows {
		for _, use := range r.Images {
			if _, ok := found[use.SHA256]; ok {
				continue
			}
			p, err := l.picture(ctx, use.SHA256, use.Processor)
			if err != nil {
				return nil, 0, fmt.Errorf("row %s: image %.12s: %w", r.ID, use.SHA256, err)
			}
			found[use.SHA256] = p
			patches += p.grid[0] * p.grid[1] * p.grid[2]
		}
	}
	return found, patches, nil
}

func (l *Learner) picture(ctx context.Context, digest, processor string) (picture, error) {
	if l.opts.Processor == nil || l.opts.Images == nil {
		return picture{}, errors.New("the learner was made without images")
	}
	if own := l.opts.Processor.Hash(); processor != "" && processor != own {
		return picture{}, fmt.Errorf("the policy saw it through processor %s, the learner has %s", processor, own)
	}
	if p, ok := l.pictures.get(digest); ok {
		return p, nil
	}
	data, err := l.opts.Images(ctx, digest)
	if err != nil {
		return picture{}, err
	}
	patches, grid, err := l.opts.Processor.Process(data)
	if err != nil {
		return picture{}, err
	}
	p := picture{patches, grid}
	if err := l.weights.cfg.Vision.checkPicture(p); err != nil {
		return picture{}, err
	}
	l.pictures.put(digest, p)
	return p, nil
}

func (v VisionConfig) checkPicture(p picture) error {
	if err := v.checkGrid(p.grid); err != nil {
		return err
	}
	if want := p.grid[0] * p.grid[1] * p.grid[2] * v.PatchDim(); len(p.patches) != want {
		return fmt.Errorf("%d patch values for grid %v, want %d: the processor's patch size is not the model's", len(p.patches), p.grid, want)
	}
	return nil
}

// culprits names the rows with a log-prob that is not finite, or all.
func (g *graph) culprits(rows []batch.Row) string {
	var bad []batch.Row
	i := 0
	for _, r := range rows {
		n := lossTokens(r)
		if slices.ContainsFunc(g.logprobs[i:i+n], func(lp float32) bool { return !finite(float64(lp)) }) {
			bad = append(bad, r)
		}
		i += n
	}
	if len(bad) == 0 {
		bad = rows
	}
	return rowIDs(bad)
}

func rowIDs(rows []batch.Row) string {
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	return "rows " + strings.Join(ids, ", ")
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func (s *sums) add(o sums) {
	s.loss += o.loss
	s.entropy += o.entropy
	s.kl += o.kl
	s.diff += o.diff
	s.low += o.low
	s.high += o.high
	s.reference += o.reference
	s.weight += o.weight
}

// stats turns sums over a batch into what a learner reports.
func (s sums) stats(b batch.Batch, o batch.Objective) batch.Stats {
	n := float64(b.Tokens)
	st := batch.Stats{
		Loss: s.loss, Entropy: s.entropy / n, ApproxKL: s.kl / n, LogpDiff: s.diff / n,
		ClipLow: float64(s.low) / n, ClipHigh: float64(s.high) / n, Tokens: b.Tokens,
	}
	for _, r := range b.Rows {
		st.AllTokens += len(r.IDs)
	}
	if o.Kind == "grpo" && o.Loss.KL.Coef > 0 {
		st.KL = s.reference / n
	}
	if o.Kind == "grpo" && o.Loss.Correction.Level != loss.NoCorrection {
		st.Weight = s.weight / n
	}
	return st
}
