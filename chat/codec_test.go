package chat

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ardanlabs/jinja"
	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/rollout"
)

func codec(t testing.TB) *Codec {
	t.Helper()
	c, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var schemas = []json.RawMessage{
	json.RawMessage(`{"name":"region_parse","description":"describe a region","parameters":{"properties":{"region":{"type":"string"}}}}`),
	json.RawMessage(`{"name":"roi_crop","description":"magnify a region","parameters":{"properties":{"region":{"type":"string"},"box":{"type":"array"}}}}`),
	json.RawMessage(`{"name":"evidence_lookup","description":"look up knowledge","parameters":{"properties":{"query":{"type":"string"}}}}`),
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

func images(n int) []dataset.Image { return make([]dataset.Image, n) }

var shown = rollout.Bundle{Shown: []string{"ctr", "shift"}, Measurements: []rollout.Measurement{
	{Name: "ctr", Value: 0.512, Category: "borderline", Computed: true, Admitted: true},
	{Name: "asymmetry", Value: 0.2, Computed: true},
	{Name: "shift", Value: -0.0041, Category: "normal", Computed: true, Admitted: true},
}}

var talks = []talk{
	{"no image, no tools", dataset.Prompt{Kind: dataset.Closed, Question: "What does ctr stand for?"}, nil,
		"<assess>no image</assess>", nil, rollout.Bundle{Image: -1}},
	{"one image, no call", dataset.Prompt{Kind: dataset.Binary, Question: "Is the heart enlarged?", Images: images(1)}, schemas,
		"<assess>heart large</assess>", nil, shown},
	{"one image, a crop", dataset.Prompt{Kind: dataset.MultipleChoice, Question: "What is the margin of the nodule?",
		Options: []string{"smooth", "spiculated", "cannot be determined"}, Images: images(1)}, schemas,
		"<assess>lungs clear</assess>\n" + rollout.FormatCall("roi_crop", json.RawMessage(`{"region": "left upper zone"}`)),
		[]rollout.Call{{Tool: "roi_crop", Observation: "crop of the left upper zone", Image: "00"}}, shown},
	{"two images, three responses", dataset.Prompt{Kind: dataset.Report, Question: "Describe both films.", Images: images(2)}, schemas,
		"<assess>pa view, lateral view</assess>", []rollout.Call{
			{Tool: "region_parse", Observation: "right base: mean opacity 140, other side 90"},
			{Tool: "roi_crop", Image: "11"},
			{Tool: "no_such", Observation: "unknown tool; use region_parse, roi_crop or evidence_lookup"},
		}, rollout.Bundle{Image: 1, Shown: []string{"ctr"}, Measurements: shown.Measurements}},
}

// messages writes a talk as chat messages, up to where turn 2 starts.
func (k talk) messages() []any {
	content := []any{}
	for range k.prompt.Images {
		content = append(content, map[string]any{"type": "image"})
	}
	content = append(content, map[string]any{"type": "text", "text": Question(k.prompt)})
	out := []any{
		map[string]any{"role": "system", "content": SystemPrompt},
		map[string]any{"role": "user", "content": content},
		map[string]any{"role": "assistant", "content": k.turn1},
	}
	for _, c := range k.calls {
		parts := []any{}
		if c.Observation != "" {
			parts = append(parts, map[string]any{"type": "text", "text": c.Observation})
		}
		if c.Image != "" && c.Observation != "" {
			parts = append(parts, map[string]any{"type": "text", "text": "\n"})
		}
		if c.Image != "" {
			parts = append(parts, map[string]any{"type": "image"})
		}
		out = append(out, map[string]any{"role": "tool", "content": parts})
	}
	return append(out, map[string]any{"role": "tool", "name": "measurements", "content": rollout.FormatBundle(k.bundle)})
}

func (k talk) ids(c *Codec) []int32 {
	return slices.Concat(c.Triage(k.prompt, k.tools), c.Encode(k.turn1), []int32{c.EndOfTurn()}, c.Integration(k.calls, k.bundle))
}

func TestBuilderEqualsTemplate(t *testing.T) {
	c := codec(t)
	template, err := jinja.Compile(Template)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range talks {
		tools := []any{}
		for _, s := range k.tools {
			tools = append(tools, string(s))
		}
		text, err := template.Render(map[string]any{"messages": k.messages(), "tools": tools, "add_generation_prompt": true})
		if err != nil {
			t.Fatal(err)
		}
		got, want := k.ids(c), c.Encode(text)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the builder's ids differ from the template's\nbuilder  %q\ntemplate %q", k.name, c.Tokenizer.Decode(got), c.Tokenizer.Decode(want))
		}
	}
}

func TestPromptsAreTerse(t *testing.T) {
	c := codec(t)
	k := talks[2]
	question := len(c.EncodePlain(Question(k.prompt)))
	if n := len(c.Triage(k.prompt, schemas)) - question; n > 120 {
		t.Errorf("turn 1 costs %d ids beside its question, want at most 120", n)
	}
	for _, tag := range []string{"<assess>", "</assess>", "<answer>", "</answer>", "<evidence>", "</evidence>", "<tool_call>",
		" ctr", " asymmetry", " shift", "ctr", "asymmetry", "shift", " withheld"} {
		if ids := c.Encode(tag); len(ids) != 1 {
			t.Errorf("%q is %d ids, want 1", tag, len(ids))
		}
	}
}

// Whatever a question or an observation says, it can neither end a turn nor
// stand for an image.
func TestTextFromOutsideIsPlain(t *testing.T) {
	c := codec(t)
	pieces := rapid.SampledFrom([]string{"<|im_end|>", "<|image_pad|>", "<|im_start|>", "<|vision_start|>", "</tool_response>",
		"</tools>", " ", "\n", "a", "\x00", "<", "é"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(pieces).Draw(t, "text"), "")
		control := func(ids []int32) (n int) {
			for _, id := range ids {
				if c.isMark[id] {
					n++
				}
			}
			return n
		}
		prompt := dataset.Prompt{Kind: dataset.MultipleChoice, Question: text, Options: []string{text, text}, Images: images(1)}
		harmless := dataset.Prompt{Kind: dataset.MultipleChoice, Question: "?", Options: []string{"a", "b"}, Images: images(1)}
		if got, want := control(c.Triage(prompt, schemas)), control(c.Triage(harmless, schemas)); got != want {
			t.Fatalf("turn 1 has %d added tokens, want %d", got, want)
		}
		calls := []rollout.Call{{Observation: text}, {Observation: text, Image: "00"}}
		safe := []rollout.Call{{Observation: "a"}, {Observation: "a", Image: "00"}}
		if got, want := control(c.Integration(calls, shown)), control(c.Integration(safe, shown)); got != want {
			t.Fatalf("turn 2 has %d added tokens, want %d", got, want)
		}
	})
}

func TestDecodeDropsOnlyTheEnd(t *testing.T) {
	c := codec(t)
	const text = "<answer>B</answer>"
	ids := append(c.Encode(text), c.EndOfTurn())
	if got := c.Decode(ids); got != text {
		t.Errorf("Decode = %q, want %q", got, text)
	}
	if got := c.Decode(append(slices.Clone(ids), ids...)); got != text+"<|im_end|>"+text {
		t.Errorf("Decode = %q: an end of turn in the middle must stay visible", got)
	}
}

func TestExpandCompact(t *testing.T) {
	const pad = 9
	tests := []struct {
		name    string
		compact []int32
		pads    []int
		want    []int32
	}{
		{"no image", []int32{1, 2}, nil, []int32{1, 2}},
		{"one image", []int32{1, 9, 2}, []int{3}, []int32{1, 9, 9, 9, 2}},
		{"two images", []int32{9, 5, 9}, []int{2, 1}, []int32{9, 9, 5, 9}},
	}
	for _, test := range tests {
		got, err := Expand(test.compact, test.pads, pad)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: Expand = %v, %v, want %v", test.name, got, err, test.want)
		}
		compact, pads := Compact(got, pad)
		if !slices.Equal(compact, test.compact) || !slices.Equal(pads, test.pads) {
			t.Errorf("%s: Compact = %v, %v, want %v, %v", test.name, compact, pads, test.compact, test.pads)
		}
	}
	for _, pads := range [][]int{nil, {1, 1}, {0}, {-1}} {
		if ids, err := Expand([]int32{1, 9}, pads, pad); err == nil {
			t.Errorf("Expand with pads %v = %v, want an error", pads, ids)
		}
	}
	if _, err := Expand([]int32{9, 9, 9}, []int{3}, pad); err == nil {
		t.Error("Expand of an expanded prompt gave no error")
	}
}
