package masks

import (
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"image"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A Table is the rows of a CheXmask file that were wanted. It is safe for
// concurrent use.
type Table struct {
	rows map[string]row // by image id without extension
	hash string
}

type row struct {
	line    int
	rle     [3]string // in the order of Parts
	size    image.Point
	quality float64
}

// The columns by their names. The image's id stands under different names in
// the files of different data sets.
var (
	idColumns   = []string{"Image Index", "ImageID", "image_id", "dicom_id", "Path"}
	maskColumns = [3]string{"Right Lung", "Left Lung", "Heart"}
)

// maxRow bounds the bytes of a row's masks. A lung's outline crosses a row of
// pixels a few times, so that a film of 4,000 rows has some 100 KB.
const maxRow = 4 << 20

// ReadTable reads a CheXmask CSV file. Where want is given, only rows whose id
// (without extension) it accepts are kept: whole files are larger than memory.
// Height and Width may be missing; then a mask has the size of its image.
func ReadTable(r io.Reader, want func(id string) bool) (*Table, error) {
	hash := sha256.New()
	in := csv.NewReader(io.TeeReader(r, hash))
	in.ReuseRecord = true
	head, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("masks: header: %w", err)
	}
	c, err := columnsOf(head)
	if err != nil {
		return nil, err
	}
	t := &Table{rows: map[string]row{}}
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("masks: %w", err)
		}
		line, _ := in.FieldPos(0)
		if err := t.add(record, c, line, want); err != nil {
			return nil, fmt.Errorf("masks: line %d: %w", line, err)
		}
	}
	t.hash = fmt.Sprintf("chexmask/%.12x", hash.Sum(nil))
	return t, nil
}

// Name identifies the table by its content.
func (t *Table) Name() string { return t.hash }

// Len returns how many images the table has.
func (t *Table) Len() int { return len(t.rows) }

type columns struct {
	id                     int
	masks                  [3]int
	height, width, quality int // -1: not there
}

func columnsOf(head []string) (columns, error) {
	c := columns{id: -1, height: slices.Index(head, "Height"), width: slices.Index(head, "Width"), quality: slices.Index(head, "Dice RCA (Mean)")}
	for _, name := range idColumns {
		if i := slices.Index(head, name); i >= 0 && c.id < 0 {
			c.id = i
		}
	}
	if c.id < 0 {
		return c, fmt.Errorf("masks: header: none of the columns %q: it must name the image", idColumns)
	}
	for i, name := range maskColumns {
		if c.masks[i] = slices.Index(head, name); c.masks[i] < 0 {
			return c, fmt.Errorf("masks: header: no column %q", name)
		}
	}
	return c, nil
}

func (t *Table) add(record []string, c columns, line int, want func(string) bool) error {
	id := withoutExtension(record[c.id])
	if id == "" {
		return errors.New("the image's id is empty")
	}
	if want != nil && !want(id) {
		return nil
	}
	if first, ok := t.rows[id]; ok {
		return fmt.Errorf("image %q stands in line %d as well", id, first.line)
	}
	r := row{line: line, quality: NoQuality}
	for i, at := range c.masks {
		if len(record[at]) > maxRow {
			return fmt.Errorf("column %s has %d bytes, limit %d", maskColumns[i], len(record[at]), maxRow)
		}
		r.rle[i] = strings.Clone(record[at])
	}
	if err := r.describe(record, c); err != nil {
		return err
	}
	t.rows[strings.Clone(id)] = r
	return nil
}

func (r *row) describe(record []string, c columns) (err error) {
	if c.height >= 0 && c.width >= 0 {
		if r.size.Y, err = strconv.Atoi(record[c.height]); err != nil {
			return fmt.Errorf("column Height is %.20q, want a whole number", record[c.height])
		}
		if r.size.X, err = strconv.Atoi(record[c.width]); err != nil {
			return fmt.Errorf("column Width is %.20q, want a whole number", record[c.width])
		}
	}
	if c.quality >= 0 {
		if r.quality, err = strconv.ParseFloat(record[c.quality], 64); err != nil {
			return fmt.Errorf("column Dice RCA (Mean) is %.20q, want a number", record[c.quality])
		}
	}
	return nil
}

// Find returns the masks of the image at a path, which is matched by its end:
// c, then b/c, then a/b/c of a/b/c.png, because ids are bare names in some data
// sets and paths in others. found is false where the table does not hold it.
func (t *Table) Find(at string, size image.Point) (s Set, found bool, err error) {
	r, id, found := t.row(at)
	if !found {
		return Set{}, false, nil
	}
	if r.size != (image.Point{}) && r.size != size {
		return Set{}, true, fmt.Errorf("masks of %s: %d x %d pixels, the image has %d x %d: use the table of the original resolution", id, r.size.X, r.size.Y, size.X, size.Y)
	}
	s.Quality = r.quality
	for i, m := range []**image.Alpha{&s.RightLung, &s.LeftLung, &s.Heart} {
		if *m, err = RLE(r.rle[i], size); err != nil {
			return Set{}, true, fmt.Errorf("masks of %s: column %s: %w", id, maskColumns[i], err)
		}
	}
	return s, true, nil
}

func (t *Table) row(at string) (r row, id string, ok bool) {
	parts := strings.Split(withoutExtension(strings.ReplaceAll(at, `\`, "/")), "/")
	for i := len(parts) - 1; i >= 0; i-- {
		id = strings.Join(parts[i:], "/")
		if r, ok = t.rows[id]; ok {
			return r, id, true
		}
	}
	return row{}, "", false
}

func withoutExtension(name string) string { return strings.TrimSuffix(name, path.Ext(name)) }
