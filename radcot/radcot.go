// Package radcot builds the Rad-CoT corpus for supervised fine-tuning: two-turn
// records in which a rule teacher triages, the tools really answer, and the
// teacher integrates.
//
// The order is causal: turn 1 is written from the question and the coarse view
// alone, the calls are executed, the measurements taken and gated, and only
// then is turn 2 written from what is at hand. The teacher knows the right
// answer and always gives it, but claims no evidence that it was not shown, and
// about a third of its routing is worse than it could be, on purpose, so that
// reinforcement learning has something to learn. [Filters] then reject records,
// each by a named rule; the [Report] counts them.
//
// The package writes no files and owns no tools: images, truth and tools come
// through [Sources], records leave through a function. Equal inputs give equal
// records, in the same order.
package radcot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
)

// Version names the record's layout, Teacher the rules that write the turns.
const (
	Version = "v1"
	Teacher = "rule/v5"
)

// Config says what to build.
type Config struct {
	Seed    uint64 `yaml:"seed" json:"seed"`
	Samples int    `yaml:"samples" json:"samples"` // records in the recipe's proportions; 0: take Size
	Size    Size   `yaml:"size" json:"size"`       // records by kind
	// Candidates is how many report-style candidates there may be for each one kept.
	Candidates float64 `yaml:"candidates" json:"candidates"`
	// Suboptimal is about the share of records whose routing is worsened on
	// purpose, by habit on some questions and now and then on the others.
	Suboptimal float64       `yaml:"suboptimal" json:"suboptimal"`
	KMax       int           `yaml:"-" json:"k_max"` // most calls of a record, the reward's
	Filters    Filters       `yaml:"filters" json:"filters"`
	Parallel   int           `yaml:"parallel" json:"parallel"`         // records in the making at once
	Timeout    time.Duration `yaml:"call_timeout" json:"call_timeout"` // one try of a tool, of the measurements, or of an image
}

// Default returns the published recipe: 7,715 records.
func Default() Config {
	return Config{Size: recipe, Candidates: 1.5, Suboptimal: 0.35, KMax: 5, Filters: DefaultFilters(), Parallel: 4, Timeout: time.Minute}
}

// Size counts records by kind.
type Size struct {
	MultipleChoice int `yaml:"multiple_choice" json:"multiple_choice"`
	Closed         int `yaml:"closed" json:"closed"`
	Binary         int `yaml:"binary" json:"binary"`
	Report         int `yaml:"report" json:"report"`
}

var recipe = Size{MultipleChoice: 1995, Closed: 720, Binary: 1000, Report: 4000}

// Total is the sum over the kinds.
func (s Size) Total() int { return s.MultipleChoice + s.Closed + s.Binary + s.Report }

// Of returns the count of one kind.
func (s Size) Of(k dataset.Kind) int {
	switch k {
	case dataset.MultipleChoice:
		return s.MultipleChoice
	case dataset.Closed:
		return s.Closed
	case dataset.Binary:
		return s.Binary
	}
	return s.Report
}

// Sizes returns the records by kind: Size, or Samples split in the recipe's
// proportions, each rounded down and the remainder given to the report style.
func (c Config) Sizes() Size {
	if c.Samples == 0 {
		return c.Size
	}
	share := func(n int) int { return n * c.Samples / recipe.Total() }
	s := Size{MultipleChoice: share(recipe.MultipleChoice), Closed: share(recipe.Closed), Binary: share(recipe.Binary)}
	s.Report = c.Samples - s.Total()
	return s
}

// Validate reports every unusable field at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Samples >= 0, "samples is %d, want at least 0", c.Samples)
	for _, k := range dataset.Kinds {
		bad(c.Size.Of(k) >= 0, "size.%s is %d, want at least 0", k, c.Size.Of(k))
	}
	bad(c.Sizes().Total() > 0, "samples and size ask for no record: set one of them")
	bad(c.Candidates >= 1 && c.Candidates <= 100, "candidates is %v, want from 1 to 100", c.Candidates)
	bad(c.Suboptimal >= 0 && c.Suboptimal < 1, "suboptimal is %v, want a share from 0 to less than 1", c.Suboptimal)
	bad(c.KMax >= 0, "k_max is %d, want at least 0", c.KMax)
	bad(c.Parallel > 0, "parallel is %d, want at least 1", c.Parallel)
	bad(c.Timeout > 0, "call_timeout is %v, want more than 0", c.Timeout)
	return errors.Join(append(errs, c.Filters.Validate())...)
}

// A Record is one corpus sample. It leaves out the reference report, latencies
// and cache hits, so that equal builds give equal bytes.
type Record struct {
	Sample      dataset.Sample       `json:"sample"`
	Teacher     string               `json:"teacher"`
	Turn1       string               `json:"turn1"`
	Calls       []rollout.Call       `json:"calls,omitempty"` // of Turn1, in order, with what they returned
	Bundle      rollout.Bundle       `json:"bundle"`          // Shown: what turn 2 was shown
	Turn2       string               `json:"turn2"`
	Attachments []rollout.Attachment `json:"attachments,omitempty"` // the images that calls returned
	Suboptimal  bool                 `json:"suboptimal,omitempty"`  // the routing was worsened on purpose
}

// Images returns the hashes of the images of both turns in order of appearance.
func (r Record) Images() []string {
	var out []string
	for _, img := range r.Sample.Prompt.Images {
		out = append(out, img.SHA256)
	}
	for _, c := range r.Calls {
		if c.Image != "" {
			out = append(out, c.Image)
		}
	}
	return out
}

// Tools executes calls and measures, as in the rollout loop. Neither method
// sees the options, the answer or the truth.
type Tools interface {
	Call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, meta []dataset.Image) (rollout.Observation, error)
	Measure(ctx context.Context, images [][]byte, meta []dataset.Image) (rollout.Bundle, error)
}

// Images fetches images by content.
type Images interface {
	Get(ctx context.Context, sha256 string) ([]byte, error)
}

// Sources is what a corpus is built from.
type Sources struct {
	Samples []dataset.Sample // of the train or validation split
	Images  Images
	Tools   Tools
	// Truth returns what the generator knows of a study; nil, or false for a
	// real image, whose teacher works from tool outputs and the answer only.
	Truth func(study string) (phantom.Truth, bool)
}
