package chat

import (
	"encoding/json"
	"fmt"
	"slices"
)

// processorFile is what a preprocessor_config.json says of images. Pointers
// tell a key that is absent, which then has transformers' default.
type processorFile struct {
	Kind      string    `json:"image_processor_type"`
	Patch     int       `json:"patch_size"`
	Merge     int       `json:"merge_size"`
	Temporal  int       `json:"temporal_patch_size"`
	Size      *sizeFile `json:"size"`
	MinPixels int       `json:"min_pixels"` // an older spelling of size
	MaxPixels int       `json:"max_pixels"`

	Resize    *bool     `json:"do_resize"`
	Resample  *int      `json:"resample"`
	Rescale   *bool     `json:"do_rescale"`
	Factor    *float64  `json:"rescale_factor"`
	Normalize *bool     `json:"do_normalize"`
	Mean      []float64 `json:"image_mean"`
	Std       []float64 `json:"image_std"`
	RGB       *bool     `json:"do_convert_rgb"`

	Nested *processorFile `json:"image_processor"` // in a processor_config.json
}

type sizeFile struct {
	Shortest int `json:"shortest_edge"` // pixels in all, in spite of the name
	Longest  int `json:"longest_edge"`
}

// bicubic is transformers' number of the interpolation.
const bicubic = 3

// ParseProcessor reads a preprocessor_config.json of a Qwen3-VL, or the image
// part of a processor_config.json. It refuses, by field, whatever would give
// other pixels than [Processor.Process].
func ParseProcessor(data []byte) (Processor, error) {
	var f processorFile
	if err := json.Unmarshal(data, &f); err != nil {
		return Processor{}, fmt.Errorf("image processor: %w", err)
	}
	if f.Nested != nil {
		f = *f.Nested
	}
	if err := f.supported(); err != nil {
		return Processor{}, fmt.Errorf("image processor: %w", err)
	}
	p := Processor{Patch: f.Patch, Merge: f.Merge, Temporal: f.Temporal, MinPixels: f.MinPixels, MaxPixels: f.MaxPixels}
	if f.Size != nil {
		p.MinPixels, p.MaxPixels = f.Size.Shortest, f.Size.Longest
	}
	return p, p.Validate()
}

func (f *processorFile) supported() error {
	half := []float64{0.5, 0.5, 0.5}
	off := func(b *bool) bool { return b != nil && !*b }
	switch {
	case f.Kind != "Qwen2VLImageProcessor" && f.Kind != "Qwen2VLImageProcessorFast":
		return fmt.Errorf("field image_processor_type is %q, want Qwen2VLImageProcessor or Qwen2VLImageProcessorFast, which Qwen3-VL uses", f.Kind)
	case off(f.Resize) || off(f.Rescale) || off(f.Normalize) || off(f.RGB):
		return fmt.Errorf("fields do_resize, do_rescale, do_normalize and do_convert_rgb must be true")
	case f.Resample != nil && *f.Resample != bicubic:
		return fmt.Errorf("field resample is %d, want %d (bicubic)", *f.Resample, bicubic)
	case f.Factor != nil && *f.Factor != 1.0/255:
		return fmt.Errorf("field rescale_factor is %v, want 1/255", *f.Factor)
	case !slices.Equal(f.Mean, half) || !slices.Equal(f.Std, half):
		return fmt.Errorf("fields image_mean %v and image_std %v must be 0.5 for each channel", f.Mean, f.Std)
	}
	return nil
}
