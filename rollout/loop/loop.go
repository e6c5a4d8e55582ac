// Package loop runs one two-turn trajectory: triage, tools, integration.
//
// Training and evaluation use this one loop, with any sampler (the embedded
// policy, vLLM, SGLang) and any tools (in process, over NATS). It owns no
// policy and no tool; it never scores.
package loop

import (
	"context"
	"encoding/json"

	"xragent/dataset"
	"xragent/rollout"
)

// A SampleRequest asks for one turn. Prompts are compact: one image-pad id an
// image, in order; the sampler expands them and reports what the engine saw.
type SampleRequest struct {
	Version  rollout.PolicyVersion
	IDs      []int32  // compact prompt ids
	Images   [][]byte // encoded image files in order of appearance
	Stop     []int32  // ids that end the turn; the sampled stop id is kept in OutputIDs
	Seed     uint64   // all randomness of this turn
	Sampling rollout.Sampling
}

// A SampleResult is one sampled turn. Images are the uses of all prompt images.
type SampleResult struct {
	Turn   rollout.Turn // Text may be left empty; the loop decodes OutputIDs
	Images []rollout.ImageUse
}

// A Sampler produces one turn. Results depend on the request and the weights
// alone: never on what shares a batch. It is safe for concurrent use; callers
// run many at once so that it can batch them.
type Sampler interface {
	Sample(ctx context.Context, req SampleRequest) (SampleResult, error)
}

// Tools executes auxiliary calls against a study's images and computes the
// measurement bundle. Images are encoded files in the prompt's order. Neither
// method ever sees the question's options or the answer.
type Tools interface {
	Call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, meta []dataset.Image) (rollout.Observation, error)
	Measure(ctx context.Context, images [][]byte, meta []dataset.Image) (rollout.Bundle, error)
	// Schemas returns the terse JSON tool schemas for the system prompt, in a
	// fixed order: [{"name": …, "description": …, "parameters": {…}}, …].
	Schemas() []json.RawMessage
}

// Blobs fetches images by content.
type Blobs interface {
	Get(ctx context.Context, sha256 string) ([]byte, error)
}

// A Codec renders prompts and decodes ids. It is implemented by package chat.
type Codec interface {
	// Triage renders system prompt, tools and question, up to where the
	// assistant's first turn starts; compact ids.
	Triage(p dataset.Prompt, tools []json.RawMessage) []int32
	// Integration renders what follows turn 1's output (which ends with the
	// end-of-turn id): observations and bundle, up to where the assistant's
	// second turn starts; compact ids, one image pad a returned image.
	Integration(calls []rollout.Call, bundle rollout.Bundle) []int32
	Decode(ids []int32) string // special tokens that carry protocol tags kept, end-of-turn dropped
	EndOfTurn() int32
	ImagePad() int32
}
