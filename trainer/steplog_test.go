package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStepLogIsCutToTheCheckpoint(t *testing.T) {
	const line = `{"stage":"sft","step":`
	for _, tc := range []struct {
		held string
		step int
		want string // left in the file; or the error
	}{
		{"", 0, ""},
		{line + "1}\n" + line + "2}\n" + line + "3", 2, line + "1}\n" + line + "2}\n"},
		{line + "1}\n" + line + "2}\n", 0, ""},
		{line + "1}\n" + line + "2", 2, "it has 1 whole lines, the checkpoint is of step 2: restore it from a copy"},
		{line + "2}\n", 1, "line 1 is not the record of that step"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "steps.jsonl")
		if err := os.WriteFile(path, []byte(tc.held), 0o644); err != nil {
			t.Fatal(err)
		}
		l, kept, err := openStepLog(dir, tc.step)
		if err != nil {
			if tc.want == "" || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q at step %d: %v", tc.held, tc.step, err)
			}
			continue
		}
		l.close()
		if left, _ := os.ReadFile(path); string(left) != tc.want || len(kept) != tc.step {
			t.Errorf("%q at step %d: left %q and %d records", tc.held, tc.step, left, len(kept))
		}
	}
}
