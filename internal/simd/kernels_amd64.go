package simd

import (
	"os"

	"golang.org/x/sys/cpu"
)

//go:generate go run gen.go

// wanted is the widest set that the environment allows; empty: any.
var wanted = os.Getenv("XRAGENT_KERNELS")

var (
	useAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasFMA && wanted != "gonum"
	useAVX512 = useAVX2 && cpu.X86.HasAVX512F && wanted != "avx2"
)

//go:noescape
func kernel256x16(m, rows, taller, k int, a *float32, ars, acs int, b *float32, bs, ps int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel512x16(m, rows, taller, k int, a *float32, ars, acs int, b *float32, bs, ps int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel512x32(m, rows, taller, k int, a *float32, ars, acs int, b *float32, bs, ps int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel256of1(k int, a *float32, ars, acs int, b *float32, bs, ps int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel256of2(k int, a *float32, ars, acs int, b *float32, bs, ps int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel512of1(k int, a *float32, ars, acs int, b *float32, bs, ps int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func kernel512of2(k int, a *float32, ars, acs int, b *float32, bs, ps int, init *float32, ldi int, c *float32, ldc int)

//go:noescape
func transpose8(dst, src *float32, ld, k int)

//go:noescape
func copyPanel(dst, src *float32, ld, k int)

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
func expSubAVX2(dst, x []float32, scale, m float32) float32

//go:noescape
func siluAVX2(dst, gate, up []float32)

//go:noescape
func siluBackwardAVX2(dGate, dUp, gate, up, dOut []float32)

//go:noescape
func geluAVX2(dst, x []float32)

//go:noescape
func geluBackwardAVX2(dx, x, dy []float32)

//go:noescape
func turnAVX2(dst, src, cos, sin []float32, direction float32)

//go:noescape
func softmaxBackwardAVX2(dx, y []float32, along, scale float32)

//go:noescape
func adamAVX2(x, g, m, v []float32, r *AdamRule)

//go:noescape
func finiteAVX2(x []float32) bool

//go:noescape
func expSubAVX512(dst, x []float32, scale, m float32) float32

//go:noescape
func siluAVX512(dst, gate, up []float32)

//go:noescape
func siluBackwardAVX512(dGate, dUp, gate, up, dOut []float32)

//go:noescape
func geluAVX512(dst, x []float32)

//go:noescape
func geluBackwardAVX512(dx, x, dy []float32)

// Block sizes: a panel of B of blockK steps stays in the first-level cache, a
// block of A of blockM rows and blockK steps in the second, packed B in the
// last.
const (
	blockM = 96
	blockN = 512
	blockK = 512
)

// tileRows and tileColumns are the largest tile of C that the registers hold.
func tileRows() int {
	if useAVX512 {
		return 12
	}
	return 6
}

func tileColumns() int {
	if useAVX512 {
		return 2 * panel
	}
	return panel
}

// A block is packed or in-place B: element (p, j) of panel q is
// data[q*panelStride + p*rowStride + j].
type block struct {
	data                   []float32
	rowStride, panelStride int
}

// at returns the block from column j on, the first of a panel.
func (b block) at(j int) block {
	b.data = b.data[j/panel*b.panelStride:]
	return b
}

// row returns where row p of the first panel begins.
func (b block) row(p int) *float32 { return &b.data[p*b.rowStride] }

// zeros is what a tile starts from where C is not accumulated into.
var zeros [128]float32

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

// gemmFMA computes C = op(A)·op(B), or adds it to C. Rows of B that are used by
// one tile of rows only are read in place; else panels are packed.
func gemmFMA(m, n, k int, a operand, transB bool, b []float32, ldb int, c output) {
	if !transB && m <= tileRows() && n >= panel {
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

// gemmPanels computes A·P for panels as [pack] lays them out, of which the
// first k of rows rows are used.
func gemmPanels(m, n, k int, a operand, panels []float32, rows int, c output) {
	for p := 0; p < k; p += blockK {
		part := operand{a.data[p*a.cs:], a.rs, a.cs}
		multiply(m, n, p, min(blockK, k-p), part, block{panels, panel, panel * rows}, c.after(p))
	}
}

// multiply computes the product of A and rows [p0, p0+k) of B. B has panels for
// all of n; the last may be padded.
func multiply(m, n, p0, k int, a operand, b block, c output) {
	wide := tileColumns()
	var apart []float32
	if a.collides() && m > tileRows() && n >= 4*wide {
		buf := borrow(min(m, blockM) * (k + panel))
		defer buffers.Put(buf)
		apart = *buf
	}
	for i := 0; i < m; i += blockM {
		rows := min(blockM, m-i)
		part := operand{a.data[i*a.rs:], a.rs, a.cs}
		if m <= 2 {
			multiplyFew(rows, n, p0, k, part, b, c)
			continue
		}
		if apart != nil {
			part = part.spread(apart, rows, k)
		}
		for j := 0; j < n; j += wide {
			tiles(rows, min(wide, n-j), p0, k, part, b.at(j), c.from(i, j))
		}
	}
}

// collides says that the rows of A lie a multiple of 4 KiB apart, so that those
// of a tile compete for one of the 64 sets of the first-level cache.
func (a operand) collides() bool { return a.cs == 1 && a.rs%1024 == 0 }

// spread copies k columns of A to rows that do not collide.
func (a operand) spread(buf []float32, rows, k int) operand {
	ld := k + panel
	for i := range rows {
		copy(buf[i*ld:i*ld+k], a.data[i*a.rs:])
	}
	return operand{buf, ld, 1}
}

// multiplyFew handles one or two rows, several panels at a time.
func multiplyFew(m, n, p0, k int, a operand, b block, c output) {
	j, wide := 0, 64/m
	if useAVX512 {
		wide = 128 / m
	}
	for ; j+wide <= n; j += wide {
		few(m, p0, k, a, b.at(j), c.from(0, j))
	}
	for ; j < n; j += tileColumns() {
		tiles(m, min(tileColumns(), n-j), p0, k, a, b.at(j), c.from(0, j))
	}
}

// tiles computes the rows of one or two panels; a narrow panel goes through a
// buffer, because the kernels write whole ones.
func tiles(m, n, p0, k int, a operand, b block, c output) {
	whole := n &^ (panel - 1)
	if whole > 0 {
		kernel(m, whole, p0, k, a, b, c)
	}
	if whole < n {
		narrow(m, n-whole, p0, k, a, b.at(whole), c.from(0, whole))
	}
}

// narrow computes the rows of a panel of fewer columns.
func narrow(m, n, p0, k int, a operand, b block, c output) {
	var buf [blockM * panel]float32
	if !c.fresh {
		for i := range m {
			copy(buf[i*panel:i*panel+n], c.data[i*c.ld:])
		}
	}
	kernel(m, panel, p0, k, a, b, output{buf[:], panel, false})
	for i := range m {
		copy(c.data[i*c.ld:], buf[i*panel:i*panel+n])
	}
}

// few adds to one or two rows and as many columns as eight registers hold.
func few(m, p0, k int, a operand, b block, c output) {
	start, ldi := c.start()
	left, right, to := &a.data[0], b.row(p0), &c.data[0]
	ars, acs, bs, ps, ldi, ldc := 4*a.rs, 4*a.cs, 4*b.rowStride, 4*b.panelStride, 4*ldi, 4*c.ld
	switch {
	case useAVX512 && m == 1:
		kernel512of1(k, left, ars, acs, right, bs, ps, start, ldi, to, ldc)
	case useAVX512:
		kernel512of2(k, left, ars, acs, right, bs, ps, start, ldi, to, ldc)
	case m == 1:
		kernel256of1(k, left, ars, acs, right, bs, ps, start, ldi, to, ldc)
	default:
		kernel256of2(k, left, ars, acs, right, bs, ps, start, ldi, to, ldc)
	}
}

// kernel adds to m rows and one panel, or two where the set has such tiles. It
// spreads the rows evenly over tiles, so that none is too small to keep the
// multipliers busy.
func kernel(m, n, p0, k int, a operand, b block, c output) {
	start, ldi := c.start()
	left, right, to := &a.data[0], b.row(p0), &c.data[0]
	ars, acs, bs, ps, ldi, ldc := 4*a.rs, 4*a.cs, 4*b.rowStride, 4*b.panelStride, 4*ldi, 4*c.ld
	most := tileRows()
	count := (m + most - 1) / most
	rows, taller := m/count, m%count
	switch {
	case n > panel:
		kernel512x32(m, rows, taller, k, left, ars, acs, right, bs, ps, start, ldi, to, ldc)
	case useAVX512:
		kernel512x16(m, rows, taller, k, left, ars, acs, right, bs, ps, start, ldi, to, ldc)
	default:
		kernel256x16(m, rows, taller, k, left, ars, acs, right, bs, ps, start, ldi, to, ldc)
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
			_, _ = out[k*panel-1], b[(k-1)*ldb+j+panel-1]
			copyPanel(&out[0], &b[j], 4*ldb, k)
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
		packEight(out[j:], k, b[j*ldb:], ldb)
	}
	for ; j < width; j++ {
		scatter(out, j, b[j*ldb:j*ldb+k])
	}
}

// packEight writes eight rows of b, of 8 elements or more, as columns of a panel.
func packEight(out []float32, k int, b []float32, ldb int) {
	fast := k &^ 7
	_, _ = out[(k-1)*panel+7], b[7*ldb+k-1]
	transpose8(&out[0], &b[0], 4*ldb, fast)
	if fast < k {
		for i := range 8 {
			scatter(out[fast*panel:], i, b[i*ldb+fast:i*ldb+k])
		}
	}
}

// scatter writes column j of a panel.
func scatter(out []float32, j int, column []float32) {
	for p, v := range column {
		out[p*panel+j] = v
	}
}
