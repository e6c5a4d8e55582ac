package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// The tools whose answers are changed.
const (
	parseTool  = "region_parse"
	cropTool   = "roi_crop"
	lookupTool = "evidence_lookup"
)

// blindTools serve a prompt without images: there is nothing to measure.
type blindTools struct{ loop.Tools }

func (blindTools) Measure(context.Context, [][]byte, []dataset.Image) (rollout.Bundle, error) {
	return rollout.Bundle{Image: -1}, nil
}

// otherTools answer about another study. A look-up, which sees no image, is
// answered as the other study's question would be.
type otherTools struct {
	loop.Tools
	donor dataset.Sample
	blobs loop.Blobs
}

func (t otherTools) Call(ctx context.Context, tool string, args json.RawMessage, _ [][]byte, _ []dataset.Image) (rollout.Observation, error) {
	if tool == lookupTool {
		args = query(t.donor.Prompt.Question)
	}
	images, err := fetch(ctx, t.blobs, t.donor)
	if err != nil {
		return rollout.Observation{}, err
	}
	return t.Tools.Call(ctx, tool, args, images, t.donor.Prompt.Images)
}

func query(question string) json.RawMessage {
	text, err := json.Marshal(map[string]string{"query": question})
	if err != nil {
		panic(err) // a map of strings has a JSON form
	}
	return text
}

// textTools see the film that the policy does not, and return no image of it.
type textTools struct {
	loop.Tools
	sample dataset.Sample
	blobs  loop.Blobs
}

func (t textTools) Call(ctx context.Context, tool string, args json.RawMessage, _ [][]byte, _ []dataset.Image) (rollout.Observation, error) {
	images, err := fetch(ctx, t.blobs, t.sample)
	if err != nil {
		return rollout.Observation{}, err
	}
	obs, err := t.Tools.Call(ctx, tool, args, images, t.sample.Prompt.Images)
	obs.PNG = nil
	return obs, err
}

func (t textTools) Measure(ctx context.Context, _ [][]byte, _ []dataset.Image) (rollout.Bundle, error) {
	images, err := fetch(ctx, t.blobs, t.sample)
	if err != nil {
		return rollout.Bundle{}, err
	}
	return t.Tools.Measure(ctx, images, t.sample.Prompt.Images)
}

func (b *Bench) oracleTools(samples []dataset.Sample) (change, error) {
	truths, err := b.truths(samples)
	if err != nil {
		return nil, err
	}
	return func(i int, p parts) parts {
		p.tools = oracleTools{p.tools, b.Exact, truths[i], samples[i].Prompt}
		return p
	}, nil
}

func (b *Bench) truths(samples []dataset.Sample) ([]phantom.Truth, error) {
	if b.Truth == nil {
		return nil, errors.New("the data has no truth: only phantoms have an oracle")
	}
	out := make([]phantom.Truth, len(samples))
	for i, s := range samples {
		t, ok := b.Truth(s.Study)
		if !ok {
			return nil, fmt.Errorf("study %s has no truth: write the phantoms again", s.Study)
		}
		out[i] = t
	}
	return out, nil
}

// oracleTools answer each call as the best call of that tool would be answered:
// region_parse without its errors and with the signs of truth, roi_crop with
// the finding that is asked about, evidence_lookup with the question's own
// protocol. Whether to call, and what, is the policy's. The bundle is as it is.
type oracleTools struct {
	loop.Tools
	exact  loop.Tools
	truth  phantom.Truth
	prompt dataset.Prompt
}

func (t oracleTools) Call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, meta []dataset.Image) (rollout.Observation, error) {
	switch tool {
	case parseTool:
		obs, err := t.exact.Call(ctx, tool, args, images, meta)
		obs.Text = correct(obs.Text, region(args), t.truth.Findings)
		return obs, err
	case cropTool:
		if f, ok := sought(t.prompt, t.truth.Findings); ok && len(images) > 0 {
			return t.crop(ctx, f, images, meta)
		}
	case lookupTool:
		args = query(t.prompt.Question)
	}
	return t.Tools.Call(ctx, tool, args, images, meta)
}

// region is the region of a call's arguments, "" when it has none.
func region(args json.RawMessage) string {
	var a struct {
		Region string `json:"region"`
	}
	_ = json.Unmarshal(args, &a) // the tool itself says what is wrong
	return strings.ToLower(strings.NewReplacer("_", " ", "-", " ").Replace(a.Region))
}

var (
	spots   = regexp.MustCompile(`\bspots \d+`)
	pattern = regexp.MustCompile(`\bpattern (none|weak|strong)`)
)

// correct puts right the signs of a region's text: how many nodules lie in it,
// and whether its texture is abnormal. The grade of a texture that is there
// stays as measured, weak where it was missed, and so do the spots that it makes,
// which are no error.
func correct(text, region string, findings []phantom.Finding) string {
	nodules, textured := 0, false
	for _, f := range findings {
		if !within(f, region) {
			continue
		}
		switch f.Name {
		case phantom.Nodule:
			nodules++
		case phantom.Edema:
			textured = true
		}
	}
	text = spots.ReplaceAllStringFunc(text, func(seen string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(seen, "spots "))
		if err == nil && textured {
			nodules = max(nodules, n)
		}
		return fmt.Sprintf("spots %d", nodules)
	})
	return pattern.ReplaceAllStringFunc(text, func(seen string) string {
		switch {
		case !textured:
			return "pattern none"
		case strings.HasSuffix(seen, "none"):
			return "pattern weak"
		}
		return seen
	})
}

// within reports whether a finding lies in a region, as named: a lung or a zone.
func within(f phantom.Finding, region string) bool {
	side, part, _ := strings.Cut(region, " ")
	return f.Side == side && (part == "lung" || f.Zone != "" && strings.HasPrefix(part, f.Zone))
}

// sought is the place that a question is about: the finding that it names, or,
// where it names none, the first that could be an answer. There is none where
// what it names is not on the film, or has no place.
func sought(p dataset.Prompt, findings []phantom.Finding) (phantom.Finding, bool) {
	question := strings.ToLower(p.Question)
	named := slices.ContainsFunc(phantom.Findings, func(name string) bool { return names(question, name) })
	for _, f := range findings {
		if named && names(question, f.Name) || !named && slices.Contains(phantom.Findings, f.Name) {
			return f, f.X != 0 || f.Y != 0
		}
	}
	return phantom.Finding{}, false
}

// names reports whether a question names a finding: tube malposition as tube.
func names(question, finding string) bool {
	first, _, _ := strings.Cut(finding, " ")
	return strings.Contains(question, first)
}

// half is the crop's half side, as a share of the image: four times the scale
// of the coarse view.
const half = 0.125

// crop magnifies the finding's place, and calls it by the zone's name, as a
// crop of a region is called.
func (t oracleTools) crop(ctx context.Context, f phantom.Finding, images [][]byte, meta []dataset.Image) (rollout.Observation, error) {
	x, y := f.X/phantom.Size, f.Y/phantom.Size
	args, err := json.Marshal(map[string]any{"box": []float64{
		max(0, x-half), max(0, y-half), min(1, x+half), min(1, y+half)}})
	if err != nil {
		return rollout.Observation{}, err
	}
	obs, err := t.Tools.Call(ctx, cropTool, args, images, meta)
	if scale, ok := strings.CutPrefix(obs.Text, "box"); ok && f.Side != "" && f.Zone != "" {
		obs.Text = f.Side + " " + f.Zone + " zone" + scale
	}
	return obs, err
}
