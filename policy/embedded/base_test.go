package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"xragent/chat"
)

// The committed base belongs to the committed tokenizer and to its record, and
// another tokenizer is refused with what to do.
func TestBaseBelongsToTheTokenizer(t *testing.T) {
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Small(codec.Vocab())
	cfg.ImageTokenID = codec.ImagePad()
	cfg.VideoTokenID, _ = codec.ID("<|video_pad|>")
	cfg.VisionStartID, cfg.VisionEndID = codec.VisionMarks()
	sum := sha256.Sum256(codec.JSON())
	w, record, err := Base(cfg, hex.EncodeToString(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	if len(record.Phases) == 0 || record.Licence == "" || record.Command == "" || w.Len() == 0 {
		t.Errorf("the base's record is incomplete: %+v", record)
	}
	if _, _, err := Base(cfg, "another"); err == nil || !strings.Contains(err.Error(), "base: none") {
		t.Errorf("another tokenizer: %v, want a refusal that says what to do", err)
	}
}
