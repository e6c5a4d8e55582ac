package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xragent/dataset/phantom"
	"xragent/rollout"
	"xragent/toolserver/measure"
)

// plainFilm writes the first sound frontal phantom and returns its path and its
// true ratio.
func plainFilm(t *testing.T, dir string) (string, float64) {
	t.Helper()
	cfg := phantom.Config{Seed: 21, Train: 200}
	for i := range cfg.Train {
		truth := phantom.Describe(cfg, i).Truth
		if truth.View != phantom.PA || truth.Fault != phantom.NoFault || len(truth.Findings) > 0 {
			continue
		}
		s := phantom.Generate(cfg, i)
		file, err := s.EncodePNG()
		path := filepath.Join(dir, "film.png")
		if err == nil {
			err = os.WriteFile(path, file, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path, truth.Apparent.CTR
	}
	t.Fatal("no plain film among 200")
	return "", 0
}

// TestMeasureWithoutMasks holds that a plain file is segmented and measured by
// the embedded network, that masks and picture are written, and that a broken
// file beside it stops nothing.
func TestMeasureWithoutMasks(t *testing.T) {
	dir := t.TempDir()
	path, want := plainFilm(t, dir)
	broken := filepath.Join(dir, "broken.png")
	if err := os.WriteFile(broken, []byte("no picture"), 0o600); err != nil {
		t.Fatal(err)
	}
	masks, overlay := filepath.Join(dir, "masks"), filepath.Join(dir, "overlay")
	var out, complaints bytes.Buffer
	code := Main([]string{"measure", "--json", "--view", "PA", "--masks", masks, "--overlay", overlay, path, broken}, &out, &complaints)
	if code != exitPartly {
		t.Fatalf("exit status %d, want %d: %s", code, exitPartly, complaints.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var rows [2]measured
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &rows[i]); err != nil {
			t.Fatal(err)
		}
	}
	if len(lines) != 2 || rows[1].Error == "" || rows[0].Error != "" || rows[0].CTR == nil {
		t.Fatalf("%s", out.String())
	}
	if d := *rows[0].CTR - want; d < -0.05 || d > 0.05 {
		t.Errorf("ratio %.3f, want %.3f within 0.05", *rows[0].CTR, want)
	}
	for _, name := range []string{"film_right_lung.png", "film_left_lung.png", "film_heart.png"} {
		m := readPNG(t, filepath.Join(masks, name)).(*image.Gray)
		inside, outside := bytes.Count(m.Pix, []byte{255}), bytes.Count(m.Pix, []byte{0})
		if m.Rect.Dx() != phantom.Size || m.Rect.Dy() != phantom.Size || inside == 0 || inside+outside != len(m.Pix) {
			t.Errorf("%s: %v with %d pixels of 255 and %d of 0, want those only and the film's size", name, m.Rect, inside, outside)
		}
	}
	readPNG(t, filepath.Join(overlay, "film.png"))
	if rows[0].CTRCategory == "" || rows[0].CTRNote != "" {
		t.Errorf("a PA film has the category %q, note %q", rows[0].CTRCategory, rows[0].CTRNote)
	}
}

// TestMeasureWithoutProjection holds that a film of which nothing says PA or AP
// gets a number without a category, and a word about it.
func TestMeasureWithoutProjection(t *testing.T) {
	path, _ := plainFilm(t, t.TempDir())
	var out, complaints bytes.Buffer
	if code := Main([]string{"measure", "--json", path}, &out, &complaints); code != 0 {
		t.Fatalf("exit status %d: %s", code, complaints.String())
	}
	var row measured
	if err := json.Unmarshal(out.Bytes(), &row); err != nil {
		t.Fatal(err)
	}
	if row.CTR == nil || row.View != "frontal" || row.ViewSource != "pixels" || row.CTRCategory != "" || !strings.Contains(row.CTRNote, "nothing says PA or AP") {
		t.Errorf("%s", out.String())
	}
}

func readPNG(t *testing.T, path string) image.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return img
}

// TestMeasureNetworkFlag holds that none withholds and that a file that is no
// network is named.
func TestMeasureNetworkFlag(t *testing.T) {
	path, _ := plainFilm(t, t.TempDir())
	var out, complaints bytes.Buffer
	if code := Main([]string{"measure", "--network", "none", path}, &out, &complaints); code != 0 || !strings.Contains(out.String(), "segmenter_domain") {
		t.Errorf("none: exit status %d, %s%s", code, out.String(), complaints.String())
	}
	if code := Main([]string{"measure", "--network", path, path}, &out, &complaints); code != exitUsage || !strings.Contains(complaints.String(), "--network: "+path) {
		t.Errorf("a film for weights: exit status %d, %s", code, complaints.String())
	}
}

// TestMeasureServerFlag holds that a server that does not answer fails the file,
// with a word, and that a choice without effect is refused.
func TestMeasureServerFlag(t *testing.T) {
	path, _ := plainFilm(t, t.TempDir())
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--server", "http://127.0.0.1:1"}, exitPartly, "second look: segmenter: server http://127.0.0.1:1: "},
		{[]string{"--server", "http://127.0.0.1:1", "--network", "remote"}, exitPartly, "failed: segmenter: server http://127.0.0.1:1: "},
		{[]string{"--network", "remote"}, exitUsage, "no server is configured"},
		{[]string{"--server", "http://h", "--network", "none"}, exitUsage, "set network to remote"},
		{[]string{"--server", "ftp://h"}, exitUsage, "field url"},
		{[]string{"--server", "http://h", "--phantom"}, exitUsage, "--phantom excludes"},
		{[]string{"--server-key-env", "KEY"}, exitUsage, "no effect"},
	} {
		var out, complaints bytes.Buffer
		code := Main(slices.Concat([]string{"measure"}, tt.args, []string{path}), &out, &complaints)
		if code != tt.code || !strings.Contains(out.String()+complaints.String(), tt.want) {
			t.Errorf("%v: exit status %d, %s%s; want %d, %s", tt.args, code, out.String(), complaints.String(), tt.code, tt.want)
		}
	}
}

// TestViewFromPixels holds that the chest's pattern without lungs and heart in
// their places is no frontal chest.
func TestViewFromPixels(t *testing.T) {
	for _, tt := range []struct {
		pattern, lungs, polarity, upright rollout.Verdict
		want                              string
	}{
		{rollout.Pass, rollout.Pass, rollout.Pass, rollout.Pass, "frontal"},
		{rollout.Pass, rollout.Fail, "", "", ""}, // a leg
		{rollout.Pass, rollout.Pass, rollout.Unknown, rollout.Pass, ""},
		{rollout.Pass, rollout.Pass, rollout.Pass, rollout.Fail, ""},
		{rollout.Unknown, rollout.Pass, rollout.Pass, rollout.Pass, ""},
		{rollout.Fail, rollout.Pass, rollout.Pass, rollout.Pass, "OTHER"},
	} {
		b := rollout.Bundle{Measurements: []rollout.Measurement{{Checks: []rollout.Check{{Name: "chest_pattern", Verdict: tt.pattern},
			{Name: "lungs_found", Verdict: tt.lungs}, {Name: "polarity", Verdict: tt.polarity}, {Name: "upright", Verdict: tt.upright}}}}}
		if got := viewFromPixels(b); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// stopAfter cancels a context once something has been written.
type stopAfter struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (s *stopAfter) Write(p []byte) (int, error) {
	s.cancel()
	return s.Buffer.Write(p)
}

// An interrupt keeps the films that are measured, and says how many are not.
func TestMeasureInterrupted(t *testing.T) {
	film, _ := plainFilm(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	out := &stopAfter{cancel: cancel}
	f := measureFlags{asJSON: true, variant: measure.ColumnExtent, gate: string(measure.AllOrNothing), network: "none"}
	err := measureFiles(ctx, out, f, []string{film, film, film})
	if !errors.As(err, new(stoppedError)) || !strings.Contains(err.Error(), "1 of 3 files") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("error %v, printed %q; want one line, and how many of the files it is", err, out.String())
	}
}
