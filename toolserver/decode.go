package toolserver

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	_ "image/jpeg" // registers the decoder
	_ "image/png"  // registers the decoder
)

// An ImageError says that an image cannot be read. Trying again cannot help:
// the sample is at fault.
type ImageError struct {
	Index  int    // in the prompt's order
	SHA256 string // of the encoded file
	Reason string
}

func (e *ImageError) Error() string {
	return fmt.Sprintf("image %d (sha256 %.12s): %s", e.Index+1, e.SHA256, e.Reason)
}

// Poison reports that the sample, not the tool, is at fault.
func (e *ImageError) Poison() bool { return true }

// decodeGray reads a PNG or JPEG within limits, which are checked before any
// pixel is decoded.
func decodeGray(file []byte, maxBytes, maxPixels int) (*image.Gray, error) {
	if len(file) > maxBytes {
		return nil, fmt.Errorf("%d bytes, limit %d (field image_bytes)", len(file), maxBytes)
	}
	head, _, err := image.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("not a readable PNG or JPEG: %w", err)
	}
	if head.Width < 1 || head.Height < 1 || head.Width > maxPixels/head.Height {
		return nil, fmt.Errorf("%d x %d pixels, limit %d in all (field image_pixels)", head.Width, head.Height, maxPixels)
	}
	img, _, err := image.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("damaged file: %w; replace it", err)
	}
	return toGray(img), nil
}

func toGray(img image.Image) *image.Gray {
	if g, ok := img.(*image.Gray); ok && g.Rect.Min == (image.Point{}) && g.Stride == g.Rect.Dx() {
		return g
	}
	b := img.Bounds()
	gray := image.NewGray(image.Rect(0, 0, b.Dx(), b.Dy()))
	if g16, ok := img.(*image.Gray16); ok {
		for y := range b.Dy() {
			for x := range b.Dx() {
				gray.SetGray(x, y, color.Gray{Y: g16.Pix[g16.PixOffset(b.Min.X+x, b.Min.Y+y)]})
			}
		}
		return gray
	}
	draw.Draw(gray, gray.Rect, img, b.Min, draw.Src)
	return gray
}
