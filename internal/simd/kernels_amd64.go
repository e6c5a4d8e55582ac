package simd

import (
	"os"

	"golang.org/x/sys/cpu"
)

var useAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA && os.Getenv("XRAGENT_KERNELS") != "gonum"

//go:noescape
func kernel6x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel5x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel4x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel3x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel2x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel1x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel2x32(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int, ps int)

//go:noescape
func kernel1x64(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int, ps int)

//go:noescape
func transpose8(dst, src *float32, ld, k int)

//go:noescape
func dotAVX2(x, y []float32) float32

//go:noescape
func axpyAVX2(alpha float32, x, y []float32)

//go:noescape
func scaleAVX2(alpha float32, x []float32)

//go:noescape
func addAVX2(dst, x, y []float32)

//go:noescape
func mulAVX2(dst, x, y []float32)

//go:noescape
func sumAVX2(x []float32) float32

//go:noescape
func maxAVX2(x []float32) float32

//go:noescape
func expSubAVX2(dst, x []float32, m float32) float32

//go:noescape
func siluAVX2(dst, gate, up []float32)

//go:noescape
func siluBackwardAVX2(dGate, dUp, gate, up, dOut []float32)

//go:noescape
func geluAVX2(dst, x []float32)

//go:noescape
func geluBackwardAVX2(dx, x, dy []float32)

// Block sizes: a panel of B of blockK steps stays in the first-level cache, a
// block of A of blockM rows and blockK steps in the second, packed B in the
// last.
const (
	tileM  = 6
	blockM = 96
	blockN = 512
	blockK = 256
)

// A block is packed or in-place B: element (p, j) of panel q is
// data[q*panelStride + p*rowStride + j].
type block struct {
	data                   []float32
	rowStride, panelStride int
}

func (b block) from(q, p int) *float32 { return &b.data[q*b.panelStride+p*b.rowStride] }

// zeros is what a tile starts from where C is not accumulated into.
var zeros [64]float32

func (c output) from(i, j int) output {
	c.data = c.data[i*c.ld+j:]
	return c
}

// after returns the output as the steps of k from p on find it.
func (c output) after(p int) output {
	c.fresh = c.fresh && p == 0
	return c
}

// start returns what a tile at the output's first element starts from, and its
// row stride.
func (c output) start() (init *float32, ld int) {
	if c.fresh {
		return &zeros[0], 0
	}
	return &c.data[0], c.ld
}

// gemmAVX2 computes C = op(A)·op(B), or adds it to C. Rows of B that are used by one tile of rows
// only are read in place; else panels are packed.
func gemmAVX2(m, n, k int, a operand, transB bool, b []float32, ldb int, c output) {
	if !transB && m <= tileM && n >= panel {
		whole := n &^ (panel - 1)
		multiply(m, whole, 0, k, a, block{b, ldb, panel}, c)
		if whole == n {
			return
		}
		n, b, c = n-whole, b[whole:], c.from(0, whole)
	}
	buf := borrow(min(k, blockK) * roundUp(min(n, blockN)))
	defer buffers.Put(buf)
	for j := 0; j < n; j += blockN {
		nb := min(blockN, n-j)
		for p := 0; p < k; p += blockK {
			kb := min(blockK, k-p)
			pack(*buf, transB, kb, nb, b[offset(transB, ldb, p, j):], ldb)
			part := operand{a.data[p*a.cs:], a.rs, a.cs}
			multiply(m, nb, 0, kb, part, block{*buf, panel, panel * kb}, c.from(0, j).after(p))
		}
	}
}

// gemmPanels computes A·P for panels as [pack] lays them out.
func gemmPanels(m, n, k int, a operand, panels []float32, c output) {
	for p := 0; p < k; p += blockK {
		part := operand{a.data[p*a.cs:], a.rs, a.cs}
		multiply(m, n, p, min(blockK, k-p), part, block{panels, panel, panel * k}, c.after(p))
	}
}

// multiply computes the product of A and rows [p0, p0+k) of B. B has panels for
// all of n; the last may be padded.
func multiply(m, n, p0, k int, a operand, b block, c output) {
	for i := 0; i < m; i += blockM {
		rows := min(blockM, m-i)
		part := operand{a.data[i*a.rs:], a.rs, a.cs}
		if m <= 2 {
			multiplyFew(rows, n, p0, k, part, b, c)
			continue
		}
		for j := 0; j < n; j += panel {
			multiplyPanel(rows, min(panel, n-j), k, part, b.from(j/panel, p0), b.rowStride, c.from(i, j))
		}
	}
}

// multiplyPanel spreads the rows evenly over tiles of at most six, so that no
// tile is too small to keep the multipliers busy.
func multiplyPanel(m, n, k int, a operand, b *float32, bs int, c output) {
	tiles := (m + tileM - 1) / tileM
	for t := range tiles {
		lo, hi := m*t/tiles, m*(t+1)/tiles
		tile(hi-lo, n, k, &a.data[lo*a.rs], a.rs, a.cs, b, bs, c.from(lo, 0))
	}
}

// multiplyFew handles one or two rows, several panels at a time.
func multiplyFew(m, n, p0, k int, a operand, b block, c output) {
	j, wide := 0, 64/m
	for ; j+wide <= n; j += wide {
		init, ldi := c.from(0, j).start()
		if m == 1 {
			kernel1x64(k, &a.data[0], 4*a.rs, 4*a.cs, b.from(j/panel, p0), 4*b.rowStride, init, 4*ldi, &c.data[j], 4*c.ld, 4*b.panelStride)
		} else {
			kernel2x32(k, &a.data[0], 4*a.rs, 4*a.cs, b.from(j/panel, p0), 4*b.rowStride, init, 4*ldi, &c.data[j], 4*c.ld, 4*b.panelStride)
		}
	}
	for ; j < n; j += panel {
		tile(m, min(panel, n-j), k, &a.data[0], a.rs, a.cs, b.from(j/panel, p0), b.rowStride, c.from(0, j))
	}
}

// tile computes one tile; a narrow one goes through a buffer, because the
// kernels write whole panels.
func tile(m, n, k int, a *float32, ars, acs int, b *float32, bs int, c output) {
	if n == panel {
		init, ldi := c.start()
		kernel(m, k, a, ars, acs, b, bs, init, ldi, &c.data[0], c.ld)
		return
	}
	var buf [tileM * panel]float32
	if !c.fresh {
		for i := range m {
			copy(buf[i*panel:i*panel+n], c.data[i*c.ld:])
		}
	}
	kernel(m, k, a, ars, acs, b, bs, &buf[0], panel, &buf[0], panel)
	for i := range m {
		copy(c.data[i*c.ld:], buf[i*panel:i*panel+n])
	}
}

func kernel(m, k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int) {
	ars, acs, bs, ldi, ldc = 4*ars, 4*acs, 4*bs, 4*ldi, 4*ldc
	switch m {
	case 1:
		kernel1x16(k, a, ars, acs, b, bs, init, ldi, c, ldc)
	case 2:
		kernel2x16(k, a, ars, acs, b, bs, init, ldi, c, ldc)
	case 3:
		kernel3x16(k, a, ars, acs, b, bs, init, ldi, c, ldc)
	case 4:
		kernel4x16(k, a, ars, acs, b, bs, init, ldi, c, ldc)
	case 5:
		kernel5x16(k, a, ars, acs, b, bs, init, ldi, c, ldc)
	case 6:
		kernel6x16(k, a, ars, acs, b, bs, init, ldi, c, ldc)
	}
}

// offset is where element (p, j) of op(B) stands.
func offset(transB bool, ldb, p, j int) int {
	if transB {
		return j*ldb + p
	}
	return p*ldb + j
}

// pack lays out op(B) as column panels of k rows of 16, the last padded with
// zeros.
func pack(dst []float32, transB bool, k, n int, b []float32, ldb int) {
	for j := 0; j < n; j += panel {
		out := dst[j*k : (j+panel)*k]
		width := min(panel, n-j)
		if width < panel {
			clear(out)
		}
		if transB {
			packTransposed(out, width, k, b[j*ldb:], ldb)
			continue
		}
		if width == panel {
			for p := range k {
				*(*[panel]float32)(out[p*panel:]) = *(*[panel]float32)(b[p*ldb+j:])
			}
			continue
		}
		for p := range k {
			copy(out[p*panel:p*panel+width], b[p*ldb+j:])
		}
	}
}

// packTransposed writes rows of b as the columns of one panel.
func packTransposed(out []float32, width, k int, b []float32, ldb int) {
	fast := k &^ 7
	j := 0
	for ; fast > 0 && j+8 <= width; j += 8 {
		transpose8(&out[j], &b[j*ldb], 4*ldb, fast)
		for i := j; i < j+8; i++ {
			scatter(out[fast*panel:], i, b[i*ldb+fast:i*ldb+k])
		}
	}
	for ; j < width; j++ {
		scatter(out, j, b[j*ldb:j*ldb+k])
	}
}

// scatter writes column j of a panel.
func scatter(out []float32, j int, column []float32) {
	for p, v := range column {
		out[p*panel+j] = v
	}
}
