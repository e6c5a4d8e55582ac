package radcot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"iter"

	"xragent/rollout"
)

// A Writer writes records as JSON lines and hashes what it wrote. To publish a
// corpus whole, let it write to a file aside and rename that.
type Writer struct {
	w    io.Writer
	sum  hash.Hash
	n    int
	line bytes.Buffer
}

// NewWriter returns a writer of records to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w, sum: sha256.New()} }

// Write adds one record.
func (w *Writer) Write(r Record) error {
	w.line.Reset()
	enc := json.NewEncoder(&w.line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("record %s: %w", r.Sample.ID, err)
	}
	w.sum.Write(w.line.Bytes())
	w.n++
	if _, err := w.w.Write(w.line.Bytes()); err != nil {
		return fmt.Errorf("record %s: %w", r.Sample.ID, err)
	}
	return nil
}

// Records is the number of records written.
func (w *Writer) Records() int { return w.n }

// SHA256 is the hex digest of what was written.
func (w *Writer) SHA256() string { return hex.EncodeToString(w.sum.Sum(nil)) }

// MaxLine bounds a record's line in bytes.
const MaxLine = 16 << 20

// Read yields the records of r, or one error that names the line. Unknown
// fields, attachments whose bytes have another hash, and calls without their
// attachment are errors.
func Read(r io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 1<<16), MaxLine)
		n := 0
		for lines.Scan() {
			n++
			rec, err := parse(lines.Bytes())
			if err != nil {
				yield(Record{}, fmt.Errorf("corpus: line %d: %w", n, err))
				return
			}
			if !yield(rec, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Record{}, fmt.Errorf("corpus: line %d: %w", n+1, err))
		}
	}
}

func parse(line []byte) (Record, error) {
	var r Record
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, err
	}
	if dec.More() {
		return r, fmt.Errorf("more than one record on the line")
	}
	return r, r.check()
}

// check holds a record that was read against what Build promises.
func (r Record) check() error {
	if err := r.Sample.Validate(); err != nil {
		return err
	}
	have := map[string]bool{}
	for _, a := range r.Attachments {
		if digest(a.PNG) != a.SHA256 {
			return fmt.Errorf("sample %s: attachment %s has other bytes than its hash says", r.Sample.ID, a.SHA256)
		}
		have[a.SHA256] = true
	}
	for i, c := range r.Calls {
		if c.Image != "" && !have[c.Image] {
			return fmt.Errorf("sample %s: call %d returned image %s, which is not attached", r.Sample.ID, i+1, c.Image)
		}
	}
	if t, in := rollout.ParseTriage(r.Turn1), rollout.ParseIntegration(r.Turn2); t.Problem != "" || in.Problem != "" {
		return fmt.Errorf("sample %s: field turn1 or turn2: %s%s", r.Sample.ID, t.Problem, in.Problem)
	}
	return nil
}
