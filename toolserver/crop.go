package toolserver

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"math"

	"golang.org/x/image/draw"

	"xragent/rollout"
)

// CropArgs are the arguments of roi_crop: a region by name, or a box.
type CropArgs struct {
	Region string    `json:"region,omitempty" jsonschema:"anatomical region, the patient's side"`
	Box    []float64 `json:"box,omitempty" jsonschema:"left, top, right, bottom as shares (0 to 1) of the image, or in pixels"`
	Image  int       `json:"image,omitempty" jsonschema:"which image, from 1; default 1"`
}

// A Crop is a magnified part of the source image.
type Crop struct {
	What    string // the region's name, or "box"
	Scale   float64
	Clamped bool // the box reached outside the image
	PNG     []byte
}

func cropTool(cfg Config) Tool[CropArgs, Crop] {
	return Tool[CropArgs, Crop]{
		Name: "roi_crop", Description: "magnify a region", Version: fmt.Sprint("v2/", cfg.Crop), Images: true,
		Run: func(ctx context.Context, s *Study, in CropArgs) (Crop, error) { return cropImage(s, in, cfg.Crop) },
		Show: func(c Crop) rollout.Observation {
			text := fmt.Sprintf("%s %.1fx", c.What, c.Scale)
			if c.Clamped {
				text += " clamped to the image"
			}
			return rollout.Observation{Text: text, PNG: c.PNG}
		},
	}
}

func cropImage(s *Study, in CropArgs, side int) (Crop, error) {
	view, err := s.view(in.Image)
	if err != nil {
		return Crop{}, err
	}
	b, what, clamped, err := in.box(view)
	if err != nil {
		return Crop{}, err
	}
	r := cropWindow(b.pixels(view.gray.Rect), view.gray.Rect)
	out := image.NewGray(image.Rect(0, 0, side, side))
	draw.CatmullRom.Scale(out, out.Rect, view.gray, r, draw.Src, nil)
	var file bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&file, out); err != nil {
		return Crop{}, fmt.Errorf("encode crop: %w", err)
	}
	// The policy sees the longer side of the image in as many pixels as a crop has.
	scale := float64(longer(view.gray.Rect)) / float64(r.Dx())
	return Crop{what, scale, clamped, file.Bytes()}, nil
}

// largestShare is the greatest coordinate that is taken for a share of the
// image that reaches too far; with a greater one, all four are pixels.
const largestShare = 8

func (in CropArgs) box(v *view) (b box, what string, clamped bool, err error) {
	switch {
	case in.Region != "" && in.Box != nil:
		return b, "", false, argumentErrorf("give region or box, not both")
	case in.Region != "":
		b, what, err = v.region(in.Region)
		return b, what, false, err
	case len(in.Box) != 4:
		return b, "", false, argumentErrorf("give a region, or box with 4 numbers; it has %d", len(in.Box))
	}
	b = box{in.Box[0], in.Box[1], in.Box[2], in.Box[3]}
	if max(b.X0, b.Y0, b.X1, b.Y1) > largestShare {
		w, h := float64(v.gray.Rect.Dx()), float64(v.gray.Rect.Dy())
		b = box{b.X0 / w, b.Y0 / h, b.X1 / w, b.Y1 / h}
	}
	b, clamped = b.clamp()
	if b.X0 >= b.X1 || b.Y0 >= b.Y1 {
		return b, "", false, argumentErrorf("box is empty; want left < right and top < bottom, from 0 to 1")
	}
	return b, "box", clamped, nil
}

// cropWindow returns the square of source pixels to show: around r's centre,
// large enough for r, at least a quarter of the image's longer side (which is
// four times the scale of the policy's own view), and inside the image.
func cropWindow(r, img image.Rectangle) image.Rectangle {
	side := max(r.Dx(), r.Dy(), int(math.Round(float64(longer(img))/4)))
	side = max(1, min(side, img.Dx(), img.Dy()))
	x := clampInt((r.Min.X+r.Max.X-side)/2, 0, img.Dx()-side)
	y := clampInt((r.Min.Y+r.Max.Y-side)/2, 0, img.Dy()-side)
	return image.Rect(x, y, x+side, y+side)
}

func longer(r image.Rectangle) int { return max(r.Dx(), r.Dy()) }

func clampInt(v, low, high int) int { return min(max(v, low), high) }
