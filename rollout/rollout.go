// Package rollout holds the vocabulary of training by rollouts: tasks, turns,
// trajectories, groups, policy versions, measurement bundles.
//
// It does nothing but name things, check them, and read and write the two-turn
// protocol's text ([ParseTriage], [ParseIntegration]). One rule surprises:
// a [Trajectory] keeps token ids as the engine saw them, and nothing downstream
// ever tokenises text again for training.
package rollout

import (
	"encoding/json"
	"fmt"

	"xragent/dataset"
)

// A PolicyVersion counts the optimizer steps behind the sampling weights; 0 is
// the initial policy of a stage.
type PolicyVersion int64

// A TaskID names one attempt at one trajectory. Its text form
// run/step/group/index/attempt is the identity used on the wire and on disk.
type TaskID struct {
	Run     string `json:"run"`
	Step    int    `json:"step"`
	Group   int    `json:"group"` // unique within the run
	Index   int    `json:"index"` // within the group
	Attempt int    `json:"attempt"`
}

func (id TaskID) String() string {
	return fmt.Sprintf("%s/%d/%d/%d/%d", id.Run, id.Step, id.Group, id.Index, id.Attempt)
}

// Sampling holds the decoding parameters of a task.
type Sampling struct {
	Temperature float64 `json:"temperature"` // 0 decodes greedily
	TopP        float64 `json:"top_p"`       // 1 keeps every token
	MaxTokens   int     `json:"max_tokens"`  // a turn
}

// A Task is one trajectory to attempt. It carries the prompt, never the answer.
type Task struct {
	ID       TaskID         `json:"id"`
	Sample   string         `json:"sample"` // dataset.Sample.ID
	Prompt   dataset.Prompt `json:"prompt"`
	Version  PolicyVersion  `json:"version"` // the policy that must sample it
	Seed     uint64         `json:"seed"`    // of this trajectory alone; the same for every attempt
	Sampling Sampling       `json:"sampling"`
	Tools    bool           `json:"tools"` // false: turn 1 may call nothing
	Gate     GateMode       `json:"gate"`
}

// GateMode says which measurements turn 2 is shown.
type GateMode string

// The gate modes.
const (
	GateOn    GateMode = "on"    // only what view_check and mask quality admit
	GateOff   GateMode = "off"   // everything that could be computed (ablation)
	GateEmpty GateMode = "empty" // nothing (ablation)
)

// Finish says why a turn's generation ended.
type Finish string

// The finish reasons, as inference engines name them.
const (
	FinishStop   Finish = "stop"   // an end-of-turn token was sampled
	FinishLength Finish = "length" // MaxTokens were sampled without one
)

// A Turn is what one generation saw and produced.
type Turn struct {
	PromptIDs []int32       `json:"prompt_ids"` // as the engine saw them, image pads expanded
	OutputIDs []int32       `json:"output_ids"`
	Logprobs  []float32     `json:"logprobs"` // of OutputIDs under the sampling policy at its temperature (1 where greedy), before top-p
	Finish    Finish        `json:"finish"`
	Text      string        `json:"text"`   // OutputIDs decoded, for people and the reward
	Images    int           `json:"images"` // how many of Trajectory.Images the prompt contains
	Oldest    PolicyVersion `json:"oldest"` // version at the first sampled token
	Newest    PolicyVersion `json:"newest"` // version at the last one
}

// An ImageUse is an image as the policy saw it.
type ImageUse struct {
	SHA256    string `json:"sha256"`    // of the encoded source file
	Grid      [3]int `json:"grid"`      // patches: time, height, width
	Processor string `json:"processor"` // hash of the image processor's configuration
}

// PadTokens returns how many image-pad ids stand for u in an expanded prompt,
// t·h·w/merge².
func (u ImageUse) PadTokens(merge int) int {
	return u.Grid[0] * u.Grid[1] * u.Grid[2] / (merge * merge)
}

// CallStatus says what became of a tool call.
type CallStatus string

// The call statuses. All but over_limit, which is not executed, produce an
// observation.
const (
	CallOK        CallStatus = "ok"
	CallError     CallStatus = "error"     // the tool reported an error of its own
	CallInvalid   CallStatus = "invalid"   // unknown tool or arguments outside the schema
	CallMalformed CallStatus = "malformed" // not a call at all: bad JSON
	CallOverLimit CallStatus = "over_limit"
)

// A Call is one auxiliary tool call of turn 1 with what it returned.
type Call struct {
	Tool        string          `json:"tool"`
	Arguments   json.RawMessage `json:"arguments,omitempty"`
	Status      CallStatus      `json:"status"`
	Observation string          `json:"observation,omitempty"`
	Image       string          `json:"image,omitempty"` // sha256 of a returned image, in Trajectory.Attachments
	LatencyMS   float64         `json:"latency_ms"`
	CacheHit    bool            `json:"cache_hit"`
}

// An Observation is what a tool returned. Error is the tool's own, and is
// shown to the policy; a failure of transport is a Go error instead.
type Observation struct {
	Text     string
	PNG      []byte // an image for turn 2; nil for none
	Error    string
	Invalid  bool // unknown tool or arguments outside its schema; Text says which
	CacheHit bool
}

// Verdict is the three-valued outcome of a validity check. Unknown is not a pass.
type Verdict string

// The verdicts.
const (
	Pass    Verdict = "pass"
	Fail    Verdict = "fail"
	Unknown Verdict = "unknown"
)

// A Check is one validity check with what decided it.
type Check struct {
	Name      string  `json:"check"`
	Verdict   Verdict `json:"verdict"`
	Value     float64 `json:"value"`
	Threshold float64 `json:"threshold"`
	Reason    string  `json:"reason,omitempty"`
}

// The measurements of a bundle.
const (
	CTR       = "ctr"       // cardiothoracic ratio, unitless
	Asymmetry = "asymmetry" // ln(right lung area / left lung area)
	Shift     = "shift"     // mediastinal shift / thoracic width, positive to the patient's left
)

// Measurements lists the bundle's measurement names in the order shown.
var Measurements = []string{CTR, Asymmetry, Shift}

// A Measurement is one number of the bundle and whether it may be shown.
type Measurement struct {
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Category string  `json:"category,omitempty"` // normal, borderline, enlarged, ...; "" when none may be given
	Computed bool    `json:"computed"`           // false: no masks, nothing to show even ungated
	Admitted bool    `json:"admitted"`
	Checks   []Check `json:"checks,omitempty"`
}

// A Bundle is the deterministic measurement result that turn 2 may be shown.
type Bundle struct {
	Image        int           `json:"image"` // index of the image it belongs to; -1: none
	Variant      string        `json:"variant,omitempty"`
	Measurements []Measurement `json:"measurements,omitempty"`
	Shown        []string      `json:"shown,omitempty"`   // names actually shown in turn 2
	Reasons      []string      `json:"reasons,omitempty"` // names of failed or unknown checks, for people and metrics
}

// Find returns the measurement of that name.
func (b Bundle) Find(name string) (Measurement, bool) {
	for _, m := range b.Measurements {
		if m.Name == name {
			return m, true
		}
	}
	return Measurement{}, false
}

// StopReason says why a trajectory ended.
type StopReason string

// The stop reasons.
const (
	Answered   StopReason = "answered"    // turn 2 ended by itself
	MaxTokens  StopReason = "max_tokens"  // a turn was cut by its token limit
	MaxContext StopReason = "max_context" // turn 2's prompt did not fit
	ToolDown   StopReason = "tool_down"   // infrastructure: another attempt is due
	Timeout    StopReason = "timeout"     // infrastructure: another attempt is due
)

// Infrastructure reports whether the trajectory was lost to the world, not to
// the policy, so that another attempt is due.
func (r StopReason) Infrastructure() bool { return r == ToolDown || r == Timeout }

// An Attachment is an image made during the rollout, such as a crop.
type Attachment struct {
	SHA256 string `json:"sha256"`
	PNG    []byte `json:"png"`
}

// A Trajectory is one finished attempt.
type Trajectory struct {
	Task        TaskID        `json:"task"`
	Sample      string        `json:"sample"`
	Version     PolicyVersion `json:"version"`
	Seed        uint64        `json:"seed"`
	Turns       []Turn        `json:"turns"`
	Images      []ImageUse    `json:"images"` // in order of appearance over both turns
	Calls       []Call        `json:"calls,omitempty"`
	Bundle      Bundle        `json:"bundle"`
	Attachments []Attachment  `json:"attachments,omitempty"`
	Stop        StopReason    `json:"stop"`

	// What follows differs between identical runs and is left out of the
	// canonical record.
	Worker  string             `json:"worker,omitempty"`
	Seconds map[string]float64 `json:"seconds,omitempty"` // by stage
}

// Canonical returns t without what may differ between two identical runs:
// worker, wall-clock, cache hits, attempt.
func (t Trajectory) Canonical() Trajectory {
	t.Worker, t.Seconds, t.Task.Attempt = "", nil, 0
	calls := make([]Call, len(t.Calls))
	for i, c := range t.Calls {
		c.LatencyMS, c.CacheHit = 0, false
		calls[i] = c
	}
	if t.Calls != nil {
		t.Calls = calls
	}
	return t
}

// Limits is what a trajectory is checked against on arrival.
type Limits struct {
	Vocab    int   // ids must lie in [0, Vocab)
	ImagePad int32 // the id that stands for image features
	Merge    int   // merge size of the vision tower
	MaxIDs   int   // longest turn, prompt and output together
}

// A File is one file of a published set, by content.
type File struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// A WeightsManifest announces one policy version. The bytes travel by blob
// store; a worker proves a version by its digest and by the canary.
type WeightsManifest struct {
	Run     string        `json:"run"`
	Version PolicyVersion `json:"version"`
	Files   []File        `json:"files"`
	Digest  string        `json:"digest"`  // sha256 over the files' names and digests
	Kernels string        `json:"kernels"` // kernel set (accumulation order) that the run is bound to
	Canary  Canary        `json:"canary"`
}

// A Canary is a prompt whose log-probs show which weights an engine holds.
type Canary struct {
	IDs       []int32   `json:"ids"`
	Logprobs  []float32 `json:"logprobs"` // of IDs[1:] under the published weights
	Tolerance float64   `json:"tolerance"`
}

// A Proof is a worker's claim to hold a version.
type Proof struct {
	Worker   string        `json:"worker"`
	Version  PolicyVersion `json:"version"`
	Digest   string        `json:"digest"`
	Kernels  string        `json:"kernels"`
	Logprobs []float32     `json:"logprobs"`
}
