package embedded

import "xragent/internal/simd"

// A kvCache holds the keys and values of a sequence's first n rows. The first
// of them may be another sequence's: rollouts of one prompt read its rows in
// one place, where they stay in the processor's caches. Rows once written never
// change, and sharing ends at a whole panel, so an owner can go on writing
// behind rows that others read.
type kvCache struct {
	n      int    // rows held
	shared []part // the first rows, which other caches own
	begin  int    // how many rows those are
	own    part   // the rows from begin on; rows says how many fit
}

// A part is consecutive rows of all layers.
type part struct {
	rows  int
	heads []headKV // [layer·kv + head]
}

// headKV is one layer's key-value head. Keys lie as the columns of a packed
// matrix and values as the rows of one, so that products read memory in order.
type headKV struct {
	keys   *simd.Packed // [dim, rows]
	values *simd.Packed // [rows, dim]
}

// sharedParts is how many parts a cache may have of others before it copies.
const sharedParts = 4

// kernelWidth is what a product's columns are rounded up to.
const kernelWidth = 16

func roundRows(n int) int { return (n + kernelWidth - 1) &^ (kernelWidth - 1) }

// newKVCache returns an empty cache with room for rows.
func newKVCache(t TextConfig, rows int) *kvCache {
	c := &kvCache{own: part{rows: roundRows(rows)}}
	for range t.NumHiddenLayers * t.NumKeyValueHeads {
		c.own.heads = append(c.own.heads, headKV{simd.NewPacked(t.HeadDim, c.own.rows), simd.NewPacked(c.own.rows, t.HeadDim)})
	}
	return c
}

// extend returns a cache with room for rows that begins with the first n of c,
// of which it copies no more than it must.
func (c *kvCache) extend(t TextConfig, rows, n int) *kvCache {
	shared, begin := c.prefix(n &^ (kernelWidth - 1))
	if len(shared) > sharedParts {
		shared, begin = nil, 0
	}
	e := newKVCache(t, rows-begin)
	e.shared, e.begin, e.n = shared, begin, n
	at := 0
	for _, p := range append(c.shared[:len(c.shared):len(c.shared)], c.own) {
		if lo, hi := max(begin, at), min(n, at+p.rows); lo < hi {
			e.own.copyRows(lo-begin, p, lo-at, hi-lo)
		}
		at += p.rows
	}
	return e
}

// root tells caches apart that begin with different rows.
func (c *kvCache) root() *headKV {
	if len(c.shared) > 0 {
		return &c.shared[0].heads[0]
	}
	return &c.own.heads[0]
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
	head := c.own.heads[0]
	size := len(c.own.heads) * (head.keys.Bytes() + head.values.Bytes())
	return size / c.own.rows * (c.begin + c.own.rows)
}

// set writes the keys and values of the head at that index for position at.
func (c *kvCache) set(head, at int, keys, values []float32) {
	h := c.own.heads[head]
	h.keys.SetColumn(at-c.begin, keys)
	h.values.SetRow(at-c.begin, values)
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
