package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Config says where the learner is. Durations are written as in Go: 30m.
type Config struct {
	URL     string        `yaml:"url"`     // e.g. http://127.0.0.1:8300
	Timeout time.Duration `yaml:"timeout"` // of one request, an optimizer step included
}

// Default returns the address that learner.py listens on.
func Default() Config { return Config{URL: "http://127.0.0.1:8300", Timeout: 30 * time.Minute} }

// Validate reports the first thing that makes c unusable, naming its field.
func (c Config) Validate() error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("learner: field url is %q, want http://host:port", c.URL)
	case c.Timeout <= 0:
		return fmt.Errorf("learner: field timeout is %v, want more than 0", c.Timeout)
	}
	return nil
}

// A caller makes requests to one learner.
type caller struct {
	base    string
	timeout time.Duration
	client  *http.Client
}

func newCaller(c Config) caller {
	return caller{strings.TrimSuffix(c.URL, "/"), c.Timeout, &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}}
}

type request struct {
	method, path string
	body         []byte
	kind         string // content type
	header       map[string]string
}

// A refusal is an answer of the learner that says no.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("%s (status %d)", r.text, r.status) }

func (c caller) get(ctx context.Context, path string, into any) error {
	return c.do(ctx, request{method: "GET", path: path}, into)
}

func (c caller) post(ctx context.Context, path string, body, into any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(ctx, request{method: "POST", path: path, body: data, kind: "application/json"}, into)
}

// doTwice asks again when no answer came; the request must allow it.
func (c caller) doTwice(ctx context.Context, r request, into any) error {
	err := c.do(ctx, r, into)
	var no *refusal
	if err == nil || errors.As(err, &no) || ctx.Err() != nil {
		return err
	}
	return c.do(ctx, r, into)
}

// do sends r and reads the answer into into: nil, a *bytes.Buffer, or JSON.
func (c caller) do(ctx context.Context, r request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return err
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	if r.kind != "" {
		req.Header.Set("Content-Type", r.kind)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return refused(resp)
	}
	return read(resp.Body, into)
}

func read(body io.Reader, into any) error {
	if buffer, ok := into.(*bytes.Buffer); ok {
		_, err := buffer.ReadFrom(body)
		return err
	}
	data, err := io.ReadAll(io.LimitReader(body, 16<<20))
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return &refusal{http.StatusOK, fmt.Sprintf("answer is not what a learner gives: %v", err)}
	}
	return nil
}

func refused(resp *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	var answer struct{ Error string }
	if json.Unmarshal(data, &answer) != nil || answer.Error == "" {
		answer.Error = fmt.Sprintf("%.200s", bytes.TrimSpace(data))
	}
	return &refusal{resp.StatusCode, answer.Error}
}
