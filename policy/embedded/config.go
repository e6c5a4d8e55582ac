package embedded

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Config is Hugging Face's config.json of a dense Qwen3-VL.
type Config struct {
	Architectures     []string     `json:"architectures"`
	ModelType         string       `json:"model_type"`
	DType             string       `json:"dtype,omitempty"`
	ImageTokenID      int32        `json:"image_token_id"`
	VideoTokenID      int32        `json:"video_token_id"`
	VisionStartID     int32        `json:"vision_start_token_id"`
	VisionEndID       int32        `json:"vision_end_token_id"`
	TieWordEmbeddings bool         `json:"tie_word_embeddings"`
	Text              TextConfig   `json:"text_config"`
	Vision            VisionConfig `json:"vision_config"`
}

// A TextConfig describes the decoder.
type TextConfig struct {
	ModelType             string  `json:"model_type"`
	DType                 string  `json:"dtype,omitempty"`
	VocabSize             int     `json:"vocab_size"`
	HiddenSize            int     `json:"hidden_size"`
	IntermediateSize      int     `json:"intermediate_size"`
	NumHiddenLayers       int     `json:"num_hidden_layers"`
	NumAttentionHeads     int     `json:"num_attention_heads"`
	NumKeyValueHeads      int     `json:"num_key_value_heads"`
	HeadDim               int     `json:"head_dim"`
	HiddenAct             string  `json:"hidden_act"`
	MaxPositionEmbeddings int     `json:"max_position_embeddings"`
	RMSNormEps            float64 `json:"rms_norm_eps"`
	AttentionBias         bool    `json:"attention_bias"`
	AttentionDropout      float64 `json:"attention_dropout"`
	InitializerRange      float64 `json:"initializer_range"`
	TieWordEmbeddings     *bool   `json:"tie_word_embeddings,omitempty"`

	// transformers 4 writes rope_theta and rope_scaling, transformers 5 writes
	// rope_parameters; both are read, the former is written.
	RopeTheta      float64 `json:"rope_theta,omitempty"`
	RopeScaling    *Rope   `json:"rope_scaling,omitempty"`
	RopeParameters *Rope   `json:"rope_parameters,omitempty"`
}

// A Rope describes the rotary embedding. Section gives, for time, height and
// width, how many of the head_dim/2 frequencies each turns.
type Rope struct {
	RopeType    string  `json:"rope_type"`
	Type        string  `json:"type,omitempty"` // an old spelling of rope_type
	Interleaved bool    `json:"mrope_interleaved"`
	Section     []int   `json:"mrope_section"`
	Theta       float64 `json:"rope_theta,omitempty"`
}

// A VisionConfig describes the vision tower.
type VisionConfig struct {
	ModelType              string  `json:"model_type"`
	DType                  string  `json:"dtype,omitempty"`
	Depth                  int     `json:"depth"`
	HiddenSize             int     `json:"hidden_size"`
	IntermediateSize       int     `json:"intermediate_size"`
	NumHeads               int     `json:"num_heads"`
	HiddenAct              string  `json:"hidden_act"`
	InChannels             int     `json:"in_channels"`
	PatchSize              int     `json:"patch_size"`
	TemporalPatchSize      int     `json:"temporal_patch_size"`
	SpatialMergeSize       int     `json:"spatial_merge_size"`
	OutHiddenSize          int     `json:"out_hidden_size"`
	NumPositionEmbeddings  int     `json:"num_position_embeddings"`
	DeepstackVisualIndexes []int   `json:"deepstack_visual_indexes"`
	InitializerRange       float64 `json:"initializer_range"`

	// RopeParameters is written by transformers 5 alone; the tower has one form.
	RopeParameters *VisionRope `json:"rope_parameters,omitempty"`
}

// A VisionRope describes the tower's rotary embedding.
type VisionRope struct {
	RopeType string  `json:"rope_type"`
	Theta    float64 `json:"rope_theta"`
}

// visionTheta is the base of the tower's rotary embedding.
const visionTheta = 10000

// axialRope is the only form that the tower has.
var axialRope = VisionRope{"axial", visionTheta}

// withoutEffect are the keys that transformers writes into a config.json and
// that do not change what the model computes.
var withoutEffect = map[string]bool{
	"_attn_implementation": true, "_name_or_path": true, "add_cross_attention": true,
	"bad_words_ids": true, "begin_suppress_tokens": true, "bos_token_id": true,
	"chunk_size_feed_forward": true, "cross_attention_hidden_size": true,
	"decoder_start_token_id": true, "diversity_penalty": true, "do_sample": true,
	"early_stopping": true, "encoder_no_repeat_ngram_size": true, "eos_token_id": true,
	"exponential_decay_length_penalty": true, "finetuning_task": true,
	"forced_bos_token_id": true, "forced_eos_token_id": true, "id2label": true,
	"is_decoder": true, "is_encoder_decoder": true, "label2id": true,
	"length_penalty": true, "max_length": true, "min_length": true,
	"no_repeat_ngram_size": true, "num_beam_groups": true, "num_beams": true,
	"num_return_sequences": true, "output_attentions": true, "output_hidden_states": true,
	"output_scores": true, "pad_token_id": true, "prefix": true, "problem_type": true,
	"pruned_heads": true, "remove_invalid_values": true, "repetition_penalty": true,
	"return_dict": true, "return_dict_in_generate": true, "sep_token_id": true,
	"suppress_tokens": true, "task_specific_params": true, "temperature": true,
	"tf_legacy_loss": true, "tie_encoder_decoder": true, "tokenizer_class": true,
	"top_k": true, "top_p": true, "torch_dtype": true, "torchscript": true,
	"transformers_version": true, "typical_p": true, "use_bfloat16": true, "use_cache": true,
}

// ReadConfig reads a config.json and validates it. A key that is neither known
// nor known to have no effect is an error.
func ReadConfig(data []byte) (Config, error) {
	var c Config
	cleaned, err := dropWithoutEffect(data)
	if err != nil {
		return c, fmt.Errorf("config.json: %w", err)
	}
	var kind struct {
		ModelType string `json:"model_type"`
	}
	if json.Unmarshal(cleaned, &kind) == nil && kind.ModelType != modelType { // before the keys of that type surprise
		return c, fmt.Errorf("config.json: %w", otherModel(kind.ModelType))
	}
	d := json.NewDecoder(bytes.NewReader(cleaned))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("config.json: %s (this build reads dense Qwen3-VL only)", strings.TrimPrefix(err.Error(), "json: "))
	}
	c.canonical()
	return c, c.Validate()
}

func dropWithoutEffect(data []byte) ([]byte, error) {
	var tree map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	prune(tree)
	return json.Marshal(tree)
}

func prune(tree map[string]any) {
	for key, value := range tree {
		if withoutEffect[key] {
			delete(tree, key)
		} else if sub, ok := value.(map[string]any); ok {
			prune(sub)
		}
	}
}

// canonical brings what transformers 4 and 5 spell in two ways to the one written.
func (c *Config) canonical() {
	t := &c.Text
	if t.RopeParameters != nil {
		t.RopeScaling, t.RopeParameters = t.RopeParameters, nil
	}
	if r := t.RopeScaling; r != nil {
		if r.Theta != 0 {
			t.RopeTheta, r.Theta = r.Theta, 0
		}
		if r.RopeType == "" {
			r.RopeType = r.Type
		}
		r.Type = ""
	}
	if r := c.Vision.RopeParameters; r != nil && *r == axialRope {
		c.Vision.RopeParameters = nil
	}
	if c.Vision.ModelType == "qwen3_vl_vision" { // as transformers 5 writes it
		c.Vision.ModelType = modelType
	}
	if tie := t.TieWordEmbeddings; tie != nil && *tie == c.TieWordEmbeddings {
		t.TieWordEmbeddings = nil
	}
}

// JSON returns the config.json that transformers reads.
func (c Config) JSON() []byte {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		panic(err) // plain numbers and strings always encode
	}
	return append(data, '\n')
}

// Validate reports the first setting that this package cannot compute.
func (c Config) Validate() error {
	for _, check := range []func() error{c.validateTop, c.Text.validate, c.Text.validateRope, c.Vision.validate, c.validateSeam} {
		if err := check(); err != nil {
			return fmt.Errorf("config.json: %w", err)
		}
	}
	return nil
}

// The types of the model, whose tower has the same, and of its decoder.
const (
	modelType = "qwen3_vl"
	textType  = "qwen3_vl_text"
)

func otherModel(kind string) error {
	return fmt.Errorf("model_type is %q, only %q (dense) is supported", kind, modelType)
}

func (c Config) validateTop() error {
	switch {
	case c.ModelType != modelType:
		return otherModel(c.ModelType)
	case c.Text.ModelType != "" && c.Text.ModelType != textType:
		return fmt.Errorf("text_config.model_type is %q, only %q is supported", c.Text.ModelType, textType)
	case c.Vision.ModelType != "" && c.Vision.ModelType != modelType:
		return fmt.Errorf("vision_config.model_type is %q, only %q is supported", c.Vision.ModelType, modelType)
	}
	if t := c.Text.TieWordEmbeddings; t != nil && *t != c.TieWordEmbeddings {
		return fmt.Errorf("tie_word_embeddings is %v but text_config.tie_word_embeddings is %v", c.TieWordEmbeddings, *t)
	}
	if c.ImageTokenID == c.VisionStartID || c.ImageTokenID == c.VisionEndID {
		return fmt.Errorf("image_token_id %d is also vision_start_token_id or vision_end_token_id", c.ImageTokenID)
	}
	for _, id := range []int32{c.ImageTokenID, c.VisionStartID, c.VisionEndID} {
		if id < 0 || int(id) >= c.Text.VocabSize {
			return fmt.Errorf("special token id %d lies outside the vocabulary of %d", id, c.Text.VocabSize)
		}
	}
	return nil
}

// maxSize bounds every size; no Qwen3-VL comes near it.
const maxSize = 1 << 22

// A size is a named dimension of the configuration.
type size struct {
	name string
	n    int
}

// checkSizes reports the first size that is out of range, by name.
func checkSizes(section string, sizes ...size) error {
	for _, s := range sizes {
		if s.n <= 0 || s.n > maxSize {
			return fmt.Errorf("%s.%s is %d, must lie in [1, %d]", section, s.name, s.n, maxSize)
		}
	}
	return nil
}

func (t TextConfig) validate() error {
	if err := checkSizes("text_config", size{"vocab_size", t.VocabSize}, size{"hidden_size", t.HiddenSize},
		size{"intermediate_size", t.IntermediateSize}, size{"num_hidden_layers", t.NumHiddenLayers},
		size{"num_attention_heads", t.NumAttentionHeads}, size{"num_key_value_heads", t.NumKeyValueHeads},
		size{"head_dim", t.HeadDim}, size{"max_position_embeddings", t.MaxPositionEmbeddings}); err != nil {
		return err
	}
	switch {
	case t.HiddenAct != "silu":
		return fmt.Errorf("text_config.hidden_act is %q, only \"silu\" is supported", t.HiddenAct)
	case t.AttentionBias:
		return fmt.Errorf("text_config.attention_bias is true, not supported")
	case t.AttentionDropout != 0:
		return fmt.Errorf("text_config.attention_dropout is %v, only 0 is supported", t.AttentionDropout)
	case t.NumAttentionHeads%t.NumKeyValueHeads != 0:
		return fmt.Errorf("text_config.num_attention_heads %d is no multiple of num_key_value_heads %d", t.NumAttentionHeads, t.NumKeyValueHeads)
	case t.HeadDim%2 != 0:
		return fmt.Errorf("text_config.head_dim is %d, must be even", t.HeadDim)
	case t.RMSNormEps <= 0:
		return fmt.Errorf("text_config.rms_norm_eps is %v, must be positive", t.RMSNormEps)
	}
	return nil
}

func (t TextConfig) validateRope() error {
	r := t.RopeScaling
	switch {
	case t.RopeTheta <= 0:
		return fmt.Errorf("text_config.rope_theta is %v, must be positive", t.RopeTheta)
	case r == nil:
		return fmt.Errorf("text_config.rope_scaling is missing; its mrope_section is needed")
	case r.RopeType != "default":
		return fmt.Errorf("text_config.rope_scaling.rope_type is %q, only \"default\" is supported", r.RopeType)
	case !r.Interleaved:
		return fmt.Errorf("text_config.rope_scaling.mrope_interleaved is false, only the interleaved layout is supported")
	case len(r.Section) != 3:
		return fmt.Errorf("text_config.rope_scaling.mrope_section has %d entries, want 3", len(r.Section))
	}
	for axis := 1; axis < 3; axis++ {
		if n := r.Section[axis]; n < 0 || n > t.HeadDim || (n > 0 && 3*(n-1)+axis >= t.HeadDim/2) {
			return fmt.Errorf("text_config.rope_scaling.mrope_section %v does not fit head_dim/2 = %d", r.Section, t.HeadDim/2)
		}
	}
	return nil
}

func (v VisionConfig) validate() error {
	if err := checkSizes("vision_config", size{"depth", v.Depth}, size{"hidden_size", v.HiddenSize},
		size{"intermediate_size", v.IntermediateSize}, size{"num_heads", v.NumHeads},
		size{"in_channels", v.InChannels}, size{"patch_size", v.PatchSize},
		size{"temporal_patch_size", v.TemporalPatchSize}, size{"spatial_merge_size", v.SpatialMergeSize},
		size{"out_hidden_size", v.OutHiddenSize}, size{"num_position_embeddings", v.NumPositionEmbeddings}); err != nil {
		return err
	}
	switch side := v.gridSide(); {
	case v.RopeParameters != nil && *v.RopeParameters != axialRope:
		return fmt.Errorf("vision_config.rope_parameters is %+v, only axial with theta %d is supported", *v.RopeParameters, visionTheta)
	case v.HiddenAct != "gelu_pytorch_tanh":
		return fmt.Errorf("vision_config.hidden_act is %q, only \"gelu_pytorch_tanh\" is supported", v.HiddenAct)
	case v.HiddenSize%(4*v.NumHeads) != 0:
		return fmt.Errorf("vision_config.hidden_size %d is no multiple of 4 × num_heads %d", v.HiddenSize, v.NumHeads)
	case side*side != v.NumPositionEmbeddings:
		return fmt.Errorf("vision_config.num_position_embeddings %d is no square", v.NumPositionEmbeddings)
	case !slices.IsSorted(v.DeepstackVisualIndexes):
		return fmt.Errorf("vision_config.deepstack_visual_indexes %v is not ascending", v.DeepstackVisualIndexes)
	}
	for _, i := range v.DeepstackVisualIndexes {
		if i < 0 || i >= v.Depth {
			return fmt.Errorf("vision_config.deepstack_visual_indexes has %d, but depth is %d", i, v.Depth)
		}
	}
	return nil
}

func (c Config) validateSeam() error {
	if c.Vision.OutHiddenSize != c.Text.HiddenSize {
		return fmt.Errorf("vision_config.out_hidden_size is %d but text_config.hidden_size is %d", c.Vision.OutHiddenSize, c.Text.HiddenSize)
	}
	if n := len(c.Vision.DeepstackVisualIndexes); n > c.Text.NumHiddenLayers {
		return fmt.Errorf("vision_config.deepstack_visual_indexes has %d entries, more than the %d text layers", n, c.Text.NumHiddenLayers)
	}
	return nil
}

// gridSide returns the side of the square grid of learned positions.
func (v VisionConfig) gridSide() int {
	return int(math.Sqrt(float64(v.NumPositionEmbeddings)))
}

// PatchDim returns the length of one flattened patch: channels, time, height, width.
func (v VisionConfig) PatchDim() int {
	return v.InChannels * v.TemporalPatchSize * v.PatchSize * v.PatchSize
}

// Small returns the configuration that this project trains from nothing: about
// two million parameters for a vocabulary of 2,048. The vision tokens stand at
// the end of the vocabulary; a caller with a tokenizer sets its ids instead.
func Small(vocab int) Config {
	return Config{
		VisionStartID: int32(vocab - 4), VisionEndID: int32(vocab - 3),
		ImageTokenID: int32(vocab - 2), VideoTokenID: int32(vocab - 1),
		Architectures:     []string{"Qwen3VLForConditionalGeneration"},
		ModelType:         "qwen3_vl",
		DType:             "float32",
		TieWordEmbeddings: true,
		Text: TextConfig{
			ModelType: "qwen3_vl_text", DType: "float32", VocabSize: vocab,
			HiddenSize: 128, IntermediateSize: 384, NumHiddenLayers: 4,
			NumAttentionHeads: 4, NumKeyValueHeads: 2, HeadDim: 32, HiddenAct: "silu",
			MaxPositionEmbeddings: 4096, RMSNormEps: 1e-6, InitializerRange: 0.02, RopeTheta: 10000,
			RopeScaling: &Rope{RopeType: "default", Interleaved: true, Section: []int{6, 5, 5}},
		},
		Vision: VisionConfig{
			ModelType: "qwen3_vl", DType: "float32", Depth: 3, HiddenSize: 128, IntermediateSize: 512,
			NumHeads: 4, HiddenAct: "gelu_pytorch_tanh", InChannels: 3, PatchSize: 16, TemporalPatchSize: 2,
			SpatialMergeSize: 2, OutHiddenSize: 128, NumPositionEmbeddings: 64,
			DeepstackVisualIndexes: []int{1, 2}, InitializerRange: 0.02,
		},
	}
}
