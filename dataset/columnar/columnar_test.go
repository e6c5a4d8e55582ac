package columnar

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/reward"
	"xragent/rollout"
	"xragent/trainer/batch"
)

// readTable reads a Parquet file into one JSON object a row.
func readTable(t *testing.T, data []byte) []map[string]any {
	t.Helper()
	table, err := pqarrow.ReadTable(context.Background(), bytes.NewReader(data), parquet.NewReaderProperties(nil), pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	var out []map[string]any
	for r := array.NewTableReader(table, 0); r.Next(); {
		text, err := r.Record().MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var part []map[string]any
		if err := json.Unmarshal(text, &part); err != nil {
			t.Fatal(err)
		}
		out = append(out, part...)
	}
	return out
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func words(v any) []string {
	var out []string
	for _, x := range v.([]any) {
		out = append(out, text(x))
	}
	return out
}

func TestSamplesRoundTrip(t *testing.T) {
	cfg := phantom.Config{Seed: 1, Train: 570} // more rows than a row group holds
	var want []dataset.Sample
	for i := range cfg.Studies() {
		want = append(want, phantom.Describe(cfg, i).Samples...)
	}
	if len(want) <= rowGroup {
		t.Fatalf("%d samples fit into one row group", len(want))
	}
	var b bytes.Buffer
	if err := WriteSamples(&b, want); err != nil {
		t.Fatal(err)
	}
	var got []dataset.Sample
	for _, r := range readTable(t, b.Bytes()) {
		s := dataset.Sample{
			ID: text(r["id"]), Source: text(r["source"]), Split: dataset.Split(text(r["split"])), Study: text(r["study"]), Patient: text(r["patient"]),
			Prompt: dataset.Prompt{Kind: dataset.Kind(text(r["kind"])), Question: text(r["question"]), Options: words(r["options"])},
			Answer: text(r["answer"]), Positive: words(r["positive"]), Masked: words(r["masked"]), Critical: words(r["critical"]),
			Relevant: words(r["relevant"]), Capability: text(r["capability"]), Template: text(r["template"]), Need: text(r["need"]), Reference: text(r["reference"]),
		}
		if err := json.Unmarshal([]byte(text(r["image_details"])), &s.Prompt.Images); err != nil {
			t.Fatal(err)
		}
		got = append(got, s)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("samples differ:\n%.2000s", d)
	}
}

func scored() Scored {
	return Scored{
		Trajectory: rollout.Trajectory{
			Task: rollout.TaskID{Run: "r", Step: 2, Group: 7, Index: 1, Attempt: 3}, Sample: "s", Version: 5, Seed: math.MaxUint64,
			Turns: []rollout.Turn{
				{PromptIDs: []int32{1, 2, 3}, OutputIDs: []int32{4, 5}, Logprobs: []float32{-0.5, -1.25}, Text: "one", Finish: rollout.FinishStop},
				{PromptIDs: []int32{1, 2, 3, 4, 5, 6}, OutputIDs: []int32{7}, Logprobs: []float32{0}, Text: "two", Finish: rollout.FinishLength},
			},
			Images: []rollout.ImageUse{{SHA256: "aa"}}, Calls: []rollout.Call{{Tool: "roi_crop", Status: rollout.CallOK}},
			Bundle: rollout.Bundle{
				Shown: []string{rollout.CTR}, Reasons: []string{"rotation"},
				Measurements: []rollout.Measurement{{Name: rollout.CTR, Value: 0.5, Computed: true}, {Name: rollout.Shift, Value: 9}},
			},
			Stop: rollout.Answered, Worker: "w",
		},
		Score:     reward.Score{Total: 2, Format: 1, Accuracy: 1, CXR: 0.5, Calls: 1, Answer: "B"},
		Advantage: -0.75,
	}
}

func TestTrajectories(t *testing.T) {
	var b bytes.Buffer
	w, err := NewTrajectories(&b)
	if err != nil {
		t.Fatal(err)
	}
	short := scored()
	short.Trajectory.Turns = short.Trajectory.Turns[:1]
	for _, s := range []Scored{scored(), short} {
		if err := w.Write(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rows := readTable(t, b.Bytes())
	if len(rows) != 2 {
		t.Fatalf("%d rows, want 2", len(rows))
	}
	want := map[string]any{
		"id": "r/2/7/1/3", "group": 7.0, "attempt": 3.0, "version": 5.0, "seed": -1.0, "stop": "answered",
		"reward": 2.0, "r_format": 1.0, "r_acc": 1.0, "r_cxr": 0.5, "r_tool": 1.0, "answer": "B", "advantage": -0.75, "turns": 2.0,
		"turn1_logprobs": []any{-0.5, -1.25}, "turn2_prompt_ids": []any{1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, "turn2_output_ids": []any{7.0},
		"turn2_finish": "length", "images": []any{"aa"}, "tools": []any{"roi_crop"}, "call_status": []any{"ok"},
		"ctr": 0.5, "asymmetry": nil, "shift": nil, "shown": []any{"ctr"}, "gate_reasons": []any{"rotation"}, "worker": "w",
	}
	for name, v := range want {
		if d := cmp.Diff(v, rows[0][name]); d != "" {
			t.Errorf("column %s differs:\n%s", name, d)
		}
	}
	if got := rows[1]["turn2_output_ids"]; !cmp.Equal(got, []any{}) {
		t.Errorf("a trajectory of one turn has the second turn %v", got)
	}
}

func drawBatch(t *rapid.T) batch.Batch {
	var b batch.Batch
	for range rapid.IntRange(0, 5).Draw(t, "rows") {
		n := rapid.IntRange(0, 40).Draw(t, "tokens")
		r := batch.Row{
			ID:        rapid.String().Draw(t, "id"),
			IDs:       rapid.SliceOfN(rapid.Int32(), n, n).Draw(t, "ids"),
			LossMask:  rapid.SliceOfN(rapid.Uint8Range(0, 1), n, n).Draw(t, "mask"),
			Advantage: rapid.Float64().Draw(t, "advantage"),
		}
		if rapid.Bool().Draw(t, "rl") {
			r.Logprobs = rapid.SliceOfN(rapid.Float32(), n, n).Draw(t, "logprobs")
		}
		for range rapid.IntRange(0, 2).Draw(t, "images") {
			g := rapid.IntRange(1, 1<<20)
			r.Images = append(r.Images, rollout.ImageUse{SHA256: "sha", Processor: "p", Grid: [3]int{1, g.Draw(t, "h"), g.Draw(t, "w")}})
		}
		for _, m := range r.LossMask {
			b.Tokens += int(m)
		}
		b.Rows = append(b.Rows, r)
	}
	return b
}

func TestBatchRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawBatch(t)
		data, err := EncodeBatch(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeBatch(data)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("batch differs:\n%s", d)
		}
		if again, err := EncodeBatch(want); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("two encodings differ: %v", err)
		}
	})
}

// TestBatchLayout holds what a learner in another language relies on.
func TestBatchLayout(t *testing.T) {
	data, err := EncodeBatch(batch.Batch{Rows: []batch.Row{{ID: "a", IDs: []int32{1}, LossMask: []uint8{1}}}, Tokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	r, err := ipc.NewFileReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if r.NumRecords() != 1 || r.NumDictionaries() != 0 {
		t.Errorf("%d records, %d dictionaries, want 1 and 0", r.NumRecords(), r.NumDictionaries())
	}
	var got []string
	for _, f := range r.Schema().Fields() {
		got = append(got, f.Name+" "+f.Type.String())
		if f.Nullable {
			t.Errorf("column %s is nullable", f.Name)
		}
	}
	want := []string{
		"id utf8", "ids list<item: int32>", "loss_mask list<item: uint8>", "logprobs list<item: float32>", "advantage float64",
		"image_sha256 list<item: utf8>", "image_grid list<item: int32>", "image_processor list<item: utf8>",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("columns differ:\n%s", d)
	}
}

func TestEncodeBatchRefusesUnequalLengths(t *testing.T) {
	for _, c := range []struct {
		row  batch.Row
		want string
	}{
		{batch.Row{ID: "a", IDs: []int32{1, 2}, LossMask: []uint8{1}}, "row a: 2 ids but 1 loss mask"},
		{batch.Row{ID: "b", IDs: []int32{1}, LossMask: []uint8{1}, Logprobs: []float32{0, 0}}, "row b: 1 ids but 2 logprobs"},
	} {
		if _, err := EncodeBatch(batch.Batch{Rows: []batch.Row{c.row}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

func TestDecodeBatchRefusesOtherFiles(t *testing.T) {
	if _, err := DecodeBatch([]byte("not arrow")); err == nil {
		t.Error("text decodes as a batch")
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Int64}}, nil)
	var out seekBuffer
	w, err := ipc.NewFileWriter(&out, ipc.WithSchema(schema))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeBatch(out.data); err == nil || !strings.Contains(err.Error(), batchFormat) {
		t.Errorf("another Arrow file: %v", err)
	}
}
