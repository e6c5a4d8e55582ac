package dicom

import "math"

// zigzag gives the place of the i-th coefficient in its block (T.81, figure A.6).
var zigzag = [64]uint8{
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
}

// cosine holds the inverse transform's factors: C(u)/2 · cos((2x+1)uπ/16).
var cosine = func() (c [8][8]float32) {
	for x := range 8 {
		for u := range 8 {
			scale := 0.5
			if u == 0 {
				scale = 0.5 / math.Sqrt2
			}
			c[x][u] = float32(scale * math.Cos(float64(2*x+1)*float64(u)*math.Pi/16))
		}
	}
	return c
}()

// decodeDCT decodes a sequential frame of one component (T.81, annex F). With
// one component a unit is one block, whatever the sampling factors.
func (j *jpegFrame) decodeDCT() ([]uint16, error) {
	in := &bits{src: j.scan}
	across, down := (j.width+7)/8, (j.height+7)/8
	out := make([]uint16, j.width*j.height)
	dc := int32(0)
	for i := range across * down {
		if j.restart > 0 && i > 0 && i%j.restart == 0 {
			if !in.next() {
				return nil, endsEarly(i, across*down)
			}
			dc = 0
		}
		var block [64]float32
		if !j.coefficients(in, &dc, &block) {
			return nil, endsEarly(i, across*down)
		}
		inverse(&block)
		j.put(out, &block, i%across*8, i/across*8)
	}
	return out, nil
}

// coefficients decodes and dequantises one block.
func (j *jpegFrame) coefficients(in *bits, dc *int32, block *[64]float32) bool {
	quant := &j.quant[j.quantSlot]
	size, ok := in.symbol(j.huffman[0][j.dcSlot])
	if !ok || size > 15 {
		return false
	}
	*dc += in.extended(size)
	block[0] = float32(*dc) * float32(quant[0])
	for k := 1; k < 64; k++ {
		code, ok := in.symbol(j.huffman[1][j.acSlot])
		run, size := int(code>>4), code&15
		switch {
		case !ok:
			return false
		case size == 0 && run != 15:
			return true // end of block
		case size == 0:
			k += 15
			continue
		}
		if k += run; k > 63 {
			return false
		}
		block[zigzag[k]] = float32(in.extended(size)) * float32(quant[k])
	}
	return in.have >= in.pad
}

// inverse applies the inverse transform along rows, then along columns.
func inverse(block *[64]float32) {
	var rows [64]float32
	for y := range 8 {
		for x := range 8 {
			sum := float32(0)
			for u := range 8 {
				sum += cosine[x][u] * block[y*8+u]
			}
			rows[y*8+x] = sum
		}
	}
	for y := range 8 {
		for x := range 8 {
			sum := float32(0)
			for v := range 8 {
				sum += cosine[y][v] * rows[v*8+x]
			}
			block[y*8+x] = sum
		}
	}
}

// put writes the part of a block that lies in the image, shifted to unsigned.
func (j *jpegFrame) put(out []uint16, block *[64]float32, x0, y0 int) {
	centre, top := float64(int(1)<<(j.precision-1)), float64(int(1)<<j.precision-1)
	for y := range min(8, j.height-y0) {
		for x := range min(8, j.width-x0) {
			v := math.Floor(float64(block[y*8+x]) + centre + 0.5)
			out[(y0+y)*j.width+x0+x] = uint16(min(max(v, 0), top))
		}
	}
}
