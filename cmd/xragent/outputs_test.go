package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No command writes over a film that it was given, nor two films' files over
// each other: it says so before it begins.
func TestOutputsAreKeptApart(t *testing.T) {
	dir := t.TempDir()
	film, _ := plainFilm(t, dir)
	other := filepath.Join(dir, "other", "film.png")
	text, err := os.ReadFile(film)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{other, filepath.Join(dir, "film.png.png"), filepath.Join(dir, "film_heart.png")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"measure", "--overlay", dir, film}, "would be overwritten"},
		{[]string{"measure", "--overlay", filepath.Join(dir, "link"), film}, "would be overwritten"},
		{[]string{"measure", "--masks", dir, "--masks-from", dir, film}, "would be overwritten"},
		{[]string{"measure", "--masks", dir, film, filepath.Join(dir, "film_heart.png")}, "would be overwritten"},
		{[]string{"measure", "--masks", out, film, other}, "would both be written"},
		{[]string{"measure", "--masks", out, "--overlay", out, film, filepath.Join(dir, "film_heart.png")}, "would both be written"},
		{[]string{"inspect", "--png", dir, film, filepath.Join(dir, "film.png.png")}, "would be overwritten"},
		{[]string{"inspect", "--png", out, film, other}, "would both be written"},
		{[]string{"tools", "call", "roi_crop", `{"region":"heart"}`, "--image", film, "--out", film}, "would be overwritten"},
	} {
		var stdout, stderr bytes.Buffer
		if code := Main(c.args, &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: exit status %d, %q, want %q", c.args, code, stderr.String(), c.want)
		}
	}
	if now, err := os.ReadFile(film); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the film was changed (%v)", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a folder was made for what was refused")
	}
}
