package chat

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ardanlabs/jinja"

	"xragent/dataset"
	"xragent/rollout"
)

// A Probe is a conversation as chat messages, with the ids that a [Codec] makes
// of it, each image one pad id. Whoever renders the messages by Template and
// encodes the text must get the same ids.
type Probe struct {
	Name     string            `json:"name"`
	Template string            `json:"template"` // in Jinja
	Messages []any             `json:"messages"`
	Tools    []json.RawMessage `json:"tools"`
	IDs      []int32           `json:"ids"`
}

// Probes returns conversations that hold all that the template knows: a system
// prompt with and without tools, no image and several, calls, responses with
// text, an image or both, and measurements shown and withheld.
func (c *Codec) Probes() []Probe {
	probes := make([]Probe, 0, len(talks))
	for _, k := range talks {
		probes = append(probes, Probe{k.name, Template, k.messages(), k.tools, k.ids(c)})
	}
	return probes
}

// CheckTemplate renders every probe by a chat template and reports the first
// whose ids are not those that c builds: under such a template an exported
// policy would read other prompts than it was trained on.
func (c *Codec) CheckTemplate(template string) error {
	compiled, err := jinja.Compile(template)
	if err != nil {
		return fmt.Errorf("chat template: %w", err)
	}
	for _, p := range c.Probes() {
		text, err := compiled.Render(p.context())
		if err != nil {
			return fmt.Errorf("chat template: conversation %q: %w", p.Name, err)
		}
		if err := c.CheckProbe(p, c.Encode(text)); err != nil {
			return fmt.Errorf("chat template: %w", err)
		}
	}
	return nil
}

// context returns the variables of the template. Schemas are text, which the
// template takes as it is: the engine's tojson sorts keys.
func (p Probe) context() map[string]any {
	tools := []any{}
	for _, s := range p.Tools {
		tools = append(tools, string(s))
	}
	return map[string]any{"messages": p.Messages, "tools": tools, "add_generation_prompt": true}
}

// CheckProbe reports where ids, which another reader of the conversation made,
// part from those that training uses.
func (c *Codec) CheckProbe(p Probe, ids []int32) error {
	if slices.Equal(ids, p.IDs) {
		return nil
	}
	at := 0
	for at < min(len(ids), len(p.IDs)) && ids[at] == p.IDs[at] {
		at++
	}
	around := func(ids []int32) string { return c.Tokenizer.Decode(ids[max(0, at-3):min(len(ids), at+5)]) }
	return fmt.Errorf("conversation %q: %d ids, want %d; at id %d %q, want %q: "+
		"training would use other prompts than a server of the model; use the model's own tokenizer.json and xragent's chat_template.jinja",
		p.Name, len(ids), len(p.IDs), at, around(ids), around(p.IDs))
}

// A talk is a whole two-turn conversation, for both ways of rendering it.
type talk struct {
	name   string
	prompt dataset.Prompt
	tools  []json.RawMessage
	turn1  string
	calls  []rollout.Call
	bundle rollout.Bundle
}

// ids are the codec's, up to where turn 2 starts.
func (k talk) ids(c *Codec) []int32 {
	return slices.Concat(c.Triage(k.prompt, k.tools), c.Encode(k.turn1), []int32{c.EndOfTurn()}, c.Integration(k.calls, k.bundle))
}

// messages writes a talk as chat messages, up to where turn 2 starts.
func (k talk) messages() []any {
	content := []any{}
	for range k.prompt.Images {
		content = append(content, map[string]any{"type": "image"})
	}
	content = append(content, textPart(Question(k.prompt)))
	out := []any{
		map[string]any{"role": "system", "content": SystemPrompt},
		map[string]any{"role": "user", "content": content},
		map[string]any{"role": "assistant", "content": k.turn1},
	}
	for _, c := range k.calls {
		out = append(out, map[string]any{"role": "tool", "content": response(c)})
	}
	return append(out, map[string]any{"role": "tool", "name": "measurements", "content": rollout.FormatBundle(k.bundle)})
}

func textPart(text string) map[string]any { return map[string]any{"type": "text", "text": text} }

// response is the content of a tool's message: text, an image below it, or either.
func response(c rollout.Call) []any {
	parts := []any{}
	if c.Observation != "" {
		parts = append(parts, textPart(c.Observation))
	}
	if c.Image != "" && c.Observation != "" {
		parts = append(parts, textPart("\n"))
	}
	if c.Image != "" {
		parts = append(parts, map[string]any{"type": "image"})
	}
	return parts
}

// What the probes are made of.
var (
	schemas = []json.RawMessage{
		json.RawMessage(`{"name":"region_parse","description":"describe a region","parameters":{"properties":{"region":{"type":"string"}}}}`),
		json.RawMessage(`{"name":"roi_crop","description":"magnify a region","parameters":{"properties":{"region":{"type":"string"},"box":{"type":"array"}}}}`),
		json.RawMessage(`{"name":"evidence_lookup","description":"look up knowledge","parameters":{"properties":{"query":{"type":"string"}}}}`),
	}
	shown = rollout.Bundle{Shown: []string{"ctr", "shift"}, Measurements: []rollout.Measurement{
		{Name: "ctr", Value: 0.512, Category: "borderline", Computed: true, Admitted: true},
		{Name: "asymmetry", Value: 0.2, Computed: true},
		{Name: "shift", Value: -0.0041, Category: "normal", Computed: true, Admitted: true},
	}}
	talks = []talk{
		{"no image, no tools", dataset.Prompt{Kind: dataset.Closed, Question: "What does ctr stand for?"}, nil,
			"<assess>no image</assess>", nil, rollout.Bundle{Image: -1}},
		{"one image, no call", dataset.Prompt{Kind: dataset.Binary, Question: "Is the heart enlarged?", Images: make([]dataset.Image, 1)}, schemas,
			"<assess>heart large</assess>", nil, shown},
		{"one image, a crop", dataset.Prompt{Kind: dataset.MultipleChoice, Question: "What is the margin of the nodule?",
			Options: []string{"smooth", "spiculated", "cannot be determined"}, Images: make([]dataset.Image, 1)}, schemas,
			"<assess>lungs clear</assess>\n" + rollout.FormatCall("roi_crop", json.RawMessage(`{"region": "left upper zone"}`)),
			[]rollout.Call{{Tool: "roi_crop", Observation: "crop of the left upper zone", Image: "00"}}, shown},
		{"two images, three responses", dataset.Prompt{Kind: dataset.Report, Question: "Describe both films.", Images: make([]dataset.Image, 2)}, schemas,
			"<assess>pa view, lateral view</assess>", []rollout.Call{
				{Tool: "region_parse", Observation: "right base: mean opacity 140, other side 90"},
				{Tool: "roi_crop", Image: "11"},
				{Tool: "no_such", Observation: "unknown tool; use region_parse, roi_crop or evidence_lookup"},
			}, rollout.Bundle{Image: 1, Shown: []string{"ctr"}, Measurements: shown.Measurements}},
	}
)
