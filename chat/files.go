package chat

import (
	"encoding/json"
	"fmt"
)

// A File is one file of an export, by name.
type File struct {
	Name string
	Data []byte
}

// Files returns what makes transformers' AutoTokenizer and AutoProcessor, and
// with them vLLM, do what c and p do: the tokenizer, its configuration, the
// chat template, and the image processor's configuration.
func (c *Codec) Files(p Processor) []File {
	return []File{
		{"tokenizer.json", c.json},
		{"tokenizer_config.json", indented(c.tokenizerConfig())},
		{"special_tokens_map.json", indented(map[string]any{
			"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": c.controlTokens()})},
		{"added_tokens.json", indented(c.addedIDs())},
		{"chat_template.jinja", []byte(Template)},
		{"preprocessor_config.json", indented(p.config("Qwen2VLImageProcessorFast", nil))},
		{"video_preprocessor_config.json", indented(p.config("Qwen3VLVideoProcessor", map[string]any{
			"fps": 2, "min_frames": 4, "max_frames": 768, "do_sample_frames": true}))},
	}
}

func (c *Codec) tokenizerConfig() map[string]any {
	decoder := map[string]any{}
	for _, a := range c.addedFiles() {
		decoder[fmt.Sprint(a.ID)] = map[string]any{"content": a.Content, "special": a.Special,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false}
	}
	return map[string]any{
		"tokenizer_class": "Qwen2Tokenizer", "processor_class": "Qwen3VLProcessor",
		"added_tokens_decoder": decoder, "additional_special_tokens": c.controlTokens(),
		"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": nil, "unk_token": nil,
		"add_bos_token": false, "add_prefix_space": false, "split_special_tokens": false,
		"clean_up_tokenization_spaces": false, "errors": "replace", "model_max_length": 262144,
	}
}

func (p Processor) config(class string, more map[string]any) map[string]any {
	half := []float64{0.5, 0.5, 0.5}
	kind := "image_processor_type"
	if more != nil {
		kind = "video_processor_type"
	}
	config := map[string]any{
		kind: class, "processor_class": "Qwen3VLProcessor",
		"patch_size": p.Patch, "merge_size": p.Merge, "temporal_patch_size": p.Temporal,
		"size":      map[string]any{"shortest_edge": p.MinPixels, "longest_edge": p.MaxPixels},
		"do_resize": true, "resample": 3, "do_rescale": true, "rescale_factor": 1.0 / 255,
		"do_normalize": true, "image_mean": half, "image_std": half, "do_convert_rgb": true,
	}
	for key, value := range more {
		config[key] = value
	}
	return config
}

// addedFiles reads the added tokens back from the tokenizer.json.
func (c *Codec) addedFiles() []addedFile {
	var f tokenizerFile
	if err := json.Unmarshal(c.json, &f); err != nil {
		panic(fmt.Sprintf("chat: tokenizer.json read before: %v", err))
	}
	return f.AddedTokens
}

func (c *Codec) addedIDs() map[string]int32 {
	ids := map[string]int32{}
	for _, a := range c.addedFiles() {
		ids[a.Content] = a.ID
	}
	return ids
}

func (c *Codec) controlTokens() []string {
	var tokens []string
	for _, a := range c.addedFiles() {
		if a.Special {
			tokens = append(tokens, a.Content)
		}
	}
	return tokens
}

func indented(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return append(data, '\n')
}
