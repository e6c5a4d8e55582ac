package engine

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"xragent/chat"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// Options is what a client needs beside its configuration.
type Options struct {
	Processor chat.Processor // what the server's image processor must agree with
	ImagePad  int32          // the id that stands for image features
	// Files fetches a file of a weights manifest by its sha256.
	Files func(ctx context.Context, sha256 string) ([]byte, error)
	HTTP  *http.Client // nil: http.DefaultClient
}

// A Client samples from one server. It is safe for concurrent use; the server
// batches what runs at once.
type Client struct {
	cfg  Config
	opts Options

	mu      sync.Mutex
	loaded  loaded
	reloads int // begun; a turn during which it grows is void

	loading sync.Mutex // held while weights change
}

// loaded is what the server has proved to hold.
type loaded struct {
	proved  bool
	version rollout.PolicyVersion
	digest  string
	model   string // name to ask for
}

// New returns a client. It holds no version until [Client.Load].
func New(cfg Config, opts Options) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := opts.Processor.Validate(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if opts.HTTP == nil {
		opts.HTTP = http.DefaultClient
	}
	return &Client{cfg: cfg, opts: opts}, nil
}

var _ loop.Sampler = (*Client)(nil)

// Sample samples one turn. It fails when the server has not proved the asked
// version, when weights changed while it sampled, and when the answer lacks
// anything that training needs or contradicts the request.
func (c *Client) Sample(ctx context.Context, req loop.SampleRequest) (loop.SampleResult, error) {
	have, reloads := c.state()
	if !have.proved || have.version != req.Version {
		return loop.SampleResult{}, fmt.Errorf("sample: version %d asked for, the server has proved %s", req.Version, have)
	}
	uses, want, err := c.expand(req)
	if err != nil {
		return loop.SampleResult{}, fmt.Errorf("sample: %w", err)
	}
	got, err := c.ask(ctx, req, have)
	if err != nil {
		return loop.SampleResult{}, fmt.Errorf("sample: %w", err)
	}
	if _, now := c.state(); now != reloads {
		return loop.SampleResult{}, fmt.Errorf("sample: the server's weights changed while version %d was sampled", req.Version)
	}
	turn, err := turnOf(req, want, got)
	if err != nil {
		return loop.SampleResult{}, fmt.Errorf("sample: server %s: %w", c.cfg.URL, err)
	}
	return loop.SampleResult{Turn: turn, Images: uses}, nil
}

func (c *Client) state() (loaded, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loaded, c.reloads
}

func (l loaded) String() string {
	if !l.proved {
		return "none"
	}
	return fmt.Sprint("version ", l.version)
}

// expand returns how our own processor sees the images, and the prompt that the
// server must therefore see.
func (c *Client) expand(req loop.SampleRequest) ([]rollout.ImageUse, []int32, error) {
	uses := make([]rollout.ImageUse, len(req.Images))
	pads := make([]int, len(req.Images))
	for i, encoded := range req.Images {
		sum := sha256.Sum256(encoded)
		use, err := c.opts.Processor.Use(encoded, hex.EncodeToString(sum[:]))
		if err != nil {
			return nil, nil, fmt.Errorf("image %d: %w", i+1, err)
		}
		uses[i], pads[i] = use, use.PadTokens(c.opts.Processor.Merge)
	}
	ids, err := chat.Expand(req.IDs, pads, c.opts.ImagePad)
	return uses, ids, err
}

// ask sends a request to the configured endpoint.
func (c *Client) ask(ctx context.Context, req loop.SampleRequest, have loaded) (output, error) {
	seed, one := int64(req.Seed>>1), 1 // servers read signed 64-bit seeds
	s := sampling{
		Temperature: req.Sampling.Temperature, TopP: req.Sampling.TopP, MaxTokens: req.Sampling.MaxTokens,
		Seed: &seed, Logprobs: &one, StopTokenIDs: req.Stop,
	}
	answer, err := c.send(ctx, have, req.IDs, req.Images, s)
	if err != nil {
		return output{}, err
	}
	o, err := answer.output()
	if err != nil {
		return o, fmt.Errorf("server %s returned %w", c.cfg.URL, err)
	}
	return o, nil
}

func (c *Client) send(ctx context.Context, have loaded, ids []int32, images [][]byte, s sampling) (response, error) {
	var answer response
	if c.cfg.API == Completions {
		if len(images) > 0 {
			return answer, fmt.Errorf("the completions endpoint takes no images; set engine.api to %s", Generate)
		}
		err := c.post(ctx, "/v1/completions", completionRequest{
			Model: have.model, Prompt: ids, sampling: s, ReturnTokenIDs: true, CacheSalt: have.digest}, &answer)
		return answer, err
	}
	body := generateRequest{Model: have.model, TokenIDs: ids, Sampling: s, ReturnTokenIDs: true, CacheSalt: have.digest}
	for _, encoded := range images {
		url := "data:" + http.DetectContentType(encoded) + ";base64," + base64.StdEncoding.EncodeToString(encoded)
		body.ContentParts = append(body.ContentParts, contentPart{"image_url", url})
	}
	err := c.post(ctx, "/inference/v1/generate", body, &answer)
	return answer, err
}

// turnOf checks an answer against its request and makes a turn of it.
func turnOf(req loop.SampleRequest, want []int32, got output) (rollout.Turn, error) {
	turn := rollout.Turn{
		PromptIDs: got.prompt, OutputIDs: got.ids, Logprobs: got.logprobs,
		Images: len(req.Images), Oldest: req.Version, Newest: req.Version,
	}
	if i := firstDifference(got.prompt, want); i >= 0 {
		return turn, fmt.Errorf("prompt of %d ids differs from ours of %d at %d: its image processor or its expansion of images is another one", len(got.prompt), len(want), i)
	}
	last := got.ids[len(got.ids)-1]
	switch got.finish {
	case "stop":
		if turn.Finish = rollout.FinishStop; !slices.Contains(req.Stop, last) {
			return turn, fmt.Errorf("turn ended with id %d, which is none of the stop ids %v", last, req.Stop)
		}
	case "length":
		if turn.Finish = rollout.FinishLength; slices.Contains(req.Stop, last) {
			turn.Finish = rollout.FinishStop // both at once
		}
	default:
		return turn, fmt.Errorf("finish_reason is %q, want stop or length", got.finish)
	}
	if len(got.ids) > req.Sampling.MaxTokens {
		return turn, fmt.Errorf("%d ids sampled, the limit was %d", len(got.ids), req.Sampling.MaxTokens)
	}
	return turn, nil
}

// firstDifference returns the first index at which a and b differ, -1 for none.
func firstDifference(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// Score returns the log-probs of ids[1:], each given the ids before it, under
// the loaded weights. ids are text.
func (c *Client) Score(ctx context.Context, ids []int32) ([]float32, error) {
	have, _ := c.state()
	return c.score(ctx, have, ids)
}

func (c *Client) score(ctx context.Context, have loaded, ids []int32) ([]float32, error) {
	if len(ids) < 2 {
		return nil, fmt.Errorf("score: %d ids, want at least 2", len(ids))
	}
	one := 1
	answer, err := c.send(ctx, have, ids, nil, sampling{TopP: 1, MaxTokens: 1, PromptLogprobs: &one})
	if err != nil {
		return nil, fmt.Errorf("score: %w", err)
	}
	rows := answer.PromptLogprobs
	if rows == nil && len(answer.Choices) > 0 {
		rows = answer.Choices[0].PromptLogprobs
	}
	if len(rows) != len(ids) {
		return nil, fmt.Errorf("score: server %s returned prompt_logprobs for %d of %d ids; use a server that honours prompt_logprobs", c.cfg.URL, len(rows), len(ids))
	}
	out := make([]float32, 0, len(ids)-1)
	for i, id := range ids[1:] {
		lp, ok := rows[i+1][strconv.Itoa(int(id))]
		if !ok {
			return nil, fmt.Errorf("score: server %s returned no log-prob of prompt id %d at %d", c.cfg.URL, id, i+1)
		}
		out = append(out, lp.Logprob)
	}
	return out, nil
}
