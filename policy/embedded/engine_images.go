package embedded

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sync"

	"xragent/rollout"
)

// A sourceImage is a processed image. It never changes.
type sourceImage struct {
	picture
	use      rollout.ImageUse
	identity uint64 // from its digest
}

// An imageCache processes each image once, also under concurrent calls.
type imageCache struct {
	mu  sync.Mutex
	lru lru[func() (*sourceImage, error)]
}

var errNoProcessor = errors.New("this engine has no image processor; give EngineOptions.Processor")

func (c *imageCache) get(p Processor, encoded []byte) (*sourceImage, error) {
	if p == nil {
		return nil, errNoProcessor
	}
	sum := sha256.Sum256(encoded)
	c.mu.Lock()
	process, ok := c.lru.get(string(sum[:]))
	if !ok {
		process = sync.OnceValues(func() (*sourceImage, error) { return processImage(p, encoded, sum) })
		c.lru.put(string(sum[:]), process, imageCost)
	}
	c.mu.Unlock()
	return process()
}

// imageCost stands for the bytes of a processed image, which is not yet known
// when it enters the cache.
const imageCost = 1 << 20

func processImage(p Processor, encoded []byte, sum [32]byte) (*sourceImage, error) {
	patches, grid, err := p.Process(encoded)
	if err != nil {
		return nil, err
	}
	return &sourceImage{
		picture:  picture{patches, grid},
		use:      rollout.ImageUse{SHA256: hex.EncodeToString(sum[:]), Grid: grid, Processor: p.Hash()},
		identity: binary.LittleEndian.Uint64(sum[:]),
	}, nil
}

// An lru keeps the most recently used values up to a limit on their sizes.
type lru[V any] struct {
	limit, size int
	order       list.List // of lruEntry[V], most recent first
	at          map[string]*list.Element
}

type lruEntry[V any] struct {
	key   string
	value V
	size  int
}

func (l *lru[V]) get(key string) (value V, ok bool) {
	e, ok := l.at[key]
	if !ok {
		return value, false
	}
	l.order.MoveToFront(e)
	return e.Value.(lruEntry[V]).value, true
}

// put adds a value, or replaces the key's, and drops the least recently used
// ones beyond the limit; never the new one.
func (l *lru[V]) put(key string, value V, size int) {
	if l.at == nil {
		l.at = map[string]*list.Element{}
	}
	if e, ok := l.at[key]; ok {
		l.remove(e)
	}
	l.at[key] = l.order.PushFront(lruEntry[V]{key, value, size})
	l.size += size
	for l.size > l.limit && l.order.Len() > 1 {
		l.remove(l.order.Back())
	}
}

func (l *lru[V]) remove(e *list.Element) {
	entry := l.order.Remove(e).(lruEntry[V])
	delete(l.at, entry.key)
	l.size -= entry.size
}
