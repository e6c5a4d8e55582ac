package segment

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// newNet reads a network from a safetensors file of 16-bit floats: down.I.J,
// side.I, up.I and head, each with .weight and .bias, I and J from 0.
func newNet(file []byte) (*net, error) {
	f, err := readTensors(file)
	if err != nil {
		return nil, err
	}
	n := &net{}
	channels := 1
	for i := 0; f.has("down.%d.0", i); i++ {
		var stage []layer
		for j := 0; f.has("down.%d.%d", i, j); j++ {
			stage = append(stage, f.layer(channels, 3, "down.%d.%d", i, j))
			channels = stage[j].out
		}
		n.down = append(n.down, stage)
	}
	for i := 0; i+1 < len(n.down); i++ {
		above := n.down[i][0].out
		n.side = append(n.side, f.layer(n.down[i+1][0].out, 1, "side.%d", i))
		n.up = append(n.up, f.layer(above, 3, "up.%d", i))
		if got := n.side[i].out; got != above {
			f.fail(fmt.Errorf("tensor side.%d has %d outputs, want %d as down.%d.0", i, got, above, i))
		}
	}
	if len(n.down) == 0 {
		return nil, errors.New("no tensor down.0.0.weight")
	}
	n.head = f.layer(n.down[0][0].out, 1, "head")
	if n.head.out != classes {
		f.fail(fmt.Errorf("tensor head has %d outputs, want %d", n.head.out, classes))
	}
	return n, f.err
}

// tensors are a safetensors file: a length of 8 bytes, a header in JSON, data.
type tensors struct {
	header map[string]tensorInfo
	data   []byte
	err    error // the first of what was asked for and is not there
}

type tensorInfo struct {
	Type    string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
}

func readTensors(file []byte) (*tensors, error) {
	if len(file) < 8 {
		return nil, fmt.Errorf("%d bytes, want a safetensors file", len(file))
	}
	size := binary.LittleEndian.Uint64(file)
	if size > uint64(len(file)-8) {
		return nil, fmt.Errorf("a header of %d bytes in a file of %d: cut short", size, len(file))
	}
	f := &tensors{data: file[8+size:]}
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(file[8:8+size], &raw); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	delete(raw, "__metadata__")
	f.header = make(map[string]tensorInfo, len(raw))
	for name, text := range raw {
		var info tensorInfo
		if err := json.Unmarshal(text, &info); err != nil {
			return nil, fmt.Errorf("header, tensor %s: %w", name, err)
		}
		f.header[name] = info
	}
	return f, nil
}

func (f *tensors) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

func (f *tensors) has(format string, args ...any) bool {
	_, ok := f.header[fmt.Sprintf(format, args...)+".weight"]
	return ok
}

// layer reads a convolution of in channels. Where it cannot, it says so in
// f.err and returns one of a single output.
func (f *tensors) layer(in, kernel int, format string, args ...any) layer {
	name := fmt.Sprintf(format, args...)
	out := 0
	if shape := f.header[name+".weight"].Shape; len(shape) > 0 {
		out = shape[0]
	}
	weights := f.read(name+".weight", out, in, kernel, kernel)
	bias := f.read(name+".bias", out)
	if weights == nil || bias == nil {
		return newLayer(1, in, kernel, make([]float32, in*kernel*kernel), make([]float32, 1))
	}
	return newLayer(out, in, kernel, weights, bias)
}

// read returns a tensor's values, nil where it has not this shape.
func (f *tensors) read(name string, shape ...int) []float32 {
	info, n := f.header[name], 1
	for i, v := range shape {
		if v < 1 || len(info.Shape) != len(shape) || info.Shape[i] != v {
			f.fail(fmt.Errorf("tensor %s has shape %v, want %v", name, info.Shape, shape))
			return nil
		}
		n *= v
	}
	from, to := info.Offsets[0], info.Offsets[1]
	if info.Type != "F16" || from < 0 || to > len(f.data) || to-from != 2*n {
		f.fail(fmt.Errorf("tensor %s: %s at bytes %d to %d of %d, want %d of F16", name, info.Type, from, to, len(f.data), 2*n))
		return nil
	}
	out := make([]float32, n)
	for i := range out {
		out[i] = half(binary.LittleEndian.Uint16(f.data[from+2*i:]))
	}
	return out
}

// half returns a float of 16 bits (IEEE 754 binary16); infinities and NaN, which
// no weight is, come out as large numbers.
func half(v uint16) float32 {
	sign, exponent, fraction := 1.0, int(v>>10&31), float64(v&1023)
	if v&0x8000 != 0 {
		sign = -1
	}
	if exponent == 0 {
		return float32(sign * math.Ldexp(fraction, -24))
	}
	return float32(sign * math.Ldexp(1024+fraction, exponent-25))
}
