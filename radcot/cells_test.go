package radcot

import (
	"image"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"xragent/dataset/phantom"
	"xragent/rollout"
)

// A window around a part of a finding has a cell that names it, and a window
// of a film without findings names none.
func TestCells(t *testing.T) {
	words := map[string][]string{
		phantom.Nodule: {"smooth", "spiculated"}, phantom.Consolidation: {"opaque"}, phantom.Effusion: {"fluid"}, phantom.Scar: {"scar"},
		phantom.Pneumothorax: {"line"}, "tube": {"tube", "tip"}, phantom.TubeMalposition: {"tube", "tip"},
	}
	cfg, named, clear := phantom.Config{Seed: 5, Train: 400}, map[string]int{}, 0
	for i := range cfg.Train {
		truth := phantom.Describe(cfg, i).Truth
		if truth.View == phantom.Lateral {
			continue
		}
		a, rng := NewAtlas(truth), rand.New(rand.NewPCG(1, uint64(i)))
		if len(truth.Findings) == 0 {
			clear++
			for _, w := range a.Cells(a.Window(rng)) {
				if slices.Index(cellWords[:], w) < cellHeart {
					t.Errorf("study %d has no finding, but a cell with %s", i, w)
				}
			}
			continue
		}
		f := truth.Findings[rng.IntN(len(truth.Findings))]
		seen := a.points(f)
		if len(seen) == 0 || words[f.Name] == nil {
			continue
		}
		p := seen[rng.IntN(len(seen))]
		x, y := max(0, min(phantom.Size-128, p.X-64)), max(0, min(phantom.Size-128, p.Y-64))
		cells := a.Cells(image.Rect(x, y, x+128, y+128))
		if !slices.ContainsFunc(words[f.Name], func(w string) bool { return slices.Contains(cells, w) }) {
			t.Errorf("study %d: no cell around (%d, %d) names the %s: %v", i, p.X, p.Y, f.Name, cells)
		}
		named[f.Name]++
	}
	for name := range words {
		if named[name] == 0 {
			t.Errorf("no %s was met", name)
		}
	}
	if clear == 0 {
		t.Error("no film without findings was met")
	}
}

// What is drawn brighter than its surroundings stands where the atlas says.
func TestAtlasMeetsThePixels(t *testing.T) {
	cfg, met := phantom.Config{Seed: 6, Train: 600}, 0
	for i := range cfg.Train {
		truth := phantom.Describe(cfg, i).Truth
		if len(truth.Findings) != 1 || truth.View == phantom.Lateral || !truth.Findings[0].Large() {
			continue
		}
		f := truth.Findings[0]
		if f.Name != phantom.Nodule && f.Name != phantom.Consolidation {
			continue
		}
		img, a := phantom.Render(truth), NewAtlas(truth)
		var in, around, n, m float64
		for y := max(0, int(f.Y)-90); y < min(phantom.Size, int(f.Y)+90); y++ {
			for x := max(0, int(f.X)-90); x < min(phantom.Size, int(f.X)+90); x++ {
				switch {
				case a.finding(f, x, y) >= 0:
					in, n = in+float64(img.GrayAt(x, y).Y), n+1
				case a.tissue(x, y) == cellLung:
					around, m = around+float64(img.GrayAt(x, y).Y), m+1
				}
			}
		}
		if met++; in/n < around/m+15 {
			t.Errorf("study %d: %s has mean %.0f, the lung around it %.0f", i, f.Name, in/n, around/m)
		}
	}
	if met < 10 {
		t.Errorf("only %d films were looked at", met)
	}
}

// Every token that shows a finding is told its own cell's, some of the others
// theirs, and the words are told apart.
func TestGridRow(t *testing.T) {
	d := drillDeps(t)
	use := func(name string) rollout.ImageUse {
		return rollout.ImageUse{SHA256: strings.Repeat(name, 64), Grid: [3]int{1, 4, 40}}
	}
	var cells []string
	for i := range 40 {
		cells = append(cells, cellWords[i%len(cellWords)])
	}
	row, err := GridRow("x", []Grid{{use("a"), cells}, {use("b"), cells}}, 2, d)
	if err != nil {
		t.Fatal(err)
	}
	next, common, told := 0, 0, 0
	for i, id := range row.IDs[:len(row.IDs)-1] {
		if id != d.Codec.ImagePad() {
			if row.LossMask[i+1] == 1 {
				t.Errorf("position %d is no image's, but told something", i)
			}
			continue
		}
		word := cells[next%len(cells)]
		next++
		if row.LossMask[i+1] == 1 && row.Target(i+1) != d.cellIDs()[word] {
			t.Errorf("token %d is told %d, want that of %s", next, row.Target(i+1), word)
		}
		switch {
		case plain(word):
			common++
			told += int(row.LossMask[i+1])
		case row.LossMask[i+1] == 0:
			t.Errorf("token %d shows %s and is not told", next, word)
		}
	}
	if next != 80 || len(row.Images) != 2 || told == 0 || told > common/2 {
		t.Errorf("%d tokens of %d images, %d of %d without finding told", next, len(row.Images), told, common)
	}
	ids := map[int32]bool{}
	for _, id := range d.cellIDs() {
		ids[id] = true
	}
	if len(ids) != len(cellWords) {
		t.Errorf("%d ids for %d words", len(ids), len(cellWords))
	}
	if _, err := GridRow("x", []Grid{{use("a"), cells[:3]}}, 2, d); err == nil {
		t.Error("three cells were enough for forty tokens")
	}
}
