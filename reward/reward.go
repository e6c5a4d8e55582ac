// Package reward scores trajectories: the accuracy-gated reward and its terms.
//
//	R = R_format + R_acc · [1 + λ_m·R_CXR − λ_t·R_tool]
//
// The process terms only re-rank trajectories that are already right. It is
// pure: equal trajectories give equal bits. It never asks a model, never parses
// prose for numbers (claims stand in the <evidence> line), and never repairs a
// malformed turn. A wrong answer is a score; an error means that trajectory and
// sample do not belong together. The definitions are named by [Version], which
// is part of every result.
package reward

import (
	"errors"
	"fmt"
	"math"

	"xragent/dataset"
	"xragent/rollout"
)

// Version names the definitions of the terms.
const Version = "v1"

// A Variant says how the process terms combine with accuracy.
type Variant string

// The variants. Additive is an ablation: it gives the process terms to wrong
// answers as well, R_format + R_acc + λ_m·R_CXR − λ_t·R_tool.
const (
	Gated    Variant = "gated"
	Additive Variant = "additive"
)

// Config holds the reward's constants and the ablation switches.
type Config struct {
	LambdaM   float64 `yaml:"lambda_m" json:"lambda_m"`   // weight of R_CXR
	LambdaT   float64 `yaml:"lambda_t" json:"lambda_t"`   // price of a tool call
	KMax      int     `yaml:"k_max" json:"k_max"`         // most tool calls of turn 1
	Variant   Variant `yaml:"variant" json:"variant"`     // gated or additive
	Format    bool    `yaml:"format" json:"format"`       // count R_format
	CXR       bool    `yaml:"cxr" json:"cxr"`             // count R_CXR
	Tool      bool    `yaml:"tool" json:"tool"`           // count R_tool
	Tolerance float64 `yaml:"tolerance" json:"tolerance"` // of a cited measurement, in its own unit

	// Length control, off by default: R_len rises from 0 at LengthFrom sampled
	// ids of both turns to 1 at LengthTo (the soft overlong punishment of Yu et
	// al. 2025, "DAPO", equation 13), and lowers the factor of R_acc.
	LambdaL    float64 `yaml:"lambda_l" json:"lambda_l,omitempty"`       // price of R_len = 1
	LengthFrom int     `yaml:"length_from" json:"length_from,omitempty"` // sampled ids
	LengthTo   int     `yaml:"length_to" json:"length_to,omitempty"`     // sampled ids
}

// Default returns the published recipe's constants.
func Default() Config {
	return Config{LambdaM: 0.5, LambdaT: 0.05, KMax: 5, Variant: Gated, Format: true, CXR: true, Tool: true, Tolerance: 0.005}
}

// Validate reports every unusable field at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(finite(c.LambdaM) && c.LambdaM >= 0, "lambda_m is %v, want a number of at least 0", c.LambdaM)
	bad(finite(c.LambdaT) && c.LambdaT >= 0, "lambda_t is %v, want a number of at least 0", c.LambdaT)
	bad(c.KMax >= 0, "k_max is %d, want at least 0", c.KMax)
	bad(finite(c.Tolerance) && c.Tolerance > 0, "tolerance is %v, want more than 0", c.Tolerance)
	bad(c.Variant == Gated || c.Variant == Additive, "variant is %q, want %s or %s", c.Variant, Gated, Additive)
	bad(finite(c.LambdaL) && c.LambdaL >= 0, "lambda_l is %v, want a number of at least 0", c.LambdaL)
	bad(c.LambdaL > 0 || c.LengthFrom == 0 && c.LengthTo == 0, "length_from = %d and length_to = %d have no effect with lambda_l 0: remove them", c.LengthFrom, c.LengthTo)
	bad(c.LambdaL == 0 || c.LengthFrom >= 0 && c.LengthTo > c.LengthFrom, "length_from is %d, length_to %d, want 0 ≤ length_from < length_to", c.LengthFrom, c.LengthTo)
	if price := c.LambdaT*float64(c.KMax) + c.LambdaL; price >= 1 {
		errs = append(errs, fmt.Errorf("lambda_t·k_max + lambda_l is %v·%d + %v = %.3g, want less than 1, so that a right answer "+
			"outranks every wrong one: lower one of them", c.LambdaT, c.KMax, c.LambdaL, price))
	}
	return errors.Join(errs...)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// A Score is a trajectory's reward with each term by itself. The terms are
// those of the definitions also where a switch leaves one out of Total.
type Score struct {
	Total      float64 `json:"total"`
	Format     float64 `json:"format"`     // 0 or 1
	Accuracy   float64 `json:"accuracy"`   // 0 or 1
	CXR        float64 `json:"cxr"`        // in [0, 1]
	Calls      int     `json:"calls"`      // R_tool: executed calls, at most KMax
	Length     float64 `json:"length"`     // R_len in [0, 1]; 0 without length control
	Answer     string  `json:"answer"`     // extracted; "" when there is none
	Fabricated int     `json:"fabricated"` // numbers claimed for withheld measurements
	Problem    string  `json:"problem"`    // why Format is 0; "" when it is 1
}

// Score scores t against s.
func (c Config) Score(t rollout.Trajectory, s dataset.Sample) (Score, error) {
	if err := belongs(t, s); err != nil {
		return Score{}, fmt.Errorf("reward: trajectory %v: %w", t.Task, err)
	}
	triage := rollout.ParseTriage(t.Turns[0].Text)
	if len(triage.Calls) != len(t.Calls) {
		return Score{}, fmt.Errorf("reward: trajectory %v: turn 1 has %d calls, the record %d", t.Task, len(triage.Calls), len(t.Calls))
	}
	var sc Score
	var integration rollout.Integration
	if len(t.Turns) == 2 {
		integration = rollout.ParseIntegration(t.Turns[1].Text)
		sc.Answer, _ = Extract(t.Turns[1].Text, s.Prompt)
	}
	sc.Problem = c.problem(t, s.Prompt, triage, integration)
	sc.Format = score(sc.Problem == "")
	sc.Accuracy = score(Right(sc.Answer, s))
	sc.CXR, sc.Fabricated = c.evidence(integration.Claims, t.Bundle, s.Relevant)
	sc.Calls = c.executed(t.Calls)
	sc.Length = c.overlong(t)
	sc.Total = c.combine(sc.Format, sc.Accuracy, c.process(sc.CXR, sc.Calls)-c.LambdaL*sc.Length)
	return sc, nil
}

func belongs(t rollout.Trajectory, s dataset.Sample) error {
	switch {
	case t.Sample != s.ID:
		return fmt.Errorf("it is of sample %q, scored against %q", t.Sample, s.ID)
	case t.Stop.Infrastructure():
		return fmt.Errorf("stopped by %s: there is nothing to score, another attempt is due", t.Stop)
	case len(t.Turns) == 0 || len(t.Turns) > 2:
		return fmt.Errorf("%d turns, want 1 or 2", len(t.Turns))
	}
	return nil
}

// Total combines the terms of a trajectory that is not overlong.
func (c Config) Total(format, accuracy, cxr float64, calls int) float64 {
	return c.combine(format, accuracy, c.process(cxr, calls))
}

func (c Config) process(cxr float64, calls int) float64 {
	process := 0.0
	if c.CXR {
		process += c.LambdaM * cxr
	}
	if c.Tool {
		process -= c.LambdaT * float64(min(calls, c.KMax))
	}
	return process
}

func (c Config) combine(format, accuracy, process float64) float64 {
	if !c.Format {
		format = 0
	}
	if c.Variant == Additive {
		return format + accuracy + process
	}
	return format + accuracy*(1+process)
}

// overlong is R_len.
func (c Config) overlong(t rollout.Trajectory) float64 {
	if c.LambdaL == 0 {
		return 0
	}
	ids := 0
	for _, turn := range t.Turns {
		ids += len(turn.OutputIDs)
	}
	return min(1, max(0, float64(ids-c.LengthFrom)/float64(c.LengthTo-c.LengthFrom)))
}

// executed is R_tool: calls that were run or tried, malformed and failed ones
// included, but not those refused for coming after KMax.
func (c Config) executed(calls []rollout.Call) int {
	n := 0
	for _, call := range calls {
		if call.Status != rollout.CallOverLimit {
			n++
		}
	}
	return min(n, c.KMax)
}

// problem says why the trajectory is not well formed, or "".
func (c Config) problem(t rollout.Trajectory, p dataset.Prompt, triage rollout.Triage, integration rollout.Integration) string {
	if triage.Problem != "" {
		return triage.Problem
	}
	if problem := c.callProblem(t.Calls); problem != "" {
		return problem
	}
	if len(t.Turns) < 2 {
		return "turn 2 is missing: stopped by " + string(t.Stop)
	}
	if integration.Problem != "" {
		return integration.Problem
	}
	if _, ok := Extract("<answer>"+integration.Answer+"</answer>", p); !ok {
		return "the answer is not one that the question allows"
	}
	return ""
}

func (c Config) callProblem(calls []rollout.Call) string {
	if len(calls) > c.KMax {
		return fmt.Sprintf("%d tool calls, at most %d are allowed", len(calls), c.KMax)
	}
	for _, call := range calls {
		switch call.Status {
		case rollout.CallInvalid:
			return "a tool call names no known tool or has arguments outside its schema"
		case rollout.CallMalformed:
			return "a tool call is not a JSON object with name and arguments"
		case rollout.CallOverLimit:
			return "a tool call was made where none was allowed"
		}
	}
	return ""
}

func score(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}
