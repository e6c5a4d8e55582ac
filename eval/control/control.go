// Package control puts a policy under the controls of an evaluation that act
// inside a rollout: calls forced or forbidden, tools answered otherwise,
// measurements shown otherwise.
//
// It wraps the parts of the one rollout loop and changes nothing else: the
// prompt, the tool schemas, turn 2 and the scoring are those of the plain
// condition. A call is never written for the policy: it is begun, and the policy
// completes it. Truth reaches conditions that are named for it through this
// package alone; the tools have no way to it. What is rolled out here is never
// trained on: where a turn was changed, its log-probs are 0.
package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/eval"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// A Codec also encodes what is put into a turn.
type Codec interface {
	loop.Codec
	Encode(text string) []int32
}

// A Bench is what the conditions of one evaluation share. The sampler holds the
// policy. It is not for concurrent use; the rollouts that it returns are.
type Bench struct {
	Loop     loop.Config
	Sampler  loop.Sampler
	Tools    loop.Tools
	Exact    loop.Tools // the same without built-in errors, for what oracle tools measure
	Codec    Codec
	Blobs    loop.Blobs
	Truth    func(study string) (phantom.Truth, bool) // nil: none is known
	Whole    bool                                     // the gate shows all of a bundle or nothing
	Seed     uint64
	Parallel int // measurements at once

	surveyed []string // the samples of bundles, by their ids
	bundles  []rollout.Bundle
}

// Parts are the sampler and the tools of one question's loop.
type parts struct {
	sampler loop.Sampler
	tools   loop.Tools
}

// A change turns the plain parts of question i into the condition's.
type change func(i int, p parts) parts

// Rollout returns the rollout of a condition over samples, which are those that
// eval.Run is given. plain is the same policy's plain result on them; only
// RandomCall reads it. Conditions that need truth or needs fail without.
func (b *Bench) Rollout(ctx context.Context, cond eval.Condition, samples []dataset.Sample, plain eval.Result) (eval.Rollout, error) {
	alter, err := b.change(ctx, cond, samples, plain)
	if err != nil {
		return nil, fmt.Errorf("condition %s: %w", cond, err)
	}
	place := make(map[string]int, len(samples))
	for i, s := range samples {
		place[s.ID] = i
	}
	return func(ctx context.Context, t rollout.Task) (rollout.Trajectory, error) {
		p := parts{b.Sampler, b.Tools}
		if i, ok := place[t.Sample]; ok {
			p = alter(i, p)
		}
		return loop.New(b.Loop, p.sampler, p.tools, b.Codec, b.Blobs).Run(ctx, t)
	}, nil
}

func (b *Bench) change(ctx context.Context, cond eval.Condition, samples []dataset.Sample, plain eval.Result) (change, error) {
	switch cond {
	case eval.TextOnly:
		return func(_ int, p parts) parts { p.tools = blindTools{p.tools}; return p }, nil
	case eval.NeverCall, eval.AlwaysCall, eval.RandomCall, eval.OracleCall:
		plans, err := b.plans(cond, samples, plain)
		return func(i int, p parts) parts {
			p.sampler = &router{Sampler: p.sampler, codec: b.Codec, plan: plans[i]}
			return p
		}, err
	case eval.OracleTools:
		return b.oracleTools(samples)
	case eval.OtherTools:
		donors := eval.Donors(samples, b.Seed, eval.SameTemplate)
		return func(i int, p parts) parts { p.tools = otherTools{p.tools, samples[donors[i]], b.Blobs}; return p }, nil
	case eval.ToolText:
		return func(i int, p parts) parts { p.tools = textTools{p.tools, samples[i], b.Blobs}; return p }, nil
	case eval.GateOracle, eval.GateRandom, eval.BundleSwap:
		return b.gates(ctx, cond, samples)
	}
	return func(_ int, p parts) parts { return p }, nil
}

// permuted returns what the questions have, dealt out anew by a seeded permutation.
func permuted[T any](values []T, seed uint64) []T {
	out := make([]T, len(values))
	for i, from := range rand.New(rand.NewPCG(seed, 0x510e527f)).Perm(len(values)) {
		out[i] = values[from]
	}
	return out
}

// Bundles measures the images of every sample, as the loop's measurements
// would, and keeps the result for the next condition.
func (b *Bench) Bundles(ctx context.Context, samples []dataset.Sample) ([]rollout.Bundle, error) {
	if b.covers(samples) {
		return b.bundles, nil
	}
	bundles, errs := make([]rollout.Bundle, len(samples)), make([]error, len(samples))
	slots := make(chan struct{}, max(1, b.Parallel))
	var wg sync.WaitGroup
	for i, s := range samples {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			bundles[i], errs[i] = b.measure(ctx, s)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("sample %s: %w", samples[i].ID, err)
		}
	}
	b.bundles, b.surveyed = bundles, nil
	for _, s := range samples {
		b.surveyed = append(b.surveyed, s.ID)
	}
	return bundles, nil
}

func (b *Bench) covers(samples []dataset.Sample) bool {
	if b.surveyed == nil || len(b.surveyed) != len(samples) {
		return false
	}
	for i, s := range samples {
		if b.surveyed[i] != s.ID {
			return false
		}
	}
	return true
}

func (b *Bench) measure(ctx context.Context, s dataset.Sample) (rollout.Bundle, error) {
	images, err := fetch(ctx, b.Blobs, s)
	if err != nil {
		return rollout.Bundle{}, err
	}
	return b.Tools.Measure(ctx, images, s.Prompt.Images)
}

func fetch(ctx context.Context, blobs loop.Blobs, s dataset.Sample) ([][]byte, error) {
	var out [][]byte
	for _, img := range s.Prompt.Images {
		data, err := blobs.Get(ctx, img.SHA256)
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}
