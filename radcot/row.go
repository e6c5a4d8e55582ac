package radcot

import (
	"encoding/json"
	"fmt"

	"xragent/chat"
	"xragent/dataset"
	"xragent/rollout"
	"xragent/trainer/batch"
)

// A Codec renders prompts and encodes turns; it is implemented by package chat
// and is the one that the rollout loop uses.
type Codec interface {
	Triage(p dataset.Prompt, tools []json.RawMessage) []int32
	Integration(calls []rollout.Call, bundle rollout.Bundle) []int32
	Encode(text string) []int32
	EndOfTurn() int32
	ImagePad() int32
}

// Row makes the supervised row of a record: the ids that the rollout loop would
// have sent and a policy that wrote these turns would have sampled. Only the
// two assistant turns, each with its end-of-turn id, are in the loss.
//
// tools are the schemas of the system prompt; uses are the record's images
// ([Record.Images]) as the image processor sees them, in order; merge is the
// merge size of the vision tower.
func Row(r Record, c Codec, tools []json.RawMessage, uses []rollout.ImageUse, merge int) (batch.Row, error) {
	if want := r.Images(); len(uses) != len(want) {
		return batch.Row{}, fmt.Errorf("record %s: %d image uses for %d images", r.Sample.ID, len(uses), len(want))
	}
	var pads []int
	for i, u := range uses {
		if u.SHA256 != r.Images()[i] {
			return batch.Row{}, fmt.Errorf("record %s: image use %d is of %s, want %s", r.Sample.ID, i+1, u.SHA256, r.Images()[i])
		}
		pads = append(pads, u.PadTokens(merge))
	}
	films := len(r.Sample.Prompt.Images)
	turn1, err := chat.Expand(c.Triage(r.Sample.Prompt, tools), pads[:films], c.ImagePad())
	if err != nil {
		return batch.Row{}, fmt.Errorf("record %s: turn 1: %w", r.Sample.ID, err)
	}
	turn2, err := chat.Expand(c.Integration(r.Calls, r.Bundle), pads[films:], c.ImagePad())
	if err != nil {
		return batch.Row{}, fmt.Errorf("record %s: turn 2: %w", r.Sample.ID, err)
	}
	said := func(text string) batch.Segment {
		return batch.Segment{IDs: append(c.Encode(text), c.EndOfTurn()), Loss: true}
	}
	segments := []batch.Segment{{IDs: turn1}, said(r.Turn1), {IDs: turn2}, said(r.Turn2)}
	return batch.FromSegments(r.Sample.ID, segments, uses), nil
}
