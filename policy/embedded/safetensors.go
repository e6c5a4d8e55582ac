package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
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
	var wrong []string
	for _, t := range want {
		got, ok := read[t.Name]
		switch {
		case !ok:
			wrong = append(wrong, "missing "+t.Name)
		case !slices.Equal(got.Shape, t.Shape):
			wrong = append(wrong, fmt.Sprintf("%s has shape %v, want %v", t.Name, got.Shape, t.Shape))
		}
		delete(read, t.Name)
		copy(t.Data, got.Data)
	}
	var extra []string
	for name := range read {
		extra = append(extra, "unexpected "+name)
	}
	sort.Strings(extra)
	return mismatch(append(wrong, extra...))
}

// mismatch makes one error of the first few problems.
func mismatch(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	const shown = 5
	text := strings.Join(wrong[:min(shown, len(wrong))], "; ")
	if n := len(wrong) - shown; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return errors.New(text + "; the file does not belong to this configuration")
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
	size := binary.LittleEndian.Uint64(data)
	if size > maxHeader || size > uint64(len(data)-8) {
		return nil, nil, fmt.Errorf("safetensors header of %d bytes does not fit a file of %d", size, len(data))
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data[8:8+size], &raw); err != nil {
		return nil, nil, fmt.Errorf("safetensors header: %w", err)
	}
	delete(raw, "__metadata__")
	header := make(map[string]entry, len(raw))
	for name, r := range raw {
		var e entry
		if err := json.Unmarshal(r, &e); err != nil {
			return nil, nil, fmt.Errorf("safetensors header: tensor %s: %w", name, err)
		}
		header[name] = e
	}
	return header, data[8+size:], nil
}

func decodeTensor(name string, e entry, body []byte) (Tensor, error) {
	n, err := countElements(e.Shape)
	if err != nil {
		return Tensor{}, err
	}
	width, ok := map[string]int64{"F32": 4, "BF16": 2}[e.DType]
	if !ok {
		return Tensor{}, fmt.Errorf("dtype %s is not read, only F32 and BF16", e.DType)
	}
	lo, hi := e.Offsets[0], e.Offsets[1]
	if lo < 0 || hi < lo || hi > int64(len(body)) || hi-lo != n*width {
		return Tensor{}, fmt.Errorf("data_offsets %v do not fit shape %v in %d bytes; the file may be truncated", e.Offsets, e.Shape, len(body))
	}
	return Tensor{name, e.Shape, decodeFloats(body[lo:hi], width)}, nil
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
	for i := range x {
		if width == 4 {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		} else {
			x[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
		}
	}
	return x
}
