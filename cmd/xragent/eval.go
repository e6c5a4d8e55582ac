package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"xragent/configs"
	"xragent/dataset"
	"xragent/eval"
	"xragent/policy/embedded"
	"xragent/rollout/loop"
	"xragent/trainer"
)

// A contender is a policy to evaluate: what a learner saved or an export holds
// in dir, or for "" the untrained weights.
type contender struct{ name, dir string }

// A stand samples from one contender at a time. What it takes up it names by a
// digest.
type stand interface {
	loop.Sampler
	take(context.Context, contender) (digest string, err error)
	close() error
}

func (s *session) stand(ctx context.Context) (stand, error) {
	if s.remote() {
		return s.remoteStand(ctx)
	}
	r, err := s.roller("eval", s.tools)
	if err != nil {
		return nil, err
	}
	return embeddedStand{r.engine, s}, nil
}

// An embeddedStand is an engine whose weights come from files.
type embeddedStand struct {
	*embedded.Engine
	s *session
}

func (e embeddedStand) take(_ context.Context, c contender) (string, error) {
	w := e.s.untrained()
	if c.dir != "" {
		var err error
		if w, err = e.s.weights(c.dir); err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return w.Digest(), e.Load(w, 0)
}

func (e embeddedStand) close() error { return e.Close() }

// evalStage evaluates the untrained policy, SFT's and GRPO's on held-out
// questions, and prints one table.
func (s *session) evalStage(ctx context.Context) error {
	list, err := s.contenders()
	if err != nil {
		return err
	}
	return s.evaluate(ctx, list)
}

func (s *session) contenders() ([]contender, error) {
	if s.cfg.From.Run != "" {
		return s.branchContender()
	}
	list := []contender{{"untrained", ""}}
	if exists(s.path("sft")) {
		c, err := trainer.BestCheckpoint(s.path("sft"))
		if err != nil {
			return nil, err
		}
		list = append(list, contender{"sft", c.LearnerDir()})
	}
	if exists(s.path("grpo")) {
		c, _, err := trainer.LatestCheckpoint(s.path("grpo"))
		if err != nil {
			return nil, err
		}
		list = append(list, contender{"grpo", c.LearnerDir()})
	}
	return list, nil
}

// evaluate puts every contender under its conditions and writes the report.
func (s *session) evaluate(ctx context.Context, list []contender) error {
	d, err := s.load(ctx)
	if err != nil {
		return err
	}
	x, err := s.examine(ctx, d)
	if err != nil {
		return err
	}
	defer x.stand.close()
	var names []string
	for _, c := range list {
		names = append(names, c.name)
	}
	jobs, skipped := eval.Plan(s.cfg.Eval.Controls, names, x.facts)
	for _, c := range list {
		own := slices.DeleteFunc(slices.Clone(jobs), func(j eval.Job) bool { return j.Policy != c.name })
		if err := x.contender(ctx, c, own); err != nil {
			return err
		}
	}
	rep, err := eval.Analyse(x.results, d.split(dataset.Train), x.cfg.Seed)
	if err != nil {
		return usageError{err}
	}
	rep.Run, rep.Data, rep.Source, rep.Skipped = s.cfg.Run.Name, d.digest, s.cfg.Data.Source, skipped
	if rep.Generator, err = s.generator(); err != nil {
		return err
	}
	return s.writeReport(rep)
}

// generator is the hash of the generator that made the run's phantoms, "" for
// other data; this program's own may be a newer one.
func (s *session) generator() (string, error) {
	if s.cfg.Data.Source != "phantom" {
		return "", nil
	}
	var m dataset.Manifest
	err := readInto(s.path(configs.StageData, "manifest.json"), &m)
	return m.Generator, err
}

// contenderNames are what a table row and a file may be called.
var contenderNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// exports reads contenders from Hugging Face folders, each given as NAME=DIR or DIR.
func (s *session) exports(specs []string) ([]contender, error) {
	var list []contender
	for _, spec := range specs {
		name, dir, ok := strings.Cut(spec, "=")
		if !ok {
			name, dir = filepath.Base(spec), spec
		}
		switch {
		case dir == "":
			return nil, usageError{fmt.Errorf("checkpoint %q: want NAME=DIR", spec)}
		case !contenderNames.MatchString(name):
			return nil, usageError{fmt.Errorf("checkpoint %s: name %q: want letters, digits, dots, - and _, at most 64, as in a=%s", spec, name, dir)}
		case slices.ContainsFunc(list, func(c contender) bool { return c.name == name }):
			return nil, usageError{fmt.Errorf("checkpoint %s: name %q is given twice: give each another, as in b=%s", spec, name, dir)}
		}
		c, err := s.exported(name, dir)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// exported reads a contender from a Hugging Face folder.
func (s *session) exported(name, dir string) (contender, error) {
	if s.remote() {
		return contender{}, usageError{fmt.Errorf("checkpoint %s: with policy.backend remote only a run's own checkpoints are evaluated", dir)}
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return contender{}, usageError{fmt.Errorf("checkpoint %s: %w", dir, err)}
	}
	cfg, err := embedded.ReadConfig(text)
	if err != nil {
		return contender{}, usageError{fmt.Errorf("checkpoint %s: %w", dir, err)}
	}
	if string(cfg.JSON()) != string(s.model().JSON()) {
		return contender{}, usageError{fmt.Errorf("checkpoint %s: another architecture than this run's", dir)}
	}
	if _, err := s.weights(dir); err != nil {
		return contender{}, usageError{err}
	}
	return contender{name, dir}, nil
}
