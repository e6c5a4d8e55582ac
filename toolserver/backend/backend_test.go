package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func clientOf(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func picture(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 4, 3))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestJSONWire(t *testing.T) {
	t.Setenv("A_KEY", "secret")
	var got map[string]any
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &got); err != nil {
			t.Error(err)
		}
		_, _ = w.Write([]byte(`{"labels":{"Effusion":0.8},"boxes":[{"phrase":"effusion","box":[0,0.5,0.4,1],"score":0.7}]}`))
	})
	c := clientOf(t, Config{URL: s.URL, KeyEnv: "A_KEY"})
	out, err := c.Ask(context.Background(), Request{Tool: "chest_xray_classifier", Arguments: json.RawMessage(`{"image":1}`), Images: []Image{{PNG: picture(t), View: "PA"}}, Prompt: "not sent"})
	if err != nil || out.Labels["Effusion"] != 0.8 || out.Boxes[0].Box[3] != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	if len(got) != 3 || got["tool"] != "chest_xray_classifier" {
		t.Errorf("the server was sent %v", got)
	}
}

func TestOpenAIWire(t *testing.T) {
	var got chatRequest
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			t.Errorf("path %s", r.URL.Path)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		_, _ = w.Write([]byte(`{"choices":[{"message":{"content":" a text "}}]}`))
	})
	c := clientOf(t, Config{URL: s.URL + "/v1", Wire: OpenAI, Model: "m"})
	out, err := c.Ask(context.Background(), Request{Tool: "x", Prompt: "p", System: "s", Images: []Image{{PNG: picture(t)}}})
	if err != nil || out.Text != "a text" {
		t.Errorf("%+v, %v", out, err)
	}
	user := got.Messages[1].Content
	if got.Model != "m" || got.Messages[0].Role != "system" || user[0].Text != "p" || !strings.HasPrefix(user[1].ImageURL.URL, "data:image/png;base64,iVBOR") {
		t.Errorf("the server was sent %+v", got)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ reply, want string }{
		"no JSON":       {`<html>`, "not JSON"},
		"probability":   {`{"labels":{"Mass":1.7}}`, "1.7"},
		"name":          {`{"labels":{"":0.7}}`, "name"},
		"outside":       {`{"boxes":[{"box":[0,0,2,1]}]}`, "coordinate 2"},
		"empty box":     {`{"boxes":[{"box":[0.5,0,0.5,1]}]}`, "empty"},
		"score":         {`{"boxes":[{"box":[0,0,1,1],"score":3}]}`, "score 3"},
		"no picture":    {`{"png":"AAAA"}`, "no PNG"},
		"mask":          {`{"masks":{"heart":"AAAA"}}`, "no PNG"},
		"mask's name":   {`{"masks":{"":"AAAA"}}`, "name of 0 bytes"},
		"flood":         {`{"text":"` + strings.Repeat("a", maxText+1) + `"}`, "limit"},
		"type of field": {`{"text":[1]}`, "not JSON"},
	} {
		if _, err := Decode([]byte(tt.reply)); !errors.Is(err, ErrNonsense) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
	if _, err := decodeChat([]byte(`{"choices":[]}`)); !errors.Is(err, ErrNonsense) {
		t.Errorf("no choices: error %v", err)
	}
}

// TestEndlessReply holds that a flood ends at the limit, not in memory.
func TestEndlessReply(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		part := bytes.Repeat([]byte(" "), 1<<20)
		for {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	})
	_, err := clientOf(t, Config{URL: s.URL}).Ask(context.Background(), Request{})
	if !errors.Is(err, ErrNonsense) {
		t.Errorf("error %v", err)
	}
}

func TestSecondTry(t *testing.T) {
	var asked atomic.Int32
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		_, _ = w.Write([]byte(`{"text":"here"}`))
	})
	out, err := clientOf(t, Config{URL: s.URL}).Ask(context.Background(), Request{})
	if err != nil || out.Text != "here" || asked.Load() != 2 {
		t.Errorf("%+v, %v after %d requests", out, err, asked.Load())
	}
}

// TestCircuit holds that a server that fails on and on is left alone, tried
// again after the cooldown, and that a refused request is no such failure.
func TestCircuit(t *testing.T) {
	var asked atomic.Int32
	var status atomic.Int32
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write([]byte(`{"text":"well"}`))
	})
	ask := func(c *Client) error {
		_, err := c.Ask(context.Background(), Request{})
		return err
	}
	for code, open := range map[int]bool{http.StatusInternalServerError: true, http.StatusUnprocessableEntity: false} {
		asked.Store(0)
		status.Store(int32(code))
		c := clientOf(t, Config{URL: s.URL, Cooldown: time.Hour})
		for range failuresInARow {
			if err := ask(c); err == nil || errors.Is(err, ErrOpen) {
				t.Errorf("status %d: error %v", code, err)
			}
		}
		if err := ask(c); errors.Is(err, ErrOpen) != open || asked.Load() == failuresInARow && !open {
			t.Errorf("status %d: error %v after %d requests, want the circuit open: %v", code, err, asked.Load(), open)
		}
	}
	c := clientOf(t, Config{URL: s.URL, Cooldown: time.Nanosecond})
	status.Store(http.StatusInternalServerError)
	for range failuresInARow {
		_ = ask(c)
	}
	status.Store(http.StatusOK)
	if err := ask(c); err != nil {
		t.Errorf("after the cooldown: %v", err)
	}
}

func TestDeadlineAndDisconnect(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	_, err := clientOf(t, Config{URL: s.URL, Timeout: 20 * time.Millisecond}).Ask(context.Background(), Request{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "20ms") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := clientOf(t, Config{URL: s.URL}).Ask(ctx, Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestErrorsQuoteNoSecret holds that neither a path nor a key is in an error.
func TestErrorsQuoteNoSecret(t *testing.T) {
	for _, cfg := range []Config{
		{URL: "http://user:secret@host/"}, {URL: "ftp://secret"}, {URL: "http://127.0.0.1:1/secret"},
		{URL: "http://127.0.0.1:1/", KeyEnv: "sk-secret"},
	} {
		c, err := New(cfg)
		if err == nil {
			_, err = c.Ask(context.Background(), Request{})
		}
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("error %v", err)
		}
	}
}

func TestConfig(t *testing.T) {
	_, err := clientOf(t, Config{URL: "http://127.0.0.1:1", KeyEnv: "XRAGENT_NO_SUCH_KEY"}).Ask(context.Background(), Request{})
	if err == nil || !strings.Contains(err.Error(), "XRAGENT_NO_SUCH_KEY") {
		t.Errorf("a key that is not set: error %v", err)
	}
	for want, cfg := range map[string]Config{
		"field url":   {},
		"field wire":  {URL: "http://h", Wire: "grpc"},
		"field model": {URL: "http://h", Wire: OpenAI},
		"concurrency": {URL: "http://h", Concurrency: -1},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %s", cfg, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"text":"a","labels":{"b":0.5},"boxes":[{"box":[0,0,1,1]}],"png":"iVBORw0KGgo="}`))
	f.Add([]byte(`{"masks":{"heart":"iVBORw0KGgo="}}`))
	f.Add([]byte(`{"choices":[{"message":{"content":"x"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		if err == nil && (len(r.Text) > maxText || len(r.Boxes) > maxBoxes) {
			t.Errorf("%d bytes of text, %d boxes were let through", len(r.Text), len(r.Boxes))
		}
		if _, err := decodeChat(data); err != nil && !errors.Is(err, ErrNonsense) {
			t.Error(err)
		}
	})
}
