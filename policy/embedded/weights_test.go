package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSafetensorsRoundTrip(t *testing.T) {
	w := Init(tiny(), 3)
	data := w.Safetensors()
	back, err := ReadWeights(w.cfg, "test", data)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.Safetensors(), data) || back.Digest() != w.Digest() {
		t.Error("weights changed by writing and reading")
	}
	if bytes.Equal(Init(tiny(), 4).Safetensors(), data) {
		t.Error("the seed has no effect")
	}
	if !bytes.Equal(Init(tiny(), 3).Safetensors(), data) {
		t.Error("equal seeds give other weights")
	}
	if header := binary.LittleEndian.Uint64(data); header%8 != 0 {
		t.Errorf("header of %d bytes is not aligned", header)
	}
}

// TestReadWeightsNames holds that what does not fit is named.
func TestReadWeightsNames(t *testing.T) {
	cfg := tiny()
	w := Init(cfg, 1)
	with := func(change func(ts []Tensor) []Tensor) []byte {
		return encodeSafetensors(change(slices.Clone(w.tensors)))
	}
	for want, data := range map[string][]byte{
		"missing model.visual.patch_embed.proj.weight":                 with(func(ts []Tensor) []Tensor { return ts[1:] }),
		"unexpected lm_head.weight":                                    with(func(ts []Tensor) []Tensor { return append(ts, Tensor{headName, []int{1}, []float32{1}}) }),
		"model.language_model.norm.weight has shape [1 32], want [32]": with(func(ts []Tensor) []Tensor { ts[len(ts)-1].Shape = []int{1, 32}; return ts }),
		"truncated":          w.Safetensors()[:10000],
		"header":             w.Safetensors()[:100],
		"file of 3 bytes":    {1, 2, 3},
		"tensor x: dtype I8": safetensors(`{"x":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"out of range":       safetensors(`{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,1]}}`, 1),
	} {
		if _, err := ReadWeights(cfg, "file", data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func safetensors(header string, body int) []byte {
	data := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(data, header...), make([]byte, body)...)
}

// TestReadBF16 reads numbers that bfloat16 holds exactly.
func TestReadBF16(t *testing.T) {
	header := `{"x":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}}`
	data := append(safetensors(header, 0), 0x80, 0x3f, 0x00, 0xc0, 0x20, 0x3e)
	ts, err := decodeSafetensors(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := ts["x"].Data; !slices.Equal(got, []float32{1, -2, 0.15625}) {
		t.Errorf("got %v", got)
	}
}

// TestTiedHead accepts a head that equals the tied embedding, as some writers
// store it, and no other.
func TestTiedHead(t *testing.T) {
	w := Init(tiny(), 1)
	embedding := w.tensors[w.index[textPrefix+"embed_tokens.weight"]]
	head := Tensor{headName, embedding.Shape, slices.Clone(embedding.Data)}
	if _, err := ReadWeights(w.cfg, "file", encodeSafetensors(append(slices.Clone(w.tensors), head))); err != nil {
		t.Error(err)
	}
	head.Data[0]++
	if _, err := ReadWeights(w.cfg, "file", encodeSafetensors(append(slices.Clone(w.tensors), head))); err == nil {
		t.Error("an untied head was dropped in silence")
	}
}

func TestConfigRoundTrip(t *testing.T) {
	c := Small(2048)
	back, err := ReadConfig(c.JSON())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.JSON(), c.JSON()) {
		t.Errorf("config changed by writing and reading:\n%s", back.JSON())
	}
	if n := NewWeights(c).Len(); n < 2e6 || n > 3e6 {
		t.Errorf("the small model has %d parameters", n)
	}
}

// TestConfigRefuses holds that what is not supported is refused by name.
func TestConfigRefuses(t *testing.T) {
	for key, value := range map[string]any{
		"model_type":                                 "qwen3_vl_moe",
		"surprise":                                   1,
		"text_config.num_experts":                    8,
		"text_config.hidden_act":                     "gelu",
		"text_config.attention_bias":                 true,
		"text_config.rope_scaling.rope_type":         "yarn",
		"text_config.rope_scaling.mrope_interleaved": false,
		"text_config.rope_scaling.mrope_section":     []int{6, 5, 9},
		"text_config.rope_theta":                     0,
		"text_config.num_attention_heads":            3,
		"text_config.tie_word_embeddings":            false,
		"text_config.hidden_size":                    64,
		"text_config.num_hidden_layers":              0,
		"vision_config.num_position_embeddings":      60,
		"vision_config.deepstack_visual_indexes":     []int{3},
		"vision_config.hidden_act":                   "relu",
		"vision_config.num_heads":                    0,
		"image_token_id":                             5000,
	} {
		path := strings.Split(key, ".")
		last := path[len(path)-1]
		_, err := ReadConfig(changed(t, Small(2048).JSON(), path, value))
		if err == nil || !strings.Contains(err.Error(), last) && !strings.Contains(err.Error(), "5000") {
			t.Errorf("%s = %v: %v", key, value, err)
		}
	}
}

// changed returns JSON with the value at path replaced.
func changed(t *testing.T, data []byte, path []string, value any) []byte {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	at := tree
	for _, key := range path[:len(path)-1] {
		at = at[key].(map[string]any)
	}
	at[path[len(path)-1]] = value
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func FuzzReadConfig(f *testing.F) {
	f.Add(Small(64).JSON())
	f.Add([]byte(`{"text_config":{"rope_scaling":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := ReadConfig(data); err == nil {
			if _, err := ReadConfig(c.JSON()); err != nil {
				t.Errorf("what was read once is not read again: %v", err)
			}
		}
	})
}

func FuzzSafetensors(f *testing.F) {
	f.Add(encodeSafetensors([]Tensor{{"a", []int{2, 1}, []float32{1, 2}}, {"b", []int{1}, []float32{3}}}))
	f.Add(safetensors(`{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}`, 4))
	f.Fuzz(func(t *testing.T, data []byte) {
		ts, err := decodeSafetensors(data)
		if err != nil {
			return
		}
		for _, x := range ts {
			if n, err := countElements(x.Shape); err != nil || int(n) != len(x.Data) {
				t.Errorf("tensor %s of shape %v has %d elements", x.Name, x.Shape, len(x.Data))
			}
		}
	})
}

func TestPositionsRefuse(t *testing.T) {
	c := tiny()
	pad := c.ImageTokenID
	for name, x := range map[string]struct {
		ids   []int32
		grids [][3]int
	}{
		"no image":  {[]int32{1, pad}, nil},
		"no pads":   {[]int32{1, 2}, [][3]int{{1, 2, 2}}},
		"few pads":  {[]int32{1, pad, 2}, [][3]int{{1, 2, 4}}},
		"cut short": {[]int32{1, pad}, [][3]int{{1, 2, 4}}},
		"many pads": {[]int32{1, pad, pad}, [][3]int{{1, 2, 2}}},
		"odd grid":  {[]int32{1, pad}, [][3]int{{1, 2, 3}}},
	} {
		if _, _, err := c.Positions(x.ids, x.grids); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestExportHF(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "export")
	w := Init(tiny(), 1)
	if err := ExportHF(dir, w.cfg, w, []int32{7}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := ReadConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ReadSafetensors(filepath.Join(dir, "model.safetensors"), cfg)
	if err != nil || back.Digest() != w.Digest() {
		t.Errorf("the export reads back as other weights: %v", err)
	}
	if generation, err := os.ReadFile(filepath.Join(dir, "generation_config.json")); err != nil || !bytes.Contains(generation, []byte(`"eos_token_id"`)) {
		t.Errorf("generation_config.json: %s, %v", generation, err)
	}
}

// What is stored as bfloat16 reads back as the nearest one, and then is exact.
func TestBFloat16RoundTrip(t *testing.T) {
	cfg := Small(300)
	w := Init(cfg, 3)
	back, err := ReadWeights(cfg, "bf16", w.SafetensorsBF16())
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range w.slab {
		if got := back.slab[i]; math.Abs(float64(got-x)) > math.Abs(float64(x))/256 {
			t.Fatalf("number %d is %v, was %v: further than half a unit of 8 bits", i, got, x)
		}
	}
	again, err := ReadWeights(cfg, "bf16", back.SafetensorsBF16())
	if err != nil || again.Digest() != back.Digest() {
		t.Errorf("a second round changed the weights (%v)", err)
	}
}

// Weights with another's vision tower have that and nothing else of the other.
func TestTakeVision(t *testing.T) {
	cfg := tiny()
	w, other, before := Init(cfg, 1), Init(cfg, 2), Init(cfg, 1)
	if err := w.TakeVision(other); err != nil {
		t.Fatal(err)
	}
	for i, x := range w.Tensors() {
		want := before
		if strings.HasPrefix(x.Name, visualPrefix) {
			want = other
		}
		if !slices.Equal(x.Data, want.Tensors()[i].Data) {
			t.Errorf("%s is not the one expected", x.Name)
		}
	}
	cfg.Vision.Depth++
	if err := w.TakeVision(Init(cfg, 1)); err == nil {
		t.Error("a tower of another depth was taken")
	}
}
