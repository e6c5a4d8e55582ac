package embedded

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// ExportHF writes config.json, generation_config.json and model.safetensors
// into dir, making it, as transformers' save_pretrained names them. The
// tokenizer's and processor's files are package chat's.
func ExportHF(dir string, cfg Config, w *Weights, endOfTurn []int32) error {
	generation, err := json.MarshalIndent(generationConfig{EOS: endOfTurn, Sample: true, Temperature: 1, TopP: 1}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), cfg.JSON(), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), append(generation, '\n'), 0o644); err != nil {
		return err
	}
	return w.WriteSafetensors(filepath.Join(dir, weightsFile))
}

// generationConfig is the part of generation_config.json that engines read.
type generationConfig struct {
	EOS         []int32 `json:"eos_token_id,omitempty"`
	Sample      bool    `json:"do_sample"`
	Temperature float64 `json:"temperature"`
	TopP        float64 `json:"top_p"`
}
