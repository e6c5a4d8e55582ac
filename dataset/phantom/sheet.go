package phantom

import (
	"image"
	"image/draw"
)

// Sheet arranges images of equal size in a contact sheet with the given number
// of columns. Every is the step of the thinning: 1 keeps the source's scale, 4
// averages blocks of 4 × 4 pixels, which is near the coarse view.
func Sheet(images []*image.Gray, columns, every int) *image.Gray {
	const gap = 4
	tile := Size / every
	rows := (len(images) + columns - 1) / columns
	sheet := image.NewGray(image.Rect(0, 0, columns*(tile+gap), rows*(tile+gap)))
	for i, img := range images {
		at := image.Pt(i%columns*(tile+gap), i/columns*(tile+gap))
		small := Thin(img, every)
		draw.Draw(sheet, small.Bounds().Add(at), small, image.Point{}, draw.Src)
	}
	return sheet
}

// Thin averages blocks of every × every pixels.
func Thin(img *image.Gray, every int) *image.Gray {
	w, h := img.Rect.Dx()/every, img.Rect.Dy()/every
	out := image.NewGray(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			sum := 0
			for i := range every * every {
				sum += int(img.Pix[(y*every+i/every)*img.Stride+x*every+i%every])
			}
			out.Pix[y*w+x] = uint8(sum / (every * every))
		}
	}
	return out
}
