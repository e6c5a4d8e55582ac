package toolserver

import (
	"context"
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
	"xragent/toolserver/measure"
)

// measured returns the bundle of one file without anything that a tag says, but
// what view does.
func measured(t *testing.T, s *Server, file []byte, view string) rollout.Bundle {
	t.Helper()
	meta := dataset.Image{Domain: "radiograph", View: view}
	if view != "" {
		meta.ViewFrom = "label"
	}
	b, err := s.Measure(context.Background(), [][]byte{file}, []dataset.Image{meta})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// verdictOf returns a check's verdict, "" where it was not made.
func verdictOf(b rollout.Bundle, name string) rollout.Verdict {
	for _, m := range b.Measurements {
		for _, c := range m.Checks {
			if c.Name == name {
				return c.Verdict
			}
		}
	}
	return ""
}

// TestLateralFromPixels holds that nothing is shown of lateral films that no tag
// names so, and that their pixels do not pass for a frontal chest. There are no
// real lateral films here: these are synthetic.
func TestLateralFromPixels(t *testing.T) {
	want := 12
	if *realFaults {
		want = 299
	}
	world := phantom.Config{Seed: 5, Train: 40 * want}
	s := serverFor(t, func(c *Config) { c.Gate = measure.PerMeasurement })
	n, patternPasses, admitted := 0, 0, 0
	for i := 0; n < want; i++ {
		if phantom.Describe(world, i).Truth.View != phantom.Lateral {
			continue
		}
		n++
		b := measured(t, s, encode(t, phantom.Generate(world, i).Image), "")
		if verdictOf(b, "chest_pattern") == rollout.Pass {
			patternPasses++
		}
		if anyAdmitted(b) {
			admitted++
			t.Logf("film %d: %+v", i, b)
		}
	}
	t.Logf("%d lateral phantoms: chest_pattern passes %d, something shown of %d", n, patternPasses, admitted)
	if admitted > 0 {
		t.Errorf("something is shown of %d of %d lateral films", admitted, n)
	}
}

// TestNoProjectionNoCategory holds that a ratio has no category where nobody
// says how the film was taken: not at all, not for supine films, and not in the
// band in which an AP film's may mean either.
func TestNoProjectionNoCategory(t *testing.T) {
	images, _, _ := plainFilm(t)
	s := serverFor(t, nil)
	for _, view := range []string{"", "AP supine", "frontal", "PA"} {
		b := measured(t, s, images[0], view)
		if got := b.Measurements[0].Category; !b.Measurements[0].Computed || (got == "") == (view == "PA") {
			t.Errorf("view %q: category %q of %+v", view, got, b.Measurements[0])
		}
	}
}

// TestHannoverCategories counts the heart's categories of real films, as AP, as
// AP supine, and with nothing said: none may have a PA film's.
func TestHannoverCategories(t *testing.T) {
	if !*realFaults {
		t.Skip("not checked: categories of hannover's AP films; -radiographs checks them")
	}
	rows := hannoverViews(t)
	films, names := readFilms(t, "hannover")
	s := serverFor(t, func(c *Config) { c.Gate = measure.PerMeasurement })
	count := map[string]map[string]int{}
	for i, name := range names {
		if !strings.HasPrefix(rows[name], "AP") {
			continue
		}
		for _, view := range []string{"AP", "AP supine", ""} {
			m := measured(t, s, encode(t, films[i]), view).Measurements[0]
			if count[view] == nil {
				count[view] = map[string]int{}
			}
			count[view][m.Category]++
			likePA := m.Category == "borderline" || m.Category == "enlarged" && m.Value < 0.60 || m.Category == "normal" && m.Value >= 0.50
			if m.Computed && (likePA || view != "AP" && m.Category != "") {
				t.Errorf("%s as %q: ratio %.3f has the category %q", name, view, m.Value, m.Category)
			}
		}
	}
	t.Logf("categories of AP films: %v", count)
}

// hannoverViews are the films' views as their source states them.
func hannoverViews(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open(filepath.Join(sharedFilms, "../meta/hannover_metadata.csv"))
	if err != nil {
		t.Skipf("not checked: views of real films; %v", err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range rows[1:] {
		out[r[0]] = r[5]
	}
	return out
}
