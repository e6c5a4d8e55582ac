package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
)

// maxHeader bounds a safetensors header; the format's own limit is 100 MB.
const maxHeader = 16 << 20

// entry is one tensor in a safetensors header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// Safetensors returns w as a safetensors file. Equal weights give equal bytes.
func (w *Weights) Safetensors() []byte { return encodeSafetensors(w.tensors) }

// ReadWeights reads a safetensors file (F32 or BF16) that must hold exactly the
// tensors of cfg. name is used in errors. An lm_head beside a tied head is
// accepted where it equals the embedding.
func ReadWeights(cfg Config, name string, data []byte) (*Weights, error) {
	read, err := decodeSafetensors(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w := NewWeights(cfg)
	if err := w.fill(read); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return w, nil
}

// ReadSafetensors reads the weights of cfg from a file.
func ReadSafetensors(path string, cfg Config) (*Weights, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ReadWeights(cfg, path, data)
}

// WriteSafetensors writes w to a file.
func (w *Weights) WriteSafetensors(path string) error {
	return os.WriteFile(path, w.Safetensors(), 0o644)
}

// fill copies read into w; every tensor must be there, and none besides.
func (w *Weights) fill(read map[string]Tensor) error {
	if w.cfg.TieWordEmbeddings {
		if head, ok := read[headName]; ok && slices.Equal(head.Data, read[textPrefix+"embed_tokens.weight"].Data) {
			delete(read, headName)
		}
	}
	return fillTensors(w.tensors, read)
}

func fillTensors(want []Tensor, read map[string]Tensor) error {
	shapes := make(map[string][]int, len(read))
	for name, t := range read {
		shapes[name] = t.Shape
	}
	if err := checkLayout(want, shapes); err != nil {
		return err
	}
	for _, t := range want {
		copy(t.Data, read[t.Name].Data)
	}
	return nil
}

// checkLayout holds that shapes has every tensor wanted, in its shape, and none
// besides.
func checkLayout(want []Tensor, shapes map[string][]int) error {
	var wrong []string
	wanted := make(map[string]bool, len(want))
	for _, t := range want {
		wanted[t.Name] = true
		got, ok := shapes[t.Name]
		switch {
		case !ok:
			wrong = append(wrong, "missing "+t.Name)
		case !slices.Equal(got, t.Shape):
			wrong = append(wrong, fmt.Sprintf("%s has shape %v, want %v", t.Name, got, t.Shape))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		if !wanted[name] {
			wrong = append(wrong, "unexpected "+name)
		}
	}
	return mismatch(wrong, "the file does not belong to this configuration")
}

// mismatch makes one error of the first few problems and what they mean.
func mismatch(wrong []string, meaning string) error {
	if len(wrong) == 0 {
		return nil
	}
	const shown = 5
	text := strings.Join(wrong[:min(shown, len(wrong))], "; ")
	if n := len(wrong) - shown; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return errors.New(text + "; " + meaning)
}

// encodeSafetensors writes ts as F32 in name order.
func encodeSafetensors(ts []Tensor) []byte {
	return encodeTensors(ts, "F32", 4, func(b []byte, x float32) []byte {
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	})
}

// SafetensorsBF16 returns w as a safetensors file of bfloat16, each number
// rounded to the nearest, ties to even. Numbers that are not finite panic: such
// weights are never kept.
func (w *Weights) SafetensorsBF16() []byte {
	return encodeTensors(w.tensors, "BF16", 2, func(b []byte, x float32) []byte {
		if x-x != 0 {
			panic(fmt.Sprintf("embedded: weight %v cannot be stored", x))
		}
		bits := math.Float32bits(x)
		return binary.LittleEndian.AppendUint16(b, uint16((bits+0x7fff+bits>>16&1)>>16))
	})
}

// encodeTensors writes ts in name order, each number by put as size bytes.
func encodeTensors(ts []Tensor, dtype string, size int64, put func([]byte, float32) []byte) []byte {
	var header bytes.Buffer
	header.WriteString(`{"__metadata__":{"format":"pt"}`)
	sorted := sortedByName(ts)
	offset := int64(0)
	for _, t := range sorted {
		end := offset + size*int64(len(t.Data))
		meta, err := json.Marshal(entry{dtype, t.Shape, [2]int64{offset, end}})
		if err != nil {
			panic(err) // integers always encode
		}
		fmt.Fprintf(&header, ",%q:%s", t.Name, meta)
		offset = end
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	out := make([]byte, 0, 8+int64(header.Len())+offset)
	out = binary.LittleEndian.AppendUint64(out, uint64(header.Len()))
	out = append(out, header.Bytes()...)
	for _, t := range sorted {
		for _, x := range t.Data {
			out = put(out, x)
		}
	}
	return out
}

// decodeSafetensors reads every tensor of a file.
func decodeSafetensors(data []byte) (map[string]Tensor, error) {
	header, body, err := decodeHeader(data)
	if err != nil {
		return nil, err
	}
	ts := make(map[string]Tensor, len(header))
	for name, e := range header {
		t, err := decodeTensor(name, e, body)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", name, err)
		}
		ts[name] = t
	}
	return ts, nil
}

// decodeHeader returns the entries of a file and the bytes that they refer to.
func decodeHeader(data []byte) (map[string]entry, []byte, error) {
	if len(data) < 8 {
		return nil, nil, fmt.Errorf("safetensors file of %d bytes is truncated", len(data))
	}
	size, err := headerSize(data, int64(len(data)))
	if err != nil {
		return nil, nil, err
	}
	header, err := parseHeader(data[8 : 8+size])
	return header, data[8+size:], err
}

// headerSize reads a header's length off the first 8 bytes of a file; see the
// format at https://huggingface.co/docs/safetensors.
func headerSize(start []byte, file int64) (int64, error) {
	n := binary.LittleEndian.Uint64(start)
	if n > maxHeader || n > uint64(file-8) {
		return 0, fmt.Errorf("safetensors header of %d bytes does not fit a file of %d", n, file)
	}
	return int64(n), nil
}

func parseHeader(text []byte) (map[string]entry, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("safetensors header: %w", err)
	}
	delete(raw, "__metadata__")
	header := make(map[string]entry, len(raw))
	for name, r := range raw {
		var e entry
		if err := json.Unmarshal(r, &e); err != nil {
			return nil, fmt.Errorf("safetensors header: tensor %s: %w", name, err)
		}
		header[name] = e
	}
	return header, nil
}

func decodeTensor(name string, e entry, body []byte) (Tensor, error) {
	if err := e.check(int64(len(body))); err != nil {
		return Tensor{}, err
	}
	return Tensor{name, e.Shape, decodeFloats(body[e.Offsets[0]:e.Offsets[1]], e.width())}, nil
}

// width returns the bytes of a number, 0 for a type that is not read.
func (e entry) width() int64 { return map[string]int64{"F32": 4, "BF16": 2}[e.DType] }

// check holds that e is readable and lies within a body of that many bytes.
func (e entry) check(body int64) error {
	n, err := countElements(e.Shape)
	if err != nil {
		return err
	}
	if e.width() == 0 {
		return fmt.Errorf("dtype %s is not read, only F32 and BF16", e.DType)
	}
	lo, hi := e.Offsets[0], e.Offsets[1]
	if lo < 0 || hi < lo || hi > body || hi-lo != n*e.width() {
		return fmt.Errorf("data_offsets %v do not fit shape %v in %d bytes; the file may be truncated", e.Offsets, e.Shape, body)
	}
	return nil
}

// countElements multiplies the shape out, refusing what no file can hold.
func countElements(shape []int) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || (d > 0 && n > math.MaxInt32*8/int64(d)) {
			return 0, fmt.Errorf("shape %v is out of range", shape)
		}
		n *= int64(d)
	}
	return n, nil
}

func decodeFloats(raw []byte, width int64) []float32 {
	x := make([]float32, int64(len(raw))/width)
	decodeInto(x, raw, width)
	return x
}

// decodeInto fills x from the front and returns how many numbers raw held.
func decodeInto(x []float32, raw []byte, width int64) int {
	n := len(raw) / int(width)
	for i := range n {
		if width == 4 {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		} else {
			x[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
		}
	}
	return n
}
