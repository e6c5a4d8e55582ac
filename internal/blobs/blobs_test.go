package blobs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xragent/internal/blobs"
)

func open(t *testing.T) (*blobs.Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := blobs.Open(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func put(t *testing.T, s *blobs.Store, data []byte) string {
	t.Helper()
	digest, err := s.Put(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestPutGet(t *testing.T) {
	s, dir := open(t)
	for _, data := range [][]byte{nil, []byte("a"), bytes.Repeat([]byte("xyz"), 100_000)} {
		digest := put(t, s, data)
		got, err := s.Get(t.Context(), digest)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: got %d bytes, err %v", len(data), len(got), err)
		}
		if again := put(t, s, data); again != digest || !s.Has(digest) {
			t.Errorf("second Put: %s, want %s", again, digest)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*", ".new-*"))
	if len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestTornFileIsSaidAndMended(t *testing.T) {
	s, dir := open(t)
	data := []byte("the whole file")
	digest := put(t, s, data)
	path := filepath.Join(dir, digest[:2], digest)
	for _, torn := range []string{"the whole", "the whole fill", ""} {
		if err := os.WriteFile(path, []byte(torn), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := s.Get(t.Context(), digest)
		if err == nil || !strings.Contains(err.Error(), "torn") || !strings.Contains(err.Error(), path) {
			t.Errorf("torn to %q: err %v, want one that says torn and names the file", torn, err)
		}
		put(t, s, data)
		if got, err := s.Get(t.Context(), digest); err != nil || !bytes.Equal(got, data) {
			t.Errorf("after storing it again: %q, %v", got, err)
		}
	}
}

func TestMissingAndBadNames(t *testing.T) {
	s, _ := open(t)
	digest := put(t, s, []byte("x"))
	if err := errors.Join(s.Delete(digest), s.Delete(digest)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), digest); !errors.Is(err, blobs.ErrNotFound) {
		t.Errorf("deleted blob: %v, want ErrNotFound", err)
	}
	for _, name := range []string{"", "../../etc/passwd", strings.Repeat("A", 64), strings.Repeat("g", 64), strings.Repeat("/", 64)} {
		if _, err := s.Get(t.Context(), name); err == nil || errors.Is(err, blobs.ErrNotFound) {
			t.Errorf("Get(%q): %v, want a refusal of the name", name, err)
		}
		if s.Has(name) || s.Delete(name) == nil {
			t.Errorf("name %q accepted", name)
		}
	}
}

func TestConcurrentPuts(t *testing.T) {
	s, _ := open(t)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			data := fmt.Appendf(nil, "blob %d", i%4)
			digest, err := s.Put(t.Context(), data)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := s.Get(t.Context(), digest); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func TestHandlerRanges(t *testing.T) {
	s, _ := open(t)
	digest := put(t, s, []byte("0123456789"))
	for _, tt := range []struct {
		path, byteRange string
		status          int
		body            string
	}{
		{"/blobs/" + digest, "", 200, "0123456789"},
		{"/blobs/" + digest, "bytes=4-6", 206, "456"},
		{"/blobs/" + digest, "bytes=7-", 206, "789"},
		{"/blobs/" + digest, "bytes=10-", 416, ""},
		{"/blobs/" + strings.Repeat("0", 64), "", 404, ""},
		{"/blobs/not-a-digest", "", 400, ""},
	} {
		req := httptest.NewRequest("GET", tt.path, nil)
		if tt.byteRange != "" {
			req.Header.Set("Range", tt.byteRange)
		}
		w := httptest.NewRecorder()
		blobs.Handler(s).ServeHTTP(w, req)
		if w.Code != tt.status || tt.body != "" && w.Body.String() != tt.body {
			t.Errorf("%s %s: %d %q, want %d %q", tt.path, tt.byteRange, w.Code, w.Body, tt.status, tt.body)
		}
	}
}

// serve counts requests and lets a test spoil the answers.
func serve(t *testing.T, s *blobs.Store, spoil func(n int64, w http.ResponseWriter, r *http.Request) bool) (string, *atomic.Int64) {
	t.Helper()
	var n atomic.Int64
	handler := blobs.Handler(s)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i := n.Add(1); spoil == nil || !spoil(i, w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, &n
}

func TestClientCaches(t *testing.T) {
	s, _ := open(t)
	cache, _ := open(t)
	digest := put(t, s, []byte("weights"))
	url, n := serve(t, s, nil)
	c := blobs.NewClient(url+"/", cache, blobs.ClientOptions{})
	for range 3 {
		if got, err := c.Get(t.Context(), digest); err != nil || string(got) != "weights" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n.Load() != 1 {
		t.Errorf("%d requests, want 1", n.Load())
	}
}

func TestClientResumesWhereItBroke(t *testing.T) {
	s, _ := open(t)
	cache, _ := open(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	digest := put(t, s, data)
	var second string
	url, _ := serve(t, s, func(n int64, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 {
			second = r.Header.Get("Range")
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Write(data[:10_000])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	got, err := blobs.NewClient(url, cache, blobs.ClientOptions{}).Get(t.Context(), digest)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if second != "bytes=10000-" {
		t.Errorf("second request had range %q, want bytes=10000-", second)
	}
}

func TestClientRefuses(t *testing.T) {
	s, _ := open(t)
	data := bytes.Repeat([]byte("x"), 1000)
	digest := put(t, s, data)
	hang := make(chan struct{})
	defer close(hang)
	for name, tt := range map[string]struct {
		digest  string
		maxSize int64
		timeout time.Duration
		spoil   func(int64, http.ResponseWriter, *http.Request) bool
		want    string
	}{
		"missing":   {strings.Repeat("0", 64), 0, 0, nil, "not found"},
		"too large": {digest, 999, 0, nil, "limit 999"},
		"too large, length unknown": {digest, 999, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) bool {
			w.(http.Flusher).Flush()
			w.Write(data)
			return true
		}, "limit of 999"},
		"other bytes": {digest, 0, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) bool {
			io.WriteString(w, "something else")
			return true
		}, "have sha256"},
		"failing": {digest, 0, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(500)
			return true
		}, "500"},
		"hanging": {digest, 0, 50 * time.Millisecond, func(_ int64, _ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return true
		}, "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			cache, _ := open(t)
			url, _ := serve(t, s, tt.spoil)
			c := blobs.NewClient(url, cache, blobs.ClientOptions{MaxSize: tt.maxSize, Timeout: tt.timeout})
			_, err := c.Get(t.Context(), tt.digest)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.digest) {
				t.Errorf("err %v, want one that says %q and names the blob", err, tt.want)
			}
			if cache.Has(tt.digest) {
				t.Error("kept a blob that was refused")
			}
		})
	}
}
