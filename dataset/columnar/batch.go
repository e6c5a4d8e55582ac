package columnar

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"

	"xragent/rollout"
	"xragent/trainer/batch"
)

// The batch file is an Arrow IPC file of one record, a row a sequence:
//
//	id               utf8
//	ids              list<int32>    [T] token ids, image pads expanded
//	loss_mask        list<uint8>    [T] 1 where the policy sampled the id
//	logprobs         list<float32>  [T] behaviour log-probs; empty for SFT
//	advantage        double
//	image_sha256     list<utf8>     [N] in order of appearance
//	image_grid       list<int32>    [3N] time, height, width in patches
//	image_processor  list<utf8>     [N] hash of the processor's configuration
//
// The schema's metadata holds format = "xragent.batch/1" and tokens, the sum of
// all loss masks.
const batchFormat = "xragent.batch/1"

var batchColumns = columns[batch.Row]{
	one("id", func(r batch.Row) string { return r.ID }),
	many("ids", func(r batch.Row) []int32 { return r.IDs }),
	many("loss_mask", func(r batch.Row) []uint8 { return r.LossMask }),
	many("logprobs", func(r batch.Row) []float32 { return r.Logprobs }),
	one("advantage", func(r batch.Row) float64 { return r.Advantage }),
	many("image_sha256", func(r batch.Row) []string {
		return each(r.Images, func(u rollout.ImageUse) string { return u.SHA256 })
	}),
	many("image_grid", grids),
	many("image_processor", func(r batch.Row) []string {
		return each(r.Images, func(u rollout.ImageUse) string { return u.Processor })
	}),
}

func grids(r batch.Row) []int32 {
	out := make([]int32, 0, 3*len(r.Images))
	for _, u := range r.Images {
		out = append(out, int32(u.Grid[0]), int32(u.Grid[1]), int32(u.Grid[2]))
	}
	return out
}

// EncodeBatch returns b as an Arrow IPC file. Equal batches give equal bytes.
func EncodeBatch(b batch.Batch) ([]byte, error) {
	for _, r := range b.Rows {
		if err := checkRow(r); err != nil {
			return nil, fmt.Errorf("batch: row %s: %w", r.ID, err)
		}
	}
	meta := arrow.NewMetadata([]string{"format", "tokens"}, []string{batchFormat, fmt.Sprint(b.Tokens)})
	schema := arrow.NewSchema(batchColumns.schema().Fields(), &meta)
	var out seekBuffer
	w, err := ipc.NewFileWriter(&out, ipc.WithSchema(schema))
	if err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	rec := batchColumns.record(schema, b.Rows)
	defer rec.Release()
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		return nil, fmt.Errorf("batch: write %d rows: %w", len(b.Rows), err)
	}
	return out.data, nil
}

// checkRow holds the row's slices against each other.
func checkRow(r batch.Row) error {
	switch {
	case len(r.LossMask) != len(r.IDs):
		return fmt.Errorf("%d ids but %d loss mask entries", len(r.IDs), len(r.LossMask))
	case len(r.Logprobs) != 0 && len(r.Logprobs) != len(r.IDs):
		return fmt.Errorf("%d ids but %d logprobs", len(r.IDs), len(r.Logprobs))
	}
	return nil
}

// DecodeBatch reads what [EncodeBatch] wrote, for learners in Go and for tests.
func DecodeBatch(data []byte) (batch.Batch, error) {
	var b batch.Batch
	r, err := ipc.NewFileReader(bytes.NewReader(data))
	if err != nil {
		return b, fmt.Errorf("batch: not an Arrow IPC file: %w", err)
	}
	defer r.Close()
	if err := checkSchema(r.Schema()); err != nil {
		return b, fmt.Errorf("batch: %w", err)
	}
	meta := r.Schema().Metadata()
	tokens, _ := meta.GetValue("tokens")
	if _, err := fmt.Sscan(tokens, &b.Tokens); err != nil {
		return b, fmt.Errorf("batch: metadata tokens is %q, want a number", tokens)
	}
	for i := range r.NumRecords() {
		rec, err := r.RecordAt(i)
		if err != nil {
			return b, fmt.Errorf("batch: record %d: %w", i, err)
		}
		b.Rows = append(b.Rows, rows(rec)...)
		rec.Release()
	}
	return b, nil
}

func checkSchema(s *arrow.Schema) error {
	meta := s.Metadata()
	if format, _ := meta.GetValue("format"); format != batchFormat {
		return fmt.Errorf("format is %q, want %s", format, batchFormat)
	}
	if want := batchColumns.schema(); !arrow.NewSchema(s.Fields(), nil).Equal(want) {
		return fmt.Errorf("columns are %v, want %v", s.Fields(), want.Fields())
	}
	return nil
}

// rows copies a record of the batch's schema into rows.
func rows(rec arrow.Record) []batch.Row {
	out := make([]batch.Row, rec.NumRows())
	for i := range out {
		out[i] = batch.Row{
			ID:        rec.Column(0).(*array.String).Value(i),
			IDs:       list(rec.Column(1), i, func(v arrow.Array) []int32 { return v.(*array.Int32).Int32Values() }),
			LossMask:  list(rec.Column(2), i, func(v arrow.Array) []uint8 { return v.(*array.Uint8).Uint8Values() }),
			Logprobs:  list(rec.Column(3), i, func(v arrow.Array) []float32 { return v.(*array.Float32).Float32Values() }),
			Advantage: rec.Column(4).(*array.Float64).Value(i),
			Images: images(list(rec.Column(5), i, texts),
				list(rec.Column(6), i, func(v arrow.Array) []int32 { return v.(*array.Int32).Int32Values() }),
				list(rec.Column(7), i, texts)),
		}
	}
	return out
}

// list returns a copy of row i of a list column; nil when it is empty.
func list[V any](column arrow.Array, i int, values func(arrow.Array) []V) []V {
	l := column.(*array.List)
	from, to := l.ValueOffsets(i)
	return append([]V(nil), values(l.ListValues())[from:to]...)
}

func texts(v arrow.Array) []string {
	out := make([]string, v.Len())
	for i := range out {
		out[i] = v.(*array.String).Value(i)
	}
	return out
}

func images(shas []string, grid []int32, processors []string) []rollout.ImageUse {
	var out []rollout.ImageUse
	for i := range min(len(shas), len(grid)/3, len(processors)) {
		out = append(out, rollout.ImageUse{
			SHA256: shas[i], Processor: processors[i],
			Grid: [3]int{int(grid[3*i]), int(grid[3*i+1]), int(grid[3*i+2])},
		})
	}
	return out
}

// A seekBuffer is a file in memory.
type seekBuffer struct {
	data []byte
	at   int
}

func (b *seekBuffer) Write(p []byte) (int, error) {
	if need := b.at + len(p); need > len(b.data) {
		b.data = append(b.data, make([]byte, need-len(b.data))...)
	}
	b.at += copy(b.data[b.at:], p)
	return len(p), nil
}

func (b *seekBuffer) Seek(offset int64, whence int) (int64, error) {
	base := [3]int{io.SeekStart: 0, io.SeekCurrent: b.at, io.SeekEnd: len(b.data)}[whence]
	if base+int(offset) < 0 {
		return 0, errors.New("seek before the start")
	}
	b.at = base + int(offset)
	return int64(b.at), nil
}
