package trainer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"xragent/rollout"
)

// A Checkpoint is a saved state of a stage:
//
//	checkpoints/step-000020/learner/…       what Learner.Save wrote
//	                       /state.json      step, score, and the stage's own state
//	                       /manifest.json   sha256 and size of every other file
//	checkpoints/latest, checkpoints/best    the names of two of them
//
// It is written aside, synced, and renamed into place; the two newest and the
// best one are kept.
type Checkpoint struct {
	Path  string
	Step  int
	Score float64 // what best is chosen by; higher is better
	Done  bool    // the stage ended with it
	state json.RawMessage
}

// LearnerDir is the directory to give to Learner.Load.
func (c Checkpoint) LearnerDir() string { return filepath.Join(c.Path, "learner") }

// LatestCheckpoint returns the newest valid checkpoint of a stage's directory.
// Torn ones are passed over and named in notices. It returns fs.ErrNotExist
// where there is none.
func LatestCheckpoint(dir string) (c Checkpoint, notices []string, err error) {
	names, err := checkpointNames(dir)
	if err != nil {
		return c, nil, err
	}
	for _, name := range slices.Backward(names) {
		c, err := openCheckpoint(filepath.Join(dir, checkpointsDir, name))
		if err == nil {
			return c, notices, nil
		}
		notices = append(notices, fmt.Sprintf("checkpoint %s is torn (%v): falling back to the one before", name, err))
	}
	return c, notices, fmt.Errorf("%s: no valid checkpoint: %w", filepath.Join(dir, checkpointsDir), fs.ErrNotExist)
}

// BestCheckpoint returns the checkpoint that scored best.
func BestCheckpoint(dir string) (Checkpoint, error) {
	name, err := os.ReadFile(filepath.Join(dir, checkpointsDir, "best"))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%s: no best checkpoint: %w", dir, err)
	}
	return openCheckpoint(filepath.Join(dir, checkpointsDir, strings.TrimSpace(string(name))))
}

const (
	checkpointsDir = "checkpoints"
	stepPrefix     = "step-"
)

type manifest struct {
	Stage string         `json:"stage"`
	Step  int            `json:"step"`
	Files []rollout.File `json:"files"`
}

// savedState is state.json.
type savedState struct {
	Step  int             `json:"step"`
	Score float64         `json:"score"`
	Done  bool            `json:"done"`
	Stage json.RawMessage `json:"stage,omitempty"`
}

func checkpointNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, checkpointsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), stepPrefix) {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return names, nil
}

// openCheckpoint verifies every file of a checkpoint.
func openCheckpoint(path string) (Checkpoint, error) {
	var m manifest
	if err := readJSON(filepath.Join(path, "manifest.json"), &m); err != nil {
		return Checkpoint{}, err
	}
	for _, f := range m.Files {
		if err := verifyFile(path, f); err != nil {
			return Checkpoint{}, err
		}
	}
	var s savedState
	if err := readJSON(filepath.Join(path, "state.json"), &s); err != nil {
		return Checkpoint{}, err
	}
	return Checkpoint{path, s.Step, s.Score, s.Done, s.Stage}, nil
}

// A store writes the checkpoints of one stage.
type store struct {
	stage   string
	dir     string
	learner Learner
	at      boundary
	best    *Checkpoint // nil: none yet
}

// save writes a checkpoint and moves the pointers. state is the stage's own.
func (s *store) save(ctx context.Context, step int, score float64, done bool, state any) error {
	name := fmt.Sprintf("%s%06d", stepPrefix, step)
	if err := s.write(ctx, name, step, score, done, state); err != nil {
		return fmt.Errorf("%s: checkpoint %s: %w", s.stage, name, err)
	}
	root := filepath.Join(s.dir, checkpointsDir)
	if err := s.point(root, "latest", name); err != nil {
		return err
	}
	if s.best == nil || score > s.best.Score {
		s.best = &Checkpoint{Path: filepath.Join(root, name), Step: step, Score: score}
	}
	if err := s.point(root, "best", filepath.Base(s.best.Path)); err != nil {
		return err
	}
	return s.prune()
}

func (s *store) write(ctx context.Context, name string, step int, score float64, done bool, state any) error {
	root := filepath.Join(s.dir, checkpointsDir)
	aside, final := filepath.Join(root, "tmp-"+name), filepath.Join(root, name)
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := s.fill(ctx, aside, step, score, done, state); err != nil {
		return err
	}
	if err := s.at.cross("checkpoint/rename"); err != nil {
		return err
	}
	if err := os.RemoveAll(final); err != nil { // torn, or the stage trained this step again
		return err
	}
	if err := os.Rename(aside, final); err != nil {
		return err
	}
	return syncDir(root)
}

func (s *store) fill(ctx context.Context, aside string, step int, score float64, done bool, state any) error {
	if err := os.MkdirAll(filepath.Join(aside, "learner"), 0o755); err != nil {
		return err
	}
	if err := s.learner.Save(ctx, filepath.Join(aside, "learner")); err != nil {
		return err
	}
	if err := s.at.cross("checkpoint/learner"); err != nil {
		return err
	}
	own, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := replaceJSON(filepath.Join(aside, "state.json"), savedState{step, score, done, own}); err != nil {
		return err
	}
	files, err := sealTree(aside)
	if err != nil {
		return err
	}
	if err := s.at.cross("checkpoint/manifest"); err != nil {
		return err
	}
	return replaceJSON(filepath.Join(aside, "manifest.json"), manifest{s.stage, step, files})
}

func (s *store) point(root, pointer, name string) error {
	if err := s.at.cross("checkpoint/" + pointer); err != nil {
		return err
	}
	return replaceFile(filepath.Join(root, pointer), []byte(name+"\n"))
}

// prune removes all but the two newest checkpoints and the best one. It runs
// after the newest is in place.
func (s *store) prune() error {
	names, err := checkpointNames(s.dir)
	if err != nil {
		return err
	}
	root := filepath.Join(s.dir, checkpointsDir)
	for _, name := range names[:max(0, len(names)-2)] {
		if path := filepath.Join(root, name); path != s.best.Path {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// restore loads the newest valid checkpoint into the learner. Without one the
// stage starts at step 0, with the learner as it is.
func (s *store) restore(ctx context.Context, notice func(string)) (Checkpoint, error) {
	if err := s.clean(); err != nil {
		return Checkpoint{}, err
	}
	c, notices, err := LatestCheckpoint(s.dir)
	for _, n := range notices {
		notice(s.stage + ": " + n)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, nil
	}
	if err != nil {
		return Checkpoint{}, err
	}
	if err := s.findBest(c.Step); err != nil {
		return Checkpoint{}, err
	}
	if err := s.learner.Load(ctx, c.LearnerDir()); err != nil {
		return Checkpoint{}, fmt.Errorf("%s: checkpoint %s: %w", s.stage, c.Path, err)
	}
	return c, nil
}

// clean removes what a crash left half-written.
func (s *store) clean() error {
	left, err := filepath.Glob(filepath.Join(s.dir, checkpointsDir, "tmp-*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// findBest looks at the checkpoints themselves: a crash may have come between
// a checkpoint and its pointer.
func (s *store) findBest(newest int) error {
	names, err := checkpointNames(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		c, err := openCheckpoint(filepath.Join(s.dir, checkpointsDir, name))
		if err == nil && c.Step <= newest && (s.best == nil || c.Score > s.best.Score) {
			s.best = &c
		}
	}
	return nil
}
