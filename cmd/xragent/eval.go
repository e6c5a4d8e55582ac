package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/eval"
	"xragent/policy/embedded"
	"xragent/rollout"
	"xragent/trainer"
)

// A contender is a policy to evaluate: what a learner saved or an export holds
// in dir, or for "" the untrained weights.
type contender struct{ name, dir string }

// A stand runs questions on one contender at a time.
type stand interface {
	take(context.Context, contender) error
	Run(context.Context, rollout.Task) (rollout.Trajectory, error)
	close() error
}

func (s *session) stand(ctx context.Context) (stand, error) {
	if s.remote() {
		return s.remoteStand(ctx)
	}
	r, err := s.roller("eval", s.tools)
	return embeddedStand{r, s}, err
}

// An embeddedStand is a roller whose weights come from files.
type embeddedStand struct {
	*roller
	s *session
}

func (e embeddedStand) take(_ context.Context, c contender) error {
	w := e.s.untrained()
	if c.dir != "" {
		var err error
		if w, err = e.s.weights(c.dir); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return e.engine.Load(w, 0)
}

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

// A report is what an evaluation leaves in eval/report.json.
type report struct {
	Run       string         `json:"run"`
	Data      string         `json:"data"` // digest of the data set
	Questions int            `json:"questions"`
	Summaries []eval.Summary `json:"summaries"`
	Pairs     []namedPair    `json:"pairs"`
}

type namedPair struct {
	Before string `json:"before"`
	After  string `json:"after"`
	eval.Pair
}

// evaluate runs every contender, the last one also under the controls, and
// writes table and report.
func (s *session) evaluate(ctx context.Context, list []contender) error {
	d, err := s.load(ctx)
	if err != nil {
		return err
	}
	test := d.split(dataset.Test)
	if len(test) == 0 {
		return usageError{fmt.Errorf("the data has no test questions: give the split test some")}
	}
	r, err := s.stand(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	if err := os.MkdirAll(s.path("eval"), 0o755); err != nil {
		return err
	}
	rep := report{Run: s.cfg.Run.Name, Data: d.digest}
	var before *eval.Result
	for i, c := range list {
		if err := r.take(ctx, c); err != nil {
			return err
		}
		conditions := []eval.Condition{eval.Plain}
		if s.cfg.Eval.Controls && i == len(list)-1 {
			conditions = append(conditions, eval.Shuffled, eval.ToolsOff)
		}
		for _, cond := range conditions {
			res, err := s.condition(ctx, r, c.name, cond, test)
			if err != nil {
				return err
			}
			rep.Questions = len(res.Rows)
			rep.Summaries = append(rep.Summaries, res.Summarise())
			if cond != eval.Plain {
				continue
			}
			if before != nil {
				p, err := eval.Compare(*before, res)
				if err != nil {
					return err
				}
				rep.Pairs = append(rep.Pairs, namedPair{before.Name, res.Name, p})
			}
			before = &res
		}
	}
	return s.writeReport(rep)
}

func (s *session) condition(ctx context.Context, r stand, name string, cond eval.Condition, test []dataset.Sample) (eval.Result, error) {
	cfg := s.cfg.Eval
	cfg.Seed = s.seed("eval", cfg.Seed)
	label := strings.ReplaceAll(fmt.Sprintf("eval %s %s", name, cond), "_", " ")
	res, err := eval.Run(ctx, cfg, name, cond, test, 0, r.Run, s.cfg.Reward, newProgress(s.log, label).at)
	if err != nil {
		return res, err
	}
	text, err := json.Marshal(res)
	if err != nil {
		return res, err
	}
	return res, writeFile(s.path("eval", fmt.Sprintf("%s-%s.json", name, cond)), append(text, '\n'))
}

func (s *session) writeReport(rep report) error {
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(s.path("eval", "report.json"), append(text, '\n')); err != nil {
		return err
	}
	var table strings.Builder
	writeTables(&table, rep, s.cfg.Data.Source)
	fmt.Fprint(s.out, table.String())
	return writeFile(s.path("eval", "table.txt"), []byte(table.String()))
}

func writeTables(w *strings.Builder, rep report, source string) {
	fmt.Fprintf(w, "\n%d held-out questions, fixed denominator; majority: the strongest constant answer per template\n\n", rep.Questions)
	_ = eval.WriteTable(w, rep.Summaries, false) // a strings.Builder does not fail
	for _, s := range rep.Summaries {
		if s.Condition == eval.Plain && s.Name == rep.Summaries[len(rep.Summaries)-1].Name {
			fmt.Fprintln(w)
			_ = eval.WriteTable(w, []eval.Summary{s}, true)
			fmt.Fprintf(w, "macro average over kinds %.1f\n", 100*s.Macro)
		}
	}
	fmt.Fprintln(w)
	for _, p := range rep.Pairs {
		fmt.Fprintf(w, "%s → %s: %+.1f points; %d fixed, %d broken, exact McNemar p = %.3g\n", p.Before, p.After, 100*p.Gain, p.Fixed, p.Broken, p.P)
	}
	if source == "phantom" {
		fmt.Fprintln(w, "\nPhantoms are synthetic: no figure here is a clinical claim.")
	} else {
		fmt.Fprintln(w, "\nA small model on few images: no figure here is a clinical claim.")
	}
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
