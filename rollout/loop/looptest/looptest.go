// Package looptest holds what every [loop.Sampler] must do, as tests that each
// implementation runs on itself.
package looptest

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"xragent/chat"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// A Setup is a sampler under test and what it serves.
type Setup struct {
	Sampler   loop.Sampler
	Version   rollout.PolicyVersion // that it holds
	Vocab     int
	Merge     int
	Prompt    []int32 // text, without images
	Mark      []int32 // what stands for one image in a compact prompt; ImagePad once among it
	ImagePad  int32
	Image     []byte // an encoded image
	Stop      []int32
	MaxTokens int
}

func (s Setup) request(seed uint64, images int) loop.SampleRequest {
	ids := slices.Clone(s.Prompt)
	var files [][]byte
	for range images {
		ids, files = append(ids, s.Mark...), append(files, s.Image)
	}
	return loop.SampleRequest{
		Version: s.Version, IDs: append(ids, s.Prompt...), Images: files, Stop: s.Stop, Seed: seed,
		Sampling: rollout.Sampling{Temperature: 1, TopP: 1, MaxTokens: s.MaxTokens},
	}
}

func (s Setup) sample(t *testing.T, req loop.SampleRequest) loop.SampleResult {
	t.Helper()
	got, err := s.Sampler.Sample(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	s.check(t, req, got)
	return got
}

// check holds one result against the contract of tokens and images.
func (s Setup) check(t *testing.T, req loop.SampleRequest, got loop.SampleResult) {
	t.Helper()
	turn := got.Turn
	var pads []int
	for _, use := range got.Images {
		pads = append(pads, use.PadTokens(s.Merge))
	}
	if want, err := chat.Expand(req.IDs, pads, s.ImagePad); err != nil || !slices.Equal(turn.PromptIDs, want) {
		t.Errorf("prompt ids %v are not the expanded ones (%v)", turn.PromptIDs, err)
	}
	if turn.Images != len(req.Images) || len(got.Images) != len(req.Images) {
		t.Errorf("%d images in the turn, %d uses, want %d", turn.Images, len(got.Images), len(req.Images))
	}
	if turn.Oldest != req.Version || turn.Newest != req.Version {
		t.Errorf("versions %d to %d, want %d", turn.Oldest, turn.Newest, req.Version)
	}
	s.checkOutput(t, req, turn)
}

func (s Setup) checkOutput(t *testing.T, req loop.SampleRequest, turn rollout.Turn) {
	t.Helper()
	n := len(turn.OutputIDs)
	if n == 0 || n > req.Sampling.MaxTokens || len(turn.Logprobs) != n {
		t.Fatalf("%d ids and %d log-probs, want 1 to %d of each", n, len(turn.Logprobs), req.Sampling.MaxTokens)
	}
	for i, id := range turn.OutputIDs {
		stops := slices.Contains(req.Stop, id)
		if id < 0 || int(id) >= s.Vocab || id == s.ImagePad || stops != (i == n-1 && turn.Finish == rollout.FinishStop) {
			t.Errorf("id %d at %d of %d, finish %s", id, i, n, turn.Finish)
		}
		if lp := float64(turn.Logprobs[i]); math.IsNaN(lp) || math.IsInf(lp, 0) || lp > 1e-4 {
			t.Errorf("log-prob %d is %v", i, lp)
		}
	}
	if turn.Finish == rollout.FinishLength && n != req.Sampling.MaxTokens {
		t.Errorf("finish %s after %d ids of %d", turn.Finish, n, req.Sampling.MaxTokens)
	}
}

// TestSampler runs all tests.
func TestSampler(t *testing.T, s Setup) {
	t.Run("contract", s.testContract)
	t.Run("seeds", s.testSeeds)
	t.Run("two turns", s.testTwoTurns)
	t.Run("refuses", s.testRefuses)
	t.Run("cancelled", s.testCancelled)
	t.Run("concurrent", s.testConcurrent)
}

func (s Setup) testContract(t *testing.T) {
	for images := range 3 {
		for seed := range uint64(4) {
			s.sample(t, s.request(seed, images))
		}
	}
	one := s.request(1, 1)
	one.Sampling.MaxTokens = 1
	s.sample(t, one)
}

// Equal requests give equal turns; other seeds give others.
func (s Setup) testSeeds(t *testing.T) {
	first := s.sample(t, s.request(7, 1))
	if again := s.sample(t, s.request(7, 1)); !reflect.DeepEqual(again, first) {
		t.Errorf("the same request gave %v, then %v", first.Turn.OutputIDs, again.Turn.OutputIDs)
	}
	for seed := range uint64(20) {
		if !slices.Equal(s.sample(t, s.request(seed, 1)).Turn.OutputIDs, first.Turn.OutputIDs) {
			return
		}
	}
	t.Error("20 seeds gave the same turn")
}

// Turn 2's prompt starts with turn 1 as it was sampled, and may bring an image.
func (s Setup) testTwoTurns(t *testing.T) {
	first := s.request(3, 1)
	got := s.sample(t, first)
	second := first
	second.IDs = slices.Concat(first.IDs, got.Turn.OutputIDs, s.Mark, s.Prompt)
	second.Images = append(slices.Clone(first.Images), s.Image)
	next := s.sample(t, second)
	start := slices.Concat(got.Turn.PromptIDs, got.Turn.OutputIDs)
	if len(next.Turn.PromptIDs) < len(start) || !slices.Equal(next.Turn.PromptIDs[:len(start)], start) {
		t.Error("turn 2's prompt does not start with turn 1's prompt and output")
	}
}

func (s Setup) testRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(*loop.SampleRequest)
		want   string // part of the error
	}{
		{"another version", func(r *loop.SampleRequest) { r.Version++ }, "version"},
		{"an image too many", func(r *loop.SampleRequest) { r.Images = append(r.Images, s.Image) }, "placeholders"},
		{"an image too few", func(r *loop.SampleRequest) { r.Images = nil }, "placeholders"},
		{"a damaged image", func(r *loop.SampleRequest) { r.Images = [][]byte{s.Image[:len(s.Image)/2]} }, ""},
	}
	for _, test := range tests {
		req := s.request(1, 1)
		test.change(&req)
		if got, err := s.Sampler.Sample(context.Background(), req); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, error %v, want one with %q", test.name, got.Turn.OutputIDs, err, test.want)
		}
	}
}

func (s Setup) testCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Sampler.Sample(ctx, s.request(1, 0)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context gave %v", err)
	}
}

// What runs beside a request does not change it.
func (s Setup) testConcurrent(t *testing.T) {
	const n = 12
	alone := make([]loop.SampleResult, n)
	for i := range alone {
		alone[i] = s.sample(t, s.request(uint64(i), i%2))
	}
	var wg sync.WaitGroup
	for i := range alone {
		wg.Go(func() {
			got, err := s.Sampler.Sample(context.Background(), s.request(uint64(i), i%2))
			if err != nil || !reflect.DeepEqual(got, alone[i]) {
				t.Errorf("request %d among others gave %v, %v, want %v", i, got.Turn.OutputIDs, err, alone[i].Turn.OutputIDs)
			}
		})
	}
	wg.Wait()
}
