package toolserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"maps"
	"slices"
	"time"

	"xragent/toolserver/backend"
)

// models says which tools ask a model server, and which of them need no more
// of it than text.
var models = map[string]struct{ text bool }{
	lookupName:   {text: true},
	classifyName: {},
	groundName:   {},
	reportName:   {text: true},
	questionName: {text: true},
	generateName: {},
}

// A model is a tool's server, which may not be configured.
type model struct {
	tool   string
	cfg    backend.Config
	client *backend.Client // nil: none is configured
}

// newModels returns a model for every tool that can have one; evidence_lookup
// has one only where a server is configured.
func newModels(servers map[string]backend.Config) (map[string]*model, error) {
	out := map[string]*model{}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		m := &model{tool: name}
		cfg, ok := servers[name]
		if !ok && name == lookupName {
			continue
		}
		out[name] = m
		if !ok {
			continue
		}
		client, err := backend.New(cfg)
		if err != nil {
			return nil, fmt.Errorf("tools: field backends.%s: %w", name, err)
		}
		m.cfg, m.client = cfg.WithDefaults(), client
	}
	return out, nil
}

// slots bounds the calls of this tool at a time, apart from every other's.
func (m *model) slots() chan struct{} { return make(chan struct{}, max(1, m.cfg.Concurrency)) }

// deadline leaves the server its time, and a queue of calls theirs.
func (m *model) deadline() time.Duration { return 2*m.cfg.Timeout + 10*time.Second }

// version is the part of a cache key that says who answered.
func (m *model) version() string {
	if m == nil || m.client == nil {
		return "v1"
	}
	return fmt.Sprintf("v1 %s %s %s %s", m.cfg.URL, m.cfg.Wire, m.cfg.Model, m.cfg.Version)
}

// A modelError is a server's failure: for the caller an observation, never an
// end of the caller's work.
type modelError struct{ text string }

func (e *modelError) Error() string { return e.text }

// ask sends a tool's arguments with images, and the prompt for servers that
// take nothing else.
func (m *model) ask(ctx context.Context, args any, images []backend.Image, system, prompt string) (backend.Response, error) {
	if m.client == nil {
		return backend.Response{}, &modelError{fmt.Sprintf("no server is configured for %s: set backends.%s.url", m.tool, m.tool)}
	}
	data, err := json.Marshal(args)
	if err != nil {
		return backend.Response{}, fmt.Errorf("encode arguments: %w", err)
	}
	out, err := m.client.Ask(ctx, backend.Request{Tool: m.tool, Arguments: data, Images: images, System: system, Prompt: prompt})
	switch {
	case errors.Is(err, context.Canceled):
		return out, err
	case err != nil:
		return out, &modelError{err.Error()}
	case out.Error != "":
		return out, &modelError{fmt.Sprintf("the server of %s: %.200q", m.tool, out.Error)}
	}
	return out, nil
}

// lacks says that an answer has nothing of what the tool is for.
func (m *model) lacks(what string) error {
	return &modelError{fmt.Sprintf("the server of %s answered without %s", m.tool, what)}
}

// modelSide is the longer side, in pixels, of the images that servers are sent.
const modelSide = 1024

// imagesFor returns image n as servers are sent it, or all where n is 0: pixels
// as displayed, in 8 bits, and the view. Nothing else of a file leaves.
func (st *Study) imagesFor(n int) ([]backend.Image, error) {
	first, last := n, n
	if n == 0 {
		first, last = 1, max(1, len(st.images)) // without any, view says so
	}
	var out []backend.Image
	for i := first; i <= last; i++ {
		v, err := st.view(i)
		if err != nil {
			return nil, err
		}
		var file bytes.Buffer
		if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&file, scaled(v.gray, modelSide)); err != nil {
			return nil, fmt.Errorf("encode image %d: %w", i, err)
		}
		out = append(out, backend.Image{PNG: file.Bytes(), View: st.meta[i-1].Completed(v.about).View})
	}
	return out, nil
}

func (m *model) state() string {
	switch {
	case m == nil:
		return ""
	case m.client == nil:
		return "not configured"
	}
	return "configured"
}
