package embedded

import (
	"slices"

	"xragent/internal/simd"
)

// A kvPool makes the caches of one model. Memory that no cache uses any more it
// hands out again: memory fresh from the system costs more than what is computed
// in it. It holds no more than caches once used at a time.
type kvPool struct {
	cfg                 TextConfig
	used, waiting, peak int // bytes: in caches, in free, and in caches at most
	free                []*kvMemory
}

// A kvMemory has room for consecutive rows of all layers.
type kvMemory struct {
	rows, users int
	heads       []headKV // [layer·kv + head]
}

// headKV is one layer's key-value head. Keys lie as the columns of a packed
// matrix and values as the rows of one, so that products read memory in order.
type headKV struct {
	keys   *simd.Packed // [dim, rows]
	values *simd.Packed // [rows, dim]
}

func (m *kvMemory) bytes() int {
	return len(m.heads) * (m.heads[0].keys.Bytes() + m.heads[0].values.Bytes())
}

// take returns memory for rows or more, for one user. What it holds is of no
// meaning.
func (p *kvPool) take(rows int) *kvMemory {
	m := p.reuse(rows)
	if m == nil {
		m = &kvMemory{rows: roundRows(rows)}
		for range p.cfg.NumHiddenLayers * p.cfg.NumKeyValueHeads {
			m.heads = append(m.heads, headKV{simd.NewPacked(p.cfg.HeadDim, m.rows), simd.NewPacked(m.rows, p.cfg.HeadDim)})
		}
	}
	m.users = 1
	p.used += m.bytes()
	p.peak = max(p.peak, p.used)
	for p.used+p.waiting > p.peak {
		p.remove(0)
	}
	return m
}

// reuse takes the smallest of the waiting memories that are not much too large.
func (p *kvPool) reuse(rows int) *kvMemory {
	best := -1
	for i, m := range p.free {
		if rows <= m.rows && m.rows <= 2*rows && (best < 0 || m.rows < p.free[best].rows) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	return p.remove(best)
}

func (p *kvPool) remove(i int) *kvMemory {
	m := p.free[i]
	p.free = slices.Delete(p.free, i, i+1)
	p.waiting -= m.bytes()
	return m
}

// give ends one use of a memory.
func (p *kvPool) give(m *kvMemory) {
	if m.users--; m.users == 0 {
		p.free = append(p.free, m)
		p.used -= m.bytes()
		p.waiting += m.bytes()
	}
}

// A kvCache holds the keys and values of a sequence's first n rows. The first
// of them may be another sequence's: rollouts of one prompt read its rows in
// one place, where they stay in the processor's caches. Rows once written never
// change, and sharing ends at a whole panel, so an owner can go on writing
// behind rows that others read.
type kvCache struct {
	pool   *kvPool
	n      int    // rows held
	shared []part // the first rows, which other caches own
	begin  int    // how many rows those are
	own    part   // the rows from begin on; rows says how many fit
}

// A part is the first rows of a memory.
type part struct {
	rows int
	*kvMemory
}

// sharedParts is how many parts a cache may have of others before it copies.
const sharedParts = 4

// kernelWidth is what a product's columns are rounded up to.
const kernelWidth = 16

func roundRows(n int) int { return (n + kernelWidth - 1) &^ (kernelWidth - 1) }

// newCache returns an empty cache with room for rows.
func (p *kvPool) newCache(rows int) *kvCache {
	own := p.take(rows)
	return &kvCache{pool: p, own: part{own.rows, own}}
}

// extend returns a cache with room for rows that begins with the first n of c,
// of which it copies no more than it must.
func (c *kvCache) extend(rows, n int) *kvCache {
	shared, begin := c.prefix(n &^ (kernelWidth - 1))
	if len(shared) > sharedParts {
		shared, begin = nil, 0
	}
	e := c.pool.newCache(rows - begin)
	e.shared, e.begin, e.n = shared, begin, n
	for _, p := range shared {
		p.users++
	}
	at := 0
	for _, p := range append(c.shared[:len(c.shared):len(c.shared)], c.own) {
		if lo, hi := max(begin, at), min(n, at+p.rows); lo < hi {
			e.own.copyRows(lo-begin, p, lo-at, hi-lo)
		}
		at += p.rows
	}
	return e
}

// drop gives the memory back. The cache must not be used afterwards.
func (c *kvCache) drop() {
	for _, p := range append(c.shared, c.own) {
		c.pool.give(p.kvMemory)
	}
	*c = kvCache{}
}

// root tells caches apart that begin with different rows.
func (c *kvCache) root() *kvMemory {
	if len(c.shared) > 0 {
		return c.shared[0].kvMemory
	}
	return c.own.kvMemory
}

// prefix returns the parts of the first n rows, a multiple of the kernels' width.
func (c *kvCache) prefix(n int) (parts []part, rows int) {
	for _, p := range append(c.shared[:len(c.shared):len(c.shared)], c.own) {
		if p.rows = min(p.rows, n-rows); p.rows > 0 {
			parts, rows = append(parts, p), rows+p.rows
		}
	}
	return parts, rows
}

// copyRows copies n rows of src from row lo on to row at.
func (p part) copyRows(at int, src part, lo, n int) {
	for i, from := range src.heads {
		p.heads[i].keys.CopyColumns(at, from.keys, lo, n)
		p.heads[i].values.CopyRows(at, from.values, lo, n)
	}
}

// bytes returns the memory that c holds or keeps others from giving back.
func (c *kvCache) bytes() int {
	return c.own.bytes() / c.own.rows * (c.begin + c.own.rows)
}

// set writes n rows of keys and values, ld apart, of the head at that index for
// the positions from at on.
func (c *kvCache) set(head, at, n int, keys, values []float32, ld int) {
	h := c.own.heads[head]
	h.keys.SetColumns(at-c.begin, n, keys, ld)
	for i := range n {
		h.values.SetRow(at-c.begin+i, values[i*ld:i*ld+h.keys.K])
	}
}

// score writes the products of m queries, ldq apart, with the keys of the first
// width positions, a multiple of the kernels' width.
func (c *kvCache) score(head, m, width int, q []float32, ldq int, scores []float32) {
	at := 0
	for _, p := range c.shared {
		n := min(p.rows, width-at)
		simd.GemmPart(m, n, p.heads[head].keys.K, q, ldq, p.heads[head].keys, scores[at:], width, false)
		at += n
	}
	keys := c.own.heads[head].keys
	simd.GemmPart(m, width-at, keys.K, q, ldq, keys, scores[at:], width, false)
}

// mix writes the sums of the first n positions' values, weighted by m rows of
// weights, ldw apart.
func (c *kvCache) mix(head, m, n, dim int, weights []float32, ldw int, out []float32, ldo int) {
	at := 0
	for _, p := range c.shared {
		rows := min(p.rows, n-at)
		simd.GemmPart(m, dim, rows, weights[at:], ldw, p.heads[head].values, out, ldo, at > 0)
		at += rows
	}
	simd.GemmPart(m, dim, n-at, weights[at:], ldw, c.own.heads[head].values, out, ldo, at > 0)
}
