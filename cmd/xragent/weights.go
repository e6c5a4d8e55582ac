package main

import (
	"context"
	"slices"
	"sync"

	"xragent/internal/blobs"
)

// keptVersions is how many published versions stay fetchable: the newest, and
// those before it that a slow worker may still be loading.
const keptVersions = 4

// publishedWeights stores weights for workers to fetch and deletes those of
// versions that no worker may run any more.
type publishedWeights struct {
	store *blobs.Store
	mu    sync.Mutex
	kept  []string // digests, oldest first
}

func (p *publishedWeights) Put(ctx context.Context, data []byte) (string, error) {
	sha, err := p.store.Put(ctx, data)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = append(slices.DeleteFunc(p.kept, func(k string) bool { return k == sha }), sha)
	if len(p.kept) <= keptVersions {
		return sha, nil
	}
	oldest := p.kept[0]
	p.kept = p.kept[1:]
	return sha, p.store.Delete(oldest)
}
