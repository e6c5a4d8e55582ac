package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// sampling is what both endpoints call the sampling parameters that we set.
type sampling struct {
	Temperature    float64 `json:"temperature"`
	TopP           float64 `json:"top_p"`
	MaxTokens      int     `json:"max_tokens"`
	Seed           *int64  `json:"seed,omitempty"`
	Logprobs       *int    `json:"logprobs,omitempty"`
	PromptLogprobs *int    `json:"prompt_logprobs,omitempty"`
	StopTokenIDs   []int32 `json:"stop_token_ids,omitempty"`
	SkipSpecial    bool    `json:"skip_special_tokens"`
}

// generateRequest is the body of /inference/v1/generate.
type generateRequest struct {
	Model          string        `json:"model"`
	TokenIDs       []int32       `json:"token_ids"` // compact
	ContentParts   []contentPart `json:"content_parts,omitempty"`
	Sampling       sampling      `json:"sampling_params"`
	ReturnTokenIDs bool          `json:"return_token_ids"`
	CacheSalt      string        `json:"cache_salt,omitempty"`
}

// completionRequest is the body of /v1/completions.
type completionRequest struct {
	Model  string  `json:"model"`
	Prompt []int32 `json:"prompt"`
	sampling
	ReturnTokenIDs bool   `json:"return_token_ids"`
	CacheSalt      string `json:"cache_salt,omitempty"`
}

// A contentPart is an image. Unlike a chat message's, its URL is not nested.
type contentPart struct {
	Type string `json:"type"`
	URL  string `json:"url"`
}

// response is what we read of either endpoint's answer. Prompt ids and prompt
// log-probs stand beside the choices in one and inside them in the other.
type response struct {
	PromptTokenIDs []int32         `json:"prompt_token_ids"`
	PromptLogprobs []promptLogprob `json:"prompt_logprobs"`
	Choices        []struct {
		TokenIDs       []int32         `json:"token_ids"`
		PromptTokenIDs []int32         `json:"prompt_token_ids"`
		PromptLogprobs []promptLogprob `json:"prompt_logprobs"`
		FinishReason   string          `json:"finish_reason"`
		Logprobs       *struct {
			Content       []tokenLogprob `json:"content"`        // generate
			TokenLogprobs []*float32     `json:"token_logprobs"` // completions
		} `json:"logprobs"`
	} `json:"choices"`
}

type tokenLogprob struct {
	TokenID *int32  `json:"token_id"`
	Logprob float32 `json:"logprob"`
}

// promptLogprob maps ids, as decimal text, to their log-probs; null at the first place.
type promptLogprob map[string]struct {
	Logprob float32 `json:"logprob"`
}

// An output is one answer, checked for being whole.
type output struct {
	prompt   []int32
	ids      []int32
	logprobs []float32
	finish   string
}

// output returns the only choice, or says what the server did not return.
func (r response) output() (output, error) {
	if len(r.Choices) != 1 {
		return output{}, fmt.Errorf("%d choices, want 1", len(r.Choices))
	}
	c := r.Choices[0]
	o := output{prompt: r.PromptTokenIDs, ids: c.TokenIDs, finish: c.FinishReason}
	if o.prompt == nil {
		o.prompt = c.PromptTokenIDs
	}
	switch {
	case o.prompt == nil:
		return o, fmt.Errorf("no prompt_token_ids, so what it saw cannot be trained on; use a server that honours return_token_ids")
	case len(o.ids) == 0:
		return o, fmt.Errorf("no token_ids, and text is never tokenised again; use a server that honours return_token_ids")
	case c.Logprobs == nil:
		return o, fmt.Errorf("no logprobs, which the policy ratio needs; use a server that honours logprobs")
	}
	for i, t := range c.Logprobs.Content {
		if t.TokenID != nil && i < len(o.ids) && *t.TokenID != o.ids[i] {
			return o, fmt.Errorf("logprob %d belongs to id %d, but id %d was sampled", i, *t.TokenID, o.ids[i])
		}
		o.logprobs = append(o.logprobs, t.Logprob)
	}
	for i, lp := range c.Logprobs.TokenLogprobs {
		if lp == nil {
			return o, fmt.Errorf("logprob %d is null", i)
		}
		o.logprobs = append(o.logprobs, *lp)
	}
	if len(o.logprobs) != len(o.ids) {
		return o, fmt.Errorf("%d token_ids but %d logprobs", len(o.ids), len(o.logprobs))
	}
	return o, nil
}

// maxBody bounds answers: 16,000 ids with their log-probs are below 4 MiB.
const maxBody = 64 << 20

// post sends body as JSON and decodes the answer into into, where given.
func (c *Client) post(ctx context.Context, path string, body, into any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.cfg.URL, "/")+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.opts.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
		return fmt.Errorf("%s%s: %w", c.cfg.URL, path, err)
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s%s: %s: %.200s", c.cfg.URL, path, resp.Status, bytes.TrimSpace(answer))
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%s%s: answer is not what a vLLM server gives: %w", c.cfg.URL, path, err)
	}
	return nil
}
