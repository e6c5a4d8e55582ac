// Package simd holds the float32 kernels of the embedded policy: matrix
// products, dot products, exponentials and the activations with their
// gradients. On amd64 they are assembly for AVX2 with FMA or for AVX-512,
// chosen when the program starts; elsewhere they are Go over gonum's level-1
// routines.
//
// One rule governs every matrix product: an element of C is accumulated over k
// in ascending order by one accumulator. Its bits depend on its row of A, its
// column of B and k alone, never on m, n, the position of a tile, packing or
// the number of threads. A policy row therefore has the same log-probs alone
// and in a batch, prefilled and decoded.
//
// The kernels of AVX2 and of AVX-512 give the same bits: an element takes the
// same instructions in both, and a sum the same partial sums. The portable ones
// round differently (they have no fused multiply-add), so a run is bound to
// what [Kernels] names. Elementwise functions give an element the same bits
// wherever it stands in the slice.
//
// Slices are checked by ordinary bounds checks; a wrong shape is a panic.
// Nothing is allocated per call beyond pooled packing buffers.
package simd

import "sync"

// Kernels names what the bits of a result depend on: "avx2", whichever of AVX2
// and AVX-512 computes it, or "gonum". Setting the environment variable
// XRAGENT_KERNELS=gonum before the program starts forces the portable set.
func Kernels() string {
	if useAVX2 {
		return "avx2"
	}
	return "gonum"
}

// Instructions names the kernels in use: "avx512", "avx2" or "gonum".
// XRAGENT_KERNELS=avx2 forgoes AVX-512.
func Instructions() string {
	if useAVX512 {
		return "avx512"
	}
	return Kernels()
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
