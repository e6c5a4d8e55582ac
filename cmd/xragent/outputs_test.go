package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// A file is replaced as a whole or not at all, and what is no file stays what it
// is.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path, pipe := filepath.Join(dir, "out.png"), filepath.Join(dir, "pipe")
	if err := writeFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	aside := fmt.Sprintf("%s.%d.partial", path, os.Getpid())
	if err := os.MkdirAll(filepath.Join(aside, "full"), 0o755); err != nil { // as little can be written as on a disk that is full
		t.Fatal(err)
	}
	if err := writeFile(path, []byte("new")); err == nil {
		t.Error("no error where nothing can be written")
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != "old" {
		t.Errorf("after a failure: %q, %v; want what was there", now, err)
	}
	other := filepath.Join(dir, "other")
	if err := errors.Join(os.RemoveAll(aside), os.WriteFile(other, []byte("mine"), 0o600), os.Symlink(other, aside), writeFile(path, []byte("new"))); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "mine" {
		t.Errorf("behind a link: %q, %v; want what was there", text, err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- writeFile(pipe, []byte("through")) }()
	read, err := os.ReadFile(pipe)
	if err := errors.Join(err, <-wrote); err != nil || string(read) != "through" {
		t.Errorf("a pipe got %q, %v", read, err)
	}
	if info, err := os.Stat(pipe); err != nil || info.Mode().IsRegular() {
		t.Errorf("the pipe was replaced (%v)", err)
	}
}
