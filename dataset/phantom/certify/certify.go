// Package certify examines the phantom world before anything is trained on it,
// and writes down whether the world is what it promises to be: that its
// questions can be answered with all evidence, and cannot be without looking,
// without asking, or from their wording.
//
// The examination trains probes of its own: a text-only scorer, a small
// convolutional network on the coarse view and one on the right crops. A probe
// knows more than a policy (it is taught every finding of every training film,
// and for each question which class of evidence it needs), so what it cannot
// read off the coarse view no policy of its size will. Figures are of films
// that no probe was trained on.
//
// The package refuses to call a world certified when any bound fails, and to
// judge by probes that were not trained in full (a quick look).
package certify

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
)

// Version names the examination: its probes and bounds.
const Version = "v2"

// Tools are what the world's questions may be answered with.
type Tools interface {
	Call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, meta []dataset.Image) (rollout.Observation, error)
	Measure(ctx context.Context, images [][]byte, meta []dataset.Image) (rollout.Bundle, error)
}

// A Config says how large the examination is.
type Config struct {
	Seed    uint64   `json:"seed"`
	Texts   int      `json:"texts"`          // studies described for shares and text, a quarter of them of the test split
	Train   int      `json:"train"`          // films that the coarse probe learns from
	Test    int      `json:"test"`           // films that it is judged by
	Tooled  int      `json:"tooled"`         // films that the tools are tried on
	Crops   int      `json:"crops"`          // films that the crop probe learns from; a quarter more to judge it by
	Epochs  int      `json:"epochs"`         // of the probes
	Only    []string `json:"only,omitempty"` // stages to do; none: all
	Threads int      `json:"-"`              // changes no figure
}

// Full is the examination that certifies.
func Full() Config {
	return Config{Seed: 20260, Texts: 40000, Train: 8000, Test: 2000, Tooled: 1500, Crops: 2400, Epochs: 16, Threads: 2}
}

// Quick is a look at whether the examination runs.
func Quick() Config {
	return Config{Seed: 20260, Texts: 2000, Train: 160, Test: 80, Tooled: 40, Crops: 40, Epochs: 1, Threads: 2}
}

// Scaled returns c with its sizes multiplied, for a look that takes less time.
func (c Config) Scaled(by float64) Config {
	for _, n := range []*int{&c.Texts, &c.Train, &c.Test, &c.Tooled, &c.Crops} {
		*n = int(math.Ceil(float64(*n) * by))
	}
	return c
}

// Validate reports the first field that makes c unusable.
func (c Config) Validate() error {
	for _, f := range []struct {
		name string
		n    int
	}{{"texts", c.Texts}, {"train", c.Train}, {"test", c.Test}, {"tooled", c.Tooled}, {"crops", c.Crops}, {"epochs", c.Epochs}} {
		if f.n < 1 {
			return fmt.Errorf("certify: field %s is %d, want at least 1", f.name, f.n)
		}
	}
	if c.Train > c.Texts/4*3 || max(c.Test, c.Tooled) > c.Texts/4 {
		return fmt.Errorf("certify: field texts is %d, want at least 4/3 of train (%d) and 4 times test and tooled (%d, %d)",
			c.Texts, c.Train, c.Test, c.Tooled)
	}
	names := (&examination{}).stages()
	for _, o := range c.Only {
		if !slices.ContainsFunc(names, func(s stage) bool { return s.name == o }) {
			return fmt.Errorf("certify: field only names %q, want describe, shares, text, tools, crops or coarse", o)
		}
	}
	return nil
}

// quick reports whether c examines less than [Full] does.
func (c Config) quick() bool {
	f := Full()
	return len(c.Only) > 0 || c.Texts < f.Texts || c.Train < f.Train || c.Test < f.Test || c.Tooled < f.Tooled || c.Crops < f.Crops || c.Epochs < f.Epochs
}

// An examination is one under way.
type examination struct {
	Config
	tools   Tools
	report  func(stage string)
	world   *world
	figures []Figure
}

func (e *examination) add(f ...Figure) {
	for _, f := range f {
		e.figures = append(e.figures, f.judged())
	}
}

// A stage is a part of the examination; the first describes the studies for
// all of them.
type stage struct {
	name string
	do   func(context.Context) error
}

func (e *examination) stages() []stage {
	return []stage{
		{"describe", e.describe}, {"shares", e.shares}, {"text", e.text},
		{"tools", e.tooled}, {"crops", e.crops}, {"coarse", e.coarse},
	}
}

// Run examines the generator that the program was built with. Report is told
// of each stage; nil: nobody is.
func Run(ctx context.Context, cfg Config, tools Tools, report func(stage string)) (Certificate, error) {
	if err := cfg.Validate(); err != nil {
		return Certificate{}, err
	}
	if report == nil {
		report = func(string) {}
	}
	e := &examination{Config: cfg, tools: tools, report: report}
	for i, s := range e.stages() {
		if i > 0 && len(cfg.Only) > 0 && !slices.Contains(cfg.Only, s.name) {
			continue
		}
		report(s.name)
		if err := s.do(ctx); err != nil {
			return Certificate{}, fmt.Errorf("certify: %s: %w", s.name, err)
		}
	}
	c := Certificate{
		Generator: phantom.Hash(), Version: phantom.Version, Examiner: Version,
		Quick: cfg.quick(), Config: cfg, Figures: e.figures,
	}
	c.Passed = len(c.Failures()) == 0
	return c, nil
}
