package main

import (
	"testing"

	"xragent/internal/blobs"
)

func TestPublishedWeightsKeepsTheNewest(t *testing.T) {
	store, err := blobs.Open(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	p := &publishedWeights{store: store}
	var all []string
	for _, text := range []string{"v0", "v1", "v2", "v1", "v3", "v4", "v5"} { // v1 twice: a step that changed nothing
		sha, err := p.Put(t.Context(), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sha)
	}
	for i, want := range []bool{false, true, false, true, true, true, true} {
		if got := store.Has(all[i]); got != want {
			t.Errorf("after v5, publication %d is kept: %v, want %v", i, got, want)
		}
	}
}
