package trainer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
)

// ReadSteps returns the step log of a stage's directory. A last line that is
// still being written is left out.
func ReadSteps(dir string) ([]StepRecord, error) {
	f, err := os.Open(filepath.Join(dir, "steps.jsonl"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []StepRecord
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r StepRecord
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			break
		}
		out = append(out, r)
	}
	return out, lines.Err()
}
