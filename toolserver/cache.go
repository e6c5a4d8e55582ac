package toolserver

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// A key addresses a result by everything that it depends on.
type key [sha256.Size]byte

// keyOf hashes parts with their lengths, so that no two lists of parts share a key.
func keyOf(parts ...[]byte) key {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	return key(h.Sum(nil))
}

// A cache keeps the most recently used values within a number of bytes. It is
// safe for concurrent use.
type cache[V any] struct {
	mu    sync.Mutex
	limit int // bytes
	used  int
	order *list.List // front: most recently used
	items map[key]*list.Element
}

type cacheItem[V any] struct {
	key   key
	value V
	bytes int
}

func newCache[V any](limit int) *cache[V] {
	return &cache[V]{limit: limit, order: list.New(), items: map[key]*list.Element{}}
}

func (c *cache[V]) get(k key) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.items[k]
	if !ok {
		return value, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cacheItem[V]).value, true
}

// put stores a value of the given size. A value larger than the whole cache is
// not stored.
func (c *cache[V]) put(k key, value V, bytes int) {
	bytes += len(k)
	if bytes > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.items[k]; ok {
		return // same key, same value
	}
	c.items[k] = c.order.PushFront(&cacheItem[V]{k, value, bytes})
	for c.used += bytes; c.used > c.limit; {
		last := c.order.Remove(c.order.Back()).(*cacheItem[V])
		delete(c.items, last.key)
		c.used -= last.bytes
	}
}
