package trainer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// ReadSteps returns the step log of a stage's directory. A last line that is
// still being written is left out; another that is no record is refused.
func ReadSteps(dir string) ([]StepRecord, error) {
	path := filepath.Join(dir, "steps.jsonl")
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []StepRecord
	var torn error
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if torn != nil {
			return nil, torn
		}
		var r StepRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			torn = fmt.Errorf("%s, line %d: %w: the log was damaged; restore it, or run the stage again", path, n, err)
			continue
		}
		out = append(out, r)
	}
	return out, lines.Err()
}
