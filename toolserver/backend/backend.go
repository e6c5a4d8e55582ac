// Package backend asks model servers over HTTP: classification, grounding,
// reports, visual questions, generation, segmentation and knowledge.
//
// Two wires are spoken. "json" is one POST of a [Request] to the configured
// address, answered by a [Response]; images travel as 8-bit PNG in the order of
// the study. "openai" is POST <url>/chat/completions of any OpenAI-compatible
// server, with the images as data URLs; it gives text only.
//
// A server is outside input: a reply is bounded, and checked before it is
// believed ([ErrNonsense]). What fails twice in a row is reported, what fails
// on and on is left alone for a while ([ErrOpen]). Errors quote no content of a
// request or a reply, and no credential.
//
// It refuses redirects, replies beyond the limits, and numbers out of range.
package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"time"

	"github.com/sony/gobreaker/v2"
)

// The wires.
const (
	JSON   = "json"
	OpenAI = "openai"
)

// Config names one model server.
type Config struct {
	URL         string        `yaml:"url"`                   // http(s)://host:port/path; for openai up to and with /v1
	Wire        string        `yaml:"wire,omitempty"`        // json (the default) or openai
	Model       string        `yaml:"model,omitempty"`       // openai: the model's name
	KeyEnv      string        `yaml:"key_env,omitempty"`     // environment variable that holds the bearer token
	Timeout     time.Duration `yaml:"timeout,omitempty"`     // of one call with its second try; default 2 minutes
	Concurrency int           `yaml:"concurrency,omitempty"` // calls at a time; default 4
	Version     string        `yaml:"version,omitempty"`     // part of the cache's key: change it when the model changes
	Cooldown    time.Duration `yaml:"cooldown,omitempty"`    // how long a failing server is left alone; default 30 seconds
}

// WithDefaults fills in what was left out.
func (c Config) WithDefaults() Config {
	if c.Wire == "" {
		c.Wire = JSON
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if c.Concurrency == 0 {
		c.Concurrency = 4
	}
	if c.Cooldown == 0 {
		c.Cooldown = 30 * time.Second
	}
	return c
}

// environmentName is what a key may be named by: never the key itself.
var environmentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// Validate reports the first field that cannot be used.
func (c Config) Validate() error {
	c = c.WithDefaults()
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return errors.New("field url: want http://host:port/path") // the text may hold a credential
	case u.User != nil:
		return errors.New("field url holds a credential: put it into an environment variable, and its name into key_env")
	case c.Wire != JSON && c.Wire != OpenAI:
		return fmt.Errorf("field wire is %q, want %s or %s", c.Wire, JSON, OpenAI)
	case (c.Wire == OpenAI) != (c.Model != ""):
		return fmt.Errorf("field model is %q with wire %s: the wire %s needs one, %s has none", c.Model, c.Wire, OpenAI, JSON)
	case c.KeyEnv != "" && !environmentName.MatchString(c.KeyEnv):
		return errors.New("field key_env: want the name of an environment variable, not the key")
	case c.Timeout <= 0 || c.Cooldown <= 0 || c.Concurrency < 1:
		return fmt.Errorf("fields timeout, cooldown and concurrency are %v, %v and %d, want more than 0", c.Timeout, c.Cooldown, c.Concurrency)
	}
	return nil
}

var (
	// ErrNonsense says that a server answered with what cannot be true.
	ErrNonsense = errors.New("nonsense")
	// ErrOpen says that a server was not asked, because it failed on and on.
	ErrOpen = errors.New("not asked")
)

// A statusError is an HTTP status that is no answer.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("HTTP %d %s", int(e), http.StatusText(int(e)))
}

// refused says that the server works and dislikes this one request.
func (e statusError) refused() bool {
	return e == http.StatusBadRequest || e == http.StatusUnprocessableEntity || e == http.StatusRequestEntityTooLarge
}

// A Client asks one server. It is safe for concurrent use.
type Client struct {
	cfg     Config
	http    *http.Client
	breaker *gobreaker.CircuitBreaker[Response]
}

// failuresInARow opens the circuit.
const failuresInARow = 5

// New returns a client; it asks nothing yet.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg.WithDefaults()}
	c.http = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c.breaker = gobreaker.NewCircuitBreaker[Response](gobreaker.Settings{
		Timeout:      c.cfg.Cooldown,
		ReadyToTrip:  func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= failuresInARow },
		IsExcluded:   func(err error) bool { return errors.Is(err, context.Canceled) },
		IsSuccessful: healthy,
	})
	return c, nil
}

// healthy reports whether an outcome shows a server that works.
func healthy(err error) bool {
	status, ok := errors.AsType[statusError](err)
	return err == nil || (ok && status.refused())
}

// Ask sends one request, a second time where the first found no working server,
// and returns the checked answer.
func (c *Client) Ask(ctx context.Context, r Request) (Response, error) {
	if c.cfg.KeyEnv != "" && os.Getenv(c.cfg.KeyEnv) == "" {
		return Response{}, fmt.Errorf("server %s: the environment variable %s, which is to hold its key, is empty", c.where(), c.cfg.KeyEnv)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, fmt.Errorf("no answer within %v: %w", c.cfg.Timeout, context.DeadlineExceeded))
	defer cancel()
	out, err := c.breaker.Execute(func() (Response, error) { return c.twice(ctx, r) })
	switch {
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return out, fmt.Errorf("server %s %w: it failed %d times in a row; it is tried again after %v", c.where(), ErrOpen, failuresInARow, c.cfg.Cooldown)
	case err != nil:
		return out, fmt.Errorf("server %s: %w", c.where(), err)
	}
	return out, nil
}

// where names the server without its path's query.
func (c *Client) where() string {
	u, err := url.Parse(c.cfg.URL)
	if err != nil {
		return "" // Validate has parsed it
	}
	return u.Scheme + "://" + u.Host
}

func (c *Client) twice(ctx context.Context, r Request) (Response, error) {
	body, err := c.encode(r)
	if err != nil {
		return Response{}, err
	}
	out, err := c.once(ctx, body)
	if again(err) && ctx.Err() == nil {
		out, err = c.once(ctx, body)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}

// again reports whether a second try may find a server that works.
func again(err error) bool {
	status, ok := errors.AsType[statusError](err)
	return err != nil && !errors.Is(err, ErrNonsense) && (!ok || status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout)
}

func (c *Client) once(ctx context.Context, body []byte) (Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address(), bytes.NewReader(body))
	if err != nil {
		return Response{}, errors.New("its address is unusable") // Validate has parsed it
	}
	req.Header.Set("Content-Type", "application/json")
	if c.cfg.KeyEnv != "" {
		req.Header.Set("Authorization", "Bearer "+os.Getenv(c.cfg.KeyEnv))
	}
	res, err := c.http.Do(req)
	if err != nil {
		return Response{}, unwrapURL(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return Response{}, statusError(res.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
	if err != nil {
		return Response{}, fmt.Errorf("its reply broke off after %d bytes: %w", len(data), err)
	}
	if len(data) > maxReply {
		return Response{}, fmt.Errorf("%w: a reply of more than %d bytes", ErrNonsense, maxReply)
	}
	return c.decode(data)
}

// unwrapURL drops the address, which may hold more than the host.
func unwrapURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

func (c *Client) address() string {
	if c.cfg.Wire == OpenAI {
		at, err := url.JoinPath(c.cfg.URL, "chat", "completions")
		if err == nil {
			return at
		}
	}
	return c.cfg.URL
}

func (c *Client) encode(r Request) ([]byte, error) {
	var v any = r
	if c.cfg.Wire == OpenAI {
		v = r.chat(c.cfg.Model)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return data, nil
}

func (c *Client) decode(data []byte) (Response, error) {
	if c.cfg.Wire == OpenAI {
		return decodeChat(data)
	}
	return Decode(data)
}
