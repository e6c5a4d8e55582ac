package embedded

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"xragent/trainer/batch"
	"xragent/trainer/loss"
)

// rollouts returns n rows that share the first shared ids of one row.
func rollouts(cfg Config, n, shared, length, image int) []batch.Row {
	var rows []batch.Row
	for i := range n {
		r := testRow(cfg, 100, length, image)
		r.ID = fmt.Sprintf("rollout%d", i)
		for t := shared; t < len(r.IDs); t++ {
			r.IDs[t] = int32((i + 1) * (t + 1) % 59)
		}
		r.Advantage = float64(i) - 1.5
		rows = append(rows, r)
	}
	return rows
}

// TestBundles works the joining of rows.
func TestBundles(t *testing.T) {
	cfg := tiny()
	a := rollouts(cfg, 3, 30, 40, 1)
	b := rollouts(cfg, 2, 25, 40, 2)
	longer := slices.Clone(a[0].IDs)
	longer = append(longer, 1, 2, 3)
	twin := a[0]
	twin.IDs = longer
	for name, c := range map[string]struct {
		rows  []batch.Row
		limit int
		want  string // rows and prefix of each bundle
	}{
		"group":           {a, 1000, "3/30"},
		"other image":     {append(slices.Clone(a), b...), 1000, "3/30 2/25"},
		"no room":         {a, 70, "2/30 1/0"},
		"one in other":    {[]batch.Row{a[0], twin}, 1000, "2/49"},
		"other in one":    {[]batch.Row{twin, a[0]}, 1000, "2/49"},
		"nothing alike":   {[]batch.Row{testRow(cfg, 1, 40, -1), testRow(cfg, 2, 40, -1)}, 1000, "1/0 1/0"},
		"less than worth": {append(slices.Clone(a), rollouts(cfg, 1, 17, 40, 1)...), 1000, "3/30 1/0"},
	} {
		got := ""
		for i, b := range cfg.bundles(c.rows, c.limit) {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%d/%d", len(b.rows), b.prefix)
		}
		if got != c.want {
			t.Errorf("%s: bundles %s, want %s", name, got, c.want)
		}
	}
}

// TestBundlesKeepRows holds that bundles and micro-batches hold every row once,
// in order, within their limit.
func TestBundlesKeepRows(t *testing.T) {
	cfg := tiny()
	rapid.Check(t, func(t *rapid.T) {
		var rows []batch.Row
		for range rapid.IntRange(1, 5).Draw(t, "groups") {
			n, shared := rapid.IntRange(1, 4).Draw(t, "rows"), rapid.IntRange(0, 40).Draw(t, "shared")
			rows = append(rows, rollouts(cfg, n, shared, rapid.IntRange(45, 60).Draw(t, "length"), rapid.IntRange(-1, 1).Draw(t, "image"))...)
		}
		limit := rapid.IntRange(70, 300).Draw(t, "limit")
		var got []batch.Row
		for _, micro := range split(cfg.bundles(rows, limit), limit) {
			tokens, targets := 0, 0
			for _, b := range micro {
				tokens, targets = tokens+b.tokens(), targets+b.targets()
			}
			if tokens > limit || targets > limit {
				t.Fatalf("micro-batch of %d tokens and %d targets, limit %d", tokens, targets, limit)
			}
			got = append(got, rowsOf(micro)...)
		}
		if len(got) != len(rows) {
			t.Fatalf("%d rows of %d", len(got), len(rows))
		}
		for i := range got {
			if &got[i].IDs[0] != &rows[i].IDs[0] {
				t.Fatalf("row %d is another", i)
			}
		}
	})
}

// TestSharedPrefix holds log-probs, loss and gradient to be the same whether
// the common prefix of rollouts is computed once or for each.
func TestSharedPrefix(t *testing.T) {
	cfg := tiny()
	w := Init(cfg, 1)
	rows := append(rollouts(cfg, 4, 30, 90, 1), rollouts(cfg, 3, 70, 120, -1)...)
	for i := range rows { // a scored prefix, too
		rows[i].LossMask[20] = 1
	}
	rows[2].LossMask[20] = 0
	apart := make([]bundle, len(rows))
	for i := range rows {
		apart[i] = bundle{rows: rows[i : i+1]}
	}
	var results [2]*graph
	var gradients [2][]float32
	for k, bs := range [][]bundle{cfg.bundles(rows, 2000), apart} {
		gradients[k] = make([]float32, w.Len())
		g, err := newGraph(w, gradients[k], 2, 1000, 256)
		if err != nil {
			t.Fatal(err)
		}
		processor := seedProcessor{cfg.Vision.PatchDim(), [3]int{1, 4, 6}}
		patches, grid, _ := processor.Process(make([]byte, 8))
		if err := g.feed.load(cfg, bs, map[string]picture{"image1": {patches, grid}}); err != nil {
			t.Fatal(err)
		}
		g.feed.kind, g.feed.loss, g.feed.count = clipped, loss.Default(), loss.Count{Tokens: 100, Rows: len(rows)}
		if err := g.run(); err != nil {
			t.Fatal(err)
		}
		results[k] = g
	}
	shared, whole := results[0].feed, results[1].feed
	if shared.rows >= whole.rows-150 || shared.targets != whole.targets {
		t.Errorf("%d rows and %d targets shared, %d and %d apart", shared.rows, shared.targets, whole.rows, whole.targets)
	}
	if d := worstDifference(results[0].logprobs, results[1].logprobs[:whole.targets]); d > 1e-5 {
		t.Errorf("log-probs differ by up to %.2g", d)
	}
	if math.Abs(shared.sums.loss-whole.sums.loss) > 1e-6 {
		t.Errorf("loss %v shared, %v apart", shared.sums.loss, whole.sums.loss)
	}
	difference := slices.Clone(gradients[0])
	for i, g := range gradients[1] {
		difference[i] -= g
	}
	if d := norm(1, difference) / norm(1, gradients[1]); d > 1e-5 {
		t.Errorf("gradients differ by %.2g of their norm", d)
	}
}

// TestSilentRows holds that rows of advantage 0 count in the statistics and
// move nothing.
func TestSilentRows(t *testing.T) {
	cfg := tiny()
	rows := rollouts(cfg, 4, 30, 50, 1)
	for i := range rows {
		rows[i].Advantage = 0
	}
	l := newTestLearner(t, cfg, 1, 100)
	o := objective("grpo", 1e-3)
	o.Weight.Decay = 0
	before := l.weights.Digest()
	st := step(t, l, batchOf(rows...), o)
	if st.Loss != 0 || st.GradNorm != 0 || st.Entropy < 1 || st.LogpDiff == 0 || st.Tokens != 100 {
		t.Errorf("statistics %+v", st)
	}
	if l.weights.Digest() != before {
		t.Error("the weights moved")
	}
	if len(l.graphs) != 1 || l.graphs[graphKind{trains: false, sees: true}] == nil {
		t.Error("a backward pass was run for advantage 0")
	}
}
