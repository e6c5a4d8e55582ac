package embedded

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// whole returns one span of everything: ids behind an empty cache, with the
// images' features where they stand.
func whole(t testing.TB, d *decoder, ids []int32, pictures []picture) span {
	t.Helper()
	var grids [][3]int
	var visual []visualRow
	var rows []visualRow
	for _, p := range pictures {
		grids = append(grids, p.grid)
		f := d.tower.features(p)[0]
		for i := range len(f.merged) / d.cfg.Text.HiddenSize {
			rows = append(rows, visualRow{f, i})
		}
	}
	for _, id := range ids {
		var v visualRow
		if id == d.cfg.ImageTokenID {
			v, rows = rows[0], rows[1:]
		}
		visual = append(visual, v)
	}
	pos, _, err := d.cfg.Positions(ids, grids)
	if err != nil {
		t.Fatal(err)
	}
	return span{cache: (&kvPool{cfg: d.cfg.Text}).newCache(len(ids)), ids: ids, pos: pos, visual: visual, wanted: len(ids)}
}

func (g *golden) pictures(cfg Config) []picture {
	var ps []picture
	pixels := g.pixels
	for _, grid := range g.Grids {
		n := grid[0] * grid[1] * grid[2] * cfg.Vision.PatchDim()
		ps, pixels = append(ps, picture{pixels[:n], grid}), pixels[n:]
	}
	return ps
}

func TestDecoderGoldenLogits(t *testing.T) {
	goldens(t, func(t *testing.T, w *Weights, g golden) {
		d := newDecoder(w)
		got := d.forward(&workspace{}, []span{whole(t, d, g.ids, g.pictures(w.cfg))})
		if diff := worstDifference(got, g.logits); !(diff <= 1e-4) {
			t.Errorf("worst logit differs by %v", diff)
		}
	})
}

func goldenGreedy(t *testing.T, label, name string) []int32 {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "golden", label, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name   string
		Greedy []int32
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(cases, func(c struct {
		Name   string
		Greedy []int32
	}) bool {
		return c.Name == name
	})
	return cases[i].Greedy
}

func TestDecoderGoldenGreedy(t *testing.T) {
	goldens(t, func(t *testing.T, w *Weights, g golden) {
		want := goldenGreedy(t, strings.Split(t.Name(), "/")[1], g.Name)
		d, ws := newDecoder(w), &workspace{}
		s := whole(t, d, g.ids, g.pictures(w.cfg))
		s.cache, s.wanted = (&kvPool{cfg: w.cfg.Text}).newCache(len(g.ids)+len(want)), 1
		_, next, err := w.cfg.Positions(g.ids, g.Grids)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for range want {
			id := argmax(d.forward(ws, []span{s}))
			got = append(got, id)
			s.ids, s.pos, s.visual = []int32{id}, [][3]int32{{next, next, next}}, nil
			next++
		}
		if !slices.Equal(got, want) {
			t.Errorf("greedy ids %v, want %v", got, want)
		}
	})
}

// Rows pushed one at a time, in pieces, and beside others have the bits of one
// whole prefill.
func TestDecoderRule(t *testing.T) {
	goldens(t, func(t *testing.T, w *Weights, g golden) {
		d := newDecoder(w)
		s := whole(t, d, g.ids, g.pictures(w.cfg))
		want := slices.Clone(d.forward(&workspace{}, []span{s}))
		v := w.cfg.Text.VocabSize
		for _, step := range []int{1, 2, 7} {
			ws, pool := &workspace{}, &kvPool{cfg: w.cfg.Text}
			a, b := pool.newCache(len(g.ids)+40), pool.newCache(len(g.ids))
			for lo := 0; lo < len(g.ids); lo += step {
				hi := min(lo+step, len(g.ids))
				piece := span{cache: a, ids: g.ids[lo:hi], pos: s.pos[lo:hi], visual: s.visual[lo:hi], wanted: hi - lo}
				other := piece
				other.cache = b
				got := d.forward(ws, []span{piece, other})
				if !slices.Equal(got[:(hi-lo)*v], want[lo*v:hi*v]) || !slices.Equal(got[(hi-lo)*v:], want[lo*v:hi*v]) {
					t.Fatalf("rows %d to %d, pushed %d at a time, have other bits", lo, hi, step)
				}
			}
		}
	})
}

// A cache that begins with another's rows, shared or copied, is as good as its own.
func TestKVCacheExtends(t *testing.T) {
	w, cases := readGolden(t, "tied")
	d, g := newDecoder(w), cases[0]
	ids := slices.Concat(g.ids, g.ids, g.ids, g.ids, g.ids, g.ids, g.ids)[:6*16+5]
	s := whole(t, d, ids, nil)
	want := slices.Clone(d.forward(&workspace{}, []span{s}))
	v := w.cfg.Text.VocabSize
	for _, reused := range []int{1, 9, 16, 31, 40, len(ids) - 1} {
		c := s.cache.extend(len(ids)+3, reused)
		got := d.forward(&workspace{}, []span{{cache: c, ids: ids[reused:], pos: s.pos[reused:], wanted: len(ids) - reused}})
		if !slices.Equal(got, want[reused*v:]) {
			t.Errorf("a cache that begins with %d rows of another gives other bits", reused)
		}
		c.drop()
	}
	for chain, at := s.cache, 0; at < 6; at++ { // each with a part more, until parts are copied
		n := 16 * (at + 1)
		chain = chain.extend(len(ids), n)
		got := d.forward(&workspace{}, []span{{cache: chain, ids: ids[n:], pos: s.pos[n:], wanted: len(ids) - n}})
		if !slices.Equal(got, want[n*v:]) {
			t.Errorf("a chain of %d caches gives other bits", at+1)
		}
		if parts := len(chain.shared); parts > sharedParts {
			t.Errorf("a cache of %d parts", parts)
		}
	}
	if math.IsNaN(float64(want[0])) {
		t.Error("NaN")
	}
}

// What the tower makes of an image does not depend on the images beside it.
func TestTowerOfSeveralImages(t *testing.T) {
	goldens(t, func(t *testing.T, w *Weights, g golden) {
		d := newDecoder(w)
		images := slices.Repeat(g.pictures(w.cfg), 3)
		if len(images) == 0 {
			return
		}
		for i, f := range d.tower.features(images...) {
			alone := d.tower.features(images[i])[0]
			if !slices.Equal(f.merged, alone.merged) || !slices.EqualFunc(f.deep, alone.deep, slices.Equal) {
				t.Errorf("image %d of %d has other bits than alone", i+1, len(images))
			}
		}
	})
}
