package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log may end in the middle of a line, of a run that was killed; damage
// elsewhere would hide what came after it.
func TestReadSteps(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "steps.jsonl"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("{\"step\":1}\n{\"step\":2}\n{\"st")
	if steps, err := ReadSteps(dir); err != nil || len(steps) != 2 || steps[1].Step != 2 {
		t.Errorf("a last line cut short: %v, %v", steps, err)
	}
	write("{\"step\":1}\n{\"st\n{\"step\":3}\n")
	if steps, err := ReadSteps(dir); err == nil || !strings.Contains(err.Error(), "steps.jsonl, line 2") {
		t.Errorf("a line in the middle: %v, %v", steps, err)
	}
}
