#include "textflag.h"

// The micro-kernels add a product of a few rows of A and a column panel of B
// to a tile of C held in registers. Each lane of an accumulator is one element
// of C; it takes one fused multiply-add a step of k, in ascending order. All
// kernels differ in the shape of the tile only, so they round alike.
//
// Strides are in bytes: ars and acs step A by a row and by one k, bs steps B
// by one k, ps from one panel of B to the next, ldc steps C by a row.
//
// The tile starts from init, which is C itself or zeros with a stride of 0.
//
//	AX k   SI a   R8 ars   R9 acs   BX b   R10 bs   DI row 3 of A
//	DX init, then c   R11 ldi, then ldc   R13 row 3 of init, then of C

#define LOADARGS \
	MOVQ k+0(FP), AX     \
	MOVQ a+8(FP), SI     \
	MOVQ ars+16(FP), R8  \
	MOVQ acs+24(FP), R9  \
	MOVQ b+32(FP), BX    \
	MOVQ bs+40(FP), R10  \
	MOVQ init+48(FP), DX \
	MOVQ ldi+56(FP), R11 \
	LEAQ (R8)(R8*2), DI  \
	ADDQ SI, DI          \
	LEAQ (R11)(R11*2), R13 \
	ADDQ DX, R13

#define TOC \
	MOVQ c+64(FP), DX    \
	MOVQ ldc+72(FP), R11 \
	LEAQ (R11)(R11*2), R13 \
	ADDQ DX, R13

#define LOADC(c, lo, hi) \
	VMOVUPS c, lo \
	VMOVUPS 32+c, hi

#define STOREC(c, lo, hi) \
	VMOVUPS lo, c \
	VMOVUPS hi, 32+c

#define LOADB \
	VMOVUPS (BX), Y12   \
	VMOVUPS 32(BX), Y13 \
	ADDQ    R10, BX

#define ROW(a, lo, hi) \
	VBROADCASTSS a, Y14         \
	VFMADD231PS  Y12, Y14, lo   \
	VFMADD231PS  Y13, Y14, hi

// func kernel6x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)
TEXT ·kernel6x16(SB), NOSPLIT, $0-80
	LOADARGS
	LOADC(0(DX), Y0, Y1)
	LOADC(0(DX)(R11*1), Y2, Y3)
	LOADC(0(DX)(R11*2), Y4, Y5)
	LOADC(0(R13), Y6, Y7)
	LOADC(0(R13)(R11*1), Y8, Y9)
	LOADC(0(R13)(R11*2), Y10, Y11)

loop6:
	LOADB
	ROW((SI), Y0, Y1)
	ROW((SI)(R8*1), Y2, Y3)
	ROW((SI)(R8*2), Y4, Y5)
	ROW((DI), Y6, Y7)
	ROW((DI)(R8*1), Y8, Y9)
	ROW((DI)(R8*2), Y10, Y11)
	ADDQ R9, SI
	ADDQ R9, DI
	DECQ AX
	JNZ  loop6
	TOC
	STOREC(0(DX), Y0, Y1)
	STOREC(0(DX)(R11*1), Y2, Y3)
	STOREC(0(DX)(R11*2), Y4, Y5)
	STOREC(0(R13), Y6, Y7)
	STOREC(0(R13)(R11*1), Y8, Y9)
	STOREC(0(R13)(R11*2), Y10, Y11)
	VZEROUPPER
	RET

// func kernel5x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)
TEXT ·kernel5x16(SB), NOSPLIT, $0-80
	LOADARGS
	LOADC(0(DX), Y0, Y1)
	LOADC(0(DX)(R11*1), Y2, Y3)
	LOADC(0(DX)(R11*2), Y4, Y5)
	LOADC(0(R13), Y6, Y7)
	LOADC(0(R13)(R11*1), Y8, Y9)

loop5:
	LOADB
	ROW((SI), Y0, Y1)
	ROW((SI)(R8*1), Y2, Y3)
	ROW((SI)(R8*2), Y4, Y5)
	ROW((DI), Y6, Y7)
	ROW((DI)(R8*1), Y8, Y9)
	ADDQ R9, SI
	ADDQ R9, DI
	DECQ AX
	JNZ  loop5
	TOC
	STOREC(0(DX), Y0, Y1)
	STOREC(0(DX)(R11*1), Y2, Y3)
	STOREC(0(DX)(R11*2), Y4, Y5)
	STOREC(0(R13), Y6, Y7)
	STOREC(0(R13)(R11*1), Y8, Y9)
	VZEROUPPER
	RET

// func kernel4x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)
TEXT ·kernel4x16(SB), NOSPLIT, $0-80
	LOADARGS
	LOADC(0(DX), Y0, Y1)
	LOADC(0(DX)(R11*1), Y2, Y3)
	LOADC(0(DX)(R11*2), Y4, Y5)
	LOADC(0(R13), Y6, Y7)

loop4:
	LOADB
	ROW((SI), Y0, Y1)
	ROW((SI)(R8*1), Y2, Y3)
	ROW((SI)(R8*2), Y4, Y5)
	ROW((DI), Y6, Y7)
	ADDQ R9, SI
	ADDQ R9, DI
	DECQ AX
	JNZ  loop4
	TOC
	STOREC(0(DX), Y0, Y1)
	STOREC(0(DX)(R11*1), Y2, Y3)
	STOREC(0(DX)(R11*2), Y4, Y5)
	STOREC(0(R13), Y6, Y7)
	VZEROUPPER
	RET

// func kernel3x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)
TEXT ·kernel3x16(SB), NOSPLIT, $0-80
	LOADARGS
	LOADC(0(DX), Y0, Y1)
	LOADC(0(DX)(R11*1), Y2, Y3)
	LOADC(0(DX)(R11*2), Y4, Y5)

loop3:
	LOADB
	ROW((SI), Y0, Y1)
	ROW((SI)(R8*1), Y2, Y3)
	ROW((SI)(R8*2), Y4, Y5)
	ADDQ R9, SI
	DECQ AX
	JNZ  loop3
	TOC
	STOREC(0(DX), Y0, Y1)
	STOREC(0(DX)(R11*1), Y2, Y3)
	STOREC(0(DX)(R11*2), Y4, Y5)
	VZEROUPPER
	RET

// func kernel2x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)
TEXT ·kernel2x16(SB), NOSPLIT, $0-80
	LOADARGS
	LOADC(0(DX), Y0, Y1)
	LOADC(0(DX)(R11*1), Y2, Y3)

loop2:
	LOADB
	ROW((SI), Y0, Y1)
	ROW((SI)(R8*1), Y2, Y3)
	ADDQ R9, SI
	DECQ AX
	JNZ  loop2
	TOC
	STOREC(0(DX), Y0, Y1)
	STOREC(0(DX)(R11*1), Y2, Y3)
	VZEROUPPER
	RET

// func kernel1x16(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int)
TEXT ·kernel1x16(SB), NOSPLIT, $0-80
	LOADARGS
	LOADC(0(DX), Y0, Y1)

loop1:
	LOADB
	ROW((SI), Y0, Y1)
	ADDQ R9, SI
	DECQ AX
	JNZ  loop1
	TOC
	STOREC(0(DX), Y0, Y1)
	VZEROUPPER
	RET

// The wide kernels keep eight accumulators busy where there are few rows: two
// rows of two panels, or one row of four.

// func kernel2x32(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int, ps int)
TEXT ·kernel2x32(SB), NOSPLIT, $0-88
	LOADARGS
	MOVQ ps+80(FP), R12
	ADDQ BX, R12
	LOADC(0(DX), Y0, Y1)
	LOADC(64(DX), Y2, Y3)
	LOADC(0(DX)(R11*1), Y4, Y5)
	LOADC(64(DX)(R11*1), Y6, Y7)

loop2w:
	VMOVUPS      (BX), Y10
	VMOVUPS      32(BX), Y11
	VMOVUPS      (R12), Y12
	VMOVUPS      32(R12), Y13
	ADDQ         R10, BX
	ADDQ         R10, R12
	VBROADCASTSS (SI), Y14
	VBROADCASTSS (SI)(R8*1), Y15
	VFMADD231PS  Y10, Y14, Y0
	VFMADD231PS  Y11, Y14, Y1
	VFMADD231PS  Y12, Y14, Y2
	VFMADD231PS  Y13, Y14, Y3
	VFMADD231PS  Y10, Y15, Y4
	VFMADD231PS  Y11, Y15, Y5
	VFMADD231PS  Y12, Y15, Y6
	VFMADD231PS  Y13, Y15, Y7
	ADDQ         R9, SI
	DECQ         AX
	JNZ          loop2w
	TOC
	STOREC(0(DX), Y0, Y1)
	STOREC(64(DX), Y2, Y3)
	STOREC(0(DX)(R11*1), Y4, Y5)
	STOREC(64(DX)(R11*1), Y6, Y7)
	VZEROUPPER
	RET

// func kernel1x64(k int, a *float32, ars, acs int, b *float32, bs int, init *float32, ldi int, c *float32, ldc int, ps int)
TEXT ·kernel1x64(SB), NOSPLIT, $0-88
	LOADARGS
	LOADC(0(DX), Y0, Y1)
	LOADC(64(DX), Y2, Y3)
	LOADC(128(DX), Y4, Y5)
	LOADC(192(DX), Y6, Y7)
	MOVQ ps+80(FP), R12
	LEAQ (BX)(R12*1), R11
	LEAQ (BX)(R12*2), R13
	LEAQ (R11)(R12*2), R12

loop1w:
	VBROADCASTSS (SI), Y14
	VFMADD231PS  (BX), Y14, Y0
	VFMADD231PS  32(BX), Y14, Y1
	VFMADD231PS  (R11), Y14, Y2
	VFMADD231PS  32(R11), Y14, Y3
	VFMADD231PS  (R13), Y14, Y4
	VFMADD231PS  32(R13), Y14, Y5
	VFMADD231PS  (R12), Y14, Y6
	VFMADD231PS  32(R12), Y14, Y7
	ADDQ         R10, BX
	ADDQ         R10, R11
	ADDQ         R10, R13
	ADDQ         R10, R12
	ADDQ         R9, SI
	DECQ         AX
	JNZ          loop1w
	TOC
	STOREC(0(DX), Y0, Y1)
	STOREC(64(DX), Y2, Y3)
	STOREC(128(DX), Y4, Y5)
	STOREC(192(DX), Y6, Y7)
	VZEROUPPER
	RET

// func transpose8(dst, src *float32, ld, k int)
// Writes 8 rows of src (ld bytes apart, k floats, k a multiple of 8) as k rows
// of 8, 64 bytes apart.
TEXT ·transpose8(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ld+16(FP), R8
	MOVQ k+24(FP), CX
	LEAQ (R8)(R8*2), R11
	LEAQ (SI)(R11*1), R9
	LEAQ (R9)(R11*1), R10

transpose:
	SUBQ       $8, CX
	JLT        transposed
	VMOVUPS    (SI), Y0
	VMOVUPS    (SI)(R8*1), Y1
	VMOVUPS    (SI)(R8*2), Y2
	VMOVUPS    (R9), Y3
	VMOVUPS    (R9)(R8*1), Y4
	VMOVUPS    (R9)(R8*2), Y5
	VMOVUPS    (R10), Y6
	VMOVUPS    (R10)(R8*1), Y7
	VUNPCKLPS  Y1, Y0, Y8
	VUNPCKHPS  Y1, Y0, Y9
	VUNPCKLPS  Y3, Y2, Y10
	VUNPCKHPS  Y3, Y2, Y11
	VUNPCKLPS  Y5, Y4, Y12
	VUNPCKHPS  Y5, Y4, Y13
	VUNPCKLPS  Y7, Y6, Y14
	VUNPCKHPS  Y7, Y6, Y15
	VSHUFPS    $0x44, Y10, Y8, Y0
	VSHUFPS    $0xee, Y10, Y8, Y1
	VSHUFPS    $0x44, Y11, Y9, Y2
	VSHUFPS    $0xee, Y11, Y9, Y3
	VSHUFPS    $0x44, Y14, Y12, Y4
	VSHUFPS    $0xee, Y14, Y12, Y5
	VSHUFPS    $0x44, Y15, Y13, Y6
	VSHUFPS    $0xee, Y15, Y13, Y7
	VPERM2F128 $0x20, Y4, Y0, Y8
	VPERM2F128 $0x20, Y5, Y1, Y9
	VPERM2F128 $0x20, Y6, Y2, Y10
	VPERM2F128 $0x20, Y7, Y3, Y11
	VPERM2F128 $0x31, Y4, Y0, Y12
	VPERM2F128 $0x31, Y5, Y1, Y13
	VPERM2F128 $0x31, Y6, Y2, Y14
	VPERM2F128 $0x31, Y7, Y3, Y15
	VMOVUPS    Y8, (DI)
	VMOVUPS    Y9, 64(DI)
	VMOVUPS    Y10, 128(DI)
	VMOVUPS    Y11, 192(DI)
	VMOVUPS    Y12, 256(DI)
	VMOVUPS    Y13, 320(DI)
	VMOVUPS    Y14, 384(DI)
	VMOVUPS    Y15, 448(DI)
	ADDQ       $512, DI
	ADDQ       $32, SI
	ADDQ       $32, R9
	ADDQ       $32, R10
	JMP        transpose

transposed:
	VZEROUPPER
	RET
