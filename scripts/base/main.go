// Command base turns the pre-trained checkpoint of a run into the program's
// built-in base: policy/embedded/base/model.safetensors and its record.
//
//	bin/xragent run configs/base.yaml && go run ./scripts/base runs/base
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"xragent/chat"
	"xragent/dataset/phantom"
	"xragent/internal/blobs"
	"xragent/internal/simd"
	"xragent/policy/embedded"
	"xragent/trainer"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "base: want the folder of a run of configs/base.yaml")
		os.Exit(2)
	}
	if err := write(os.Args[1], "policy/embedded/base"); err != nil {
		fmt.Fprintln(os.Stderr, "base:", err)
		os.Exit(1)
	}
}

var phases = []string{"pretrain-repeat", "pretrain-lookup", "pretrain-cells", "pretrain-see"}

func write(run, out string) error {
	codec, err := chat.New(nil)
	if err != nil {
		return err
	}
	record := embedded.BaseRecord{
		Command:   "bin/xragent run configs/base.yaml && go run ./scripts/base runs/base",
		Generator: phantom.Hash(), Tokenizer: blobs.Digest(codec.JSON()), Kernels: simd.Kernels(),
		Data:    "synthetic only: random ids, look-ups in the protocol's form, and what films, crops and cells show of phantoms of seeds that no shipped run uses",
		Licence: "Apache-2.0",
	}
	var last trainer.Checkpoint
	for _, name := range phases {
		if last, err = trainer.BestCheckpoint(filepath.Join(run, name)); err != nil {
			return err
		}
		record.Phases = append(record.Phases, embedded.BasePhase{Name: name, Steps: last.Step, Loss: -last.Score})
	}
	cfg := embedded.Small(codec.Vocab())
	cfg.ImageTokenID = codec.ImagePad()
	cfg.VideoTokenID, _ = codec.ID("<|video_pad|>")
	cfg.VisionStartID, cfg.VisionEndID = codec.VisionMarks()
	w, err := embedded.ReadSafetensors(filepath.Join(last.LearnerDir(), "model.safetensors"), cfg)
	if err != nil {
		return err
	}
	data := w.SafetensorsBF16()
	rounded, err := embedded.ReadWeights(cfg, "base", data)
	if err != nil {
		return err
	}
	record.SHA256 = rounded.Digest()
	text, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "record.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "model.safetensors"), data, 0o644)
}
