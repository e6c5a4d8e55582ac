// Package study describes experiments of several arms over several seeds, and
// judges what comes of them.
//
// A [Spec] names the arms, the baseline each is held against and the claim to
// be tested; [Schedule] runs jobs that wait for one another; [Judge] makes one
// table of the outcomes. The package runs no training and reads no run: it is
// given outcomes. It refuses arms that would not share their data, outcomes of
// different data or questions, and a claim without its control.
package study

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// A Spec is one study: a pipeline, whose data and SFT the arms of a seed share.
type Spec struct {
	Name        string   `yaml:"name"`        // default: the file's name
	Pipeline    string   `yaml:"pipeline"`    // pipeline file, beside the study's or below
	Certificate string   `yaml:"certificate"` // of the phantom world, which it must be as old as; "": the table says that there is none
	Set         []string `yaml:"set"`         // key=value of the pipeline, for all arms
	Seeds       []uint64 `yaml:"seeds"`
	Parallel    int      `yaml:"parallel"` // cells at once
	CellMiB     int      `yaml:"cell_mib"` // memory of one cell; fewer run at once where it is not there
	Baseline    string   `yaml:"baseline"` // the arm that others are compared with
	Arms        []Arm    `yaml:"arms"`
	Claim       *Claim   `yaml:"claim"`
}

// An Arm is one way to train, evaluated once a seed.
type Arm struct {
	Name    string   `yaml:"name"`
	Begin   string   `yaml:"begin"`   // sft (default): from the seed's SFT checkpoint; none: untrained
	Train   string   `yaml:"train"`   // sft, grpo, or "": evaluated as it begins
	Compute string   `yaml:"compute"` // SFT goes on for as much compute as this arm's GRPO took
	Against string   `yaml:"against"` // compared with this arm; default: the study's baseline
	Set     []string `yaml:"set"`     // key=value below grpo or reward, below sft where that is trained, and the controls below eval
}

// A Claim is what a study is to show: that Arm gains Gain points over Over, more
// than Above does, and that Control, the same training with permuted rewards,
// gains less than one point.
type Claim struct {
	Arm     string  `yaml:"arm"`
	Over    string  `yaml:"over"`
	Above   string  `yaml:"above"`
	Control string  `yaml:"control"`
	Gain    float64 `yaml:"gain"` // points
}

// What an arm begins with and trains.
const (
	BeginSFT  = "sft"
	BeginNone = "none"
	TrainSFT  = "sft"
	TrainGRPO = "grpo"
)

const (
	maxBytes       = 1 << 20
	defaultCellMiB = 1200 // of a cell on the embedded policy
)

// Read reads a study strictly. The pipeline's path becomes relative to the
// current directory.
func Read(path string) (Spec, error) {
	s := Spec{Parallel: 1, CellMiB: defaultCellMiB}
	f, err := os.Open(path)
	if err != nil {
		return s, fmt.Errorf("study: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("more than the %d bytes that are read", maxBytes)
	}
	if err == nil {
		err = parse(text, &s)
	}
	if err != nil {
		return s, fmt.Errorf("study: %s: %w", path, err)
	}
	if s.Name == "" {
		s.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	s.Pipeline = beside(path, s.Pipeline)
	if s.Certificate != "" {
		s.Certificate = beside(path, s.Certificate)
	}
	if err := s.Validate(); err != nil {
		return s, fmt.Errorf("study: %s: %w", path, err)
	}
	return s, nil
}

func parse(text []byte, s *Spec) (err error) {
	defer func() {
		if p := recover(); p != nil { // the decoder's, on tags that it does not know
			err = fmt.Errorf("not readable as YAML: %v", p)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := dec.Decode(s); err != nil && !errors.Is(err, io.EOF) {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return errors.New(first)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return errors.New("more than one document: remove what follows the second ---")
	}
	for i := range s.Arms {
		s.Arms[i].defaults(s.Baseline)
	}
	return nil
}

func (a *Arm) defaults(baseline string) {
	if a.Begin == "" {
		a.Begin = BeginSFT
	}
	if a.Against == "" && a.Name != baseline {
		a.Against = baseline
	}
}

func beside(study, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(study), path)
}

var names = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

// Validate reports the first thing that keeps the study from being run.
func (s Spec) Validate() error {
	switch {
	case !names.MatchString(s.Name):
		return fmt.Errorf("name = %q: want lower-case letters, digits, - and _, at most 40", s.Name)
	case s.Pipeline == "":
		return errors.New("pipeline is empty: name the pipeline file that the arms vary")
	case len(s.Seeds) == 0:
		return errors.New("seeds is empty: give at least one, and three to support a claim")
	case s.Parallel < 1 || s.CellMiB < 1:
		return fmt.Errorf("parallel = %d, cell_mib = %d: want at least 1", s.Parallel, s.CellMiB)
	case len(s.Arms) < 2:
		return fmt.Errorf("%d arms: want at least two, of which one is the baseline", len(s.Arms))
	}
	for i, seed := range s.Seeds {
		if seed == 0 || slices.Contains(s.Seeds[:i], seed) {
			return fmt.Errorf("seeds: %d is 0 or given twice: want different positive numbers", seed)
		}
	}
	return s.validateArms()
}

func (s Spec) validateArms() error {
	if err := s.has(s.Baseline, "baseline"); err != nil {
		return err
	}
	for i, a := range s.Arms {
		if slices.ContainsFunc(s.Arms[:i], func(b Arm) bool { return b.Name == a.Name }) {
			return fmt.Errorf("arms: %s is given twice: give each a name of its own", a.Name)
		}
		if err := s.validateArm(a); err != nil {
			return fmt.Errorf("arm %s: %w", a.Name, err)
		}
	}
	if s.Claim == nil {
		return nil
	}
	return s.Claim.validate(s)
}

func (s Spec) validateArm(a Arm) error {
	switch {
	case !names.MatchString(a.Name) || a.Name == sharedName:
		return fmt.Errorf("name: want lower-case letters, digits, - and _, at most 40, and not %q", sharedName)
	case a.Begin != BeginSFT && a.Begin != BeginNone:
		return fmt.Errorf("begin = %q: want %s or %s", a.Begin, BeginSFT, BeginNone)
	case a.Train != "" && a.Train != TrainSFT && a.Train != TrainGRPO:
		return fmt.Errorf("train = %q: want %s, %s, or nothing", a.Train, TrainSFT, TrainGRPO)
	case a.Compute != "" && a.Train != TrainSFT:
		return fmt.Errorf("compute has no effect unless train is %s: remove it", TrainSFT)
	case a.Against == a.Name:
		return errors.New("against is the arm itself: name another")
	}
	if a.Against != "" {
		if err := s.has(a.Against, "against"); err != nil {
			return err
		}
	}
	if a.Compute != "" {
		other, ok := s.Arm(a.Compute)
		if !ok || other.Train != TrainGRPO {
			return fmt.Errorf("compute = %s: want an arm that trains %s", a.Compute, TrainGRPO)
		}
	}
	return a.validateSet()
}

// validateSet refuses what would give the arm other data, another start or
// other questions than its neighbours have.
func (a Arm) validateSet() error {
	for _, setting := range a.Set {
		key, _, ok := strings.Cut(setting, "=")
		section, _, _ := strings.Cut(key, ".")
		switch {
		case !ok:
			return fmt.Errorf("set %q: want key=value", setting)
		case key == "reward.k_max":
			return fmt.Errorf("set %s: the shared corpus is made for it: set it for the whole study", key)
		case key == "eval.controls", key == "eval.control_questions": // asked besides what all are asked
		case section == TrainSFT && a.Train == TrainSFT,
			section == TrainGRPO && a.Train == TrainGRPO, section == "reward" && a.Train == TrainGRPO:
		case section == TrainSFT, section == TrainGRPO, section == "reward":
			return fmt.Errorf("set %s: no effect on an arm that trains %s: remove it", key, orNothing(a.Train))
		default:
			return fmt.Errorf("set %s: the arm would no longer share data, start and questions with the others: set it for the whole study, or make another study", key)
		}
	}
	return nil
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

func (c Claim) validate(s Spec) error {
	for _, f := range [][2]string{{"arm", c.Arm}, {"over", c.Over}, {"above", c.Above}, {"control", c.Control}} {
		if err := s.has(f[1], "claim."+f[0]); err != nil {
			return err
		}
	}
	if !(c.Gain > 0) {
		return fmt.Errorf("claim.gain = %v: want the points to be gained", c.Gain)
	}
	return c.validateArms(s)
}

// permutes is the setting that makes an arm's training its own control.
const permutes = "grpo.permute_rewards=true"

// validateArms refuses a claim that another arm than named by its part could
// bear: a control with its rewards in place, or more training that is not
// matched.
func (c Claim) validateArms(s Spec) error {
	arm, _ := s.Arm(c.Arm)
	above, _ := s.Arm(c.Above)
	control, _ := s.Arm(c.Control)
	want := append(slices.Clone(training(arm)), permutes)
	slices.Sort(want)
	switch {
	case c.Arm == c.Over:
		return fmt.Errorf("claim.over = %q: want another arm than the claim's own", c.Over)
	case above.Compute != c.Arm:
		return fmt.Errorf("claim.above = %q: want an arm with compute: %s, which goes on for as much", c.Above, c.Arm)
	case control.Train != arm.Train || control.Begin != arm.Begin || !slices.Equal(training(control), want):
		return fmt.Errorf("claim.control = %q: want an arm that begins and trains as %s does, and sets besides only %s", c.Control, c.Arm, permutes)
	}
	return nil
}

// training are an arm's settings but for what it is asked, sorted.
func training(a Arm) []string {
	out := slices.DeleteFunc(slices.Clone(a.Set), func(s string) bool { return strings.HasPrefix(s, "eval.") })
	slices.Sort(out)
	return out
}

func (s Spec) has(name, field string) error {
	if _, ok := s.Arm(name); !ok {
		return fmt.Errorf("%s = %q: that arm is missing; there are %s: add it, or name one of these", field, name, strings.Join(s.ArmNames(), ", "))
	}
	return nil
}

// Arm finds an arm by its name.
func (s Spec) Arm(name string) (Arm, bool) {
	i := slices.IndexFunc(s.Arms, func(a Arm) bool { return a.Name == name })
	if i < 0 {
		return Arm{}, false
	}
	return s.Arms[i], true
}

// ArmNames lists the arms in their order.
func (s Spec) ArmNames() []string {
	out := make([]string, len(s.Arms))
	for i, a := range s.Arms {
		out[i] = a.Name
	}
	return out
}

const sharedName = "shared"

// A Cell is one arm at one seed.
type Cell struct {
	Arm  Arm
	Seed uint64
}

// Name is the cell's, and its run's.
func (c Cell) Name() string { return fmt.Sprintf("%s-%d", c.Arm.Name, c.Seed) }

// Shared names the run in which a seed's data, corpus and SFT are made.
func Shared(seed uint64) string { return fmt.Sprintf("%s-%d", sharedName, seed) }

// Cells lists the cells, seed by seed, so that a study cut short has whole seeds.
func (s Spec) Cells() []Cell {
	var out []Cell
	for _, seed := range s.Seeds {
		for _, a := range s.Arms {
			out = append(out, Cell{a, seed})
		}
	}
	return out
}
