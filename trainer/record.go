package trainer

import "xragent/trainer/batch"

// A StepRecord is one line of steps.jsonl: what one optimizer step saw and did.
// Equal runs write equal bytes; wall-clock times stand in [StepTimes].
type StepRecord struct {
	Stage string  `json:"stage"` // "sft" or "grpo"
	Step  int     `json:"step"`  // 1-based
	Total int     `json:"total"` // steps asked for
	LR    float64 `json:"lr"`

	Version int64 `json:"version,omitempty"` // policy version that sampled the step (grpo)

	// Of the step's trajectories (grpo).
	Trajectories int          `json:"trajectories,omitempty"`
	Reward       float64      `json:"reward,omitempty"` // mean total
	RewardStd    float64      `json:"reward_std,omitempty"`
	Format       float64      `json:"format,omitempty"` // means of the terms, each by itself
	Accuracy     float64      `json:"accuracy,omitempty"`
	CXR          float64      `json:"cxr,omitempty"`
	ToolCalls    float64      `json:"tool_calls,omitempty"` // mean R_tool
	Fabricated   int          `json:"fabricated,omitempty"` // numbers claimed for withheld measurements
	Groups       GroupCounts  `json:"groups,omitzero"`
	MixedRecent  float64      `json:"mixed_recent,omitempty"` // share of mixed groups over the last ten steps
	Starved      bool         `json:"starved,omitempty"`      // that share is below 0.2, from step 5 on
	Calls        []CallCount  `json:"calls,omitempty"`        // sorted by tool, status
	Gate         []NamedCount `json:"gate,omitempty"`         // sorted by reason; "admitted" when nothing was withheld
	Lengths      Lengths      `json:"lengths,omitzero"`
	Truncated    float64      `json:"truncated,omitempty"`  // share of trajectories with a turn cut by length
	TopAnswer    float64      `json:"top_answer,omitempty"` // share of the most frequent answer, by kind; kinds with one group left out
	TopText      float64      `json:"top_text,omitempty"`   // share of the most frequent reasoning, numbers apart
	Alarms       []string     `json:"alarms,omitempty"`     // of reward hacking, sorted; see package trainer
	Spike        float64      `json:"spike,omitempty"`      // bound that the gradient, a spike, exceeded

	Templates      []TemplateCount `json:"templates,omitempty"`       // under a curriculum; sorted by name
	PositiveWeight float64         `json:"positive_weight,omitempty"` // of positive advantages, under entropy control
	Permuted       *Permutation    `json:"permuted,omitempty"`        // how rewards were dealt out anew, where they were

	// Of the optimizer step. Stats.Loss is the objective's value.
	Stats      batch.Stats `json:"stats"`
	Validation *float64    `json:"validation,omitempty"` // mean loss, where it was measured after this step
	Checkpoint bool        `json:"checkpoint,omitempty"`
	Skipped    bool        `json:"skipped,omitempty"` // no group had a signal: the weights stayed
}

// GroupCounts counts groups by outcome.
type GroupCounts struct {
	Mixed    int `json:"mixed"` // different accuracies
	AllRight int `json:"all_right"`
	AllWrong int `json:"all_wrong"`
	Tied     int `json:"tied"` // all rewards equal: no advantage, whatever the accuracies
	Short    int `json:"short,omitempty"`
	Dropped  int `json:"dropped,omitempty"`
	LeftOut  int `json:"left_out,omitempty"` // scored, but not trained on: no variance (dynamic sampling)
}

// A CallCount counts tool calls by tool and status.
type CallCount struct {
	Tool   string `json:"tool"`
	Status string `json:"status"`
	N      int    `json:"n"`
}

// A NamedCount counts anything by reason.
type NamedCount struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

// Lengths holds mean token counts a trajectory.
type Lengths struct {
	Prompt      float64 `json:"prompt"`      // turn 1's prompt
	Triage      float64 `json:"triage"`      // turn 1's output
	Observation float64 `json:"observation"` // what was appended for turn 2
	Integration float64 `json:"integration"` // turn 2's output
}

// StepTimes is the sidecar line of a step: what may differ between equal runs.
type StepTimes struct {
	Stage        string             `json:"stage"`
	Step         int                `json:"step"`
	Time         string             `json:"time"`    // when the step ended, RFC 3339
	Seconds      map[string]float64 `json:"seconds"` // by phase: rollout, reward, train, publish, checkpoint, total
	TokensPerSec float64            `json:"tokens_per_second"`
	Generated    int                `json:"generated"` // sampled tokens
	Redelivered  int                `json:"redelivered"`
	Duplicates   int                `json:"duplicates"`
	Rejected     []NamedCount       `json:"rejected,omitempty"` // by reason
	QueueDepth   int                `json:"queue_depth"`
}
