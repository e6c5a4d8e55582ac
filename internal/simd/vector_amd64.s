#include "textflag.h"

// Every function handles eight elements at a time and the rest under a mask,
// through the same instructions: an element's bits do not depend on where it
// stands. DI, SI, DX, R8, R9 are the slices, CX is what is left of n.

#define CONST(name, bits) \
	DATA  name<>+0(SB)/8, bits  \
	DATA  name<>+8(SB)/8, bits  \
	DATA  name<>+16(SB)/8, bits \
	DATA  name<>+24(SB)/8, bits \
	GLOBL name<>(SB), RODATA|NOPTR, $32

CONST(expHi, $0x42b2000042b20000)  // 89: e^89 is above the largest float
CONST(expLo, $0xc2b00000c2b00000)  // −88: below the smallest normal one
CONST(log2e, $0x3fb8aa3b3fb8aa3b)
CONST(ln2hi, $0x3f3180003f318000)  // ln 2 in two parts
CONST(ln2lo, $0xb95e8083b95e8083)
CONST(e0, $0x3950696739506967)     // Cephes expf's polynomial
CONST(e1, $0x3ab743ce3ab743ce)
CONST(e2, $0x3c0889083c088908)
CONST(e3, $0x3d2aa9c13d2aa9c1)
CONST(e4, $0x3e2aaaaa3e2aaaaa)
CONST(e5, $0x3f0000003f000000)
CONST(one, $0x3f8000003f800000)
CONST(negInf, $0xff800000ff800000)
CONST(slope, $0x3fcc422a3fcc422a)  // 2√(2/π)
CONST(cubic, $0x3d3727133d372713)  // 0.044715
CONST(cubic3, $0x3e095d4f3e095d4f) // 3·0.044715
CONST(bias, $0x0000007f0000007f)   // of a float's exponent, as integers

DATA masks<>+0(SB)/8, $0xffffffffffffffff
DATA masks<>+8(SB)/8, $0xffffffffffffffff
DATA masks<>+16(SB)/8, $0xffffffffffffffff
DATA masks<>+24(SB)/8, $0xffffffffffffffff
DATA masks<>+32(SB)/8, $0
DATA masks<>+40(SB)/8, $0
DATA masks<>+48(SB)/8, $0
DATA masks<>+56(SB)/8, $0
GLOBL masks<>(SB), RODATA|NOPTR, $64

// MASK sets Y15 to the mask of the first CX lanes, 0 < CX < 8.
#define MASK \
	LEAQ    masks<>+32(SB), AX \
	SHLQ    $2, CX             \
	SUBQ    CX, AX             \
	VMOVUPS (AX), Y15

// EXP replaces x by e^x: 2^n·e^r with n = round(x·log2 e). NaN stays NaN
// because MIN and MAX return their second operand then. n and p are scratch.
#define EXP(x, n, p) \
	VMOVUPS      expHi<>(SB), n    \
	VMINPS       x, n, x           \
	VMOVUPS      expLo<>(SB), n    \
	VMAXPS       x, n, x           \
	VMULPS       log2e<>(SB), x, n \
	VROUNDPS     $0, n, n          \
	VFNMADD231PS ln2hi<>(SB), n, x \
	VFNMADD231PS ln2lo<>(SB), n, x \
	VCVTPS2DQ    n, n              \
	VMOVUPS      e0<>(SB), p       \
	VFMADD213PS  e1<>(SB), x, p    \
	VFMADD213PS  e2<>(SB), x, p    \
	VFMADD213PS  e3<>(SB), x, p    \
	VFMADD213PS  e4<>(SB), x, p    \
	VFMADD213PS  e5<>(SB), x, p    \
	VFMADD213PS  one<>(SB), x, p   \
	VFMADD213PS  one<>(SB), x, p   \
	VPADDD       bias<>(SB), n, n  \
	VPSLLD       $23, n, n         \
	VMULPS       n, p, x

// SIGMOID sets s to 1/(1+e^−x). n and p are scratch.
#define SIGMOID(x, s, n, p) \
	VXORPS  s, s, s           \
	VSUBPS  x, s, s           \
	EXP(s, n, p)              \
	VADDPS  one<>(SB), s, s   \
	VMOVUPS one<>(SB), n      \
	VDIVPS  s, n, s

// func expSubAVX2(dst, x []float32, scale, m float32) float32
TEXT ·expSubAVX2(SB), NOSPLIT, $0-60
	MOVQ         dst_base+0(FP), DI
	MOVQ         x_base+24(FP), SI
	MOVQ         x_len+32(FP), CX
	VBROADCASTSS scale+48(FP), Y12
	VBROADCASTSS m+52(FP), Y14
	VXORPS       Y13, Y13, Y13

exploop:
	CMPQ    CX, $8
	JLT     exptail
	VMULPS  (SI), Y12, Y0
	VSUBPS  Y14, Y0, Y0
	EXP(Y0, Y1, Y2)
	VMOVUPS Y0, (DI)
	VADDPS  Y0, Y13, Y13
	ADDQ    $32, SI
	ADDQ    $32, DI
	SUBQ    $8, CX
	JMP     exploop

exptail:
	TESTQ      CX, CX
	JZ         expdone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMULPS     Y0, Y12, Y0
	VSUBPS     Y14, Y0, Y0
	EXP(Y0, Y1, Y2)
	VMASKMOVPS Y0, Y15, (DI)
	VANDPS     Y15, Y0, Y0
	VADDPS     Y0, Y13, Y13

expdone:
	VEXTRACTF128 $1, Y13, X0
	VADDPS       X13, X0, X0
	VHADDPS      X0, X0, X0
	VHADDPS      X0, X0, X0
	VMOVSS       X0, ret+56(FP)
	VZEROUPPER
	RET

// func siluAVX2(dst, gate, up []float32)
TEXT ·siluAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ gate_base+24(FP), SI
	MOVQ gate_len+32(FP), CX
	MOVQ up_base+48(FP), DX

#define SILU \
	SIGMOID(Y0, Y1, Y2, Y3) \
	VMULPS  Y0, Y1, Y0      \
	VMULPS  Y4, Y0, Y0

siluloop:
	CMPQ    CX, $8
	JLT     silutail
	VMOVUPS (SI), Y0
	VMOVUPS (DX), Y4
	SILU
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	SUBQ    $8, CX
	JMP     siluloop

silutail:
	TESTQ      CX, CX
	JZ         siludone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMASKMOVPS (DX), Y15, Y4
	SILU
	VMASKMOVPS Y0, Y15, (DI)

siludone:
	VZEROUPPER
	RET

// func siluBackwardAVX2(dGate, dUp, gate, up, dOut []float32)
TEXT ·siluBackwardAVX2(SB), NOSPLIT, $0-120
	MOVQ dGate_base+0(FP), DI
	MOVQ dUp_base+24(FP), R8
	MOVQ gate_base+48(FP), SI
	MOVQ gate_len+56(FP), CX
	MOVQ up_base+72(FP), DX
	MOVQ dOut_base+96(FP), R9

// Y0 gate, Y4 up, Y5 dOut in; Y6 dGate = dOut·up·(s + gate·s·(1−s)),
// Y7 dUp = dOut·gate·s out.
#define SILUBACKWARD \
	SIGMOID(Y0, Y1, Y2, Y3)      \
	VMULPS       Y0, Y1, Y2      \
	VMULPS       Y5, Y2, Y7      \
	VFNMADD213PS Y2, Y1, Y2      \
	VADDPS       Y1, Y2, Y2      \
	VMULPS       Y5, Y4, Y6      \
	VMULPS       Y2, Y6, Y6

backloop:
	CMPQ    CX, $8
	JLT     backtail
	VMOVUPS (SI), Y0
	VMOVUPS (DX), Y4
	VMOVUPS (R9), Y5
	SILUBACKWARD
	VMOVUPS Y6, (DI)
	VMOVUPS Y7, (R8)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	ADDQ    $32, R8
	ADDQ    $32, R9
	SUBQ    $8, CX
	JMP     backloop

backtail:
	TESTQ      CX, CX
	JZ         backdone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMASKMOVPS (DX), Y15, Y4
	VMASKMOVPS (R9), Y15, Y5
	SILUBACKWARD
	VMASKMOVPS Y6, Y15, (DI)
	VMASKMOVPS Y7, Y15, (R8)

backdone:
	VZEROUPPER
	RET

// INNER sets u to 2√(2/π)·(x + 0.044715x³), the inside of GELU's σ, and sq to x².
#define INNER(x, u, sq) \
	VMULPS      x, x, sq           \
	VMULPS      cubic<>(SB), sq, u \
	VFMADD213PS x, x, u            \
	VMULPS      slope<>(SB), u, u

// func geluAVX2(dst, x []float32)
TEXT ·geluAVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX

#define GELU \
	INNER(Y0, Y4, Y5)       \
	SIGMOID(Y4, Y1, Y2, Y3) \
	VMULPS  Y0, Y1, Y0

geluloop:
	CMPQ    CX, $8
	JLT     gelutail
	VMOVUPS (SI), Y0
	GELU
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DI
	SUBQ    $8, CX
	JMP     geluloop

gelutail:
	TESTQ      CX, CX
	JZ         geludone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	GELU
	VMASKMOVPS Y0, Y15, (DI)

geludone:
	VZEROUPPER
	RET

// func geluBackwardAVX2(dx, x, dy []float32)
TEXT ·geluBackwardAVX2(SB), NOSPLIT, $0-72
	MOVQ dx_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	MOVQ dy_base+48(FP), DX

// Y0 x, Y6 dy in; Y7 = dy·(s + x·s·(1−s)·slope·(1+3·cubic·x²)) out.
#define GELUBACKWARD \
	INNER(Y0, Y4, Y5)                 \
	SIGMOID(Y4, Y1, Y2, Y3)           \
	VMULPS       Y0, Y1, Y2           \
	VFNMADD213PS Y2, Y1, Y2           \
	VMOVUPS      one<>(SB), Y3        \
	VFMADD231PS  cubic3<>(SB), Y5, Y3 \
	VMULPS       slope<>(SB), Y3, Y3  \
	VFMADD213PS  Y1, Y3, Y2           \
	VMULPS       Y2, Y6, Y7

gbackloop:
	CMPQ    CX, $8
	JLT     gbacktail
	VMOVUPS (SI), Y0
	VMOVUPS (DX), Y6
	GELUBACKWARD
	VMOVUPS Y7, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	SUBQ    $8, CX
	JMP     gbackloop

gbacktail:
	TESTQ      CX, CX
	JZ         gbackdone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMASKMOVPS (DX), Y15, Y6
	GELUBACKWARD
	VMASKMOVPS Y7, Y15, (DI)

gbackdone:
	VZEROUPPER
	RET

// func addAVX2(dst, x, y []float32)
TEXT ·addAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	MOVQ y_base+48(FP), DX

addloop:
	CMPQ    CX, $8
	JLT     addtail
	VMOVUPS (SI), Y0
	VADDPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	SUBQ    $8, CX
	JMP     addloop

addtail:
	TESTQ      CX, CX
	JZ         adddone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMASKMOVPS (DX), Y15, Y1
	VADDPS     Y1, Y0, Y0
	VMASKMOVPS Y0, Y15, (DI)

adddone:
	VZEROUPPER
	RET

// func mulAVX2(dst, x, y []float32)
TEXT ·mulAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	MOVQ y_base+48(FP), DX

mulloop:
	CMPQ    CX, $8
	JLT     multail
	VMOVUPS (SI), Y0
	VMULPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	SUBQ    $8, CX
	JMP     mulloop

multail:
	TESTQ      CX, CX
	JZ         muldone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMASKMOVPS (DX), Y15, Y1
	VMULPS     Y1, Y0, Y0
	VMASKMOVPS Y0, Y15, (DI)

muldone:
	VZEROUPPER
	RET

// func scaleAVX2(alpha float32, x []float32)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-32
	VBROADCASTSS alpha+0(FP), Y14
	MOVQ         x_base+8(FP), SI
	MOVQ         x_len+16(FP), CX

scaleloop:
	CMPQ    CX, $8
	JLT     scaletail
	VMULPS  (SI), Y14, Y0
	VMOVUPS Y0, (SI)
	ADDQ    $32, SI
	SUBQ    $8, CX
	JMP     scaleloop

scaletail:
	TESTQ      CX, CX
	JZ         scaledone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMULPS     Y0, Y14, Y0
	VMASKMOVPS Y0, Y15, (SI)

scaledone:
	VZEROUPPER
	RET

// func axpyAVX2(alpha float32, x, y []float32)
TEXT ·axpyAVX2(SB), NOSPLIT, $0-56
	VBROADCASTSS alpha+0(FP), Y14
	MOVQ         x_base+8(FP), SI
	MOVQ         x_len+16(FP), CX
	MOVQ         y_base+32(FP), DI

axpyloop:
	CMPQ        CX, $8
	JLT         axpytail
	VMOVUPS     (DI), Y0
	VFMADD231PS (SI), Y14, Y0
	VMOVUPS     Y0, (DI)
	ADDQ        $32, SI
	ADDQ        $32, DI
	SUBQ        $8, CX
	JMP         axpyloop

axpytail:
	TESTQ       CX, CX
	JZ          axpydone
	MASK
	VMASKMOVPS  (SI), Y15, Y1
	VMASKMOVPS  (DI), Y15, Y0
	VFMADD231PS Y1, Y14, Y0
	VMASKMOVPS  Y0, Y15, (DI)

axpydone:
	VZEROUPPER
	RET

// func dotAVX2(x, y []float32) float32
TEXT ·dotAVX2(SB), NOSPLIT, $0-52
	MOVQ   x_base+0(FP), SI
	MOVQ   x_len+8(FP), CX
	MOVQ   y_base+24(FP), DX
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3

dot32:
	CMPQ        CX, $32
	JLT         dot8
	VMOVUPS     (SI), Y4
	VMOVUPS     32(SI), Y5
	VMOVUPS     64(SI), Y6
	VMOVUPS     96(SI), Y7
	VFMADD231PS (DX), Y4, Y0
	VFMADD231PS 32(DX), Y5, Y1
	VFMADD231PS 64(DX), Y6, Y2
	VFMADD231PS 96(DX), Y7, Y3
	ADDQ        $128, SI
	ADDQ        $128, DX
	SUBQ        $32, CX
	JMP         dot32

dot8:
	CMPQ        CX, $8
	JLT         dottail
	VMOVUPS     (SI), Y4
	VFMADD231PS (DX), Y4, Y0
	ADDQ        $32, SI
	ADDQ        $32, DX
	SUBQ        $8, CX
	JMP         dot8

dottail:
	TESTQ       CX, CX
	JZ          dotdone
	MASK
	VMASKMOVPS  (SI), Y15, Y4
	VMASKMOVPS  (DX), Y15, Y5
	VFMADD231PS Y5, Y4, Y1

dotdone:
	VADDPS       Y1, Y0, Y0
	VADDPS       Y3, Y2, Y2
	VADDPS       Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS       X1, X0, X0
	VHADDPS      X0, X0, X0
	VHADDPS      X0, X0, X0
	VMOVSS       X0, ret+48(FP)
	VZEROUPPER
	RET

// func sumAVX2(x []float32) float32
TEXT ·sumAVX2(SB), NOSPLIT, $0-28
	MOVQ   x_base+0(FP), SI
	MOVQ   x_len+8(FP), CX
	VXORPS Y0, Y0, Y0

sumloop:
	CMPQ   CX, $8
	JLT    sumtail
	VADDPS (SI), Y0, Y0
	ADDQ   $32, SI
	SUBQ   $8, CX
	JMP    sumloop

sumtail:
	TESTQ      CX, CX
	JZ         sumdone
	MASK
	VMASKMOVPS (SI), Y15, Y1
	VADDPS     Y1, Y0, Y0

sumdone:
	VEXTRACTF128 $1, Y0, X1
	VADDPS       X1, X0, X0
	VHADDPS      X0, X0, X0
	VHADDPS      X0, X0, X0
	VMOVSS       X0, ret+24(FP)
	VZEROUPPER
	RET

// func maxAVX2(x []float32) float32
TEXT ·maxAVX2(SB), NOSPLIT, $0-28
	MOVQ    x_base+0(FP), SI
	MOVQ    x_len+8(FP), CX
	VMOVUPS negInf<>(SB), Y0

maxloop:
	CMPQ   CX, $8
	JLT    maxtail
	VMAXPS (SI), Y0, Y0
	ADDQ   $32, SI
	SUBQ   $8, CX
	JMP    maxloop

maxtail:
	TESTQ      CX, CX
	JZ         maxdone
	MASK
	VMASKMOVPS (SI), Y15, Y1
	VMOVUPS    negInf<>(SB), Y2
	VBLENDVPS  Y15, Y1, Y2, Y1
	VMAXPS     Y1, Y0, Y0

maxdone:
	VEXTRACTF128 $1, Y0, X1
	VMAXPS       X1, X0, X0
	VPERMILPS    $0x4e, X0, X1
	VMAXPS       X1, X0, X0
	VPERMILPS    $0xb1, X0, X1
	VMAXPS       X1, X0, X0
	VMOVSS       X0, ret+24(FP)
	VZEROUPPER
	RET

// func turnAVX2(dst, src, cos, sin []float32, direction float32)
// u = x·c − y·s, v = y·c + x·s for the halves of src and dst.
TEXT ·turnAVX2(SB), NOSPLIT, $0-100
	MOVQ         dst_base+0(FP), DI
	MOVQ         src_base+24(FP), SI
	MOVQ         cos_base+48(FP), R8
	MOVQ         cos_len+56(FP), CX
	MOVQ         sin_base+72(FP), R9
	VBROADCASTSS direction+96(FP), Y14
	LEAQ         (SI)(CX*4), DX
	LEAQ         (DI)(CX*4), R10

#define TURN \
	VMULPS Y3, Y14, Y3 \
	VMULPS Y2, Y0, Y4  \
	VMULPS Y3, Y1, Y5  \
	VSUBPS Y5, Y4, Y4  \
	VMULPS Y2, Y1, Y5  \
	VMULPS Y3, Y0, Y6  \
	VADDPS Y6, Y5, Y5

turnloop:
	CMPQ    CX, $8
	JLT     turntail
	VMOVUPS (SI), Y0
	VMOVUPS (DX), Y1
	VMOVUPS (R8), Y2
	VMOVUPS (R9), Y3
	TURN
	VMOVUPS Y4, (DI)
	VMOVUPS Y5, (R10)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, R8
	ADDQ    $32, R9
	ADDQ    $32, DI
	ADDQ    $32, R10
	SUBQ    $8, CX
	JMP     turnloop

turntail:
	TESTQ      CX, CX
	JZ         turndone
	MASK
	VMASKMOVPS (SI), Y15, Y0
	VMASKMOVPS (DX), Y15, Y1
	VMASKMOVPS (R8), Y15, Y2
	VMASKMOVPS (R9), Y15, Y3
	TURN
	VMASKMOVPS Y4, Y15, (DI)
	VMASKMOVPS Y5, Y15, (R10)

turndone:
	VZEROUPPER
	RET

// func softmaxBackwardAVX2(dx, y []float32, along, scale float32)
TEXT ·softmaxBackwardAVX2(SB), NOSPLIT, $0-56
	MOVQ         dx_base+0(FP), DI
	MOVQ         y_base+24(FP), SI
	MOVQ         y_len+32(FP), CX
	VBROADCASTSS along+48(FP), Y14
	VBROADCASTSS scale+52(FP), Y13

softloop:
	CMPQ    CX, $8
	JLT     softtail
	VMOVUPS (DI), Y0
	VSUBPS  Y14, Y0, Y0
	VMULPS  (SI), Y0, Y0
	VMULPS  Y13, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DI
	SUBQ    $8, CX
	JMP     softloop

softtail:
	TESTQ      CX, CX
	JZ         softdone
	MASK
	VMASKMOVPS (SI), Y15, Y1
	VMASKMOVPS (DI), Y15, Y0
	VSUBPS     Y14, Y0, Y0
	VMULPS     Y1, Y0, Y0
	VMULPS     Y13, Y0, Y0
	VMASKMOVPS Y0, Y15, (DI)

softdone:
	VZEROUPPER
	RET

// func adamAVX2(x, g, m, v []float32, r *AdamRule)
TEXT ·adamAVX2(SB), NOSPLIT, $0-104
	MOVQ         x_base+0(FP), DI
	MOVQ         x_len+8(FP), CX
	MOVQ         g_base+24(FP), SI
	MOVQ         m_base+48(FP), R8
	MOVQ         v_base+72(FP), R9
	MOVQ         r+96(FP), DX
	VBROADCASTSS 0(DX), Y8   // Beta1
	VBROADCASTSS 4(DX), Y9   // Beta2
	VBROADCASTSS 8(DX), Y12  // Step
	VBROADCASTSS 12(DX), Y13 // Unbias
	VBROADCASTSS 16(DX), Y14 // Keep
	VBROADCASTSS 20(DX), Y7  // Eps
	VMOVUPS      one<>(SB), Y10
	VSUBPS       Y9, Y10, Y11 // 1 − Beta2
	VSUBPS       Y8, Y10, Y10 // 1 − Beta1

// Y0 x, Y1 g, Y2 m, Y3 v in and out but for g.
#define ADAM \
	VMULPS  Y2, Y8, Y2   \
	VMULPS  Y1, Y10, Y4  \
	VADDPS  Y4, Y2, Y2   \
	VMULPS  Y3, Y9, Y3   \
	VMULPS  Y1, Y11, Y4  \
	VMULPS  Y1, Y4, Y4   \
	VADDPS  Y4, Y3, Y3   \
	VSQRTPS Y3, Y4       \
	VMULPS  Y13, Y4, Y4  \
	VADDPS  Y7, Y4, Y4   \
	VMULPS  Y2, Y12, Y5  \
	VDIVPS  Y4, Y5, Y5   \
	VMULPS  Y14, Y0, Y0  \
	VSUBPS  Y5, Y0, Y0

adamloop:
	CMPQ    CX, $8
	JLT     adamtail
	VMOVUPS (DI), Y0
	VMOVUPS (SI), Y1
	VMOVUPS (R8), Y2
	VMOVUPS (R9), Y3
	ADAM
	VMOVUPS Y0, (DI)
	VMOVUPS Y2, (R8)
	VMOVUPS Y3, (R9)
	ADDQ    $32, DI
	ADDQ    $32, SI
	ADDQ    $32, R8
	ADDQ    $32, R9
	SUBQ    $8, CX
	JMP     adamloop

adamtail:
	TESTQ      CX, CX
	JZ         adamdone
	MASK
	VMASKMOVPS (DI), Y15, Y0
	VMASKMOVPS (SI), Y15, Y1
	VMASKMOVPS (R8), Y15, Y2
	VMASKMOVPS (R9), Y15, Y3
	ADAM
	VMASKMOVPS Y0, Y15, (DI)
	VMASKMOVPS Y2, Y15, (R8)
	VMASKMOVPS Y3, Y15, (R9)

adamdone:
	VZEROUPPER
	RET

// func finiteAVX2(x []float32) bool
// x·0 is not 0 where x is not finite; Y0 collects such lanes.
TEXT ·finiteAVX2(SB), NOSPLIT, $0-25
	MOVQ   x_base+0(FP), SI
	MOVQ   x_len+8(FP), CX
	VXORPS Y0, Y0, Y0
	VXORPS Y14, Y14, Y14

finiteloop:
	CMPQ   CX, $8
	JLT    finitetail
	VMULPS (SI), Y14, Y1
	VORPS  Y1, Y0, Y0
	ADDQ   $32, SI
	SUBQ   $8, CX
	JMP    finiteloop

finitetail:
	TESTQ      CX, CX
	JZ         finitedone
	MASK
	VMASKMOVPS (SI), Y15, Y1
	VMULPS     Y1, Y14, Y1
	VORPS      Y1, Y0, Y0

finitedone:
	VCMPPS    $4, Y14, Y0, Y0 // not equal, or NaN
	VMOVMSKPS Y0, AX
	TESTL     AX, AX
	SETEQ     ret+24(FP)
	VZEROUPPER
	RET
