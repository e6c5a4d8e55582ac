package embedded

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xragent/rollout"
	"xragent/trainer/batch"
)

// A golden is one case of testdata/golden: what transformers computed.
type golden struct {
	Name  string
	Grids [][3]int
	Loss  float64
	Grads map[string]struct{ Norm, Probe float64 }

	ids, mask []int32
	positions []int32 // [3, T]
	pixels    []float32
	logits    []float32
	logprobs  []float32
	grads     map[string][]float32 // where kept in full
}

// readGolden reads a model and its cases.
func readGolden(t *testing.T, label string) (*Weights, []golden) {
	t.Helper()
	dir := filepath.Join("testdata", "golden", label)
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	cfg, err := ReadConfig(read("config.json"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := ReadSafetensors(filepath.Join(dir, "model.safetensors"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var cases []golden
	if err := json.Unmarshal(read("cases.json"), &cases); err != nil {
		t.Fatal(err)
	}
	header, body, err := decodeHeader(read("cases.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		cases[i].read(t, header, body)
	}
	return w, cases
}

func (g *golden) read(t *testing.T, header map[string]entry, body []byte) {
	get := func(key string) []float32 {
		e, ok := header[g.Name+"/"+key]
		if !ok {
			return nil
		}
		return numbers(t, e.DType, body[e.Offsets[0]:e.Offsets[1]])
	}
	g.ids, g.mask, g.positions = ints(get("input_ids")), ints(get("loss_mask")), ints(get("position_ids"))
	g.logits, g.logprobs, g.pixels = get("logits"), get("logprobs"), get("pixels")
	for i := range g.pixels {
		g.pixels[i] /= 64
	}
	g.grads = map[string][]float32{}
	for name := range header {
		if p, ok := strings.CutPrefix(name, g.Name+"/grad/"); ok {
			g.grads[p] = get("grad/" + p)
		}
	}
}

func numbers(t *testing.T, dtype string, raw []byte) []float32 {
	t.Helper()
	var x []float32
	switch dtype {
	case "F32":
		return decodeFloats(raw, 4)
	case "I32":
		for ; len(raw) > 0; raw = raw[4:] {
			x = append(x, float32(int32(binary.LittleEndian.Uint32(raw))))
		}
	case "U8":
		for _, b := range raw {
			x = append(x, float32(b))
		}
	case "I8":
		for _, b := range raw {
			x = append(x, float32(int8(b)))
		}
	default:
		t.Fatalf("dtype %s", dtype)
	}
	return x
}

func ints(x []float32) []int32 {
	out := make([]int32, len(x))
	for i, v := range x {
		out[i] = int32(v)
	}
	return out
}

// row returns the case as a training row, and its pictures.
func (g *golden) row(cfg Config) (batch.Row, map[string]picture) {
	r := batch.Row{ID: g.Name, IDs: g.ids, LossMask: make([]uint8, len(g.ids))}
	for i, m := range g.mask {
		r.LossMask[i] = uint8(m)
	}
	pictures := map[string]picture{}
	pixels := g.pixels
	for i, grid := range g.Grids {
		name := g.Name + string(rune('0'+i))
		n := grid[0] * grid[1] * grid[2] * cfg.Vision.PatchDim()
		pictures[name] = picture{pixels[:n], grid}
		pixels = pixels[n:]
		r.Images = append(r.Images, rollout.ImageUse{SHA256: name, Grid: grid})
	}
	return r, pictures
}

// graphFor builds a graph that just holds the rows, and loads them.
func graphFor(t testing.TB, w *Weights, gradient []float32, threads int, rows []batch.Row, pictures map[string]picture) *graph {
	t.Helper()
	tokens, patches := 0, 0
	for _, r := range rows {
		tokens += len(r.IDs)
	}
	for _, name := range images(rows) {
		patches += len(pictures[name].patches) / w.cfg.Vision.PatchDim()
	}
	g, err := newGraph(w, gradient, threads, tokens, patches)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.feed.load(w.cfg, w.cfg.bundles(rows, tokens), pictures); err != nil {
		t.Fatal(err)
	}
	g.feed.count.Tokens = g.feed.targets
	return g
}

func goldens(t *testing.T, test func(t *testing.T, w *Weights, g golden)) {
	for _, label := range []string{"tied", "untied"} {
		w, cases := readGolden(t, label)
		for _, g := range cases {
			t.Run(label+"/"+g.Name, func(t *testing.T) { test(t, w, g) })
		}
	}
}

func TestGoldenPositions(t *testing.T) {
	goldens(t, func(t *testing.T, w *Weights, g golden) {
		pos, _, err := w.cfg.Positions(g.ids, g.Grids)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range pos {
			for axis := range 3 {
				if want := g.positions[axis*len(pos)+i]; p[axis] != want {
					t.Fatalf("position %d axis %d is %d, want %d", i, axis, p[axis], want)
				}
			}
		}
	})
}

// TestGoldenLogits holds the logits of every position to transformers'.
func TestGoldenLogits(t *testing.T) {
	goldens(t, func(t *testing.T, w *Weights, g golden) {
		row, pictures := g.row(w.cfg)
		for i := range row.LossMask {
			row.LossMask[i] = 1
		}
		row.LossMask[0] = 0
		gr := graphFor(t, w, nil, 1, []batch.Row{row}, pictures)
		if err := gr.run(); err != nil {
			t.Fatal(err)
		}
		vocab := w.cfg.Text.VocabSize
		worst := worstDifference(gr.logits, g.logits[:(len(g.ids)-1)*vocab])
		if worst > 1e-4 {
			t.Errorf("logits differ by up to %.2g, want 1e-4", worst)
		}
		if d := worstDifference(gr.logprobs[:len(g.ids)-1], g.logprobs[1:]); d > 1e-4 {
			t.Errorf("log-probs differ by up to %.2g, want 1e-4", d)
		}
		want := 0.0
		for rows := g.logits[:(len(g.ids)-1)*vocab]; len(rows) > 0; rows = rows[vocab:] {
			want += entropyOf(rows[:vocab])
		}
		if d := math.Abs(gr.feed.sums.entropy - want); d > 1e-4 {
			t.Errorf("entropies sum to %v, want %v", gr.feed.sums.entropy, want)
		}
	})
}

// entropyOf returns the entropy of softmax(logits) in nats.
func entropyOf(logits []float32) float64 {
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x))
	}
	h := math.Log(sum)
	for _, x := range logits {
		h -= math.Exp(float64(x)) / sum * float64(x)
	}
	return h
}

func worstDifference(got, want []float32) float64 {
	worst := 0.0
	for i, x := range want {
		worst = max(worst, math.Abs(float64(got[i])-float64(x)))
	}
	return worst
}

// TestGoldenGradients holds the gradient of every parameter to transformers':
// in full where the fixture has it, else by its norm and one inner product.
func TestGoldenGradients(t *testing.T) {
	goldens(t, func(t *testing.T, w *Weights, g golden) {
		row, pictures := g.row(w.cfg)
		grads := NewWeights(w.cfg)
		gr := graphFor(t, w, grads.slab, 1, []batch.Row{row}, pictures)
		if err := gr.run(); err != nil {
			t.Fatal(err)
		}
		if d := math.Abs(gr.feed.sums.loss - g.Loss); d > 1e-5 {
			t.Errorf("loss is %v, want %v", gr.feed.sums.loss, g.Loss)
		}
		if len(g.Grads) != len(w.tensors) {
			t.Fatalf("%d parameters, the fixture has %d", len(w.tensors), len(g.Grads))
		}
		for _, p := range grads.Tensors() {
			g.checkGradient(t, p)
		}
	})
}

func (g *golden) checkGradient(t *testing.T, p Tensor) {
	t.Helper()
	const tolerance = 1e-4
	want := g.Grads[p.Name]
	length, probe := 0.0, 0.0
	for i, x := range p.Data {
		length += float64(x) * float64(x)
		probe += float64(x) * math.Sin(float64(i+1))
	}
	length = math.Sqrt(length)
	bound := tolerance*want.Norm + 1e-7
	if math.Abs(length-want.Norm) > bound || math.Abs(probe-want.Probe) > bound {
		t.Errorf("gradient of %s: norm %v, probe %v; want %v, %v", p.Name, length, probe, want.Norm, want.Probe)
	}
	full, ok := g.grads[p.Name]
	if !ok {
		return
	}
	distance := 0.0
	for i, x := range full {
		distance += (float64(x) - float64(p.Data[i])) * (float64(x) - float64(p.Data[i]))
	}
	if math.Sqrt(distance) > bound {
		t.Errorf("gradient of %s is %.2g away, norm %.2g", p.Name, math.Sqrt(distance), want.Norm)
	}
}
