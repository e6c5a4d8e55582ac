package toolserver

import (
	"bytes"
	"fmt"
	"image"
	_ "image/jpeg" // registers the decoder
	"image/png"

	"xragent/dataset"
	"xragent/internal/picture"
	"xragent/toolserver/dicom"
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

// A Film is a decoded radiograph with what its file says of it.
type Film struct {
	Gray   *image.Gray
	Format string        // png, jpeg or dicom
	About  dataset.Image // size, and for DICOM the view, age and spacing
	DICOM  *dicom.Image  // nil for other formats
}

// ReadFilm reads a PNG, JPEG or DICOM file within limits, which are checked
// before any pixel is decoded. Nothing of a DICOM file's header but what package
// dicom allows is kept.
func ReadFilm(file []byte, maxBytes, maxPixels int) (Film, error) {
	if len(file) > maxBytes {
		return Film{}, fmt.Errorf("%d bytes, limit %d (field image_bytes)", len(file), maxBytes)
	}
	if dicom.Is(file) {
		m, err := dicom.Decode(file, dicom.Limits{Bytes: maxBytes, Pixels: maxPixels})
		if err != nil {
			return Film{}, err
		}
		return Film{m.Gray, "dicom", m.About(), m}, nil
	}
	gray, format, err := decodeGray(file, maxPixels)
	if err != nil {
		return Film{}, err
	}
	return Film{gray, format, dataset.Image{Width: gray.Rect.Dx(), Height: gray.Rect.Dy()}, nil}, nil
}

// decodeGray reads a PNG or JPEG.
func decodeGray(file []byte, maxPixels int) (*image.Gray, string, error) {
	head, format, err := image.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return nil, "", fmt.Errorf("not a readable PNG, JPEG or DICOM file: %w", err)
	}
	if head.Width < 1 || head.Height < 1 || head.Width > maxPixels/head.Height {
		return nil, "", fmt.Errorf("%d x %d pixels, limit %d in all (field image_pixels)", head.Width, head.Height, maxPixels)
	}
	if err := picture.Upright(file); err != nil {
		return nil, "", err
	}
	img, _, err := image.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, "", fmt.Errorf("damaged file: %w; replace it", err)
	}
	return picture.Grey(img), format, nil
}

// PNG returns the film as it is displayed, in 8 bits, as a PNG file.
func (f Film) PNG() ([]byte, error) {
	var b bytes.Buffer
	err := png.Encode(&b, f.Gray)
	return b.Bytes(), err
}
