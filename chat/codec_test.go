package chat

import (
	"slices"
	"strings"
	"testing"

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

func images(n int) []dataset.Image { return make([]dataset.Image, n) }

func TestBuilderEqualsTemplate(t *testing.T) {
	if err := codec(t).CheckTemplate(Template); err != nil {
		t.Error(err)
	}
}

// TestTemplateDoctor holds that every part of the template counts: with any one
// of them spoilt the doctor says so.
func TestTemplateDoctor(t *testing.T) {
	c := codec(t)
	for _, part := range []string{"<|im_start|>assistant\\n", "<|im_start|>user\\n", "\\n<tools>\\n", "</tools>", "<tool_response>\\n",
		"\\n</tool_response>", "<|im_end|>\\n", "<|vision_start|>", "== 'measurements'", "first.tool = true", "tool + '\\n'"} {
		spoilt := strings.ReplaceAll(Template, part, strings.Replace(part, part[:1], "", 1))
		if spoilt == Template {
			t.Errorf("the template has no %s", part)
		}
		if err := c.CheckTemplate(spoilt); err == nil {
			t.Errorf("the template without a part of %s passes", part)
		}
	}
	err := c.CheckTemplate(strings.ReplaceAll(Template, "<|im_end|>\\n", "<|im_end|>"))
	if err == nil || !strings.Contains(err.Error(), `conversation "no image, no tools"`) || !strings.Contains(err.Error(), "at id") {
		t.Errorf("error %v does not say where", err)
	}
	if err := c.CheckTemplate("{% if %}"); err == nil {
		t.Error("a template that does not compile passes")
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
