package chat

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"xragent/dataset"
	"xragent/rollout"
)

//go:embed assets/tokenizer.json
var smallTokenizer []byte

// Template is the chat template in Jinja, as an export carries it. [Codec]
// builds the same ids without rendering it.
//
//go:embed assets/chat_template.jinja
var Template string

// SystemPrompt opens every conversation. It is terse: each of its tokens is
// paid for in every trajectory.
const SystemPrompt = "Read the chest radiograph. First write <assess> and tool calls; then <think><evidence><answer>."

// ImageMark stands for one image in a rendered conversation.
const ImageMark = "<|vision_start|><|image_pad|><|vision_end|>"

// A Codec renders the two-turn conversation to token ids. It implements
// loop.Codec. Text that comes from data or tools (questions, options,
// observations) is encoded without recognising added tokens in it, so that no
// question can end a turn and no observation can claim an image.
type Codec struct {
	*Tokenizer
	json                   []byte // the tokenizer.json
	end, stop, pad         int32  // <|im_end|>, <|endoftext|>, <|image_pad|>
	visionStart, visionEnd int32
}

// New returns a codec over a tokenizer.json; nil stands for the built-in one of
// 2,048 ids.
func New(tokenizer []byte) (*Codec, error) {
	if tokenizer == nil {
		tokenizer = smallTokenizer
	}
	t, err := ParseTokenizer(tokenizer)
	if err != nil {
		return nil, err
	}
	c := &Codec{Tokenizer: t, json: tokenizer}
	for token, id := range map[string]*int32{
		"<|im_end|>": &c.end, "<|endoftext|>": &c.stop, "<|image_pad|>": &c.pad,
		"<|vision_start|>": &c.visionStart, "<|vision_end|>": &c.visionEnd,
	} {
		var ok bool
		if *id, ok = t.ID(token); !ok {
			return nil, fmt.Errorf("tokenizer.json: no added token %s; use a Qwen-VL tokenizer", token)
		}
	}
	return c, nil
}

// EndOfTurn returns the id that ends a turn, <|im_end|>.
func (c *Codec) EndOfTurn() int32 { return c.end }

// EndOfText returns the id of <|endoftext|>, which ends a turn as well and pads.
func (c *Codec) EndOfText() int32 { return c.stop }

// ImagePad returns the id that stands for image features.
func (c *Codec) ImagePad() int32 { return c.pad }

// VisionMarks returns the ids around each image.
func (c *Codec) VisionMarks() (start, end int32) { return c.visionStart, c.visionEnd }

// JSON returns the tokenizer.json.
func (c *Codec) JSON() []byte { return c.json }

// Decode returns the text of ids without what ends a turn. Other control
// tokens stay visible: a policy that writes one has not followed the protocol.
func (c *Codec) Decode(ids []int32) string {
	for len(ids) > 0 && (ids[len(ids)-1] == c.end || ids[len(ids)-1] == c.stop) {
		ids = ids[:len(ids)-1]
	}
	return c.Tokenizer.Decode(ids)
}

// Triage renders the prompt of turn 1: system prompt with one schema a line,
// the images, the question, its options "A) …" a line, and the start of the
// assistant's turn. Each image is one pad id.
func (c *Codec) Triage(p dataset.Prompt, tools []json.RawMessage) []int32 {
	b := builder{codec: c}
	b.system(tools)
	b.marked("<|im_start|>user\n")
	for range p.Images {
		b.marked(ImageMark)
	}
	b.plain(Question(p))
	b.marked("<|im_end|>\n<|im_start|>assistant\n")
	return b.done()
}

// Question returns a prompt's text as the user's turn shows it: the question,
// then its options or, where the form of the answer is not plain from options,
// what is asked for.
func Question(p dataset.Prompt) string {
	lines := []string{strings.TrimSpace(p.Question)}
	for i, option := range p.Options {
		lines = append(lines, dataset.Letter(i)+") "+option)
	}
	switch p.Kind {
	case dataset.Binary:
		lines = append(lines, "Answer yes or no.")
	case dataset.Report:
		lines = append(lines, "Answer with the findings.")
	case dataset.Closed:
		if len(p.Options) == 0 {
			lines = append(lines, "Answer briefly.")
		}
	}
	return strings.Join(lines, "\n")
}

// Integration renders what follows turn 1's output, whose last id is the
// end-of-turn: the calls' responses in order, the measurements, and the start
// of the assistant's second turn. A returned image is one pad id.
func (c *Codec) Integration(calls []rollout.Call, bundle rollout.Bundle) []int32 {
	b := builder{codec: c}
	b.marked("\n<|im_start|>user\n")
	for _, call := range calls {
		b.observation(call)
		b.marked("\n")
	}
	b.marked(rollout.FormatBundle(bundle) + "<|im_end|>\n<|im_start|>assistant\n")
	return b.done()
}

// A builder joins structure, in which added tokens count, and text from
// outside, in which they do not. Plain text on both sides of a seam between the
// two is tokenised as one, as the rendered template would be.
type builder struct {
	codec   *Codec
	ids     []int32
	pending strings.Builder // plain text not yet encoded
}

func (b *builder) plain(text string) { b.pending.WriteString(text) }

// marked adds structure: its added tokens by id, the rest as plain text.
func (b *builder) marked(text string) {
	for len(text) > 0 {
		start, token := b.codec.nextAdded(text)
		b.plain(text[:start])
		if token.content == "" {
			return
		}
		b.flush()
		b.ids = append(b.ids, token.id)
		text = text[start+len(token.content):]
	}
}

func (b *builder) flush() {
	b.ids = b.codec.appendPlain(b.ids, b.pending.String())
	b.pending.Reset()
}

func (b *builder) done() []int32 {
	b.flush()
	return b.ids
}

func (b *builder) system(tools []json.RawMessage) {
	b.marked("<|im_start|>system\n" + SystemPrompt)
	if len(tools) > 0 {
		b.marked("\n<tools>\n")
		for _, schema := range tools {
			b.plain(string(schema) + "\n")
		}
		b.marked("</tools>")
	}
	b.marked("<|im_end|>\n")
}

// observation writes one response as rollout.FormatObservation does, its text
// plain and its image a mark.
func (b *builder) observation(call rollout.Call) {
	const slot = "\x00"
	call.Observation = strings.ReplaceAll(call.Observation, slot, "")
	text := rollout.FormatObservation(call, slot)
	const open, shut = "<tool_response>", "</tool_response>"
	body := strings.TrimSuffix(strings.TrimPrefix(text, open), shut)
	before, after, image := strings.Cut(body, slot)
	b.marked(open)
	b.plain(before)
	if image {
		b.marked(ImageMark)
	}
	b.plain(after)
	b.marked(shut)
}
