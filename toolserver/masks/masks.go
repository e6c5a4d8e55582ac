// Package masks reads stored segmentations: run lengths and PNG files in,
// masks out.
//
// Tables are those of CheXmask (Gaggion et al. 2024, Scientific Data 11:511):
// a CSV file with one image a row and the columns Left Lung, Right Lung and
// Heart, each "start length start length …" over the pixels row by row,
// counted from 1. Sides are the patient's.
//
// It refuses runs that overlap, go backwards or reach outside the image, masks
// of another size than the image's (nothing is resized: a measurement would
// move), and tables without the columns. An image that a table does not hold is
// no error; a mask that is empty is one, because nothing can be measured on it.
package masks

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A Set is the masks of one image, 255 inside and 0 outside, of its size.
type Set struct {
	RightLung, LeftLung, Heart *image.Alpha
	// Quality is the mean Dice coefficient of reverse classification accuracy,
	// 0 to 1; NaN where the table gives none. CheXmask's authors recommend 0.7
	// as the least.
	Quality float64
}

// Parts names a set's masks in the order right lung, left lung, heart, as file
// names end.
var Parts = [3]string{"right_lung", "left_lung", "heart"}

// ErrEmpty says that a mask holds no pixel.
var ErrEmpty = errors.New("the mask is empty")

// maxPixels bounds the images that masks are made for.
const maxPixels = 64 << 20

func checkSize(size image.Point) error {
	if size.X < 1 || size.Y < 1 || size.X > maxPixels/size.Y {
		return fmt.Errorf("an image of %d x %d pixels, want 1 to %d in all", size.X, size.Y, maxPixels)
	}
	return nil
}

// RLE reads run lengths for an image of a size.
func RLE(text string, size image.Point) (*image.Alpha, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	m := image.NewAlpha(image.Rectangle{Max: size})
	if err := fill(m.Pix, text); err != nil {
		return nil, err
	}
	return m, nil
}

// fill sets the runs of text. Starts must rise: so that each pixel is written
// at most once, whatever the text says.
func fill(pix []uint8, text string) error {
	end, start, number := 0, 0, 0
	for field := range strings.FieldsSeq(text) {
		v, err := strconv.Atoi(field)
		number++
		switch {
		case err != nil:
			return fmt.Errorf("number %d is %.20q, want a whole number", number, field)
		case number%2 == 1:
			if start = max(v, 0) - 1; start < end {
				return fmt.Errorf("run %d begins at pixel %d, but the one before ends at %d", number/2+1, v, end)
			}
			continue
		case v < 1 || v > len(pix)-start:
			return fmt.Errorf("run %d has pixel %d to %d, the image %d", number/2, start+1, start+v, len(pix))
		}
		end = start + v
		for i := start; i < end; i++ {
			pix[i] = 255
		}
	}
	switch {
	case number%2 == 1:
		return fmt.Errorf("%d numbers, want pairs of start and length: the text is cut short", number)
	case number == 0:
		return ErrEmpty
	}
	return nil
}

// Encode writes a mask as run lengths; [RLE] reads them back.
func Encode(m *image.Alpha) string {
	var b strings.Builder
	w, n := m.Rect.Dx(), m.Rect.Dx()*m.Rect.Dy()
	set := func(i int) bool { return i < n && m.Pix[i/w*m.Stride+i%w] >= 128 }
	for i := 0; i < n; i++ {
		if !set(i) {
			continue
		}
		start := i
		for set(i) {
			i++
		}
		fmt.Fprintf(&b, "%d %d ", start+1, i-start)
	}
	return strings.TrimSuffix(b.String(), " ")
}

// PNG reads a mask from a PNG file: what is at least half white is inside, and
// of a darker file of two levels, 0 and 1 for example, the upper one. A palette
// counts by its colours.
func PNG(file []byte, size image.Point) (*image.Alpha, error) {
	head, err := png.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("not a PNG file: %w", err)
	}
	if head.Width != size.X || head.Height != size.Y { // before any pixel is decoded
		return nil, fmt.Errorf("a mask of %d x %d pixels, the image has %d x %d: give masks of the image's size", head.Width, head.Height, size.X, size.Y)
	}
	if err := checkSize(size); err != nil {
		return nil, err
	}
	img, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("damaged PNG file: %w", err)
	}
	levels := brightness(img)
	least, err := inside(levels)
	if err != nil {
		return nil, err
	}
	m := image.NewAlpha(image.Rectangle{Max: size})
	for i, v := range levels {
		if v >= least {
			m.Pix[i] = 255
		}
	}
	return m, nil
}

const halfWhite = 0x8000

// inside returns the level from which on a pixel is inside.
func inside(levels []uint16) (least uint16, err error) {
	brightest := slices.Max(levels)
	switch {
	case brightest >= halfWhite:
		return halfWhite, nil
	case brightest == 0:
		return 0, ErrEmpty
	case !slices.Contains(levels, 0) || slices.ContainsFunc(levels, func(v uint16) bool { return v != 0 && v != brightest }):
		return 0, fmt.Errorf("nothing in it is half white (brightest %.4f of 1) and its levels are not two: want 0 outside and 255 inside", float64(brightest)/0xffff)
	}
	return brightest, nil
}

// brightness returns each pixel's strongest colour in 16 bits, row by row.
func brightness(img image.Image) []uint16 {
	b := img.Bounds()
	levels := make([]uint16, b.Dx()*b.Dy())
	if g, ok := img.(*image.Gray); ok { // as most are: the same, faster
		for i, v := range g.Pix {
			levels[i] = uint16(v) * 0x101
		}
		return levels
	}
	for i := range levels {
		r, g, bl, _ := img.At(b.Min.X+i%b.Dx(), b.Min.Y+i/b.Dx()).RGBA()
		levels[i] = uint16(max(r, g, bl))
	}
	return levels
}

// NoQuality is the quality of masks of which nothing is said.
var NoQuality = math.NaN()
