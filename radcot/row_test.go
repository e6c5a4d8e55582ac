package radcot_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"testing"

	"xragent/chat"
	"xragent/dataset"
	"xragent/radcot"
	"xragent/rollout"
	"xragent/rollout/loop"
	"xragent/trainer/batch"
)

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

var (
	film = []byte("film")
	crop = []byte("crop")
	grid = [3]int{1, 8, 8}
)

type oneFilm struct{}

func (oneFilm) Get(context.Context, string) ([]byte, error) { return film, nil }

// plainTools return a crop and one admitted measurement.
type plainTools struct{}

func (plainTools) Call(context.Context, string, json.RawMessage, [][]byte, []dataset.Image) (rollout.Observation, error) {
	return rollout.Observation{Text: "right lung 1.5x", PNG: crop}, nil
}

func (plainTools) Measure(context.Context, [][]byte, []dataset.Image) (rollout.Bundle, error) {
	return rollout.Bundle{Measurements: []rollout.Measurement{{Name: rollout.CTR, Value: 0.5, Category: "borderline", Computed: true, Admitted: true}}}, nil
}

func (plainTools) Schemas() []json.RawMessage {
	return []json.RawMessage{json.RawMessage(`{"name":"roi_crop","parameters":{"properties":{"region":{"type":"string"}}}}`)}
}

// A recital samples the record's own turns.
type recital struct {
	codec *chat.Codec
	turns []string
}

func (r *recital) Sample(_ context.Context, req loop.SampleRequest) (loop.SampleResult, error) {
	out := append(r.codec.Encode(r.turns[0]), r.codec.EndOfTurn())
	r.turns = r.turns[1:]
	var res loop.SampleResult
	var pads []int
	for _, img := range req.Images {
		u := rollout.ImageUse{SHA256: digest(img), Grid: grid}
		res.Images, pads = append(res.Images, u), append(pads, u.PadTokens(2))
	}
	prompt, err := chat.Expand(req.IDs, pads, r.codec.ImagePad())
	res.Turn = rollout.Turn{PromptIDs: prompt, OutputIDs: out, Logprobs: make([]float32, len(out)), Finish: rollout.FinishStop}
	return res, err
}

// A record's supervised row is, id by id, what the rollout loop records when a
// policy says the same.
func TestRowIsWhatTheLoopRecords(t *testing.T) {
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	sample := dataset.Sample{ID: "a", Source: "own", Split: dataset.Train, Study: "x", Answer: "B", Prompt: dataset.Prompt{
		Kind: dataset.MultipleChoice, Question: "Where is the nodule?", Options: []string{"left upper zone", "right lower zone"},
		Images: []dataset.Image{{SHA256: digest(film), View: "PA"}}}}
	cfg := radcot.Default()
	cfg.Size, cfg.Suboptimal = radcot.Size{MultipleChoice: 1}, 0
	var rec radcot.Record
	src := radcot.Sources{Samples: []dataset.Sample{sample}, Images: oneFilm{}, Tools: plainTools{}}
	if _, err := radcot.Build(t.Context(), cfg, src, func(r radcot.Record) error { rec = r; return nil }, nil); err != nil {
		t.Fatal(err)
	}
	if len(rec.Calls) != 5 || len(rec.Images()) != 6 || len(rec.Attachments) != 1 {
		t.Fatalf("the record has %d calls, %d images, %d attachments", len(rec.Calls), len(rec.Images()), len(rec.Attachments))
	}

	l := loop.New(loop.Default(), &recital{codec, []string{rec.Turn1, rec.Turn2}}, plainTools{}, codec, oneFilm{})
	traj, err := l.Run(t.Context(), rollout.Task{Sample: "a", Prompt: sample.Prompt, Tools: true, Gate: rollout.GateOn,
		Sampling: rollout.Sampling{MaxTokens: 300}})
	if err != nil {
		t.Fatal(err)
	}
	if err := traj.Check(rollout.Limits{Vocab: 1 << 20, ImagePad: codec.ImagePad(), Merge: 2}); err != nil {
		t.Fatal(err)
	}
	want := batch.FromTrajectory(traj, 0)

	var uses []rollout.ImageUse
	for _, sha := range rec.Images() {
		uses = append(uses, rollout.ImageUse{SHA256: sha, Grid: grid})
	}
	got, err := radcot.Row(rec, codec, plainTools{}.Schemas(), uses, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.IDs, want.IDs) || !slices.Equal(got.LossMask, want.LossMask) || !slices.Equal(got.Images, want.Images) {
		t.Errorf("the row differs from the rollout's:\n%s\n%s", codec.Decode(got.IDs), codec.Decode(want.IDs))
	}
	if _, err := batch.New([]batch.Row{got}); err != nil {
		t.Error(err)
	}
	if _, err := radcot.Row(rec, codec, nil, uses[:2], 2); err == nil {
		t.Error("a missing image was accepted")
	}
	uses[2].SHA256 = "other"
	if _, err := radcot.Row(rec, codec, nil, uses, 2); err == nil {
		t.Error("another image was accepted")
	}
}
