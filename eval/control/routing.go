package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/eval"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// A plan says what becomes of turn 1's calls.
type plan struct {
	do   verb
	tool string // that must be called; "": any
}

type verb int

const (
	keep  verb = iota // as the policy wrote them
	cut               // none
	force             // at least one, of the tool where one is named
)

// plans decides on every question.
func (b *Bench) plans(cond eval.Condition, samples []dataset.Sample, plain eval.Result) ([]plan, error) {
	out := make([]plan, len(samples))
	switch cond {
	case eval.NeverCall:
		for i := range out {
			out[i] = plan{do: cut}
		}
	case eval.AlwaysCall:
		for i := range out {
			out[i] = plan{do: force}
		}
	case eval.RandomCall:
		return b.randomPlans(samples, plain)
	case eval.OracleCall:
		for i, s := range samples {
			if s.Need == "" {
				return nil, fmt.Errorf("sample %s does not say what it needs: only phantoms have an oracle", s.ID)
			}
			out[i] = needed(s.Need)
		}
	}
	return out, nil
}

// randomPlans deals the policy's own decisions out anew, so that as many
// questions are called for.
func (b *Bench) randomPlans(samples []dataset.Sample, plain eval.Result) ([]plan, error) {
	if len(plain.Rows) != len(samples) {
		return nil, fmt.Errorf("the plain result has %d questions of %d: run it first", len(plain.Rows), len(samples))
	}
	calls := make([]plan, len(samples))
	for i, row := range plain.Rows {
		if row.Sample != samples[i].ID {
			return nil, fmt.Errorf("question %d is %s, in the plain result %s: run it on the same questions", i+1, samples[i].ID, row.Sample)
		}
		calls[i] = plan{do: cut}
		if row.Called() {
			calls[i] = plan{do: force}
		}
	}
	return permuted(calls, b.Seed), nil
}

// needed is the oracle's plan; phantoms name needs for tools after the tool.
func needed(need string) plan {
	if slices.Contains([]phantom.Need{phantom.NeedCrop, phantom.NeedParse, phantom.NeedLookup}, phantom.Need(need)) {
		return plan{force, need}
	}
	return plan{do: cut}
}

// A router is the sampler of one trajectory whose turn 1 follows a plan.
type router struct {
	loop.Sampler
	codec Codec
	plan  plan
	turns int
}

const callTag = "<tool_call>"

// Sample samples a turn. Turn 1 is then changed to the plan: calls are cut off
// after the policy's own assessment, or one is begun there in the protocol's
// grammar, as far as the plan says, and the policy goes on from it.
func (r *router) Sample(ctx context.Context, req loop.SampleRequest) (loop.SampleResult, error) {
	r.turns++
	res, err := r.Sampler.Sample(ctx, req)
	if err != nil || r.turns > 1 {
		return res, err
	}
	text := r.codec.Decode(res.Turn.OutputIDs)
	head, _, called := strings.Cut(text, callTag)
	switch head = strings.TrimSpace(head); {
	case r.plan.do == cut && called:
		ids := append(r.codec.Encode(head), r.codec.EndOfTurn())
		return replaced(res, ids, rollout.FinishStop), nil
	case r.plan.do == force && !r.satisfied(text) && (called || res.Turn.Finish == rollout.FinishStop):
		return r.begin(ctx, req, res, head)
	}
	return res, nil
}

// satisfied reports whether the policy's own calls fulfil the plan.
func (r *router) satisfied(text string) bool {
	return slices.ContainsFunc(rollout.ParseTriage(text).Calls, func(c rollout.Call) bool {
		return c.Status == "" && (r.plan.tool == "" || c.Tool == r.plan.tool)
	})
}

// begin starts a call after head and lets the policy write the rest of the turn.
func (r *router) begin(ctx context.Context, req loop.SampleRequest, res loop.SampleResult, head string) (loop.SampleResult, error) {
	start := head + "\n" + callTag + "\n{\"name\": \""
	if r.plan.tool != "" {
		start += r.plan.tool + "\", \"arguments\":"
	}
	begun := r.codec.Encode(start)
	req.IDs = slices.Concat(req.IDs, begun)
	rest, err := r.Sampler.Sample(ctx, req)
	if err != nil {
		return res, fmt.Errorf("call begun: %w", err)
	}
	if len(rest.Images) != len(res.Images) {
		return res, errors.New("call begun: the sampler saw other images")
	}
	return replaced(res, slices.Concat(begun, rest.Turn.OutputIDs), rest.Turn.Finish), nil
}

// replaced is a sampled turn with another output.
func replaced(res loop.SampleResult, ids []int32, finish rollout.Finish) loop.SampleResult {
	res.Turn.OutputIDs, res.Turn.Finish, res.Turn.Text = ids, finish, ""
	res.Turn.Logprobs = make([]float32, len(ids))
	return res
}
