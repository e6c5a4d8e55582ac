//go:build !amd64

package simd

var useAVX512 = false

var useAVX2 = false

func gemmFMA(m, n, k int, a operand, transB bool, b []float32, ldb int, c output) {
	panic("simd: no AVX2 kernels on this platform")
}

func gemmPanels(m, n, k int, a operand, panels []float32, rows int, c output) { panic("simd") }

func pack(dst []float32, transB bool, k, n int, b []float32, ldb int) { panic("simd") }

func packEight(out []float32, k int, b []float32, ldb int) { panic("simd") }

func dotAVX2(x, y []float32) float32                        { panic("simd") }
func axpyAVX2(alpha float32, x, y []float32)                { panic("simd") }
func scaleAVX2(alpha float32, x []float32)                  { panic("simd") }
func addAVX2(dst, x, y []float32)                           { panic("simd") }
func mulAVX2(dst, x, y []float32)                           { panic("simd") }
func sumAVX2(x []float32) float32                           { panic("simd") }
func maxAVX2(x []float32) float32                           { panic("simd") }
func expSubAVX2(dst, x []float32, scale, m float32) float32 { panic("simd") }
func siluAVX2(dst, gate, up []float32)                      { panic("simd") }
func siluBackwardAVX2(dGate, dUp, gate, up, dOut []float32) { panic("simd") }
func geluAVX2(dst, x []float32)                             { panic("simd") }
func geluBackwardAVX2(dx, x, dy []float32)                  { panic("simd") }

func expSubAVX512(dst, x []float32, scale, m float32) float32 { panic("simd") }
func siluAVX512(dst, gate, up []float32)                      { panic("simd") }
func siluBackwardAVX512(dGate, dUp, gate, up, dOut []float32) { panic("simd") }
func geluAVX512(dst, x []float32)                             { panic("simd") }
func geluBackwardAVX512(dx, x, dy []float32)                  { panic("simd") }

func turnAVX2(dst, src, cos, sin []float32, direction float32)  { panic("simd") }
func softmaxBackwardAVX2(dx, y []float32, along, scale float32) { panic("simd") }
func adamAVX2(x, g, m, v []float32, r *AdamRule)                { panic("simd") }
func finiteAVX2(x []float32) bool                               { panic("simd") }
