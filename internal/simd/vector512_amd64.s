#include "textflag.h"

// These are the functions of vector_amd64.s sixteen elements at a time, with
// the same bits: the same instructions on each element, and sums in the same
// eight or thirty-two partial sums. Registers are as there; K1 masks the rest.

#define CONST(name, bits) \
	DATA  name<>+0(SB)/4, bits  \
	GLOBL name<>(SB), RODATA|NOPTR, $4

CONST(expHi, $0x42b20000)
CONST(expLo, $0xc2b00000)
CONST(log2e, $0x3fb8aa3b)
CONST(ln2hi, $0x3f318000)
CONST(ln2lo, $0xb95e8083)
CONST(e0, $0x39506967)
CONST(e1, $0x3ab743ce)
CONST(e2, $0x3c088908)
CONST(e3, $0x3d2aa9c1)
CONST(e4, $0x3e2aaaaa)
CONST(e5, $0x3f000000)
CONST(one, $0x3f800000)
CONST(slope, $0x3fcc422a)
CONST(cubic, $0x3d372713)
CONST(cubic3, $0x3e095d4f)
CONST(bias, $0x0000007f)

// MASK sets K1 to the first CX lanes, 0 < CX < 16.
#define MASK \
	MOVL  $1, AX  \
	SHLL  CX, AX  \
	DECL  AX      \
	KMOVW AX, K1

// LOADEXP puts EXP's constants into Z16 to Z28.
#define LOADEXP \
	VBROADCASTSS expHi<>(SB), Z16 \
	VBROADCASTSS expLo<>(SB), Z17 \
	VBROADCASTSS log2e<>(SB), Z18 \
	VBROADCASTSS ln2hi<>(SB), Z19 \
	VBROADCASTSS ln2lo<>(SB), Z20 \
	VBROADCASTSS e0<>(SB), Z21    \
	VBROADCASTSS e1<>(SB), Z22    \
	VBROADCASTSS e2<>(SB), Z23    \
	VBROADCASTSS e3<>(SB), Z24    \
	VBROADCASTSS e4<>(SB), Z25    \
	VBROADCASTSS e5<>(SB), Z26    \
	VBROADCASTSS one<>(SB), Z27   \
	VBROADCASTSS bias<>(SB), Z28

// EXP replaces x by e^x. n and p are scratch.
#define EXP(x, n, p) \
	VMINPS       x, Z16, x     \
	VMAXPS       x, Z17, x     \
	VMULPS       Z18, x, n     \
	VRNDSCALEPS  $0, n, n      \
	VFNMADD231PS Z19, n, x     \
	VFNMADD231PS Z20, n, x     \
	VCVTPS2DQ    n, n          \
	VMOVAPS      Z21, p        \
	VFMADD213PS  Z22, x, p     \
	VFMADD213PS  Z23, x, p     \
	VFMADD213PS  Z24, x, p     \
	VFMADD213PS  Z25, x, p     \
	VFMADD213PS  Z26, x, p     \
	VFMADD213PS  Z27, x, p     \
	VFMADD213PS  Z27, x, p     \
	VPADDD       Z28, n, n     \
	VPSLLD       $23, n, n     \
	VMULPS       n, p, x

// SIGMOID sets s to 1/(1+e^−x). n and p are scratch.
#define SIGMOID(x, s, n, p) \
	VPXORD s, s, s   \
	VSUBPS x, s, s   \
	EXP(s, n, p)     \
	VADDPS Z27, s, s \
	VDIVPS s, Z27, s

// func expSubAVX512(dst, x []float32, scale, m float32) float32
TEXT ·expSubAVX512(SB), NOSPLIT, $0-60
	MOVQ         dst_base+0(FP), DI
	MOVQ         x_base+24(FP), SI
	MOVQ         x_len+32(FP), CX
	VBROADCASTSS scale+48(FP), Z12
	VBROADCASTSS m+52(FP), Z14
	VXORPS       Y13, Y13, Y13
	LOADEXP

exploop:
	CMPQ          CX, $16
	JLT           exptail
	VMULPS        (SI), Z12, Z0
	VSUBPS        Z14, Z0, Z0
	EXP(Z0, Z1, Z2)
	VMOVUPS       Z0, (DI)
	VEXTRACTF64X4 $1, Z0, Y1
	VADDPS        Y0, Y13, Y13
	VADDPS        Y1, Y13, Y13
	ADDQ          $64, SI
	ADDQ          $64, DI
	SUBQ          $16, CX
	JMP           exploop

exptail:
	TESTQ         CX, CX
	JZ            expdone
	MASK
	VMOVUPS.Z     (SI), K1, Z0
	VMULPS        Z12, Z0, Z0
	VSUBPS        Z14, Z0, Z0
	EXP(Z0, Z1, Z2)
	VMOVUPS       Z0, K1, (DI)
	VMOVAPS.Z     Z0, K1, Z0
	VEXTRACTF64X4 $1, Z0, Y1
	VADDPS        Y0, Y13, Y13
	VADDPS        Y1, Y13, Y13

expdone:
	VEXTRACTF128 $1, Y13, X0
	VADDPS       X13, X0, X0
	VHADDPS      X0, X0, X0
	VHADDPS      X0, X0, X0
	VMOVSS       X0, ret+56(FP)
	VZEROUPPER
	RET

// func siluAVX512(dst, gate, up []float32)
TEXT ·siluAVX512(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ gate_base+24(FP), SI
	MOVQ gate_len+32(FP), CX
	MOVQ up_base+48(FP), DX
	LOADEXP

#define SILU \
	SIGMOID(Z0, Z1, Z2, Z3) \
	VMULPS  Z0, Z1, Z0      \
	VMULPS  Z4, Z0, Z0

siluloop:
	CMPQ    CX, $16
	JLT     silutail
	VMOVUPS (SI), Z0
	VMOVUPS (DX), Z4
	SILU
	VMOVUPS Z0, (DI)
	ADDQ    $64, SI
	ADDQ    $64, DX
	ADDQ    $64, DI
	SUBQ    $16, CX
	JMP     siluloop

silutail:
	TESTQ     CX, CX
	JZ        siludone
	MASK
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z (DX), K1, Z4
	SILU
	VMOVUPS   Z0, K1, (DI)

siludone:
	VZEROUPPER
	RET

// func siluBackwardAVX512(dGate, dUp, gate, up, dOut []float32)
TEXT ·siluBackwardAVX512(SB), NOSPLIT, $0-120
	MOVQ dGate_base+0(FP), DI
	MOVQ dUp_base+24(FP), R8
	MOVQ gate_base+48(FP), SI
	MOVQ gate_len+56(FP), CX
	MOVQ up_base+72(FP), DX
	MOVQ dOut_base+96(FP), R9
	LOADEXP

#define SILUBACKWARD \
	SIGMOID(Z0, Z1, Z2, Z3) \
	VMULPS       Z0, Z1, Z2 \
	VMULPS       Z5, Z2, Z7 \
	VFNMADD213PS Z2, Z1, Z2 \
	VADDPS       Z1, Z2, Z2 \
	VMULPS       Z5, Z4, Z6 \
	VMULPS       Z2, Z6, Z6

backloop:
	CMPQ    CX, $16
	JLT     backtail
	VMOVUPS (SI), Z0
	VMOVUPS (DX), Z4
	VMOVUPS (R9), Z5
	SILUBACKWARD
	VMOVUPS Z6, (DI)
	VMOVUPS Z7, (R8)
	ADDQ    $64, SI
	ADDQ    $64, DX
	ADDQ    $64, DI
	ADDQ    $64, R8
	ADDQ    $64, R9
	SUBQ    $16, CX
	JMP     backloop

backtail:
	TESTQ     CX, CX
	JZ        backdone
	MASK
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z (DX), K1, Z4
	VMOVUPS.Z (R9), K1, Z5
	SILUBACKWARD
	VMOVUPS   Z6, K1, (DI)
	VMOVUPS   Z7, K1, (R8)

backdone:
	VZEROUPPER
	RET

// LOADINNER puts INNER's constants into Z29 and Z30.
#define LOADINNER \
	VBROADCASTSS cubic<>(SB), Z29 \
	VBROADCASTSS slope<>(SB), Z30

#define INNER(x, u, sq) \
	VMULPS      x, x, sq   \
	VMULPS      Z29, sq, u \
	VFMADD213PS x, x, u    \
	VMULPS      Z30, u, u

// func geluAVX512(dst, x []float32)
TEXT ·geluAVX512(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	LOADEXP
	LOADINNER

#define GELU \
	INNER(Z0, Z4, Z5)       \
	SIGMOID(Z4, Z1, Z2, Z3) \
	VMULPS  Z0, Z1, Z0

geluloop:
	CMPQ    CX, $16
	JLT     gelutail
	VMOVUPS (SI), Z0
	GELU
	VMOVUPS Z0, (DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $16, CX
	JMP     geluloop

gelutail:
	TESTQ     CX, CX
	JZ        geludone
	MASK
	VMOVUPS.Z (SI), K1, Z0
	GELU
	VMOVUPS   Z0, K1, (DI)

geludone:
	VZEROUPPER
	RET

// func geluBackwardAVX512(dx, x, dy []float32)
TEXT ·geluBackwardAVX512(SB), NOSPLIT, $0-72
	MOVQ         dx_base+0(FP), DI
	MOVQ         x_base+24(FP), SI
	MOVQ         x_len+32(FP), CX
	MOVQ         dy_base+48(FP), DX
	LOADEXP
	LOADINNER
	VBROADCASTSS cubic3<>(SB), Z31

#define GELUBACKWARD \
	INNER(Z0, Z4, Z5)        \
	SIGMOID(Z4, Z1, Z2, Z3)  \
	VMULPS       Z0, Z1, Z2  \
	VFNMADD213PS Z2, Z1, Z2  \
	VMOVAPS      Z27, Z3     \
	VFMADD231PS  Z31, Z5, Z3 \
	VMULPS       Z30, Z3, Z3 \
	VFMADD213PS  Z1, Z3, Z2  \
	VMULPS       Z2, Z6, Z7

gbackloop:
	CMPQ    CX, $16
	JLT     gbacktail
	VMOVUPS (SI), Z0
	VMOVUPS (DX), Z6
	GELUBACKWARD
	VMOVUPS Z7, (DI)
	ADDQ    $64, SI
	ADDQ    $64, DX
	ADDQ    $64, DI
	SUBQ    $16, CX
	JMP     gbackloop

gbacktail:
	TESTQ     CX, CX
	JZ        gbackdone
	MASK
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z (DX), K1, Z6
	GELUBACKWARD
	VMOVUPS   Z7, K1, (DI)

gbackdone:
	VZEROUPPER
	RET
