package queue

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/rollout"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// full is a trajectory with every field set.
func full() rollout.Trajectory {
	return rollout.Trajectory{
		Task:   rollout.TaskID{Run: "r", Step: 1, Group: 2, Index: 3, Attempt: 4},
		Sample: "s", Version: 5, Seed: math.MaxUint64,
		Turns: []rollout.Turn{
			{PromptIDs: []int32{1, 2, 3}, OutputIDs: []int32{4, 5}, Logprobs: []float32{-0.5, -1.25}, Finish: rollout.FinishStop,
				Text: "<assess>é</assess>\xf0", Images: 1, Oldest: 5, Newest: 5},
			{PromptIDs: []int32{1, 2, 3, 4, 5, 6}, OutputIDs: []int32{7}, Logprobs: []float32{0}, Finish: rollout.FinishLength,
				Text: "x", Images: 2, Oldest: 5, Newest: 6},
		},
		Images: []rollout.ImageUse{{SHA256: "a", Grid: [3]int{1, 4, 6}, Processor: "p"}, {SHA256: "b", Grid: [3]int{1, 2, 2}, Processor: "p"}},
		Calls: []rollout.Call{
			{Tool: "roi_crop", Arguments: json.RawMessage(`{"region": "left lower zone"}`), Status: rollout.CallOK,
				Observation: "cropped", Image: "b", LatencyMS: 1.5, CacheHit: true},
			{Status: rollout.CallMalformed},
		},
		Bundle: rollout.Bundle{
			Image: -1, Variant: "column_extent",
			Measurements: []rollout.Measurement{{
				Name: rollout.CTR, Value: 0.512, Category: "borderline", Computed: true, Admitted: true,
				Checks: []rollout.Check{{Name: "rotation", Verdict: rollout.Pass, Value: 0.1, Threshold: 0.2, Reason: "near"}},
			}},
			Shown: []string{rollout.CTR}, Reasons: []string{"cropping"},
		},
		Attachments: []rollout.Attachment{{SHA256: "b", PNG: []byte{0x89, 'P', 'N', 'G'}}},
		Stop:        rollout.MaxTokens, Worker: "w1",
		Seconds: map[string]float64{"turn1": 0.25, "tools": 0.5},
	}
}

func fullTask() rollout.Task {
	return rollout.Task{
		ID:     rollout.TaskID{Run: "r", Step: 1, Group: 2, Index: 3, Attempt: 4},
		Sample: "s",
		Prompt: dataset.Prompt{
			Kind: dataset.MultipleChoice, Question: "Où?", Options: []string{"left", "right"},
			Images: []dataset.Image{{SHA256: "a", Width: 96, Height: 64, View: "PA", ViewFrom: "tag", AgeYears: 61.5,
				SpacingMM: 0.14, SquarePx: true, Domain: "phantom"}},
		},
		Version: 5, Seed: 1 << 63, Sampling: rollout.Sampling{Temperature: 0.7, TopP: 0.9, MaxTokens: 256},
		Tools: true, Gate: rollout.GateOff,
	}
}

// The bytes of the golden files are what runs have in their streams. A change
// of them breaks the resumption of every run that is under way.
func TestWireGolden(t *testing.T) {
	tr := full()
	resultBytes, err := encodeResult(result{trajectory: &tr, deliveries: 2, pass: []byte{1, 2}, digest: "d"})
	if err != nil {
		t.Fatal(err)
	}
	lostBytes, err := encodeResult(result{lost: &lost{tr.Task, ReasonPoison, "detail"}, deliveries: 5})
	if err != nil {
		t.Fatal(err)
	}
	taskBytes, err := encodeTask(fullTask())
	if err != nil {
		t.Fatal(err)
	}
	proofBytes, err := encodeProof(rollout.Proof{Worker: "w", Version: 5, Digest: "d", Kernels: "k", Logprobs: []float32{-1, 0}})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{
		"result.pb": resultBytes, "lost.pb": lostBytes, "task.pb": taskBytes, "proof.pb": proofBytes,
	} {
		path := "testdata/" + name
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s changed (-golden +now):\n%s", path, diff)
		}
	}
}

func TestFullRoundTrip(t *testing.T) {
	tr := full()
	data, err := encodeResult(result{trajectory: &tr, deliveries: 2, pass: []byte{1}, digest: "d"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := decodeResult(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tr, *r.trajectory); diff != "" {
		t.Errorf("trajectory (-sent +received):\n%s", diff)
	}
	if r.deliveries != 2 || r.digest != "d" || len(r.pass) != 1 {
		t.Errorf("result %+v", r)
	}
	task := fullTask()
	if data, err = encodeTask(task); err != nil {
		t.Fatal(err)
	}
	got, err := decodeTask(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(task, got); diff != "" {
		t.Errorf("task (-sent +received):\n%s", diff)
	}
	task.Prompt.Images[0].Path = "/data/Doe^Jane/1.png"
	if data, err = encodeTask(task); err != nil || strings.Contains(string(data), "Doe") {
		t.Errorf("a path travelled, err %v", err)
	}
}

func TestTrajectoryRoundTripProperty(t *testing.T) {
	ids := rapid.SliceOfN(rapid.Int32(), 1, 20)
	turn := rapid.Custom(func(t *rapid.T) rollout.Turn {
		out := ids.Draw(t, "out")
		n := len(out)
		return rollout.Turn{
			PromptIDs: ids.Draw(t, "prompt"), OutputIDs: out,
			Logprobs: rapid.SliceOfN(rapid.Float32Range(-100, 0), n, n).Draw(t, "logprobs"),
			Text:     string(rapid.SliceOf(rapid.Byte()).Draw(t, "text")), Images: rapid.IntRange(0, 9).Draw(t, "images"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		tr := rollout.Trajectory{
			Task: rollout.TaskID{Run: "r", Step: rapid.IntMin(0).Draw(t, "step"), Group: rapid.Int().Draw(t, "group")},
			Seed: rapid.Uint64().Draw(t, "seed"), Turns: rapid.SliceOfN(turn, 1, 2).Draw(t, "turns"),
			Version: rollout.PolicyVersion(rapid.Int64().Draw(t, "version")),
		}
		data, err := encodeResult(result{trajectory: &tr})
		if err != nil {
			t.Fatal(err)
		}
		r, err := decodeResult(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tr, *r.trajectory); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDecodeResultRefuses(t *testing.T) {
	nan := math.NaN()
	for name, tt := range map[string]struct {
		spoil func(tr *rollout.Trajectory)
		want  string
	}{
		"too few logprobs":  {func(tr *rollout.Trajectory) { tr.Turns[1].Logprobs = nil }, "turn 2: 1 ids but 0 logprobs"},
		"NaN logprob":       {func(tr *rollout.Trajectory) { tr.Turns[0].Logprobs[1] = float32(nan) }, "turn 1: logprob 1 is NaN"},
		"infinite logprob":  {func(tr *rollout.Trajectory) { tr.Turns[0].Logprobs[0] = float32(math.Inf(-1)) }, "logprob 0 is -Inf"},
		"broken arguments":  {func(tr *rollout.Trajectory) { tr.Calls[0].Arguments = json.RawMessage(`{"a":`) }, "call 1: arguments"},
		"latency":           {func(tr *rollout.Trajectory) { tr.Calls[1].LatencyMS = nan }, "call 2: latency"},
		"seconds":           {func(tr *rollout.Trajectory) { tr.Seconds["tools"] = math.Inf(1) }, "seconds"},
		"measurement":       {func(tr *rollout.Trajectory) { tr.Bundle.Measurements[0].Value = nan }, `measurement "ctr" is NaN`},
		"check's threshold": {func(tr *rollout.Trajectory) { tr.Bundle.Measurements[0].Checks[0].Threshold = nan }, `check "rotation" of "ctr"`},
	} {
		tr := full()
		tt.spoil(&tr)
		data, err := encodeResult(result{trajectory: &tr})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeResult(data); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: err %v, want one that says %q", name, err, tt.want)
		}
	}
	for name, data := range map[string][]byte{
		"empty": nil, "garbage": []byte("{}{}"), "too large": make([]byte, MaxMessage+1),
	} {
		if _, err := decodeResult(data); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzDecode feeds what comes off the wire to every decoder: they may refuse,
// never crash, and what a decoder accepts must survive the ledger's JSON.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"result.pb", "lost.pb", "task.pb", "proof.pb"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	limits := rollout.Limits{Vocab: 100, ImagePad: 9, Merge: 2, MaxIDs: 100}
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decodeResult(data); err == nil && r.trajectory != nil {
			_ = r.trajectory.Check(limits)
			if _, err := json.Marshal(r.trajectory); err != nil {
				t.Fatalf("accepted, but not JSON: %v", err)
			}
			if _, err := encodeResult(r); err != nil && len(data) < MaxMessage/2 {
				t.Fatalf("accepted, but not encodable: %v", err)
			}
		}
		if task, err := decodeTask(data); err == nil {
			if _, err := json.Marshal(task); err != nil {
				t.Fatalf("task accepted, but not JSON: %v", err)
			}
		}
		if p, err := decodeProof(data); err == nil {
			_ = CheckProof(manifest(p.Version), p)
		}
	})
}

func TestSubjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rollout.TaskID{
			Run:  rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`).Draw(t, "run"),
			Step: rapid.IntMin(0).Draw(t, "step"), Group: rapid.IntMin(0).Draw(t, "group"),
			Index: rapid.IntMin(0).Draw(t, "index"), Attempt: rapid.IntMin(0).Draw(t, "attempt"),
		}
		v := rollout.PolicyVersion(rapid.Int64Min(0).Draw(t, "version"))
		for _, subject := range []string{taskSubject(id, v), resultSubject(id)} {
			if got, err := parseSubject(subject); err != nil || got != id {
				t.Fatalf("%s: %v, %v, want %v", subject, got, err, id)
			}
		}
	})
	for _, bad := range []string{"", "xragent", "xragent.r.traj.1.2.3", "xragent.r.task.1.2.3.4.5", "xragent.r.traj.1.2.x.4",
		"other.r.traj.1.2.3.4", "xragent.r.task.v1.1.2.3", "xragent..traj.1.2.3.4", "xragent.r!.traj.1.2.3.4"} {
		if id, err := parseSubject(bad); err == nil {
			t.Errorf("%q is read as %v", bad, id)
		}
	}
}

func TestRunNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"grpo-1": true, "A_b-9": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a.b": false, "a b": false, "a*": false, "a>": false, "ä": false, "a/b": false,
	} {
		if err := CheckRun(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
