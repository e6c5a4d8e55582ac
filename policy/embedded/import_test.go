package embedded

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// exported writes w as a Hugging Face folder.
func exported(t *testing.T, w *Weights) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "export")
	if err := ExportHF(dir, w.cfg, w, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// shardOut replaces a folder's weights by n shards of data(tensors) and an index.
func shardOut(t *testing.T, dir string, w *Weights, n int, data func([]Tensor) []byte) map[string]string {
	t.Helper()
	where := map[string]string{}
	for i := range n {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n)
		part := w.tensors[i*len(w.tensors)/n : (i+1)*len(w.tensors)/n]
		write(t, dir, name, data(part))
		for _, x := range part {
			where[x.Name] = name
		}
	}
	writeIndex(t, dir, where)
	if err := os.Remove(filepath.Join(dir, weightsFile)); err != nil {
		t.Fatal(err)
	}
	return where
}

func writeIndex(t *testing.T, dir string, where map[string]string) {
	t.Helper()
	index, err := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 1}, "weight_map": where})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, indexFile, index)
}

// TestImportExport holds that export → import → export changes no byte, whole
// or in shards, with a tied head or its own.
func TestImportExport(t *testing.T) {
	untied := tiny()
	untied.TieWordEmbeddings = false
	for _, cfg := range []Config{tiny(), untied} {
		w := Init(cfg, 5)
		for shards := range 4 {
			dir := exported(t, w)
			want, err := os.ReadFile(filepath.Join(dir, weightsFile))
			if err != nil {
				t.Fatal(err)
			}
			if shards > 0 {
				shardOut(t, dir, w, shards, encodeSafetensors)
			}
			back, err := ImportHF(dir)
			if err != nil {
				t.Fatal(err)
			}
			again := exported(t, back)
			for name, want := range map[string][]byte{weightsFile: want, "config.json": cfg.JSON()} {
				if got, err := os.ReadFile(filepath.Join(again, name)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d shards, tied %v: %s has other bytes after import and export (%v)", shards, cfg.TieWordEmbeddings, name, err)
				}
			}
		}
	}
}

// TestImportBF16 holds that bfloat16 comes in exactly and goes out as float32.
func TestImportBF16(t *testing.T) {
	w := Init(tiny(), 5)
	dir := exported(t, w)
	cfg := w.cfg
	cfg.DType, cfg.Text.DType, cfg.Vision.DType = "bfloat16", "bfloat16", "bfloat16"
	write(t, dir, "config.json", cfg.JSON())
	write(t, dir, weightsFile, w.SafetensorsBF16())
	got, err := ImportHF(dir)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ReadWeights(w.cfg, "bf16", w.SafetensorsBF16())
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest() != want.Digest() || !bytes.Equal(got.cfg.JSON(), w.cfg.JSON()) {
		t.Errorf("bfloat16 weights came in as others, or as %s", got.cfg.DType)
	}
}

// TestImportGolden holds that what transformers saved comes in as it is, under
// either spelling of the configuration.
func TestImportGolden(t *testing.T) {
	for _, label := range []string{"tied", "untied"} {
		want, _ := readGolden(t, label)
		got, err := ImportHF(filepath.Join("testdata", "golden", label))
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest() != want.Digest() {
			t.Errorf("%s came in as other weights", label)
		}
		back, err := ReadConfig(got.cfg.JSON())
		if err != nil || !bytes.Equal(back.JSON(), got.cfg.JSON()) {
			t.Errorf("%s: the configuration changes when it is written and read: %v", label, err)
		}
	}
}

func TestImportRefuses(t *testing.T) {
	w := Init(tiny(), 5)
	last := w.tensors[len(w.tensors)-1]
	with := func(change func([]Tensor) []Tensor) []byte { return encodeSafetensors(change(slices.Clone(w.tensors))) }
	nan := slices.Clone(last.Data)
	nan[3] /= 0
	config := func(path string, value any) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			write(t, dir, "config.json", changed(t, w.cfg.JSON(), strings.Split(path, "."), value))
		}
	}
	weights := func(data []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) { write(t, dir, weightsFile, data) }
	}
	index := func(change func(where map[string]string)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			where := shardOut(t, dir, w, 2, encodeSafetensors)
			change(where)
			writeIndex(t, dir, where)
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  string
	}{
		"no config":   {remove("config.json"), "config.json"},
		"no weights":  {remove(weightsFile), "neither model.safetensors nor model.safetensors.index.json"},
		"pickle only": {func(t *testing.T, dir string) { remove(weightsFile)(t, dir); write(t, dir, "pytorch_model.bin", nil) }, "only safetensors is read"},
		"missing":     {weights(with(func(ts []Tensor) []Tensor { return ts[:len(ts)-1] })), "missing " + last.Name},
		"extra": {weights(with(func(ts []Tensor) []Tensor { return append(ts, Tensor{"model.surprise", []int{1}, []float32{1}}) })),
			"unexpected model.surprise"},
		"mis-shaped": {weights(with(func(ts []Tensor) []Tensor { ts[len(ts)-1].Shape = []int{1, 32}; return ts })), "has shape [1 32], want [32]"},
		"not finite": {weights(with(func(ts []Tensor) []Tensor { ts[len(ts)-1].Data = nan; return ts })), last.Name + " holds +Inf"},
		"float16":    {weights(bytes.Replace(w.SafetensorsBF16(), []byte(`"BF16"`), []byte(`"F16" `), 1)), "dtype F16"},
		"truncated":  {weights(w.Safetensors()[:20000]), "truncated"},
		"tied head": {weights(with(func(ts []Tensor) []Tensor { return append(ts, Tensor{headName, []int{1}, []float32{1}}) })),
			"differs from the embedding"},
		"mixture of experts":  {config("model_type", "qwen3_vl_moe"), `model_type is "qwen3_vl_moe"`},
		"experts":             {config("text_config.num_experts", 8), `"num_experts"`},
		"another video tower": {config("vision_config.tokens_per_second", 2), `"tokens_per_second"`},
		"another rope":        {config("text_config.rope_scaling.rope_type", "yarn"), `rope_type is "yarn"`},
		"another decoder":     {config("text_config.model_type", "qwen3"), `text_config.model_type is "qwen3"`},
		"another shape":       {config("text_config.intermediate_size", 7), "mlp.gate_proj.weight has shape"},
		"index elsewhere":     {index(func(where map[string]string) { where["x"] = "../x.safetensors" }), "is no file of the folder"},
		"index too long":      {index(func(where map[string]string) { where["x"] = where[last.Name] }), "lacks x"},
		"index too short":     {index(func(where map[string]string) { delete(where, last.Name) }), "which the index does not name"},
		"index wrong":         {index(func(where map[string]string) { where[last.Name] = where[w.tensors[0].Name] }), "which the index puts into"},
		"shard missing": {func(t *testing.T, dir string) {
			where := shardOut(t, dir, w, 2, encodeSafetensors)
			remove(where[last.Name])(t, dir)
		}, "model-00002-of-00002.safetensors"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := exported(t, w)
			c.spoil(t, dir)
			if got, err := ImportHF(dir); err == nil || got != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v (weights %v), want one with %q", err, got != nil, c.want)
			}
		})
	}
}

// The published 4B configuration, in the spelling of its config.json.
const published = `{
 "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
 "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645,
  "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
  "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32, "num_hidden_layers": 36,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20],
  "rope_type": "default"}, "rope_theta": 5000000, "tie_word_embeddings": true, "use_cache": true, "vocab_size": 151936},
 "tie_word_embeddings": true, "transformers_version": "4.57.0.dev0", "video_token_id": 151656,
 "vision_config": {"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024,
  "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "qwen3_vl", "num_heads": 16,
  "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
 "vision_end_token_id": 151653, "vision_start_token_id": 151652}`

// TestPublishedConfig holds that a published configuration is read, and what
// its tensors amount to: 4.4 billion parameters.
func TestPublishedConfig(t *testing.T) {
	cfg, err := ReadConfig([]byte(published))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, x := range layout(cfg) {
		n += elements(x.Shape)
	}
	if n < 4_400_000_000 || n > 4_500_000_000 {
		t.Errorf("%d parameters", n)
	}
}
