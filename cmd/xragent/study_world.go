package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"xragent/dataset/phantom"
	"xragent/dataset/phantom/certify"
	"xragent/internal/blobs"
)

// A world is what a study's data are certified to be.
type world struct {
	generator   string // hash of the phantom generator; "" for other data
	certificate string // hash of the certificate, or "none"
	marks       []string
}

// findWorld holds the certificate, where the study names one, against the
// generator.
func (l *lab) findWorld() (world, error) {
	w := world{certificate: "none"}
	cfg, err := l.config(nil, "world", 1)
	if err != nil {
		return w, err
	}
	if cfg.Data.Source != "phantom" {
		return w, nil
	}
	w.generator = phantom.Hash()
	if l.spec.Certificate == "" {
		w.marks = append(w.marks, "the study names no certificate of the phantom world")
		return w, nil
	}
	if err := certify.Check(l.spec.Certificate, w.generator); err != nil {
		return w, fmt.Errorf("study %s: %w", l.spec.Name, err)
	}
	text, err := os.ReadFile(l.spec.Certificate)
	w.certificate = blobs.Digest(text)
	return w, err
}

// room is how many cells run at once: what the study asks for, and no more than
// the free memory has room for.
func (l *lab) room() int {
	free, ok := availableMiB()
	if !ok {
		return l.spec.Parallel
	}
	n := min(l.spec.Parallel, max(1, free/l.spec.CellMiB))
	if n < l.spec.Parallel {
		l.say("study %s: %d MiB are free, a cell takes some %d: %d at once instead of %d", l.spec.Name, free, l.spec.CellMiB, n, l.spec.Parallel)
	}
	return n
}

// availableMiB is the memory that the system can give without swapping; ok is
// false where it does not say.
func availableMiB() (mib int, ok bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), "MemAvailable:"); found {
			_, err := fmt.Sscanf(rest, "%d kB", &mib)
			return mib / 1024, err == nil
		}
	}
	return 0, false
}
