package trainer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A stepLog appends to steps.jsonl, which is the same for equal runs, and to
// timings.jsonl beside it, which is not.
type stepLog struct {
	steps, times *os.File
}

// openStepLog cuts the log back to the steps that are in the checkpoint, since
// later ones will be taken again, and returns the records kept.
func openStepLog(dir string, step int) (*stepLog, []StepRecord, error) {
	path := filepath.Join(dir, "steps.jsonl")
	steps, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, nil, err
	}
	kept, err := cutSteps(steps, step)
	if err != nil {
		steps.Close()
		return nil, nil, fmt.Errorf("step log %s: %w", path, err)
	}
	times, err := os.OpenFile(filepath.Join(dir, "timings.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		steps.Close()
		return nil, nil, err
	}
	return &stepLog{steps, times}, kept, syncDir(dir)
}

// cutSteps reads step whole lines, truncates what follows, and leaves the file
// at its new end.
func cutSteps(f *os.File, step int) ([]StepRecord, error) {
	var kept []StepRecord
	var end int64
	for r := bufio.NewReader(f); len(kept) < step; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("it has %d whole lines, the checkpoint is of step %d: restore it from a copy", len(kept), step)
		}
		var rec StepRecord
		if err := json.Unmarshal(line, &rec); err != nil || rec.Step != len(kept)+1 {
			return nil, fmt.Errorf("line %d is not the record of that step (%v): restore it from a copy", len(kept)+1, err)
		}
		kept = append(kept, rec)
		end += int64(len(line))
	}
	if err := f.Truncate(end); err != nil {
		return nil, err
	}
	_, err := f.Seek(end, io.SeekStart)
	return kept, err
}

func (l *stepLog) append(r StepRecord, t StepTimes) error {
	if err := appendLine(l.steps, r); err != nil {
		return err
	}
	return appendLine(l.times, t)
}

func appendLine(w io.Writer, v any) error {
	var line bytes.Buffer
	if err := json.NewEncoder(&line).Encode(v); err != nil {
		return fmt.Errorf("step log: %w", err)
	}
	_, err := w.Write(line.Bytes())
	return err
}

// sync makes the steps so far durable; a checkpoint relies on them.
func (l *stepLog) sync() error { return l.steps.Sync() }

func (l *stepLog) close() error { return errors.Join(l.steps.Close(), l.times.Close()) }
