package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// Handler serves s at GET /blobs/<sha256>, with ranges. A blob never changes,
// so it may be cached for ever.
func Handler(s *Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /blobs/{sha256}", s.serve)
	return mux
}

func (s *Store) serve(w http.ResponseWriter, r *http.Request) {
	digest := r.PathValue("sha256")
	if err := checkName(digest); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f, err := os.Open(s.path(digest))
	if err != nil {
		http.Error(w, fmt.Sprintf("blob %s: %v", digest, ErrNotFound), http.StatusNotFound)
		return
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", `"`+digest+`"`)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, "", time.Time{}, f)
}

// ClientOptions bounds a client.
type ClientOptions struct {
	MaxSize int64         // largest blob in bytes; 0: 64 MiB
	Timeout time.Duration // of one Get, retries included; 0: 1 min
	HTTP    *http.Client  // nil: http.DefaultClient
}

const (
	defaultMaxSize = 64 << 20
	defaultTimeout = time.Minute
	attempts       = 4
	firstPause     = 50 * time.Millisecond
)

// A Client fetches blobs over HTTP and keeps them in a store.
type Client struct {
	base  string
	cache *Store
	opts  ClientOptions
}

// NewClient returns a client of the handler at base ("http://host:port") that
// keeps what it fetched in cache.
func NewClient(base string, cache *Store, o ClientOptions) *Client {
	if o.MaxSize == 0 {
		o.MaxSize = defaultMaxSize
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.HTTP == nil {
		o.HTTP = http.DefaultClient
	}
	return &Client{base: strings.TrimSuffix(base, "/"), cache: cache, opts: o}
}

// Get returns the blob from the cache or else from the server, verified. A
// transfer that breaks is taken up where it broke, a few times.
func (c *Client) Get(ctx context.Context, digest string) ([]byte, error) {
	if err := checkName(digest); err != nil {
		return nil, err
	}
	if data, err := c.cache.Get(ctx, digest); err == nil {
		return data, nil
	}
	data, err := c.fetch(ctx, digest)
	if err != nil {
		return nil, fmt.Errorf("blob %s from %s: %w", digest, c.base, err)
	}
	if got := Digest(data); got != digest {
		return nil, fmt.Errorf("blob %s from %s: the %d bytes received have sha256 %s", digest, c.base, len(data), got)
	}
	if _, err := c.cache.Put(ctx, data); err != nil {
		return nil, err
	}
	return data, nil
}

func (c *Client) fetch(ctx context.Context, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	var data []byte
	var err error
	pause := firstPause
	for range attempts {
		data, err = c.resume(ctx, digest, data)
		var final *finalError
		if err == nil || errors.As(err, &final) {
			return data, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w after %d bytes: %w", ctx.Err(), len(data), err)
		case <-time.After(pause):
			pause *= 2
		}
	}
	return nil, fmt.Errorf("%d attempts: %w", attempts, err)
}

// resume asks for what follows the bytes in hand and returns all that it has,
// also beside an error.
func (c *Client) resume(ctx context.Context, digest string, have []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/blobs/"+digest, nil)
	if err != nil {
		return nil, &finalError{err}
	}
	if len(have) > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", len(have)))
	}
	resp, err := c.opts.HTTP.Do(req)
	if err != nil {
		return have, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		have = have[:0] // the server does not know ranges: from the start
	case http.StatusPartialContent:
	case http.StatusNotFound:
		return nil, &finalError{ErrNotFound}
	default:
		return have, fmt.Errorf("status %s", resp.Status)
	}
	return c.read(resp, have)
}

func (c *Client) read(resp *http.Response, have []byte) ([]byte, error) {
	left := c.opts.MaxSize - int64(len(have))
	if resp.ContentLength > left {
		return nil, &finalError{fmt.Errorf("%d bytes, limit %d", int64(len(have))+resp.ContentLength, c.opts.MaxSize)}
	}
	if have == nil && resp.ContentLength > 0 {
		have = make([]byte, 0, resp.ContentLength)
	}
	rest, err := io.ReadAll(io.LimitReader(resp.Body, left+1))
	have = append(have, rest...)
	if err == nil && int64(len(rest)) > left {
		return nil, &finalError{fmt.Errorf("more than the limit of %d bytes", c.opts.MaxSize)}
	}
	return have, err
}

// A finalError is one that another attempt cannot mend.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }
