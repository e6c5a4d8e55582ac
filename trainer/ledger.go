package trainer

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"xragent/rollout"
	"xragent/trainer/coordinator"
)

// An Entry is one record of the ledger. Exactly one of Accepted, Rejected and
// Decision is set.
type Entry struct {
	Accepted    *rollout.Trajectory `json:"accepted,omitempty"` // attachments by digest only
	Redelivered bool                `json:"redelivered,omitempty"`
	Rejected    *Rejection          `json:"rejected,omitempty"`
	Decision    *Decision           `json:"decision,omitempty"`
}

// A Rejection says why an attempt does not count.
type Rejection struct {
	Task   rollout.TaskID    `json:"task"`
	Class  coordinator.Class `json:"class"`
	Reason string            `json:"reason"`
}

// A Decision is something the run did that its records alone do not show.
type Decision struct {
	Kind   string `json:"kind"` // train, leave, publish
	Step   int    `json:"step"` // for publish: the version
	Groups []int  `json:"groups,omitempty"`
	Detail string `json:"detail,omitempty"` // why a group was left out; digest of published weights
}

// identity says what was decided about, and what must be decided again after a
// restart. Why a group was left out may read differently then.
func (d Decision) identity() (key, value string) {
	switch d.Kind {
	case "train":
		return fmt.Sprintf("batch of step %d", d.Step), fmt.Sprint(d.Groups)
	case "publish":
		return fmt.Sprintf("digest of version %d", d.Step), d.Detail
	}
	return fmt.Sprintf("%s %v", d.Kind, d.Groups), ""
}

// The ledger is a file of blocks: length and CRC-32C of the payload, four bytes
// little-endian each, then the payload, one JSON entry a line. A block is what
// one sync made durable. The last block may be torn by a crash; it is cut off,
// since nothing was acknowledged on its strength. Damage before the last block
// is no crash, and is refused.
const (
	ledgerName   = "ledger"
	blockHeader  = 8
	maxBlock     = 1 << 30
	maxGathering = 32 << 20 // entries of one block, before it is written
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type ledger struct {
	path    string
	file    *os.File
	pending bytes.Buffer
	at      boundary
}

// openLedger opens the ledger of a stage for appending, after giving each of
// its entries to each.
func openLedger(dir string, at boundary, notice func(string), each func(Entry) error) (*ledger, error) {
	path := filepath.Join(dir, ledgerName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	end, torn, err := readBlocks(f, entriesOf(path, each))
	if err == nil && torn > 0 {
		notice(fmt.Sprintf("ledger %s: cut a torn record of %d bytes at offset %d; nothing relied on it", path, torn, end))
		err = errors.Join(f.Truncate(end), f.Sync())
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("ledger %s: %w", path, err)
	}
	return &ledger{path: path, file: f, at: at}, nil
}

// add gathers an entry for the next commit.
func (l *ledger) add(e Entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("ledger %s: %w", l.path, err)
	}
	l.pending.Write(data)
	l.pending.WriteByte('\n')
	if l.pending.Len() > maxGathering {
		return l.commit()
	}
	return nil
}

// commit makes all added entries durable, with one write and one sync.
func (l *ledger) commit() error {
	if l.pending.Len() == 0 {
		return nil
	}
	block := make([]byte, blockHeader, blockHeader+l.pending.Len())
	binary.LittleEndian.PutUint32(block, uint32(l.pending.Len()))
	binary.LittleEndian.PutUint32(block[4:], crc32.Checksum(l.pending.Bytes(), castagnoli))
	block = append(block, l.pending.Bytes()...)
	l.pending.Reset()
	if err := l.at.cross("ledger/write"); err != nil {
		_, werr := l.file.Write(block[:len(block)/2]) // what a crash in the middle leaves
		return errors.Join(err, werr)
	}
	if _, err := l.file.Write(block); err != nil {
		return fmt.Errorf("ledger %s: %w", l.path, err)
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("ledger %s: %w", l.path, err)
	}
	return l.at.cross("ledger/synced")
}

func (l *ledger) close() error { return l.file.Close() }

// readBlocks gives each valid block and its payload's offset to each. It
// returns where the valid blocks end and how many torn bytes follow.
func readBlocks(f *os.File, each func(payload []byte, offset int64) error) (end, torn int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, info.Size()), 1<<20)
	for {
		payload, whole := nextBlock(r, info.Size()-end)
		if payload == nil {
			return end, info.Size() - end, damage(f, end, info.Size(), whole)
		}
		if err := each(payload, end+blockHeader); err != nil {
			return end, 0, err
		}
		end += blockHeader + int64(len(payload))
	}
}

// nextBlock reads one block of at most left bytes. The payload is nil at the
// end and where the block is not valid; whole is the length that it claims.
func nextBlock(r io.Reader, left int64) (payload []byte, whole int64) {
	var header [blockHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, 0
	}
	n := int64(binary.LittleEndian.Uint32(header[:]))
	if whole = blockHeader + n; n == 0 || n > maxBlock || whole > left {
		return nil, whole
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil ||
		crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(header[4:]) {
		return nil, whole
	}
	return payload, whole
}

// damage reports an invalid block that a valid one follows: a crash tears only
// the last one.
func damage(f *os.File, at, size, whole int64) error {
	next := at + whole
	if whole <= blockHeader || next >= size {
		return nil
	}
	if payload, _ := nextBlock(io.NewSectionReader(f, next, size-next), size-next); payload == nil {
		return nil
	}
	return fmt.Errorf("the record at offset %d is damaged, and valid ones follow: restore the file from a copy", at)
}

// entriesOf decodes the entries of a block.
func entriesOf(path string, each func(Entry) error) func([]byte, int64) error {
	return func(payload []byte, offset int64) error {
		for line := range bytes.Lines(payload) {
			var e Entry
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("offset %d: %w", offset, err)
			}
			if err := each(e); err != nil {
				return err
			}
			offset += int64(len(line))
		}
		return nil
	}
}

// checkLedger reports a ledger that lacks a step which a checkpoint holds. It
// comes before openLedger, which would cut off what it takes for torn: a ledger
// that lost its end to more than a crash must not be cut and gone on with.
func checkLedger(dir string, step int) error {
	trained := 0
	err := ReadLedger(dir, func(e Entry) error {
		if e.Decision != nil && e.Decision.Kind == "train" {
			trained = max(trained, e.Decision.Step)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && trained < step {
		err = fmt.Errorf("ledger %s: it ends at step %d, the checkpoint is of step %d: restore it from a copy, or start a new run",
			filepath.Join(dir, ledgerName), trained, step)
	}
	return err
}

// ReadLedger gives every entry of a stage's ledger to each, oldest first. It
// may run while the stage does. A torn end is passed over.
func ReadLedger(dir string, each func(Entry) error) error {
	path := filepath.Join(dir, ledgerName)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, err := readBlocks(f, entriesOf(path, each)); err != nil {
		return fmt.Errorf("ledger %s: %w", path, err)
	}
	return nil
}

// Canonical writes the canonical record of a stage to canonical.jsonl in its
// directory and returns the path: every accepted trajectory, in the order of
// step, group and index, through [rollout.Trajectory.Canonical]. Equal runs
// give equal bytes. It holds one trajectory in memory at a time.
func Canonical(dir string) (string, error) {
	in, err := os.Open(filepath.Join(dir, ledgerName))
	if err != nil {
		return "", fmt.Errorf("canonical record: %w", err)
	}
	defer in.Close()
	places, err := findAccepted(in)
	if err != nil {
		return "", fmt.Errorf("canonical record: %w", err)
	}
	out := filepath.Join(dir, "canonical.jsonl")
	if err := writeCanonical(in, places, out+".tmp"); err != nil {
		return "", fmt.Errorf("canonical record: %w", err)
	}
	return out, errors.Join(os.Rename(out+".tmp", out), syncDir(dir))
}

// A place is where the ledger holds a trajectory.
type place struct {
	task   rollout.TaskID
	offset int64
	length int
}

func findAccepted(f *os.File) ([]place, error) {
	var places []place
	_, _, err := readBlocks(f, func(payload []byte, offset int64) error {
		for line := range bytes.Lines(payload) {
			var e struct {
				Accepted *struct {
					Task rollout.TaskID `json:"task"`
				} `json:"accepted"`
			}
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("ledger: offset %d: %w", offset, err)
			}
			if e.Accepted != nil {
				places = append(places, place{e.Accepted.Task, offset, len(line)})
			}
			offset += int64(len(line))
		}
		return nil
	})
	slices.SortFunc(places, func(a, b place) int { return compareTasks(a.task, b.task) })
	return places, err
}

func compareTasks(a, b rollout.TaskID) int {
	return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index))
}

func writeCanonical(in io.ReaderAt, places []place, path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	for i, p := range places {
		if i > 0 && compareTasks(places[i-1].task, p.task) == 0 {
			panic(fmt.Sprintf("trainer: the ledger accepted %v and %v for one place", places[i-1].task, p.task))
		}
		line := make([]byte, p.length)
		if _, err := in.ReadAt(line, p.offset); err != nil {
			return err
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		data, err := json.Marshal(e.Accepted.Canonical())
		if err != nil {
			return err
		}
		w.Write(append(data, '\n')) // a write error is kept for Flush
	}
	return errors.Join(w.Flush(), f.Sync())
}
