// Package batch turns scored trajectories and corpus samples into what one
// optimizer step consumes.
//
// It is pure. Rows keep the ids that the engine saw; observations and prompts
// have loss mask 0. Denominators are counted over the whole batch, so that the
// loss does not depend on how it is split into micro-batches (package loss).
package batch

import (
	"xragent/rollout"
	"xragent/trainer/loss"
)

// A Row is one sequence to train on. All slices over tokens have the length of IDs.
type Row struct {
	ID        string             // trajectory or corpus id, for error reports
	IDs       []int32            // [T] token ids, image pads expanded
	LossMask  []uint8            // [T] 1 where the policy sampled (or the teacher wrote) IDs[t]
	Targets   []int32            // [T] what the loss takes for IDs[t] where LossMask is 1; nil: IDs. See [FromMarks]
	Logprobs  []float32          // [T] behaviour log-probs; 0 where LossMask is 0; nil for SFT
	Advantage float64            // 0 for SFT
	Images    []rollout.ImageUse // in order of appearance
}

// A Batch is what one optimizer step consumes.
type Batch struct {
	Rows   []Row
	Tokens int // sum of LossMask over all rows: the token-level denominator
}

// An Objective says what one optimizer step minimises, and how it goes there.
type Objective struct {
	Kind    string      // "sft" or "grpo"
	Loss    loss.Config // of grpo
	LR      float64     // of this step, after warm-up and decay
	Weight  Adam
	MaxNorm float64 // gradient clipping by global norm; 0: none

	// Temperature that the rows were sampled at: log-probs, entropy and gradient
	// are of the logits divided by it, as verl and TRL take them. 0 is 1.
	Temperature float64
}

// Adam holds AdamW's constants.
type Adam struct {
	Beta1, Beta2, Eps, Decay float64
}

// Stats is what a learner reports of one step.
type Stats struct {
	Loss      float64 `json:"loss"`
	GradNorm  float64 `json:"grad_norm"`  // before clipping
	Entropy   float64 `json:"entropy"`    // mean over loss tokens, nats
	ClipLow   float64 `json:"clip_low"`   // share of loss tokens clipped from below (A<0)
	ClipHigh  float64 `json:"clip_high"`  // share clipped from above (A>0)
	ApproxKL  float64 `json:"approx_kl"`  // mean k3 of learner against behaviour log-probs
	LogpDiff  float64 `json:"logp_diff"`  // mean |learner - behaviour| before the update
	Tokens    int     `json:"tokens"`     // loss tokens
	AllTokens int     `json:"all_tokens"` // tokens of the forward pass

	KL     float64 `json:"kl,omitempty"`     // mean estimate against the reference, where the loss has one
	Weight float64 `json:"weight,omitempty"` // mean importance weight, where the loss corrects by one
}
