package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"xragent/configs"
	"xragent/dataset"
	"xragent/eval"
	"xragent/internal/blobs"
	"xragent/internal/simd"
	"xragent/reward"
	"xragent/study"
	"xragent/toolserver/measure"
	"xragent/trainer"
)

// A cellFile marks a run of a study as done, in cell.json.
type cellFile struct {
	Config   string   `json:"config"` // digest of the resolved settings that it was made with
	Manifest manifest `json:"manifest"`
	Hash     string   `json:"hash"` // sha256 of the manifest's JSON
	Seconds  float64  `json:"seconds"`
}

// A manifest names all that a cell's figures rest on, by content: made again by
// its command, a cell has the same one.
type manifest struct {
	Arm       string `json:"arm"`
	Seed      uint64 `json:"seed"`
	Reward    string `json:"reward"`    // version of the definitions
	Generator string `json:"generator"` // hash of the phantom generator; "" for other data
	Kernels   string `json:"kernels"`   // accumulation order, on which the last bits depend
	// Measurements is the version of the numbers and their gate; "" in cells made
	// before v3.
	Measurements string                       `json:"measurements,omitempty"`
	Data         string                       `json:"data"`
	Stages       map[string]map[string]string `json:"stages"`             // identity of each trained stage
	Weights      string                       `json:"weights"`            // sha256 of the evaluated weights' file; "" for the untrained
	Rows         string                       `json:"rows"`               // sha256 of the answers
	Controls     map[string]string            `json:"controls,omitempty"` // the same, by condition
}

// makeShared makes a seed's data, corpus and SFT.
func (l *lab) makeShared(ctx context.Context, seed uint64) error {
	cfg, err := l.sharedConfig(seed)
	if err != nil {
		return err
	}
	return l.makeRun(ctx, cfg, func(s *session) (manifest, error) {
		d, err := s.load(ctx)
		if err != nil {
			return manifest{}, err
		}
		return manifest{Seed: seed, Generator: l.world.generator, Data: d.digest}, nil
	})
}

// makeCell trains and evaluates a cell.
func (l *lab) makeCell(ctx context.Context, c study.Cell) error {
	cfg, err := l.cellConfig(c)
	if err == nil && c.Arm.Compute != "" {
		cfg.SFT.MaxSteps, err = l.matched(c)
	}
	if err != nil {
		return err
	}
	return l.makeRun(ctx, cfg, func(s *session) (manifest, error) { return l.manifest(ctx, s, c) })
}

// makeRun carries a run's stages out unless it is done, and marks it as done.
func (l *lab) makeRun(ctx context.Context, cfg configs.Run, describe func(*session) (manifest, error)) error {
	name := cfg.Run.Name
	settings, err := settingsDigest(cfg)
	if err != nil {
		return err
	}
	switch was, err := l.read(name); {
	case err == nil && was.Config == settings:
		l.ended(name, "was done already")
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	log, err := os.OpenFile(filepath.Join(l.dir, "logs", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := os.Remove(filepath.Join(l.dir, name, "cell.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // what is made again is not done meanwhile
	}
	l.say("%s: begun", name)
	began := time.Now()
	var file cellFile
	err = withSession(ctx, cfg, true, log, log, func(s *session) error {
		if err := s.carryOut(ctx, cfg.Stages); err != nil {
			return err
		}
		m, err := describe(s)
		file = cellFile{Config: settings, Manifest: m}
		return errors.Join(err, s.whole())
	})
	debug.FreeOSMemory() // the next cell brings weights, graphs and caches of its own
	if err != nil {
		fmt.Fprintf(log, "%v\n", err)
		l.say("%s: %v", name, err)
		return err
	}
	file.Seconds = time.Since(began).Seconds()
	if err := l.seal(name, file); err != nil {
		return err
	}
	l.ended(name, fmt.Sprintf("done in %.0f s", file.Seconds))
	return nil
}

// whole refuses an evaluation that the world lost rollouts of: a cell keeps its
// figures for good.
func (s *session) whole() error {
	var rep report
	err := readInto(s.path("eval", "report.json"), &rep)
	if errors.Is(err, fs.ErrNotExist) { // nothing was evaluated
		return nil
	}
	lost := 0
	for _, x := range rep.Summaries {
		lost += x.Errors
	}
	if err == nil && lost > 0 {
		err = fmt.Errorf("%d rollouts of the evaluation were lost: go on with --resume to ask them again", lost)
	}
	return err
}

// settingsDigest covers what decides a cell's training and evaluation, not
// where and how fast it runs.
func settingsDigest(cfg configs.Run) (string, error) {
	cfg.Run.Dir, cfg.From.Run, cfg.Policy.Embedded.Threads, cfg.Policy.Embedded.MaxBatch = "", "", 0, 0
	cfg.Queue, cfg.Web = configs.Queue{}, configs.Run{}.Web
	text, err := cfg.Marshal()
	return blobs.Digest(text), err
}

func (l *lab) seal(name string, file cellFile) error {
	text, err := json.Marshal(file.Manifest)
	if err != nil {
		return err
	}
	file.Hash = blobs.Digest(text)
	if text, err = json.MarshalIndent(file, "", "  "); err != nil {
		return err
	}
	return writeFile(filepath.Join(l.dir, name, "cell.json"), append(text, '\n'))
}

// read returns what a run that is done left; fs.ErrNotExist for one that is
// not. It refuses one of another world.
func (l *lab) read(name string) (cellFile, error) {
	var f cellFile
	path := filepath.Join(l.dir, name, "cell.json")
	err := readInto(path, &f)
	if errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err != nil {
		return f, fmt.Errorf("%w: %s", err, again)
	}
	if f.Manifest.Data == "" {
		return f, fmt.Errorf("%s does not say what was made: %s", path, again)
	}
	if f.Manifest.Generator != l.world.generator {
		return f, fmt.Errorf("%s was made with phantom generator %.12s, this one is %.12s: begin the study again in another place with --dir", path, f.Manifest.Generator, l.world.generator)
	}
	return f, nil
}

// ended says how far the study has come.
func (l *lab) ended(name, how string) {
	l.mu.Lock()
	l.done++
	done := l.done
	l.mu.Unlock()
	l.say("%s: %s (%d of %d, %.0f s)", name, how, done, len(l.jobs()), time.Since(l.start).Seconds())
}

// manifest describes a cell that is done.
func (l *lab) manifest(ctx context.Context, s *session, c study.Cell) (manifest, error) {
	m := manifest{Arm: c.Arm.Name, Seed: c.Seed, Reward: reward.Version, Generator: l.world.generator, Kernels: simd.Kernels(), Measurements: measure.Version, Stages: map[string]map[string]string{}}
	d, err := s.load(ctx)
	if err != nil {
		return m, err
	}
	m.Data = d.digest
	for _, stage := range []string{configs.StageSFT, configs.StageGRPO} {
		if m.Stages[stage], err = identity(s.path(stage)); err != nil {
			return m, err
		}
	}
	list, err := s.branchContender()
	if err != nil {
		return m, err
	}
	if dir := list[0].dir; dir != "" {
		w, err := s.weights(dir)
		if err != nil {
			return m, err
		}
		m.Weights = w.Digest()
	}
	if m.Rows, err = digestOf(s.path("eval", list[0].name+"-plain.json")); err != nil {
		return m, err
	}
	m.Controls, err = controlDigests(s.cfg.Eval.Controls, s.path("eval"), list[0].name)
	return m, err
}

// controlDigests are those of the results of the controls that an evaluation had,
// and of the questions out of distribution.
func controlDigests(set eval.Set, dir, policy string) (map[string]string, error) {
	out := map[string]string{}
	jobs, _ := eval.Plan(set, []string{policy}, eval.Facts{Truth: true, Needs: true, OOD: true})
	for _, j := range jobs {
		if j.Condition == eval.Plain && j.Split == dataset.Test {
			continue
		}
		sum, err := digestOf(filepath.Join(dir, resultName(j)))
		if errors.Is(err, fs.ErrNotExist) { // what the data cannot have is left out
			continue
		}
		if err != nil {
			return nil, err
		}
		out[controlName(j)] = sum
	}
	return out, nil
}

func digestOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	return blobs.Digest(text), err
}

// identity reads what a stage began with; nil where there is no such stage.
func identity(dir string) (map[string]string, error) {
	var out map[string]string
	text, err := os.ReadFile(filepath.Join(dir, "identity.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out, err
}

// again is the remedy for a cell that was damaged.
const again = "remove the cell's folder, then make it again with --resume"

// outcomes reads every cell of the study that is done.
func (l *lab) outcomes() ([]study.Outcome, error) {
	var out []study.Outcome
	for _, c := range l.spec.Cells() {
		f, err := l.read(c.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o, err := l.outcome(c, f)
		if err != nil {
			return nil, fmt.Errorf("cell %s: %w: %s", c.Name(), err, again)
		}
		out = append(out, o)
	}
	return out, nil
}

func (l *lab) outcome(c study.Cell, f cellFile) (study.Outcome, error) {
	m := f.Manifest
	o := study.Outcome{Arm: c.Arm.Name, Seed: c.Seed, Data: m.Data, Start: m.start(c.Arm), Program: m.program(),
		Manifest: f.Hash, Command: l.command(c)}
	text, err := json.Marshal(m)
	switch {
	case err != nil:
		return o, err
	case blobs.Digest(text) != f.Hash:
		return o, errors.New("its manifest was changed after it was made")
	case m.Arm != c.Arm.Name || m.Seed != c.Seed:
		return o, fmt.Errorf("it was made as %s-%d", m.Arm, m.Seed)
	}
	if o.Stale, err = l.stale(c, f); err != nil {
		return o, err
	}
	var rep report
	dir := filepath.Join(l.dir, c.Name())
	if err := readInto(filepath.Join(dir, "eval", "report.json"), &rep); err != nil {
		return o, err
	}
	if len(rep.Summaries) == 0 {
		return o, errors.New("its report has no summary")
	}
	if i := slices.IndexFunc(rep.Priors, func(p eval.Prior) bool { return p.Name == eval.MajorityOfTrain }); i >= 0 {
		o.Learned = &rep.Priors[i]
	}
	if err := readResults(filepath.Join(dir, "eval"), rep.Summaries[0].Name, m, &o); err != nil {
		return o, err
	}
	if c.Arm.Train == configs.StageGRPO {
		o.Alarms, err = alarms(filepath.Join(dir, configs.StageGRPO))
	}
	return o, err
}

// program names the definitions and kernels that a cell was made with.
func (m manifest) program() string {
	return fmt.Sprintf("reward %s, measurements %s, %s", m.Reward, cmp.Or(m.Measurements, "before v3"), m.Kernels)
}

// start names the weights that an arm began with: of one that trains nothing
// those that it has.
func (m manifest) start(a study.Arm) string {
	if a.Train == "" {
		return m.Weights
	}
	return m.Stages[a.Train]["weights"]
}

// stale reports whether a cell was made with other settings than it would be
// now. Of one that goes on for another's compute it is known where the steps are
// there to count.
func (l *lab) stale(c study.Cell, f cellFile) (bool, error) {
	cfg, err := l.cellConfig(c)
	if err == nil && c.Arm.Compute != "" {
		cfg.SFT.MaxSteps, err = l.matched(c)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	settings, err := settingsDigest(cfg)
	return settings != f.Config, err
}

// readResults reads what a cell came to, as it is and under its controls.
func readResults(dir, policy string, m manifest, o *study.Outcome) error {
	if err := readResult(dir, eval.Job{Policy: policy, Condition: eval.Plain, Split: dataset.Test}, m.Rows, &o.Result); err != nil {
		return err
	}
	jobs := []eval.Job{{Policy: policy, Condition: eval.Plain, Split: dataset.OOD}}
	for _, c := range eval.Controls {
		jobs = append(jobs, eval.Job{Policy: policy, Condition: c.Condition, Split: dataset.Test})
	}
	for _, j := range jobs {
		sum := m.Controls[controlName(j)]
		if sum == "" {
			continue
		}
		var r eval.Result
		if err := readResult(dir, j, sum, &r); err != nil {
			return err
		}
		o.Controls = append(o.Controls, r)
	}
	return nil
}

// controlName is a control's in a manifest.
func controlName(j eval.Job) string {
	if j.Split == dataset.OOD {
		return string(j.Condition) + " " + string(j.Split)
	}
	return string(j.Condition)
}

// readResult reads what a cell came to under a condition; it refuses another
// than the cell's manifest names.
func readResult(dir string, j eval.Job, sum string, r *eval.Result) error {
	path := filepath.Join(dir, resultName(j))
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if got := blobs.Digest(text); got != sum {
		return fmt.Errorf("%s has sha256 %.12s, the cell was made with %.12s", path, got, sum)
	}
	if err := json.Unmarshal(text, r); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// alarms lists the alarms that a GRPO stage raised.
func alarms(dir string) ([]string, error) {
	steps, err := trainer.ReadSteps(dir)
	var out []string
	for _, r := range steps {
		out = append(out, r.Alarms...)
	}
	slices.Sort(out)
	return slices.Compact(out), err
}

func readInto(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
