package toolserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"xragent/dataset"
	"xragent/rollout"
)

// MCPOptions say which images a Model Context Protocol client may name.
type MCPOptions struct {
	// Open reads an image file by the name that a call gives; nil: calls carry
	// their images as data URLs.
	Open func(name string) ([]byte, error)
	// Images is the study of calls that name none, with its metadata.
	Images [][]byte
	Meta   []dataset.Image
	// Domain is that of images that calls name; empty: radiograph.
	Domain string
}

// imagesName is the argument by which an MCP call names its images. The rest of
// a tool's arguments, and what checks them, are those of every other door.
const imagesName = "images"

// maxImages bounds the images of one MCP call.
const maxImages = 8

// NewMCP returns the tools and measurements as a Model Context Protocol server.
// A policy's mistake, a tool's failure and an unreadable image are results with
// isError set, which the client's model can read; only what the protocol itself
// forbids is a protocol error.
func NewMCP(s *Server, o MCPOptions) *mcp.Server {
	m := mcp.NewServer(&mcp.Implementation{Name: "xragent-tools", Version: "1.0.0"}, &mcp.ServerOptions{
		Instructions: "Tools on chest radiographs. Sides are the patient's. Numbers are no clinical statement.",
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, // which never change
	})
	d := &mcpDoor{s, o}
	for _, name := range s.names {
		b := s.tools[name]
		m.AddTool(&mcp.Tool{Name: name, Description: b.description, InputSchema: mcpSchema(b.schema, b.images)}, d.call(b))
	}
	m.AddTool(&mcp.Tool{
		Name: measureName, Description: "measure heart and lungs, and say which numbers are valid",
		InputSchema: mcpSchema(&jsonschema.Schema{Type: "object", AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}, true),
	}, d.measure)
	return m
}

// mcpSchema is a tool's schema with the images.
func mcpSchema(s *jsonschema.Schema, images bool) *jsonschema.Schema {
	if !images {
		return s
	}
	c := s.CloneSchemas()
	if c.Properties == nil {
		c.Properties = map[string]*jsonschema.Schema{}
	}
	least, most := 1, maxImages
	c.Properties[imagesName] = &jsonschema.Schema{
		Type: "array", Items: &jsonschema.Schema{Type: "string"}, MinItems: &least, MaxItems: &most,
		Description: "the study: PNG, JPEG or DICOM files, by name or as data: URLs in base64",
	}
	c.PropertyOrder = append(slices.Clone(c.PropertyOrder), imagesName)
	return c
}

type mcpDoor struct {
	server *Server
	o      MCPOptions
}

func (d *mcpDoor) call(b *binding) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		args, images, meta, err := d.study(b.images, req.Params.Arguments)
		if err != nil {
			return failed(err), nil
		}
		obs, err := d.server.Call(ctx, b.name, args, images, meta)
		if err != nil {
			return failed(err), nil
		}
		return mcpResult(obs), nil
	}
}

func (d *mcpDoor) measure(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	args, images, meta, err := d.study(true, req.Params.Arguments)
	if fields := map[string]any{}; err == nil && (json.Unmarshal(args, &fields) != nil || len(fields) > 0) {
		err = argumentErrorf("measure takes nothing but %s", imagesName)
	}
	if err != nil {
		return failed(err), nil
	}
	bundle, err := d.server.Measure(ctx, images, meta)
	if err != nil {
		return failed(err), nil
	}
	text, err := json.Marshal(bundle)
	if err != nil {
		return nil, fmt.Errorf("measurements: %w", err)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: json.RawMessage(text)}, nil
}

func failed(err error) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}
}

func mcpResult(obs rollout.Observation) *mcp.CallToolResult {
	r := &mcp.CallToolResult{IsError: obs.Invalid || obs.Error != ""}
	if text := cmp.Or(obs.Error, obs.Text); text != "" {
		r.Content = append(r.Content, &mcp.TextContent{Text: text})
	}
	if obs.PNG != nil {
		r.Content = append(r.Content, &mcp.ImageContent{Data: obs.PNG, MIMEType: "image/png"})
	}
	return r
}

// study takes the images out of a call's arguments.
func (d *mcpDoor) study(looks bool, raw json.RawMessage) (args json.RawMessage, images [][]byte, meta []dataset.Image, err error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	fields := map[string]json.RawMessage{}
	switch {
	case json.Unmarshal(raw, &fields) != nil || !looks:
		return raw, d.o.Images, d.o.Meta, nil // and the tool's own check refuses what is no object
	case fields[imagesName] == nil && len(d.o.Images) > 0:
		return raw, d.o.Images, d.o.Meta, nil
	case fields[imagesName] == nil:
		return nil, nil, nil, argumentErrorf("%s: none is given; name a file, or send a data: URL in base64", imagesName)
	}
	var names []string
	if err := json.Unmarshal(fields[imagesName], &names); err != nil || len(names) < 1 || len(names) > maxImages {
		return nil, nil, nil, argumentErrorf("%s: want an array of 1 to %d strings", imagesName, maxImages)
	}
	for i, name := range names {
		file, err := d.open(name)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s: number %d: %w", imagesName, i+1, err)
		}
		images, meta = append(images, file), append(meta, d.about(name, file))
	}
	delete(fields, imagesName)
	args, err = json.Marshal(fields)
	return args, images, meta, err
}

// about is what is known of an image that a call brought.
func (d *mcpDoor) about(name string, file []byte) dataset.Image {
	sum := sha256.Sum256(file)
	m := dataset.Image{SHA256: hex.EncodeToString(sum[:]), Domain: cmp.Or(d.o.Domain, "radiograph")}
	if !isData(name) {
		m.Path = name
	}
	return m
}

func isData(name string) bool { return len(name) >= 5 && strings.EqualFold(name[:5], "data:") }

func (d *mcpDoor) open(name string) ([]byte, error) {
	limit := d.server.cfg.ImageBytes
	switch {
	case isData(name):
		return dataURL(name, limit)
	case d.o.Open == nil:
		return nil, errors.New("files are not open to this server: send a data: URL in base64, or start it with --root")
	}
	return d.o.Open(name)
}

// dataURL reads data:[<type>];base64,<data> (RFC 2397).
func dataURL(url string, limit int) ([]byte, error) {
	head, body, ok := strings.Cut(url, ",")
	if !ok || !strings.HasSuffix(strings.ToLower(head), ";base64") {
		return nil, errors.New("a data: URL without ;base64,")
	}
	if n := base64.StdEncoding.DecodedLen(len(body)); n > limit+2 {
		return nil, fmt.Errorf("some %d bytes, limit %d (field image_bytes)", n, limit)
	}
	file, err := base64.StdEncoding.DecodeString(body)
	if err != nil {
		return nil, fmt.Errorf("a data: URL that is no base64: %w", err)
	}
	return file, nil
}
