package toolserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"xragent/rollout"
)

// A Tool is one auxiliary tool: typed arguments in, a typed result out. Every
// door (in process, NATS, MCP) is bound to this one value, so that all doors
// validate by the same schema.
type Tool[In, Out any] struct {
	Name        string
	Description string // what the policy reads in its prompt: a few words
	Version     string // part of the cache key: raise it when results change
	Images      bool   // the tool looks at the images
	Model       *model // the server that it asks; nil: it computes by itself
	Run         func(ctx context.Context, study *Study, in In) (Out, error)
	Show        func(Out) rollout.Observation
}

// An ArgumentError is the policy's own mistake in calling a tool. Its text is
// shown to the policy and names what is allowed.
type ArgumentError struct{ Text string }

func (e *ArgumentError) Error() string { return e.Text }

func argumentErrorf(format string, args ...any) error {
	return &ArgumentError{fmt.Sprintf(format, args...)}
}

// binding is a tool with its types hidden, as the doors use it.
type binding struct {
	name, description, version string
	images                     bool
	model                      *model
	calls                      *flight[rollout.Observation]
	schema                     *jsonschema.Schema
	run                        func(ctx context.Context, study *Study, args json.RawMessage) (rollout.Observation, error)
	canonical                  func(args json.RawMessage) (json.RawMessage, error)
}

// bind derives the argument schema from In and hides the types. enums lists
// the allowed values of string properties.
func bind[In, Out any](t Tool[In, Out], enums map[string][]string) (*binding, error) {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		return nil, fmt.Errorf("tool %s: schema of %T: %w", t.Name, *new(In), err)
	}
	for name, values := range enums {
		for _, v := range values {
			schema.Properties[name].Enum = append(schema.Properties[name].Enum, v)
		}
	}
	// The enumeration is for readers. Spelling variants are resolved by the
	// tool, so what validates is the schema without it.
	loose := schema.CloneSchemas()
	for name := range enums {
		loose.Properties[name].Enum = nil
	}
	resolved, err := loose.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("tool %s: resolve schema: %w", t.Name, err)
	}
	parse := func(args json.RawMessage) (In, error) { return parseArguments[In](resolved, args) }
	return &binding{
		name: t.Name, description: t.Description, version: t.Version, images: t.Images, model: t.Model,
		schema: schema,
		run: func(ctx context.Context, study *Study, args json.RawMessage) (rollout.Observation, error) {
			in, err := parse(args)
			if err != nil {
				return rollout.Observation{}, err
			}
			out, err := t.Run(ctx, study, in)
			if err != nil {
				return rollout.Observation{}, err
			}
			return t.Show(out), nil
		},
		canonical: func(args json.RawMessage) (json.RawMessage, error) {
			in, err := parse(args)
			if err != nil {
				return nil, err
			}
			return json.Marshal(in)
		},
	}, nil
}

// maxArguments bounds the bytes of one call's arguments.
const maxArguments = 4096

func parseArguments[In any](schema *jsonschema.Resolved, args json.RawMessage) (In, error) {
	var in In
	if len(args) > maxArguments {
		return in, argumentErrorf("arguments have %d bytes, limit %d", len(args), maxArguments)
	}
	var value map[string]any
	err := json.Unmarshal(args, &value)
	if tooLarge := new(json.UnmarshalTypeError); value == nil || err != nil && !errors.As(err, &tooLarge) {
		return in, argumentErrorf("arguments are not a JSON object; want %s", shape(schema.Schema()))
	}
	if err != nil || schema.Validate(value) != nil { // err: a number such as 1e999
		return in, argumentErrorf("arguments do not fit; want %s", shape(schema.Schema()))
	}
	if args, err = json.Marshal(value); err != nil { // 1.0 is an integer to the schema, and 1 to Go
		return in, fmt.Errorf("arguments: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.DisallowUnknownFields() // encoding/json matches names in any case; the schema has already refused those
	if err := dec.Decode(&in); err != nil {
		return in, argumentErrorf("arguments do not fit; want %s", shape(schema.Schema()))
	}
	return in, nil
}

// shape names a schema's properties briefly: {region: string, box: array}.
func shape(s *jsonschema.Schema) string {
	parts := make([]string, 0, len(s.PropertyOrder))
	for _, name := range s.PropertyOrder {
		optional := "?"
		if slices.Contains(s.Required, name) {
			optional = ""
		}
		parts = append(parts, name+optional+": "+typeName(s.Properties[name]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func typeName(s *jsonschema.Schema) string {
	if s.Type != "" {
		return s.Type
	}
	for _, t := range s.Types { // a slice may be null: ["null", "array"]
		if t != "null" {
			return t
		}
	}
	return "any"
}

// terse writes the tool as it stands in the policy's prompt: names and types
// only, because every token of it is paid for in every trajectory. The image
// argument, which matters only with several images, is left to the full form.
func (b *binding) terse() json.RawMessage {
	var w strings.Builder
	fmt.Fprintf(&w, `{"name":%q,"description":%q,"parameters":{"properties":{`, b.name, b.description)
	sep := ""
	for _, name := range b.schema.PropertyOrder {
		if name == "image" {
			continue
		}
		fmt.Fprintf(&w, `%s%q:{"type":%q}`, sep, name, typeName(b.schema.Properties[name]))
		sep = ","
	}
	w.WriteString("}}}")
	return json.RawMessage(w.String())
}

// full writes the tool with its whole schema, for large models and MCP.
func (b *binding) full() (json.RawMessage, error) {
	return json.Marshal(struct {
		Name        string             `json:"name"`
		Description string             `json:"description"`
		Parameters  *jsonschema.Schema `json:"parameters"`
	}{b.name, b.description, b.schema})
}

// isArgument reports whether err is the caller's mistake, and its text.
func isArgument(err error) (string, bool) {
	if e, ok := errors.AsType[*ArgumentError](err); ok {
		return e.Text, true
	}
	return "", false
}

// A ToolInfo describes a tool to people and programs.
type ToolInfo struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Images      bool            `json:"images"`           // it looks at the images
	Server      string          `json:"server,omitempty"` // asked by it: "configured" or "not configured"; empty: it computes by itself
	Arguments   string          `json:"arguments"`        // in brief: names and types, ? where optional
	Parameters  json.RawMessage `json:"parameters"`       // as JSON Schema
}

// Tools describes the tools in the order of their schemas.
func (s *Server) Tools() []ToolInfo {
	list := make([]ToolInfo, len(s.names))
	for i, name := range s.names {
		b := s.tools[name]
		schema, err := json.Marshal(b.schema)
		if err != nil {
			panic(fmt.Sprintf("toolserver: schema of %s: %v", name, err)) // it was made from a Go type
		}
		list[i] = ToolInfo{Name: name, Description: b.description, Images: b.images, Server: b.model.state(), Arguments: shape(b.schema), Parameters: schema}
	}
	return list
}
