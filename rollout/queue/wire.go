package queue

import (
	"encoding/json"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	"xragent/dataset"
	"xragent/rollout"
	"xragent/rollout/queue/queuepb"
)

// MaxMessage is the largest task or result in bytes, 4 MiB: half of what the
// server takes, so that headers and the store's own limits never matter.
const MaxMessage = 4 << 20

// A result is what travels in TRAJ: the outcome of one attempt.
type result struct {
	trajectory *rollout.Trajectory
	lost       *lost
	deliveries int    // of the task, the one that led here included
	pass       []byte // the worker's, for the trajectory's version
	digest     string // of the weights that the pass is for
}

type lost struct {
	task           rollout.TaskID
	reason, detail string
}

func marshal(m proto.Message) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err == nil && len(data) > MaxMessage {
		err = fmt.Errorf("%d bytes, limit %d", len(data), MaxMessage)
	}
	return data, err
}

func unmarshal(data []byte, m proto.Message) error {
	if len(data) > MaxMessage {
		return fmt.Errorf("%d bytes, limit %d", len(data), MaxMessage)
	}
	return proto.Unmarshal(data, m)
}

func encodeTask(t rollout.Task) ([]byte, error) {
	p := &queuepb.Prompt{Kind: string(t.Prompt.Kind), Question: t.Prompt.Question, Options: t.Prompt.Options}
	for _, im := range t.Prompt.Images {
		// The path stays: it is for messages on the reader's side only, and
		// may name a patient.
		p.Images = append(p.Images, &queuepb.Image{
			Sha256: im.SHA256, Width: int64(im.Width), Height: int64(im.Height),
			View: im.View, ViewFrom: im.ViewFrom, AgeYears: im.AgeYears,
			SpacingMm: im.SpacingMM, SquarePx: im.SquarePx, Domain: im.Domain,
		})
	}
	data, err := marshal(&queuepb.Task{
		Id: encodeID(t.ID), Sample: t.Sample, Prompt: p, Version: int64(t.Version), Seed: t.Seed,
		Sampling: &queuepb.Sampling{
			Temperature: t.Sampling.Temperature, TopP: t.Sampling.TopP, MaxTokens: int64(t.Sampling.MaxTokens),
		},
		Tools: t.Tools, Gate: string(t.Gate),
	})
	if err != nil {
		return nil, fmt.Errorf("task %v: %w", t.ID, err)
	}
	return data, nil
}

func decodeTask(data []byte) (rollout.Task, error) {
	var m queuepb.Task
	if err := unmarshal(data, &m); err != nil {
		return rollout.Task{}, err
	}
	p := dataset.Prompt{
		Kind: dataset.Kind(m.GetPrompt().GetKind()), Question: m.GetPrompt().GetQuestion(), Options: m.GetPrompt().GetOptions(),
	}
	for _, im := range m.GetPrompt().GetImages() {
		p.Images = append(p.Images, dataset.Image{
			SHA256: im.GetSha256(), Width: int(im.GetWidth()), Height: int(im.GetHeight()),
			View: im.GetView(), ViewFrom: im.GetViewFrom(), AgeYears: im.GetAgeYears(),
			SpacingMM: im.GetSpacingMm(), SquarePx: im.GetSquarePx(), Domain: im.GetDomain(),
		})
	}
	s := m.GetSampling()
	t := rollout.Task{
		ID: decodeID(m.GetId()), Sample: m.GetSample(), Prompt: p,
		Version: rollout.PolicyVersion(m.GetVersion()), Seed: m.GetSeed(),
		Sampling: rollout.Sampling{Temperature: s.GetTemperature(), TopP: s.GetTopP(), MaxTokens: int(s.GetMaxTokens())},
		Tools:    m.GetTools(), Gate: rollout.GateMode(m.GetGate()),
	}
	return t, checkTask(t)
}

func checkTask(t rollout.Task) error {
	switch {
	case t.ID.Run == "":
		return fmt.Errorf("task without a run")
	case t.Version < 0:
		return fmt.Errorf("task %v: version %d", t.ID, t.Version)
	case !finite(t.Sampling.Temperature, t.Sampling.TopP):
		return fmt.Errorf("task %v: sampling %+v is not finite", t.ID, t.Sampling)
	}
	return nil
}

func encodeID(id rollout.TaskID) *queuepb.TaskID {
	return &queuepb.TaskID{
		Run: id.Run, Step: int64(id.Step), Group: int64(id.Group), Index: int64(id.Index), Attempt: int64(id.Attempt),
	}
}

func decodeID(m *queuepb.TaskID) rollout.TaskID {
	return rollout.TaskID{
		Run: m.GetRun(), Step: int(m.GetStep()), Group: int(m.GetGroup()), Index: int(m.GetIndex()), Attempt: int(m.GetAttempt()),
	}
}

func encodeResult(r result) ([]byte, error) {
	m := &queuepb.Result{Deliveries: int64(r.deliveries), Pass: r.pass, Digest: r.digest}
	id := rollout.TaskID{}
	switch {
	case r.trajectory != nil:
		id = r.trajectory.Task
		m.Outcome = &queuepb.Result_Trajectory{Trajectory: encodeTrajectory(*r.trajectory)}
	case r.lost != nil:
		id = r.lost.task
		m.Outcome = &queuepb.Result_Lost{Lost: &queuepb.Lost{
			Task: encodeID(id), Reason: r.lost.reason, Detail: r.lost.detail,
		}}
	}
	data, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("result of %v: %w", id, err)
	}
	return data, nil
}

// decodeResult reads a result and refuses whatever would break a reader
// further on. It never checks ids against a vocabulary: that is
// [rollout.Trajectory.Check].
func decodeResult(data []byte) (result, error) {
	var m queuepb.Result
	if err := unmarshal(data, &m); err != nil {
		return result{}, err
	}
	r := result{deliveries: int(m.GetDeliveries()), pass: m.GetPass(), digest: m.GetDigest()}
	switch out := m.GetOutcome().(type) {
	case *queuepb.Result_Trajectory:
		t := decodeTrajectory(out.Trajectory)
		r.trajectory = &t
		return r, checkTrajectory(t, out.Trajectory)
	case *queuepb.Result_Lost:
		r.lost = &lost{decodeID(out.Lost.GetTask()), out.Lost.GetReason(), out.Lost.GetDetail()}
		return r, nil
	}
	return result{}, fmt.Errorf("a result with neither trajectory nor reason")
}

func encodeTrajectory(t rollout.Trajectory) *queuepb.Trajectory {
	m := &queuepb.Trajectory{
		Task: encodeID(t.Task), Sample: t.Sample, Version: int64(t.Version), Seed: t.Seed,
		Bundle: encodeBundle(t.Bundle), Stop: string(t.Stop), Worker: t.Worker, Seconds: t.Seconds,
	}
	for _, u := range t.Turns {
		m.Turns = append(m.Turns, &queuepb.Turn{
			PromptIds: u.PromptIDs, OutputIds: u.OutputIDs, Logprobs: u.Logprobs,
			Finish: string(u.Finish), Text: []byte(u.Text), Images: int64(u.Images),
			Oldest: int64(u.Oldest), Newest: int64(u.Newest),
		})
	}
	for _, u := range t.Images {
		grid := []int64{int64(u.Grid[0]), int64(u.Grid[1]), int64(u.Grid[2])}
		m.Images = append(m.Images, &queuepb.ImageUse{Sha256: u.SHA256, Grid: grid, Processor: u.Processor})
	}
	for _, c := range t.Calls {
		m.Calls = append(m.Calls, &queuepb.Call{
			Tool: []byte(c.Tool), Arguments: c.Arguments, Status: string(c.Status), Observation: []byte(c.Observation),
			Image: c.Image, LatencyMs: c.LatencyMS, CacheHit: c.CacheHit,
		})
	}
	for _, a := range t.Attachments {
		m.Attachments = append(m.Attachments, &queuepb.Attachment{Sha256: a.SHA256, Png: a.PNG})
	}
	return m
}

func decodeTrajectory(m *queuepb.Trajectory) rollout.Trajectory {
	t := rollout.Trajectory{
		Task: decodeID(m.GetTask()), Sample: m.GetSample(),
		Version: rollout.PolicyVersion(m.GetVersion()), Seed: m.GetSeed(),
		Bundle: decodeBundle(m.GetBundle()), Stop: rollout.StopReason(m.GetStop()),
		Worker: m.GetWorker(), Seconds: m.GetSeconds(),
	}
	for _, u := range m.GetTurns() {
		t.Turns = append(t.Turns, rollout.Turn{
			PromptIDs: u.GetPromptIds(), OutputIDs: u.GetOutputIds(), Logprobs: u.GetLogprobs(),
			Finish: rollout.Finish(u.GetFinish()), Text: string(u.GetText()), Images: int(u.GetImages()),
			Oldest: rollout.PolicyVersion(u.GetOldest()), Newest: rollout.PolicyVersion(u.GetNewest()),
		})
	}
	for _, u := range m.GetImages() {
		use := rollout.ImageUse{SHA256: u.GetSha256(), Processor: u.GetProcessor()}
		for i, n := range u.GetGrid() {
			if i < len(use.Grid) {
				use.Grid[i] = int(n)
			}
		}
		t.Images = append(t.Images, use)
	}
	for _, c := range m.GetCalls() {
		t.Calls = append(t.Calls, rollout.Call{
			Tool: string(c.GetTool()), Arguments: json.RawMessage(c.GetArguments()), Status: rollout.CallStatus(c.GetStatus()),
			Observation: string(c.GetObservation()), Image: c.GetImage(), LatencyMS: c.GetLatencyMs(), CacheHit: c.GetCacheHit(),
		})
	}
	for _, a := range m.GetAttachments() {
		t.Attachments = append(t.Attachments, rollout.Attachment{SHA256: a.GetSha256(), PNG: a.GetPng()})
	}
	return t
}

func encodeBundle(b rollout.Bundle) *queuepb.Bundle {
	m := &queuepb.Bundle{Image: int64(b.Image), Variant: b.Variant, Shown: b.Shown, Reasons: b.Reasons}
	for _, x := range b.Measurements {
		pm := &queuepb.Measurement{
			Name: x.Name, Value: x.Value, Category: x.Category, Computed: x.Computed, Admitted: x.Admitted,
		}
		for _, c := range x.Checks {
			pm.Checks = append(pm.Checks, &queuepb.Check{
				Name: c.Name, Verdict: string(c.Verdict), Value: c.Value, Threshold: c.Threshold, Reason: c.Reason,
			})
		}
		m.Measurements = append(m.Measurements, pm)
	}
	return m
}

func decodeBundle(m *queuepb.Bundle) rollout.Bundle {
	b := rollout.Bundle{
		Image: int(m.GetImage()), Variant: m.GetVariant(), Shown: m.GetShown(), Reasons: m.GetReasons(),
	}
	for _, pm := range m.GetMeasurements() {
		x := rollout.Measurement{
			Name: pm.GetName(), Value: pm.GetValue(), Category: pm.GetCategory(),
			Computed: pm.GetComputed(), Admitted: pm.GetAdmitted(),
		}
		for _, c := range pm.GetChecks() {
			x.Checks = append(x.Checks, rollout.Check{
				Name: c.GetName(), Verdict: rollout.Verdict(c.GetVerdict()),
				Value: c.GetValue(), Threshold: c.GetThreshold(), Reason: c.GetReason(),
			})
		}
		b.Measurements = append(b.Measurements, x)
	}
	return b
}

// checkTrajectory refuses what could not be written to a ledger or would index
// out of range: uneven lengths, numbers that are not finite, broken JSON.
func checkTrajectory(t rollout.Trajectory, m *queuepb.Trajectory) error {
	for i, u := range t.Turns {
		if len(u.OutputIDs) != len(u.Logprobs) {
			return fmt.Errorf("turn %d: %d ids but %d logprobs", i+1, len(u.OutputIDs), len(u.Logprobs))
		}
		for j, lp := range u.Logprobs {
			if !finite(float64(lp)) {
				return fmt.Errorf("turn %d: logprob %d is %v", i+1, j, lp)
			}
		}
	}
	for i, u := range m.GetImages() {
		if len(u.GetGrid()) != 3 {
			return fmt.Errorf("image %d: grid has %d numbers, want 3", i+1, len(u.GetGrid()))
		}
	}
	for i, c := range t.Calls {
		if len(c.Arguments) > 0 && !json.Valid(c.Arguments) {
			return fmt.Errorf("call %d: arguments are not JSON", i+1)
		}
		if !finite(c.LatencyMS) {
			return fmt.Errorf("call %d: latency is %v", i+1, c.LatencyMS)
		}
	}
	for _, s := range t.Seconds {
		if !finite(s) {
			return fmt.Errorf("seconds of a stage are not finite")
		}
	}
	return checkBundle(t.Bundle)
}

func checkBundle(b rollout.Bundle) error {
	for _, x := range b.Measurements {
		if !finite(x.Value) {
			return fmt.Errorf("measurement %.40q is %v", x.Name, x.Value)
		}
		for _, c := range x.Checks {
			if !finite(c.Value, c.Threshold) {
				return fmt.Errorf("check %.40q of %.40q: value %v, threshold %v", c.Name, x.Name, c.Value, c.Threshold)
			}
		}
	}
	return nil
}

func finite(xs ...float64) bool {
	for _, x := range xs {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}
