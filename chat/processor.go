package chat

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/draw"
	_ "image/jpeg" // decoders that Process accepts
	_ "image/png"
	"math"

	"xragent/internal/picture"
	"xragent/rollout"
)

// A Processor turns an encoded image into the patches that a Qwen3-VL vision
// tower takes. It computes what transformers' Qwen2VLImageProcessor computes:
// smart resize, antialiased bicubic interpolation on 8-bit channels, rescaling
// to [-1, 1]. The zero value is not usable; see [Small] and [Base].
type Processor struct {
	Patch     int `json:"patch_size"`          // pixels a side
	Merge     int `json:"merge_size"`          // patches a side that become one token
	Temporal  int `json:"temporal_patch_size"` // an image is repeated so many times
	MinPixels int `json:"min_pixels"`
	MaxPixels int `json:"max_pixels"`
}

// The configurations in use. Small shows the embedded policy 128 × 128 pixels,
// 16 tokens, a square image; Base is the published Qwen3-VL-8B's, with the
// upper bound lowered to 1,024 tokens.
var (
	Small = Processor{Patch: 16, Merge: 2, Temporal: 2, MinPixels: 128 * 128, MaxPixels: 128 * 128}
	Base  = Processor{Patch: 16, Merge: 2, Temporal: 2, MinPixels: 256 * 256, MaxPixels: 1024 * 1024}
)

// Limits on source images, checked before any pixel is decoded.
const (
	maxSide   = 1 << 14
	maxSource = 32 << 20 // pixels
	maxAspect = 200      // as in transformers
)

// Process decodes a PNG or JPEG and returns its patches, [N, 3·Temporal·Patch²]
// row-major, and its grid of patches (time, height, width), N = t·h·w. Patches
// are ordered in merge × merge blocks; a row is [channel, time, y, x].
// Grey images are repeated over the channels; what is transparent shows white.
// Of 16 bits the high byte counts (Pillow, and so transformers, clips 16-bit
// grey at 255 instead, which makes a film white).
func (p Processor) Process(encoded []byte) (patches []float32, grid [3]int, err error) {
	size, grid, err := p.plan(encoded)
	if err != nil {
		return nil, grid, err
	}
	src, _, err := image.Decode(bytes.NewReader(encoded))
	if err != nil {
		return nil, grid, fmt.Errorf("image of %d bytes: %w; the file is truncated or damaged", len(encoded), err)
	}
	planes := channels(src)
	for i := range planes {
		planes[i] = planes[i].resize(size.X, size.Y)
	}
	return p.patchify(planes, grid), grid, nil
}

// Use says how the policy sees an encoded image whose content hash is sha,
// without decoding its pixels.
func (p Processor) Use(encoded []byte, sha string) (rollout.ImageUse, error) {
	_, grid, err := p.plan(encoded)
	return rollout.ImageUse{SHA256: sha, Grid: grid, Processor: p.Hash()}, err
}

// Row returns the length of one patch row.
func (p Processor) Row() int { return 3 * p.Temporal * p.Patch * p.Patch }

// processorVersion changes when Process gives other numbers for the same configuration.
const processorVersion = "qwen2vl/2"

// Hash identifies the processor: equal hashes give equal patches.
func (p Processor) Hash() string {
	config, err := json.Marshal(p)
	if err != nil {
		panic(err) // five integers
	}
	sum := sha256.Sum256(append([]byte(processorVersion), config...))
	return hex.EncodeToString(sum[:8])
}

// Validate reports the first field that makes p unusable.
func (p Processor) Validate() error {
	switch factor := p.Patch * p.Merge; {
	case p.Patch <= 0 || p.Merge <= 0 || p.Temporal <= 0:
		return fmt.Errorf("processor: patch_size %d, merge_size %d and temporal_patch_size %d must be positive", p.Patch, p.Merge, p.Temporal)
	case p.MinPixels <= 0 || p.MinPixels > p.MaxPixels:
		return fmt.Errorf("processor: min_pixels %d must be positive and at most max_pixels %d", p.MinPixels, p.MaxPixels)
	case p.MaxPixels < factor*factor:
		return fmt.Errorf("processor: max_pixels %d is less than one token of %d × %d", p.MaxPixels, factor, factor)
	}
	return nil
}

// plan reads the header only and returns the size to resize to and the grid.
func (p Processor) plan(encoded []byte) (size image.Point, grid [3]int, err error) {
	cfg, format, err := image.DecodeConfig(bytes.NewReader(encoded))
	switch {
	case len(encoded) == 0:
		return size, grid, errors.New("image: the file is empty; give a whole PNG or JPEG file")
	case noPixels(encoded):
		return size, grid, errors.New("png image of 0 pixels: a side is 0; give an image with pixels")
	case err != nil:
		return size, grid, fmt.Errorf("image of %d bytes: %w; give a whole PNG or JPEG file", len(encoded), err)
	}
	w, h := cfg.Width, cfg.Height
	switch {
	case w <= 0 || h <= 0 || w > maxSide || h > maxSide || w*h > maxSource:
		return size, grid, fmt.Errorf("%s image of %d × %d pixels: sides must be 1 to %d and the area at most %d; scale it down first", format, w, h, maxSide, maxSource)
	case max(w, h) > maxAspect*min(w, h):
		return size, grid, fmt.Errorf("%s image of %d × %d pixels: the aspect is %d : 1, at most %d : 1 is taken; crop it first", format, w, h, max(w, h)/min(w, h), maxAspect)
	}
	if err := picture.Upright(encoded); err != nil {
		return size, grid, fmt.Errorf("%s image: %w", format, err)
	}
	size = p.smartResize(h, w)
	return size, [3]int{1, size.Y / p.Patch, size.X / p.Patch}, nil
}

// noPixels reports whether a PNG says that a side of it is 0, which the decoder
// calls a format error. (In a JPEG a height of 0 means that it follows later.)
func noPixels(encoded []byte) bool {
	const sides = len("\x89PNG\r\n\x1a\n") + 4 + len("IHDR")
	if len(encoded) < sides+8 || !bytes.HasPrefix(encoded, []byte("\x89PNG")) {
		return false
	}
	w, h := binary.BigEndian.Uint32(encoded[sides:]), binary.BigEndian.Uint32(encoded[sides+4:])
	return w == 0 || h == 0
}

// smartResize picks sides that are multiples of Patch·Merge, an area within
// [MinPixels, MaxPixels] and an aspect ratio near the source's, by the
// published rule (which rounds half to even, and bounds the area only from the
// side on which the rounded one lies).
func (p Processor) smartResize(h, w int) image.Point {
	f := float64(p.Patch * p.Merge)
	fh, fw := float64(h), float64(w)
	hBar, wBar := math.RoundToEven(fh/f)*f, math.RoundToEven(fw/f)*f
	switch area := hBar * wBar; {
	case area > float64(p.MaxPixels):
		beta := math.Sqrt(fh * fw / float64(p.MaxPixels))
		hBar = max(f, math.Floor(fh/beta/f)*f)
		wBar = max(f, math.Floor(fw/beta/f)*f)
	case area < float64(p.MinPixels):
		beta := math.Sqrt(float64(p.MinPixels) / (fh * fw))
		hBar = math.Ceil(fh*beta/f) * f
		wBar = math.Ceil(fw*beta/f) * f
	}
	return image.Pt(int(wBar), int(hBar))
}

// patchify normalises and reorders planes, one (grey) or three of them.
func (p Processor) patchify(planes []plane, grid [3]int) []float32 {
	var norm [256]float32 // (v/255 - 0.5)/0.5, in transformers' fused form
	for v := range norm {
		norm[v] = (float32(v) - 127.5) / 127.5
	}
	out := make([]float32, 0, grid[1]*grid[2]*p.Row())
	for block := range (grid[1] / p.Merge) * (grid[2] / p.Merge) {
		by, bx := block/(grid[2]/p.Merge), block%(grid[2]/p.Merge)
		for cell := range p.Merge * p.Merge {
			y := (by*p.Merge + cell/p.Merge) * p.Patch
			x := (bx*p.Merge + cell%p.Merge) * p.Patch
			for c := range 3 {
				out = p.appendPatch(out, planes[min(c, len(planes)-1)], x, y, &norm)
			}
		}
	}
	return out
}

func (p Processor) appendPatch(out []float32, src plane, x, y int, norm *[256]float32) []float32 {
	for range p.Temporal {
		for row := y; row < y+p.Patch; row++ {
			for _, v := range src.pix[row*src.w+x:][:p.Patch] {
				out = append(out, norm[v])
			}
		}
	}
	return out
}

// channels splits an image into 8-bit planes: one when it is grey, else three.
func channels(src image.Image) []plane {
	b := src.Bounds()
	w, h := b.Dx(), b.Dy()
	switch src := src.(type) {
	case *image.Gray:
		grey := newPlane(w, h)
		for y := range h {
			copy(grey.pix[y*w:], src.Pix[y*src.Stride:][:w])
		}
		return []plane{grey}
	case *image.Gray16:
		grey := newPlane(w, h)
		for i := range grey.pix {
			grey.pix[i] = src.Pix[i/w*src.Stride+i%w*2]
		}
		return []plane{grey}
	}
	rgb := []plane{newPlane(w, h), newPlane(w, h), newPlane(w, h)}
	flat := straight(src)
	for i := range w * h {
		px := flat.Pix[i/w*flat.Stride+i%w*4:]
		for c := range rgb {
			rgb[c].pix[i] = onWhite(px[c], px[3])
		}
	}
	return rgb
}

// onWhite lays a value over white, rounded as Pillow's alpha_composite does.
func onWhite(v, alpha uint8) uint8 {
	if alpha == 255 {
		return v
	}
	x := (uint32(v)*uint32(alpha) + 255*(255-uint32(alpha)) + 128) << 7
	return uint8((x>>8 + x) >> 15)
}

// straight returns src in 8 bits, colours not multiplied by alpha, of 16 bits
// the high byte.
func straight(src image.Image) *image.NRGBA {
	b := src.Bounds()
	switch src := src.(type) {
	case *image.NRGBA:
		return src
	case *image.NRGBA64:
		flat := image.NewNRGBA(b)
		for i := range flat.Pix {
			flat.Pix[i] = src.Pix[i/flat.Stride*src.Stride+i%flat.Stride*2]
		}
		return flat
	case interface{ Opaque() bool }:
		if src.Opaque() {
			flat := image.NewRGBA(b) // equal to NRGBA where all is opaque, and drawn fast
			draw.Draw(flat, b, src.(image.Image), b.Min, draw.Src)
			return &image.NRGBA{Pix: flat.Pix, Stride: flat.Stride, Rect: b}
		}
	}
	flat := image.NewNRGBA(b)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			flat.Set(x, y, src.At(x, y))
		}
	}
	return flat
}
