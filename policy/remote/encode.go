package remote

import (
	"context"
	"fmt"

	"xragent/chat"
)

// An Encoding is how a learner's own tokenizer reads conversations, each image
// one pad id, and which ids its model takes for images.
type Encoding struct {
	IDs         [][]int32 `json:"ids"`
	ImagePad    int32     `json:"image_pad"`
	VisionStart int32     `json:"vision_start"`
	VisionEnd   int32     `json:"vision_end"`
}

// Encode has the learner render conversations by their template, as
// transformers does, and encode them with the tokenizer beside its model.
func (l *Learner) Encode(ctx context.Context, conversations []chat.Probe) (Encoding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e Encoding
	if err := l.http.post(ctx, "/v1/encode", map[string]any{"conversations": conversations}, &e); err != nil {
		return e, fmt.Errorf("learner: encode: %w", err)
	}
	if len(e.IDs) != len(conversations) {
		return e, fmt.Errorf("learner: encode: %d conversations came back, %d were asked for", len(e.IDs), len(conversations))
	}
	return e, nil
}
