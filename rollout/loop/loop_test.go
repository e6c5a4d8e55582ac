package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"xragent/dataset"
	"xragent/rollout"
)

// The fake codec has one id a byte; ids from 256 are special.
const (
	endOfTurn = 256
	imagePad  = 257
	vocab     = 258
	padsEach  = 4 // pads an image expands to: a grid of 1·4·4, merge 2
)

type bytesCodec struct{}

func (bytesCodec) Triage(p dataset.Prompt, tools []json.RawMessage) []int32 {
	ids := encode(fmt.Sprintf("tools:%s\n", tools))
	for range p.Images {
		ids = append(ids, imagePad)
	}
	return append(ids, encode(p.Question)...)
}

func (bytesCodec) Integration(calls []rollout.Call, b rollout.Bundle) []int32 {
	var ids []int32
	for _, c := range calls {
		ids = append(ids, encode(rollout.FormatObservation(c, "@"))...)
		if c.Image != "" {
			ids = append(ids, imagePad)
		}
	}
	return append(ids, encode(rollout.FormatBundle(b))...)
}

func (bytesCodec) Decode(ids []int32) string {
	var b []byte
	for _, id := range ids {
		if id < 256 {
			b = append(b, byte(id))
		}
	}
	return string(b)
}

func (bytesCodec) EndOfTurn() int32 { return endOfTurn }
func (bytesCodec) ImagePad() int32  { return imagePad }

func encode(s string) []int32 {
	ids := make([]int32, len(s))
	for i := range s {
		ids[i] = int32(s[i])
	}
	return ids
}

// A scripted sampler says its lines turn by turn, and remembers what it was asked.
type scripted struct {
	says  []string
	cut   int           // this turn ends by length
	delay time.Duration // of every turn
	asked []SampleRequest
	edit  func(turn int, r *SampleResult)
	err   error
}

func (s *scripted) Sample(ctx context.Context, req SampleRequest) (SampleResult, error) {
	if err := wait(ctx, s.delay); err != nil {
		return SampleResult{}, err
	}
	if s.err != nil {
		return SampleResult{}, s.err
	}
	s.asked = append(s.asked, req)
	n := len(s.asked)
	turn := rollout.Turn{OutputIDs: encode(s.says[n-1]), Finish: rollout.FinishLength, Oldest: req.Version, Newest: req.Version}
	if n != s.cut {
		turn.OutputIDs, turn.Finish = append(turn.OutputIDs, endOfTurn), rollout.FinishStop
	}
	turn.Logprobs = make([]float32, len(turn.OutputIDs))
	var res SampleResult
	for _, id := range req.IDs {
		turn.PromptIDs = append(turn.PromptIDs, id)
		for i := 1; id == imagePad && i < padsEach; i++ {
			turn.PromptIDs = append(turn.PromptIDs, id)
		}
	}
	for _, img := range req.Images {
		res.Images = append(res.Images, rollout.ImageUse{SHA256: digest(img), Grid: [3]int{1, 4, 4}})
	}
	res.Turn = turn
	if s.edit != nil {
		s.edit(n, &res)
	}
	return res, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Fake tools answer by their argument after a delay.
type fakeTools struct {
	delay    func(args string) time.Duration
	mu       sync.Mutex     // of failures
	failures map[string]int // transport failures to come, by argument; "measure" for the bundle
	calls    chan string    // every try
	bundle   rollout.Bundle
	deaf     bool // does not heed its context
}

func newTools() *fakeTools {
	return &fakeTools{
		delay:    func(string) time.Duration { return 0 },
		failures: map[string]int{}, calls: make(chan string, 100),
		bundle: rollout.Bundle{Measurements: []rollout.Measurement{
			{Name: rollout.CTR, Value: 0.5, Category: "borderline", Computed: true, Admitted: true},
			{Name: rollout.Asymmetry, Value: 0.1, Computed: true},
			{Name: rollout.Shift},
		}},
	}
}

func (f *fakeTools) try(ctx context.Context, what string) error {
	f.calls <- what
	if f.deaf {
		ctx = context.Background()
	}
	if err := wait(ctx, f.delay(what)); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures[what] > 0 {
		f.failures[what]--
		return errors.New("connection lost")
	}
	return nil
}

func (f *fakeTools) Call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, _ []dataset.Image) (rollout.Observation, error) {
	var a struct{ Region string }
	if json.Unmarshal(args, &a) != nil {
		return rollout.Observation{Invalid: true, Text: "bad arguments"}, nil
	}
	if err := f.try(ctx, a.Region); err != nil {
		return rollout.Observation{}, err
	}
	switch {
	case tool == "roi_crop":
		return rollout.Observation{Text: "crop of " + a.Region, PNG: []byte("png " + a.Region)}, nil
	case tool == "broken":
		return rollout.Observation{Error: "no such region"}, nil
	case tool != "region_parse":
		return rollout.Observation{Invalid: true, Text: "no such tool"}, nil
	}
	return rollout.Observation{Text: "clear " + a.Region}, nil
}

func (f *fakeTools) Measure(ctx context.Context, images [][]byte, _ []dataset.Image) (rollout.Bundle, error) {
	if err := f.try(ctx, "measure"); err != nil {
		return rollout.Bundle{}, err
	}
	return f.bundle, nil
}

func (f *fakeTools) Schemas() []json.RawMessage {
	return []json.RawMessage{json.RawMessage(`{"name":"roi_crop"}`)}
}

type blobs map[string][]byte

func (b blobs) Get(_ context.Context, sha string) ([]byte, error) {
	if data, ok := b[sha]; ok {
		return data, nil
	}
	return nil, errors.New("not there")
}

var film = []byte("film")

func task() rollout.Task {
	return rollout.Task{
		ID: rollout.TaskID{Run: "r"}, Sample: "s", Version: 3, Seed: 7, Tools: true, Gate: rollout.GateOn,
		Prompt:   dataset.Prompt{Question: "q", Images: []dataset.Image{{SHA256: digest(film)}}},
		Sampling: rollout.Sampling{Temperature: 1, TopP: 1, MaxTokens: 200},
	}
}

func call(tool, region string) string {
	return rollout.FormatCall(tool, json.RawMessage(fmt.Sprintf(`{"region": %q}`, region)))
}

const answered = "<think>x</think><answer>A</answer>"

func says(calls ...string) *scripted {
	return &scripted{says: []string{"<assess>pa view</assess>\n" + strings.Join(calls, "\n"), answered}}
}

func config() Config {
	c := Default()
	c.ImageTokens, c.MaxContext = padsEach, 1500
	c.SampleTimeout, c.CallTimeout, c.MeasureTimeout = 10*time.Second, time.Second, 2*time.Second
	return c
}

func newLoop(cfg Config, s *scripted, tools *fakeTools) *Loop {
	return New(cfg, s, tools, bytesCodec{}, blobs{digest(film): film})
}

func mustRun(t *testing.T, cfg Config, s *scripted, tools *fakeTools, task rollout.Task) rollout.Trajectory {
	t.Helper()
	got, err := newLoop(cfg, s, tools).Run(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Stop.Infrastructure() {
		if err := got.Check(rollout.Limits{Vocab: vocab, ImagePad: imagePad, Merge: 2, MaxIDs: cfg.MaxContext}); err != nil {
			t.Error(err)
		}
	}
	return got
}

func TestTwoTurns(t *testing.T) {
	s := says(call("region_parse", "left base"), call("roi_crop", "right apex"), call("roi_crop", "right apex"))
	got := mustRun(t, config(), s, newTools(), task())
	if got.Stop != rollout.Answered || len(got.Turns) != 2 || len(got.Calls) != 3 {
		t.Fatalf("stop %s, %d turns, %d calls", got.Stop, len(got.Turns), len(got.Calls))
	}
	if got.Turns[0].Images != 1 || got.Turns[1].Images != 3 || len(got.Images) != 3 || len(got.Attachments) != 1 {
		t.Errorf("images %d and %d of %d, %d attachments", got.Turns[0].Images, got.Turns[1].Images, len(got.Images), len(got.Attachments))
	}
	if a := got.Attachments[0]; a.SHA256 != digest(a.PNG) || got.Calls[1].Image != a.SHA256 || got.Calls[2].Image != a.SHA256 {
		t.Error("the crops do not name their attachment")
	}
	if got.Turns[1].Text != answered || got.Version != 3 || got.Turns[0].Newest != 3 {
		t.Errorf("text %q, version %d", got.Turns[1].Text, got.Version)
	}
	prompt := bytesCodec{}.Decode(got.Turns[1].PromptIDs)
	for _, want := range []string{"roi_crop", "clear left base", "crop of right apex", "ctr 0.500 borderline", "asymmetry withheld"} {
		if !strings.Contains(prompt, want) {
			t.Errorf("turn 2's prompt lacks %q", want)
		}
	}
	if a, b := s.asked[0].Seed, s.asked[1].Seed; a == b || a == got.Seed {
		t.Errorf("turn seeds %d and %d of trajectory seed %d", a, b, got.Seed)
	}
	if s.asked[0].Stop[0] != endOfTurn || len(s.asked[1].Images) != 3 {
		t.Errorf("turn 2 was sampled with %d images, stop %v", len(s.asked[1].Images), s.asked[0].Stop)
	}
	for _, stage := range []string{"fetch", "triage", "tools", "measure", "integration", "total"} {
		if _, ok := got.Seconds[stage]; !ok {
			t.Errorf("no seconds of %s", stage)
		}
	}
}

func TestCallStatuses(t *testing.T) {
	s := says(call("region_parse", "a"), call("broken", "b"), call("nosuch", "c"), "<tool_call>{]</tool_call>",
		`<tool_call>{"name": "roi_crop", "arguments": {"region": 5}}</tool_call>`, call("roi_crop", "f"), call("roi_crop", "g"))
	tools := newTools()
	got := mustRun(t, config(), s, tools, task())
	want := []rollout.CallStatus{rollout.CallOK, rollout.CallError, rollout.CallInvalid, rollout.CallMalformed, rollout.CallInvalid,
		rollout.CallOverLimit, rollout.CallOverLimit}
	prompt := bytesCodec{}.Decode(got.Turns[1].PromptIDs)
	for i, c := range got.Calls {
		if c.Status != want[i] {
			t.Errorf("call %d is %s, want %s", i+1, c.Status, want[i])
		}
		if over := c.Status == rollout.CallOverLimit; over != (c.Observation == "") || !strings.Contains(prompt, c.Observation) {
			t.Errorf("call %d (%s): observation %q", i+1, c.Status, c.Observation)
		}
	}
	if n := len(tools.calls); n != 4 { // a, b, c and the measurements
		t.Errorf("%d tool runs, want 4", n)
	}
}

func TestToolsOff(t *testing.T) {
	s := says(call("region_parse", "a"))
	tools, off := newTools(), task()
	off.Tools = false
	got := mustRun(t, config(), s, tools, off)
	if got.Calls[0].Status != rollout.CallOverLimit || len(tools.calls) != 1 {
		t.Errorf("call %s, %d tool runs", got.Calls[0].Status, len(tools.calls))
	}
	if prompt := (bytesCodec{}).Decode(s.asked[0].IDs); strings.Contains(prompt, "roi_crop") {
		t.Errorf("the prompt offers tools: %q", prompt)
	}
	if len(got.Bundle.Shown) != 1 {
		t.Errorf("shown %v", got.Bundle.Shown)
	}
}

func TestGate(t *testing.T) {
	for gate, want := range map[rollout.GateMode][]string{
		rollout.GateOn: {rollout.CTR}, rollout.GateOff: {rollout.CTR, rollout.Asymmetry}, rollout.GateEmpty: nil,
	} {
		gated := task()
		gated.Gate = gate
		if got := mustRun(t, config(), says(), newTools(), gated); !reflect.DeepEqual(got.Bundle.Shown, want) {
			t.Errorf("gate %s shows %v, want %v", gate, got.Bundle.Shown, want)
		}
	}
}

// Whatever order the tools answer in, the canonical trajectory is the same.
func TestOrderOfAnswersDoesNotMatter(t *testing.T) {
	var first rollout.Trajectory
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			tools := newTools()
			rng := rand.New(rand.NewPCG(seed, 1))
			delays := map[string]time.Duration{}
			for _, what := range []string{"a", "b", "c", "measure"} {
				delays[what] = time.Duration(rng.IntN(900)) * time.Millisecond
			}
			tools.delay = func(what string) time.Duration { return delays[what] }
			got := mustRun(t, config(), says(call("roi_crop", "a"), call("roi_crop", "b"), call("region_parse", "c")), tools, task()).Canonical()
			if seed == 0 {
				first = got
			}
			if !reflect.DeepEqual(got, first) {
				t.Errorf("seed %d: a different trajectory", seed)
			}
		})
	}
}

// Calls run beside each other, and the measurements beside turn 1.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tools, s := newTools(), says(call("region_parse", "a"), call("region_parse", "b"), call("region_parse", "c"))
		tools.delay = func(what string) time.Duration {
			if what == "measure" {
				return 1500 * time.Millisecond
			}
			return 500 * time.Millisecond
		}
		s.delay = time.Second
		start := time.Now()
		got := mustRun(t, config(), s, tools, task())
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("took %v, want 2.5 s: two turns of 1 s, the calls at once, the measurements beside", took)
		}
		if got.Calls[0].LatencyMS != 500 || got.Seconds["measure"] != 1.5 {
			t.Errorf("latency %v ms, measurements %v s", got.Calls[0].LatencyMS, got.Seconds["measure"])
		}
	})
}

func TestTransportFailures(t *testing.T) {
	slow := func(which string) func(*fakeTools, *scripted) {
		return func(f *fakeTools, _ *scripted) {
			f.delay = func(what string) time.Duration {
				if what == which {
					return time.Hour
				}
				return 0
			}
		}
	}
	fails := func(what string, times int) func(*fakeTools, *scripted) {
		return func(f *fakeTools, _ *scripted) { f.failures[what] = times }
	}
	for _, c := range []struct {
		name  string
		setup func(*fakeTools, *scripted)
		stop  rollout.StopReason
		took  time.Duration
	}{
		{"a call fails once", fails("a", 1), rollout.Answered, 0},
		{"a call fails twice", fails("a", 2), rollout.ToolDown, 0},
		{"the measurements fail once", fails("measure", 1), rollout.Answered, 0},
		{"the measurements fail twice", fails("measure", 2), rollout.ToolDown, 0},
		{"a call hangs", slow("a"), rollout.ToolDown, 2 * time.Second},
		{"the measurements hang", slow("measure"), rollout.ToolDown, 4 * time.Second},
		{"the sampler hangs", func(_ *fakeTools, s *scripted) { s.delay = time.Hour }, rollout.Timeout, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tools, s := newTools(), says(call("region_parse", "a"))
				c.setup(tools, s)
				start := time.Now()
				got := mustRun(t, config(), s, tools, task())
				if got.Stop != c.stop || time.Since(start) != c.took {
					t.Errorf("stop %s after %v, want %s after %v", got.Stop, time.Since(start), c.stop, c.took)
				}
			})
		})
	}
}

// A tool that does not heed its context cannot hold a trajectory past its deadline.
func TestDeafTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tools := newTools()
		tools.deaf = true
		tools.delay = func(string) time.Duration { return time.Minute }
		start := time.Now()
		got := mustRun(t, config(), says(call("region_parse", "a")), tools, task())
		if took := time.Since(start); got.Stop != rollout.ToolDown || took > 5*time.Second {
			t.Errorf("stop %s after %v", got.Stop, took)
		}
		time.Sleep(2 * time.Minute) // the tool comes back
	})
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		tools := newTools()
		tools.delay = func(string) time.Duration { return time.Hour }
		_, err := newLoop(config(), says(call("region_parse", "a")), tools).Run(ctx, task())
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestCutTurns(t *testing.T) {
	for cut, turns := range map[int]int{1: 1, 2: 2} {
		s := says(call("region_parse", "a"))
		s.cut = cut
		got := mustRun(t, config(), s, newTools(), task())
		if got.Stop != rollout.MaxTokens || len(got.Turns) != turns {
			t.Errorf("turn %d cut: stop %s after %d turns", cut, got.Stop, len(got.Turns))
		}
	}
}

func TestContextOverflow(t *testing.T) {
	s := says(call("roi_crop", "a"))
	cfg := config()
	cfg.MaxContext = 450 // turn 1 fits, turn 2 does not
	got := mustRun(t, cfg, s, newTools(), task())
	if got.Stop != rollout.MaxContext || len(got.Turns) != 1 || len(got.Images) != 1 || len(got.Bundle.Shown) != 0 {
		t.Errorf("stop %s, %d turns, %d images, shown %v", got.Stop, len(got.Turns), len(got.Images), got.Bundle.Shown)
	}
	cfg.MaxContext = 220
	if _, err := newLoop(cfg, says(), newTools()).Run(t.Context(), task()); err == nil || !strings.Contains(err.Error(), "max_context is 220") {
		t.Errorf("turn 1 does not fit: %v", err)
	}
}

func TestImageCap(t *testing.T) {
	cfg := config()
	cfg.MaxImages = 2
	got := mustRun(t, cfg, says(call("roi_crop", "a"), call("roi_crop", "b")), newTools(), task())
	if len(got.Images) != 2 || got.Calls[0].Image == "" || got.Calls[1].Image != "" || !strings.Contains(got.Calls[1].Observation, "limit of 2") {
		t.Errorf("%d images, calls %+v", len(got.Images), got.Calls)
	}
}

func TestErrors(t *testing.T) {
	missing, many := task(), task()
	missing.Prompt.Images = []dataset.Image{{SHA256: "00"}}
	many.Prompt.Images = make([]dataset.Image, 9)
	edit := func(f func(int, *SampleResult)) *scripted { s := says(); s.edit = f; return s }
	for want, c := range map[string]struct {
		task rollout.Task
		s    *scripted
	}{
		"image 1 (00): not there":      {missing, says()},
		"9 images, max_images is 8":    {many, says()},
		"sample turn 1: out of memory": {task(), &scripted{err: errors.New("out of memory")}},
		"saw 0 images of 1":            {task(), edit(func(_ int, r *SampleResult) { r.Images = nil })},
		"other images than in turn 1":  {task(), edit(func(n int, r *SampleResult) { r.Images[0].Grid[1] += n })},
		"sampled an image-pad id":      {task(), edit(func(_ int, r *SampleResult) { r.Turn.OutputIDs[0] = imagePad })},
	} {
		_, err := newLoop(config(), c.s, newTools()).Run(t.Context(), c.task)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	damaged := New(config(), says(), newTools(), bytesCodec{}, blobs{digest(film): []byte("fi")})
	if _, err := damaged.Run(t.Context(), task()); err == nil || !strings.Contains(err.Error(), "the store is damaged") {
		t.Errorf("damaged blob: %v", err)
	}
}

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Config{KMax: -1}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 6 {
		t.Errorf("the zero configuration: %v", err)
	}
}

// BenchmarkRun is the loop's own cost of a trajectory with three calls and a
// crop: samplers and tools answer at once.
func BenchmarkRun(b *testing.B) {
	says := says(call("region_parse", "left base"), call("roi_crop", "right apex"), call("region_parse", "right base")).says
	tools := newTools()
	tools.calls = make(chan string, 1<<20)
	for b.Loop() {
		if len(tools.calls) > 1<<19 {
			tools.calls = make(chan string, 1<<20)
		}
		if _, err := newLoop(config(), &scripted{says: says}, tools).Run(b.Context(), task()); err != nil {
			b.Fatal(err)
		}
	}
}
