package toolserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"xragent/toolserver/backend"
	"xragent/toolserver/measure"
)

// Config configures the tools. Functions are passed in by the program; the
// rest is read from YAML.
type Config struct {
	Segmenter   string                   `yaml:"segmenter"`    // phantom, or none: every measurement is withheld, also of radiographs
	Gate        measure.Preset           `yaml:"gate"`         // all_or_nothing or per_measurement
	Deadline    time.Duration            `yaml:"deadline"`     // of one call, waiting for a slot included
	Deadlines   map[string]time.Duration `yaml:"deadlines"`    // by tool name, or measure; overrides Deadline
	Concurrency int                      `yaml:"concurrency"`  // calls computed at a time
	Cache       int                      `yaml:"cache_mib"`    // bound of each of the caches, in MiB; 0 disables them
	Crop        int                      `yaml:"crop"`         // side of a returned crop, in pixels
	Schemas     string                   `yaml:"schemas"`      // terse (in a small policy's prompt) or full
	ImageBytes  int                      `yaml:"image_bytes"`  // largest encoded image accepted
	ImagePixels int                      `yaml:"image_pixels"` // largest image decoded
	Noise       Noise                    `yaml:"noise"`

	// Extended adds tools that are no part of the recipe, for agents outside it.
	Extended bool `yaml:"extended,omitempty"`
	// Backends are the model servers of tools, by the tool's name. What a server
	// says may differ from one time to the next: a run that asks one cannot be
	// repeated byte by byte.
	Backends map[string]backend.Config `yaml:"backends,omitempty"`
	// CacheDir keeps results across restarts, CacheDisk MiB of them; empty: none.
	CacheDir  string `yaml:"cache_dir,omitempty"`
	CacheDisk int    `yaml:"cache_dir_mib,omitempty"`

	// Network segments radiographs: empty for the embedded one, none, a file of
	// weights that learner/segment.py exported, or remote for the server
	// backends.segmenter, which with any other gives a second look.
	Network string `yaml:"network,omitempty"`
	// MasksFrom are stored segmentations of radiographs, which go before the
	// segmenter's: a CheXmask CSV file or a folder (see [OpenMasks]); empty: none.
	MasksFrom string `yaml:"masks_from,omitempty"`
	// Protocols returns a site protocol's text by its code; nil: none.
	Protocols func(code string) (string, bool) `yaml:"-"`
	// Observe receives one record a call; it must be safe for concurrent use.
	Observe func(Record) `yaml:"-"`
	// Images fetches an image that a NATS request names by hash only; nil: the
	// client is asked to send it.
	Images func(ctx context.Context, sha256 string) ([]byte, error) `yaml:"-"`
}

// Noise is the error built into region_parse on phantoms, on top of what it
// gets wrong by itself, so that a policy must learn how far to trust a tool.
// Which calls err depends on pixels and region alone.
type Noise struct {
	Miss       float64 `yaml:"miss"`        // share of present signs reported absent
	FalseAlarm float64 `yaml:"false_alarm"` // share of absent signs reported present
}

// Default returns the configuration of the embedded tools.
func Default() Config {
	return Config{
		Segmenter: "phantom", Gate: measure.AllOrNothing,
		Deadline: time.Minute, Concurrency: 4, Cache: 64, Crop: 128, Schemas: "terse",
		ImageBytes: 64 << 20, ImagePixels: 32 << 20,
		Noise: Noise{Miss: 0.14, FalseAlarm: 0.09},
	}
}

// Validate reports the first field that cannot be used.
func (c Config) Validate() error {
	switch {
	case !slices.Contains([]string{"phantom", "none"}, c.Segmenter):
		return fmt.Errorf("tools: field segmenter is %q, want phantom or none", c.Segmenter)
	case c.Gate != measure.AllOrNothing && c.Gate != measure.PerMeasurement:
		return fmt.Errorf("tools: field gate is %q, want %s or %s", c.Gate, measure.AllOrNothing, measure.PerMeasurement)
	case c.Deadline <= 0:
		return fmt.Errorf("tools: field deadline is %v, want more than 0", c.Deadline)
	case c.Concurrency < 1:
		return fmt.Errorf("tools: field concurrency is %d, want at least 1", c.Concurrency)
	case c.Cache < 0:
		return fmt.Errorf("tools: field cache_mib is %d, want 0 or more", c.Cache)
	case c.Crop < 16 || c.Crop > 2048:
		return fmt.Errorf("tools: field crop is %d, want 16 to 2048", c.Crop)
	case c.Schemas != "terse" && c.Schemas != "full":
		return fmt.Errorf("tools: field schemas is %q, want terse or full", c.Schemas)
	case c.ImageBytes < 1 || c.ImagePixels < 1:
		return fmt.Errorf("tools: fields image_bytes and image_pixels are %d and %d, want more than 0", c.ImageBytes, c.ImagePixels)
	case (c.CacheDir != "") != (c.CacheDisk > 0):
		return fmt.Errorf("tools: fields cache_dir and cache_dir_mib are %q and %d, want both or neither", c.CacheDir, c.CacheDisk)
	case !share(c.Noise.Miss) || !share(c.Noise.FalseAlarm):
		return fmt.Errorf("tools: field noise is %v and %v, want shares from 0 to 0.5", c.Noise.Miss, c.Noise.FalseAlarm)
	}
	if _, ok := c.Backends[segmenterName]; ok && c.Segmenter == noSegmenter {
		return fmt.Errorf("tools: field backends.%s has no effect: field segmenter is %s", segmenterName, noSegmenter)
	}
	return errors.Join(c.validateDeadlines(), c.validateBackends())
}

func share(p float64) bool { return p >= 0 && p <= 0.5 }

func (c Config) validateDeadlines() error {
	known := append(c.names(), measureName)
	for _, name := range slices.Sorted(maps.Keys(c.Deadlines)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("tools: field deadlines names %q, want one of %v", name, known)
		}
		if c.Deadlines[name] <= 0 {
			return fmt.Errorf("tools: field deadlines.%s is %v, want more than 0", name, c.Deadlines[name])
		}
	}
	return nil
}

// names lists the tools that this configuration has.
func (c Config) names() []string {
	if !c.Extended {
		return slices.Clone(toolNames)
	}
	return slices.Concat(toolNames, extendedNames)
}

func (c Config) validateBackends() error {
	asking := []string{segmenterName} // which is no tool, and the tools that can have a server
	for _, name := range c.names() {
		if _, ok := models[name]; ok {
			asking = append(asking, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Backends)) {
		b := c.Backends[name].WithDefaults()
		if !slices.Contains(asking, name) {
			return fmt.Errorf("tools: field backends names %q, want one of %v; most tools that ask a server need extended: true", name, asking)
		}
		if err := b.Validate(); err != nil {
			return fmt.Errorf("tools: field backends.%s: %w", name, err)
		}
		if name == segmenterName && c.Backends[name].Timeout > c.Deadline {
			return fmt.Errorf("tools: field backends.%s.timeout is %v, want at most deadline, %v: a call that waits for masks has no more", name, b.Timeout, c.Deadline)
		}
		if b.Wire == backend.OpenAI && !models[name].text {
			return fmt.Errorf("tools: field backends.%s.wire is %s, which gives text only: want %s", name, b.Wire, backend.JSON)
		}
	}
	return nil
}

func (c Config) deadline(name string) time.Duration {
	if d, ok := c.Deadlines[name]; ok {
		return d
	}
	return c.Deadline
}
