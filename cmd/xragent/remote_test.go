package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"xragent/chat"
	"xragent/trainer"
)

// A far is a remote policy made of scripts: a learner and its servers.
type far struct {
	learner  *fakeLearner
	samplers []*fakeServer
	servers  []string // their URLs
	config   string   // pipeline file
	runs     string   // folder of runs
}

const (
	// A loaded machine stalls what runs here for many seconds, so nothing is too late.
	farBase = `
run: {name: far, dir: %q, seed: 3}
data: {phantom: {train: 12, validation: 4, test: 4}}
policy: {backend: remote, remote: {model: base, tokenizer: %q, learner: %q, samplers: [%q, %q]}}
loop: {max_context: 4096, image_tokens: 1024, sample_timeout: 1h, call_timeout: 1h, measure_timeout: 1h}
tools: {deadline: 1h}
`
	farHere = `
queue: {workers: 2, slots: 4}
eval: {questions: 6, max_tokens: 96, controls: minimal}
web: {listen: ""}
`
	farTraining = farHere + `
corpus: {samples: 12}
sft: {max_steps: 3, eval_every: 2, batch_tokens: 4096, optimizer: {lr: 0.05}}
grpo: {steps: 2, prompts: 2, group_size: 4, max_tokens: 96, score_seconds: 3600, optimizer: {lr: 0.05}}
`
)

func newFar(t *testing.T, more string) *far {
	t.Helper()
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := &far{learner: newFakeLearner(codec), config: filepath.Join(dir, "far.yaml"), runs: filepath.Join(dir, "runs")}
	learner := httptest.NewServer(f.learner)
	t.Cleanup(learner.Close)
	tokenizer := filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(tokenizer, codec.JSON(), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []any{f.runs, tokenizer, learner.URL}
	for range 2 {
		server := &fakeServer{codec: codec}
		f.samplers = append(f.samplers, server)
		listener := httptest.NewServer(server)
		t.Cleanup(listener.Close)
		args = append(args, listener.URL)
		f.servers = append(f.servers, listener.URL)
	}
	if err := os.WriteFile(f.config, fmt.Appendf(nil, farBase+more, args...), 0o644); err != nil {
		t.Fatal(err)
	}
	return f
}

// command runs one command line over the pipeline.
func (f *far) command(name string, more ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Main(append([]string{name, f.config}, more...), &out, &errs)
	return code, out.String(), errs.String()
}

// The whole pipeline over a remote policy: real queue, loop, tools and corpus;
// learner and inference servers are scripts whose log-probs agree.
func TestRemotePipeline(t *testing.T) {
	f := newFar(t, farTraining)
	code, stdout, stderr := f.command("run")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	f.checkTraining(t)
	for _, name := range []string{"untrained", "sft", "grpo"} {
		if !strings.Contains(stdout, name) {
			t.Errorf("the table lacks %s:\n%s", name, stdout)
		}
	}
	for i, s := range f.samplers {
		if sampled, _ := s.seen(); sampled == 0 {
			t.Errorf("server %d sampled nothing", i)
		}
	}
	f.checkExport(t)
	code, _, stderr = f.command("grpo", "--resume")
	if steps, _ := f.learner.seen(); code != 0 || steps == 0 {
		t.Errorf("continued behind its end: exit code %d, a learner of %d steps\n%s", code, steps, stderr)
	}
}

// With LoRA a version is an adapter; without training the untrained policy is
// what evaluation finds.
func TestRemoteAdapter(t *testing.T) {
	f := newFar(t, farHere+"stages: [data, eval]\n")
	f.learner.rank = 8
	code, stdout, stderr := f.command("run", "--set", "policy.remote.lora_rank=8")
	if code != 0 || !strings.Contains(stdout, "untrained") {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for i, s := range f.samplers {
		if sampled, adapters := s.seen(); adapters != 1 || sampled == 0 {
			t.Errorf("server %d loaded %d adapters and sampled %d turns", i, adapters, sampled)
		}
	}
}

var joinAt = regexp.MustCompile(`--url (\S+)`)

// A worker joins from elsewhere, with the server beside it.
func TestRemoteWorkerJoins(t *testing.T) {
	f := newFar(t, `
stages: [data, grpo]
grpo: {steps: 1, prompts: 2, group_size: 2, max_tokens: 96}
queue: {workers: 0, listen: "127.0.0.1:0"}
`)
	code, said := runJoined(t, f.config, "far", "--sampler", f.servers[0])
	if sampled, _ := f.samplers[0].seen(); code != 0 || sampled == 0 {
		t.Errorf("exit code %d, %d turns sampled\n%s", code, sampled, said)
	}
}

// runJoined runs a pipeline of one GRPO step that a worker joins, started with
// flags besides, and returns the exit code and what the run said.
func runJoined(t *testing.T, config, run string, flags ...string) (code int, notice string) {
	t.Helper()
	says, notices := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		defer notices.Close()
		ended <- Main([]string{"run", config}, io.Discard, notices)
	}()
	ctx, cancel := context.WithCancel(t.Context())
	var worker sync.WaitGroup
	defer worker.Wait()
	defer cancel()
	var said strings.Builder
	lines := bufio.NewScanner(io.TeeReader(says, &said))
	for lines.Scan() {
		if at := joinAt.FindStringSubmatch(lines.Text()); at != nil {
			worker.Go(func() { work(ctx, t, append([]string{"--url", at[1], "--run", run, "--slots", "4"}, flags...)) })
		}
		if strings.HasPrefix(lines.Text(), "grpo 1/1 ") {
			cancel() // while there is a server to say goodbye to
		}
	}
	return <-ended, said.String()
}

// work is a worker with these flags, until ctx ends.
func work(ctx context.Context, t *testing.T, flags []string) {
	root := rootCommand()
	root.SetArgs(append([]string{"worker", "rollout"}, flags...))
	root.SetErr(io.Discard)
	if err := root.ExecuteContext(ctx); err != nil && ctx.Err() == nil {
		t.Errorf("worker: %v", err)
	}
}

func (f *far) checkTraining(t *testing.T) {
	t.Helper()
	c, _, err := trainer.LatestCheckpoint(filepath.Join(f.runs, "far", "grpo"))
	if err != nil || c.Step != 2 {
		t.Fatalf("newest checkpoint of grpo is of step %d: %v", c.Step, err)
	}
	var before, after fakeState
	best, err := trainer.BestCheckpoint(filepath.Join(f.runs, "far", "sft"))
	if err != nil {
		t.Fatal(err)
	}
	readState(t, best.LearnerDir(), &before)
	readState(t, c.LearnerDir(), &after)
	if before.Steps == 0 || slices.Equal(before.Logits, after.Logits) {
		t.Errorf("grpo left the weights of sft (step %d) as they were", before.Steps)
	}
	if after.Steps == 0 || after.Steps > 2 {
		t.Errorf("the learner counts %d steps behind grpo's checkpoint, want 1 or 2: it starts anew", after.Steps)
	}
	if _, d := f.learner.seen(); !(d < 1e-5) {
		t.Errorf("behaviour log-probs lie %v from the learner's before its first step of a batch", d)
	}
	if left, _ := filepath.Glob(filepath.Join(f.runs, "far", "weights", "*")); len(left) > 0 {
		t.Errorf("weights left over: %v", left)
	}
}

func readState(t *testing.T, dir string, into *fakeState) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (f *far) checkExport(t *testing.T) {
	t.Helper()
	dir := filepath.Join(f.runs, "far", "export")
	for _, name := range []string{"weights.json", "tokenizer.json", "preprocessor_config.json", "README.md"} {
		if !exists(filepath.Join(dir, name)) {
			t.Errorf("the export lacks %s", name)
		}
	}
	if card, _ := os.ReadFile(filepath.Join(dir, "README.md")); !bytes.Contains(card, []byte("grpo step 2")) {
		t.Errorf("the card does not name the weights:\n%s", card)
	}
}

// otherCodec returns a codec over a tokenizer of its own, with the same added tokens.
func otherCodec(t *testing.T) *chat.Codec {
	t.Helper()
	text := []string{"to be or not to be"}
	data, err := chat.TrainBPE(slices.Values(text), 257+len(chat.AddedTokens), chat.AddedTokens)
	if err != nil {
		t.Fatal(err)
	}
	codec, err := chat.New(data)
	if err != nil {
		t.Fatal(err)
	}
	return codec
}

// What does not fit is said before anything is trained.
func TestRemoteRefuses(t *testing.T) {
	for _, test := range []struct {
		name, want string
		set        []string
		spoil      func(*far)
	}{
		{"no tokenizer", "remote.tokenizer is empty", []string{`policy.remote.tokenizer=""`}, nil},
		{"tokenizer not there", "policy.remote.tokenizer: open none.json", []string{"policy.remote.tokenizer=none.json"}, nil},
		{"too few workers", "workers = 1 with 2 policy.remote.samplers: want 2", []string{"queue.workers=1"}, nil},
		{"other LoRA rank", "has LoRA rank 0, policy.remote.lora_rank is 8", []string{"policy.remote.lora_rank=8"}, nil},
		{"keys of the other backend", "policy.embedded.threads has no effect", []string{"policy.embedded.threads=1"}, nil},
		{"small model", "has a model of 9 ids", nil, func(f *far) { f.learner.vocab = 9 }},
		{"another tokenizer", `conversation "no image, no tools"`, nil, func(f *far) { f.learner.codec = otherCodec(t) }},
		{"another image pad", "for image pad, vision start and end", nil, func(f *far) { f.learner.shift = 1 }},
		{"other processor", "image processor", nil, func(f *far) { f.learner.processor = chat.Small.Hash() }},
		{"no learner", "start it with learner/learner.py", []string{"policy.remote.learner=http://127.0.0.1:1"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFar(t, farTraining)
			if test.spoil != nil {
				test.spoil(f)
			}
			var more []string
			for _, s := range test.set {
				more = append(more, "--set", s)
			}
			code, _, stderr := f.command("run", more...)
			if code != exitUsage || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d, %q, want %d and %q", code, stderr, exitUsage, test.want)
			}
			if exists(filepath.Join(f.runs, "far", "data")) {
				t.Error("data were made first")
			}
		})
	}
}

// A server that holds other weights than it was told to is found out.
func TestRemoteServerHoldsOtherWeights(t *testing.T) {
	f := newFar(t, farHere+"stages: [data, eval]\n")
	f.samplers[1].deaf = true
	code, _, stderr := f.command("run")
	if code != exitFailure || !strings.Contains(stderr, "the server holds other weights") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

func TestTokenizerByURL(t *testing.T) {
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tokenizer.json" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(codec.JSON())
	}))
	defer server.Close()
	if got, err := readTokenizer(t.Context(), server.URL+"/tokenizer.json"); err != nil || !bytes.Equal(got, codec.JSON()) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := readTokenizer(t.Context(), server.URL+"/none"); err == nil || !strings.Contains(err.Error(), "/none: 404") {
		t.Errorf("a page that is not there gave %v", err)
	}
}
