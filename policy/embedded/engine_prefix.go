package embedded

import "slices"

// A prefixCache keeps the caches of ended sequences, most recently used last,
// within a limit on their bytes.
type prefixCache struct {
	limit, size int
	kept        []prefix
}

// A prefix is a cache with the identities of its rows.
type prefix struct {
	keys  []uint64
	cache *kvCache
}

// keep takes over a cache. One that it extends is dropped.
func (p *prefixCache) keep(keys []uint64, cache *kvCache) {
	if len(keys) == 0 || cache.bytes() > p.limit {
		cache.drop()
		return
	}
	p.kept = slices.DeleteFunc(p.kept, func(k prefix) bool {
		covered := len(k.keys) <= len(keys) && common(k.keys, keys) == len(k.keys)
		if covered {
			p.forget(k)
		}
		return covered
	})
	p.kept = append(p.kept, prefix{keys, cache})
	p.size += cache.bytes()
	for p.size > p.limit {
		p.forget(p.kept[0])
		p.kept = slices.Delete(p.kept, 0, 1)
	}
}

func (p *prefixCache) forget(k prefix) {
	p.size -= k.cache.bytes()
	k.cache.drop()
}

// clear drops all caches.
func (p *prefixCache) clear() {
	for _, k := range p.kept {
		p.forget(k)
	}
	p.kept = nil
}

// find returns the cache that shares most rows with keys, and how many.
func (p *prefixCache) find(keys []uint64) (*kvCache, int) {
	best, length := -1, 0
	for i, k := range p.kept {
		if n := common(keys, k.keys); n > length {
			best, length = i, n
		}
	}
	if best < 0 {
		return nil, 0
	}
	found := p.kept[best]
	p.kept = append(slices.Delete(p.kept, best, best+1), found)
	return found.cache, length
}

// common returns the length of the common prefix.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
