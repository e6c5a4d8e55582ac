package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table in docs/study.md")

// The page about the study shows the table that comes of the outcomes beside
// it, judged by this program.
func TestPublishedStudy(t *testing.T) {
	const page = "../../docs/study.md"
	dir := t.TempDir()
	for _, archive := range []string{"main", "ablations"} {
		unpack(t, "../../docs/study/"+archive+".tar.gz", dir)
	}
	l, err := newLab("../../configs/study/main.yaml", studyFlags{dir: dir}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.file = "configs/study/main.yaml" // as from the project's root
	if err := l.report(io.Discard); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(dir, "main", "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- table of docs/study/*.tar.gz -->\n", "<!-- end of the table -->"
	before, rest, _ := strings.Cut(string(text), begin)
	was, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no %q and %q", page, begin, end)
	case was == string(table):
	case !*update:
		t.Errorf("%s shows another table than its outcomes give: look at the difference, then go test ./cmd/xragent -run PublishedStudy -update", page)
	default:
		if err := os.WriteFile(page, []byte(before+begin+string(table)+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}
