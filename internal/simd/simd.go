// Package simd holds the float32 kernels of the embedded policy: matrix
// products, dot products, exponentials and the activations with their
// gradients. On amd64 with AVX2 and FMA they are assembly; elsewhere they are
// Go over gonum's level-1 routines.
//
// One rule governs every matrix product: an element of C is accumulated over k
// in ascending order by one accumulator. Its bits depend on its row of A, its
// column of B and k alone, never on m, n, the position of a tile, packing or
// the number of threads. A policy row therefore has the same log-probs alone
// and in a batch, prefilled and decoded.
//
// The two kernel sets round differently (only one has fused multiply-add), so
// a run is bound to the set that [Kernels] names. Elementwise functions give
// an element the same bits wherever it stands in the slice.
//
// Slices are checked by ordinary bounds checks; a wrong shape is a panic.
// Nothing is allocated per call beyond pooled packing buffers.
package simd

import "sync"

// Kernels names the kernel set in use: "avx2" or "gonum". Setting the
// environment variable XRAGENT_KERNELS=gonum before the program starts forces
// the portable set.
func Kernels() string {
	if useAVX2 {
		return "avx2"
	}
	return "gonum"
}

// For splits [0, n) into at most threads contiguous ranges and calls fn on
// each, concurrently; it returns when all have returned.
func For(threads, n int, fn func(lo, hi int)) {
	threads = min(threads, n)
	if threads <= 1 {
		if n > 0 {
			fn(0, n)
		}
		return
	}
	var wg sync.WaitGroup
	for t := 1; t < threads; t++ {
		wg.Go(func() { fn(n*t/threads, n*(t+1)/threads) })
	}
	fn(0, n/threads)
	wg.Wait()
}
