package loop

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds a trajectory. Every wait of the loop has one of its deadlines.
type Config struct {
	KMax        int `yaml:"-" json:"k_max"`                   // most tool calls of turn 1, the reward's; further ones are not executed
	MaxContext  int `yaml:"max_context" json:"max_context"`   // most ids of a turn, expanded prompt and output together
	MaxImages   int `yaml:"max_images" json:"max_images"`     // most images of both turns together
	ImageTokens int `yaml:"image_tokens" json:"image_tokens"` // most ids that one image expands to

	SampleTimeout  time.Duration `yaml:"sample_timeout" json:"sample_timeout"`   // a turn
	CallTimeout    time.Duration `yaml:"call_timeout" json:"call_timeout"`       // one try of a tool call, or of fetching an image
	MeasureTimeout time.Duration `yaml:"measure_timeout" json:"measure_timeout"` // one try of the measurements
}

// Default returns limits for the embedded policy.
func Default() Config {
	return Config{
		KMax: 5, MaxContext: 2048, MaxImages: 8, ImageTokens: 24,
		SampleTimeout: 5 * time.Minute, CallTimeout: 30 * time.Second, MeasureTimeout: time.Minute,
	}
}

// Validate reports every unusable field at once.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("%s is %d, want more than 0", name, v))
		}
	}
	if c.KMax < 0 {
		errs = append(errs, fmt.Errorf("k_max is %d, want at least 0", c.KMax))
	}
	positive("max_context", int64(c.MaxContext))
	positive("max_images", int64(c.MaxImages))
	positive("image_tokens", int64(c.ImageTokens))
	positive("sample_timeout", int64(c.SampleTimeout))
	positive("call_timeout", int64(c.CallTimeout))
	positive("measure_timeout", int64(c.MeasureTimeout))
	return errors.Join(errs...)
}
