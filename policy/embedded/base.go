package embedded

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

//go:embed base/model.safetensors
var baseWeights []byte

//go:embed base/record.json
var baseRecord []byte

// A BaseRecord says how the built-in base was made.
type BaseRecord struct {
	Command   string      `json:"command"`   // that makes it again
	Generator string      `json:"generator"` // hash of the phantom generator that its films came from
	Tokenizer string      `json:"tokenizer"` // sha256 of tokenizer.json
	Kernels   string      `json:"kernels"`
	Phases    []BasePhase `json:"phases"`
	Data      string      `json:"data"`
	Licence   string      `json:"licence"`
	SHA256    string      `json:"sha256"` // of the tensors, as Weights.Digest has it
}

// A BasePhase is one part of the base's pre-training.
type BasePhase struct {
	Name  string  `json:"name"`
	Steps int     `json:"steps"`
	Loss  float64 `json:"validation_loss"` // nats a token
}

// Base returns the built-in pre-trained weights of [Small] and their record: a
// policy that can copy from its context and name what a coarse phantom shows,
// and that has seen no question. They are stored as bfloat16. It refuses a
// configuration or a tokenizer other than the one they were made for.
func Base(cfg Config, tokenizer string) (*Weights, BaseRecord, error) {
	var r BaseRecord
	if err := json.Unmarshal(baseRecord, &r); err != nil {
		panic("embedded: the base's record is unreadable: " + err.Error()) // it is part of the program
	}
	if r.Tokenizer != tokenizer {
		return nil, r, fmt.Errorf("the built-in base was made for tokenizer %.12s, this run has %.12s: pre-train another (policy.embedded.base: none and the stage pretrain)", r.Tokenizer, tokenizer)
	}
	w, err := ReadWeights(cfg, "the built-in base", baseWeights)
	if err != nil {
		return nil, r, err
	}
	if got := w.Digest(); got != r.SHA256 {
		return nil, r, fmt.Errorf("the built-in base has tensors %.12s, its record says %.12s: make it again (%s)", got, r.SHA256, r.Command)
	}
	return w, r, nil
}
