package columnar

import (
	"fmt"
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
)

// rowGroup bounds how many rows the writer holds in memory.
const rowGroup = 1024

// A Writer appends rows to a Parquet file. The file is readable once Close has
// returned nil.
type Writer[T any] struct {
	columns columns[T]
	schema  *arrow.Schema
	file    *pqarrow.FileWriter
}

func newWriter[T any](w io.Writer, c columns[T]) (*Writer[T], error) {
	schema := c.schema()
	props := parquet.NewWriterProperties(
		parquet.WithCompression(compress.Codecs.Zstd), parquet.WithMaxRowGroupLength(rowGroup), parquet.WithCreatedBy("xragent"))
	// The writer closes what it is given where that can be closed; the file is the caller's.
	file, err := pqarrow.NewFileWriter(schema, struct{ io.Writer }{w}, props, pqarrow.DefaultWriterProps())
	if err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	return &Writer[T]{c, schema, file}, nil
}

// Write appends rows.
func (w *Writer[T]) Write(rows ...T) error {
	if len(rows) == 0 {
		return nil
	}
	rec := w.columns.record(w.schema, rows)
	defer rec.Release()
	if err := w.file.WriteBuffered(rec); err != nil {
		return fmt.Errorf("parquet: write %d rows: %w", len(rows), err)
	}
	return nil
}

// Close writes the footer. It does not close the underlying writer.
func (w *Writer[T]) Close() error {
	if err := w.file.Close(); err != nil {
		return fmt.Errorf("parquet: close: %w", err)
	}
	return nil
}

// WriteSamples writes samples as one Parquet file, a row a sample.
func WriteSamples(w io.Writer, samples []dataset.Sample) error {
	out, err := newWriter(w, sampleColumns)
	if err != nil {
		return err
	}
	for len(samples) > 0 {
		n := min(rowGroup, len(samples))
		if err := out.Write(samples[:n]...); err != nil {
			return err
		}
		samples = samples[n:]
	}
	return out.Close()
}

// A Scored trajectory is one that the reward has seen.
type Scored struct {
	Trajectory rollout.Trajectory
	Score      reward.Score
	Advantage  float64
}

// NewTrajectories returns a writer of one row a trajectory. Attachments are
// stored by hash.
func NewTrajectories(w io.Writer) (*Writer[Scored], error) { return newWriter(w, trajectoryColumns) }

var sampleColumns = columns[dataset.Sample]{
	one("id", func(s dataset.Sample) string { return s.ID }),
	one("source", func(s dataset.Sample) string { return s.Source }),
	one("split", func(s dataset.Sample) string { return string(s.Split) }),
	one("study", func(s dataset.Sample) string { return s.Study }),
	one("patient", func(s dataset.Sample) string { return s.Patient }),
	one("kind", func(s dataset.Sample) string { return string(s.Prompt.Kind) }),
	one("question", func(s dataset.Sample) string { return s.Prompt.Question }),
	many("options", func(s dataset.Sample) []string { return s.Prompt.Options }),
	many("images", func(s dataset.Sample) []string {
		return each(s.Prompt.Images, func(i dataset.Image) string { return i.SHA256 })
	}),
	many("views", func(s dataset.Sample) []string {
		return each(s.Prompt.Images, func(i dataset.Image) string { return i.View })
	}),
	document("image_details", func(s dataset.Sample) any { return s.Prompt.Images }),
	one("answer", func(s dataset.Sample) string { return s.Answer }),
	many("positive", func(s dataset.Sample) []string { return s.Positive }),
	many("masked", func(s dataset.Sample) []string { return s.Masked }),
	many("critical", func(s dataset.Sample) []string { return s.Critical }),
	many("relevant", func(s dataset.Sample) []string { return s.Relevant }),
	one("capability", func(s dataset.Sample) string { return s.Capability }),
	one("template", func(s dataset.Sample) string { return s.Template }),
	one("need", func(s dataset.Sample) string { return s.Need }),
	one("reference", func(s dataset.Sample) string { return s.Reference }),
}

var trajectoryColumns = columns[Scored]{
	one("id", func(s Scored) string { return s.Trajectory.Task.String() }),
	one("run", func(s Scored) string { return s.Trajectory.Task.Run }),
	one("step", func(s Scored) int64 { return int64(s.Trajectory.Task.Step) }),
	one("group", func(s Scored) int64 { return int64(s.Trajectory.Task.Group) }),
	one("index", func(s Scored) int64 { return int64(s.Trajectory.Task.Index) }),
	one("attempt", func(s Scored) int64 { return int64(s.Trajectory.Task.Attempt) }),
	one("sample", func(s Scored) string { return s.Trajectory.Sample }),
	one("version", func(s Scored) int64 { return int64(s.Trajectory.Version) }),
	one("seed", func(s Scored) int64 { return int64(s.Trajectory.Seed) }), // the bits of the uint64
	one("stop", func(s Scored) string { return string(s.Trajectory.Stop) }),
	one("reward", func(s Scored) float64 { return s.Score.Total }),
	one("r_format", func(s Scored) float64 { return s.Score.Format }),
	one("r_acc", func(s Scored) float64 { return s.Score.Accuracy }),
	one("r_cxr", func(s Scored) float64 { return s.Score.CXR }),
	one("r_tool", func(s Scored) int64 { return int64(s.Score.Calls) }),
	one("fabricated", func(s Scored) int64 { return int64(s.Score.Fabricated) }),
	one("answer", func(s Scored) string { return s.Score.Answer }),
	one("problem", func(s Scored) string { return s.Score.Problem }),
	one("advantage", func(s Scored) float64 { return s.Advantage }),
	one("turns", func(s Scored) int64 { return int64(len(s.Trajectory.Turns)) }),
	ids("turn1_prompt_ids", 0, func(t rollout.Turn) []int32 { return t.PromptIDs }),
	ids("turn1_output_ids", 0, func(t rollout.Turn) []int32 { return t.OutputIDs }),
	ids("turn1_logprobs", 0, func(t rollout.Turn) []float32 { return t.Logprobs }),
	one("turn1_text", func(s Scored) string { return s.turn(0).Text }),
	one("turn1_finish", func(s Scored) string { return string(s.turn(0).Finish) }),
	ids("turn2_prompt_ids", 1, func(t rollout.Turn) []int32 { return t.PromptIDs }),
	ids("turn2_output_ids", 1, func(t rollout.Turn) []int32 { return t.OutputIDs }),
	ids("turn2_logprobs", 1, func(t rollout.Turn) []float32 { return t.Logprobs }),
	one("turn2_text", func(s Scored) string { return s.turn(1).Text }),
	one("turn2_finish", func(s Scored) string { return string(s.turn(1).Finish) }),
	many("images", func(s Scored) []string {
		return each(s.Trajectory.Images, func(u rollout.ImageUse) string { return u.SHA256 })
	}),
	many("tools", func(s Scored) []string {
		return each(s.Trajectory.Calls, func(c rollout.Call) string { return c.Tool })
	}),
	many("call_status", func(s Scored) []string {
		return each(s.Trajectory.Calls, func(c rollout.Call) string { return string(c.Status) })
	}),
	document("calls", func(s Scored) any { return s.Trajectory.Calls }),
	measured(rollout.CTR),
	measured(rollout.Asymmetry),
	measured(rollout.Shift),
	many("shown", func(s Scored) []string { return s.Trajectory.Bundle.Shown }),
	many("gate_reasons", func(s Scored) []string { return s.Trajectory.Bundle.Reasons }),
	document("bundle", func(s Scored) any { return s.Trajectory.Bundle }),
	one("worker", func(s Scored) string { return s.Trajectory.Worker }),
	document("seconds", func(s Scored) any { return s.Trajectory.Seconds }),
}

// turn returns turn i, or an empty one where the trajectory ended before it.
func (s Scored) turn(i int) rollout.Turn {
	if i < len(s.Trajectory.Turns) {
		return s.Trajectory.Turns[i]
	}
	return rollout.Turn{}
}

func ids[V value](name string, turn int, get func(rollout.Turn) []V) column[Scored] {
	return many(name, func(s Scored) []V { return get(s.turn(turn)) })
}

// measured stores a measurement, null where it was not computed.
func measured(name string) column[Scored] {
	return maybe(name, func(s Scored) (float64, bool) {
		m, ok := s.Trajectory.Bundle.Find(name)
		return m.Value, ok && m.Computed
	})
}
