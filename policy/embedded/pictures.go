package embedded

// A pictureCache keeps processed pictures, the oldest leaving first.
type pictureCache struct {
	pictures map[string]packed
	order    []string
	bytes    int
}

// Processing a film again costs 5 ms. A GiB holds some 60,000 grey films.
const pictureCacheBytes = 1 << 30

func (c *pictureCache) get(digest string) (picture, bool) {
	p, ok := c.pictures[digest]
	if !ok {
		return picture{}, false
	}
	return p.unpack(), true
}

func (c *pictureCache) put(digest string, p picture) {
	if c.pictures == nil {
		c.pictures = map[string]packed{}
	}
	kept := pack(p)
	c.pictures[digest] = kept
	c.order = append(c.order, digest)
	c.bytes += kept.bytes()
	for c.bytes > pictureCacheBytes && len(c.order) > 1 {
		c.bytes -= c.pictures[c.order[0]].bytes()
		delete(c.pictures, c.order[0])
		c.order = c.order[1:]
	}
}

// A packed picture holds the same values in less room: processors make them
// from 8-bit channels, so that few differ, and repeat an image over time and a
// grey one over its channels.
type packed struct {
	grid    [3]int
	size    int       // values of the picture
	period  int       // a patch is its first period values again and again
	palette []float32 // nil: codes do not suffice, values are kept
	codes   []uint8
	values  []float32
}

func (p packed) bytes() int { return 4*len(p.palette) + len(p.codes) + 4*len(p.values) }

func pack(p picture) packed {
	out := packed{grid: p.grid, size: len(p.patches)}
	dim := len(p.patches) / max(1, p.grid[0]*p.grid[1]*p.grid[2])
	out.period = period(p.patches, dim)
	index := map[float32]uint8{}
	for at := 0; at+dim <= len(p.patches) && dim > 0; at += dim {
		for _, v := range p.patches[at : at+out.period] {
			code, ok := index[v]
			if !ok {
				if len(index) > 255 {
					return packed{grid: p.grid, size: len(p.patches), values: p.patches}
				}
				code = uint8(len(index))
				index[v], out.palette = code, append(out.palette, v)
			}
			out.codes = append(out.codes, code)
		}
	}
	return out
}

// period returns the least part of dim, halved and cut in thirds, that every
// patch repeats.
func period(patches []float32, dim int) int {
	n := dim
	for _, parts := range []int{2, 3} {
		if n%parts == 0 && repeats(patches, n, n/parts) {
			n /= parts
		}
	}
	return n
}

// repeats reports whether each block of values repeats its first n.
func repeats(values []float32, block, n int) bool {
	for at := 0; at+block <= len(values); at += block {
		for i := n; i < block; i++ {
			if values[at+i] != values[at+i-n] {
				return false
			}
		}
	}
	return true
}

func (p packed) unpack() picture {
	if p.palette == nil {
		return picture{p.values, p.grid}
	}
	dim := p.size / (p.grid[0] * p.grid[1] * p.grid[2])
	out := make([]float32, 0, p.size)
	for at := 0; at < len(p.codes); at += p.period {
		for _, code := range p.codes[at : at+p.period] {
			out = append(out, p.palette[code])
		}
		for n := p.period; n < dim; n += p.period {
			out = append(out, out[len(out)-p.period:]...)
		}
	}
	return picture{out, p.grid}
}
