package remote

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xragent/chat"
)

func TestEncodeCounts(t *testing.T) {
	f := newFixture(t)
	if e, err := f.Encode(t.Context(), make([]chat.Probe, 2)); err != nil || len(e.IDs) != 2 || e.ImagePad != imagePad {
		t.Errorf("%+v, %v", e, err)
	}
	f.script.short = true
	if _, err := f.Encode(t.Context(), make([]chat.Probe, 2)); err == nil || !strings.Contains(err.Error(), "1 conversations came back, 2 were asked for") {
		t.Errorf("error %v", err)
	}
}

// TestPythonEncodes holds that the learner, through transformers, reads every
// probe as the codec does, and says so where it has no tokenizer.
func TestPythonEncodes(t *testing.T) {
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	probes := codec.Probes()
	bare := dial(t, startPython(t), stored{})
	if _, err := bare.Encode(t.Context(), probes); err == nil || !strings.Contains(err.Error(), "has no tokenizer.json") {
		t.Errorf("a learner without a tokenizer: error %v", err)
	}
	dir := t.TempDir()
	for _, f := range codec.Files(chat.Small) {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	e, err := dial(t, startPythonWith(t, dir), stored{}).Encode(t.Context(), probes)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range probes {
		if !slices.Equal(e.IDs[i], p.IDs) {
			t.Errorf("%v", codec.CheckProbe(p, e.IDs[i]))
		}
	}
}
