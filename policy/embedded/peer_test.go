package embedded

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"xragent/rollout"
	"xragent/rollout/loop"
	"xragent/trainer/batch"
)

const (
	peerBatch = 32 // sequences decoded at a time
	peerGroup = 4  // of them, in rollouts, that have a prompt in common
	peerNew   = 64 // ids sampled for each
)

// TestPeerSpeed measures, by turns and on the same weights and inputs, our
// training step against PyTorch's, eager and compiled, and our decoding against
// transformers' generate: of prompts that have nothing in common (decode), of
// these only up to the first id (prefill), and of four rollouts each of eight
// prompts (rollouts). Every prompt has an image.
// `make bench-peer` runs it; XRAGENT_PEER is a pattern for the measurements'
// names, and XRAGENT_PEER_THREADS the number of threads on both sides, 2 if not
// set.
//
// Beside the time it gives the ratio of processor time: on a machine with other
// work, and with one thread, that is the one to look at.
func TestPeerSpeed(t *testing.T) {
	python, pattern := os.Getenv("XRAGENT_PYTHON"), os.Getenv("XRAGENT_PEER")
	if python == "" || pattern == "" {
		t.Skip("XRAGENT_PYTHON or XRAGENT_PEER is not set: speed was not measured against PyTorch")
	}
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	threads := 2
	if text := os.Getenv("XRAGENT_PEER_THREADS"); text != "" {
		if threads, err = strconv.Atoi(text); err != nil {
			t.Fatalf("XRAGENT_PEER_THREADS: %v", err)
		}
	}
	p := startPeer(t, python, threads)
	fmt.Printf("medians by turns, %d threads; cpu in brackets\n", threads)
	for _, cfg := range []Config{Small(2048), peerLarge()} {
		for _, length := range []int{256, 512, 1024} {
			for _, m := range []struct {
				name    string
				measure func(t *testing.T, name string, turns int, c peerCase)
				rows    int
				group   int
				new     int
			}{
				{"train", p.train, peerTokens(cfg) / length, 1, 0}, {"decode", p.decode, peerBatch, 1, peerNew},
				{"prefill", p.decode, peerBatch, 1, 1}, {"rollouts", p.decode, peerBatch, peerGroup, peerNew},
			} {
				name, turns := fmt.Sprintf("%s-%d-%d", m.name, cfg.Text.HiddenSize, length), 5
				if m.rows*length*cfg.Text.HiddenSize >= 1<<23 {
					turns = 3 // minutes a turn, where other work is under way
				}
				if wanted.MatchString(name) {
					m.measure(t, name, turns, newPeerCase(cfg, m.rows, m.group, length, m.new))
				}
			}
		}
	}
}

// peerTokens is how many tokens a training step has.
func peerTokens(cfg Config) int { return min(2048, 1<<19/cfg.Text.HiddenSize) }

// peerLarge has 8 layers of 512 and 8,192 ids: 31 million parameters.
func peerLarge() Config {
	c := Small(8192)
	t, v := &c.Text, &c.Vision
	t.HiddenSize, t.IntermediateSize, t.NumHiddenLayers = 512, 1536, 8
	t.NumAttentionHeads, t.NumKeyValueHeads, t.HeadDim = 8, 4, 64
	t.RopeScaling = &Rope{RopeType: "default", Interleaved: true, Section: []int{12, 10, 10}}
	v.HiddenSize, v.IntermediateSize, v.OutHiddenSize = 256, 1024, 512
	return c
}

// A peerCase is a model and rows of equal length. Each group of rows has an
// image and a text of its own.
type peerCase struct {
	weights *Weights
	group   int
	new     int       // ids to sample for each row
	ids     [][]int32 // pads expanded
	grid    [3]int
}

func newPeerCase(cfg Config, rows, group, length, sampled int) peerCase {
	c := peerCase{weights: Init(cfg, 1), group: group, new: sampled, grid: [3]int{1, 8, 8}}
	pads := slices.Repeat([]int32{cfg.ImageTokenID}, 16)
	for i := range rows {
		ids := slices.Concat([]int32{1, cfg.VisionStartID}, pads, []int32{cfg.VisionEndID})
		c.ids = append(c.ids, append(ids, testRow(cfg, i/group, length-len(ids), -1).IDs...))
	}
	return c
}

// image is the image of row i.
func (c peerCase) image(i int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(i/c.group))
}

// prompts cuts the rows so that ids are left to sample, the same for one as for
// all of them.
func (c peerCase) prompts() peerCase {
	cut := make([][]int32, len(c.ids))
	for i, ids := range c.ids {
		cut[i] = ids[:len(ids)-peerNew]
	}
	c.ids = cut
	return c
}

// processor knows the patches of all images: the other side is given them, too.
func (c peerCase) processor() Processor {
	made := madeProcessor{seedProcessor: seedProcessor{c.weights.cfg.Vision.PatchDim(), c.grid}, patches: map[string][]float32{}}
	for i := range c.ids {
		image := c.image(i)
		made.patches[string(image)], _, _ = made.seedProcessor.Process(image)
	}
	return made
}

type madeProcessor struct {
	seedProcessor
	patches map[string][]float32
}

func (p madeProcessor) Process(encoded []byte) ([]float32, [3]int, error) {
	return p.patches[string(encoded)], p.grid, nil
}

// write lays out what the other side loads.
func (c peerCase) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var pixels []float32
	var grids [][3]int
	processor := c.processor()
	for i := range c.ids {
		patches, _, err := processor.Process(c.image(i))
		if err != nil {
			t.Fatal(err)
		}
		pixels, grids = append(pixels, patches...), append(grids, c.grid)
	}
	inputs, err := json.Marshal(map[string]any{"ids": c.ids, "grids": grids})
	if err != nil {
		t.Fatal(err)
	}
	dim := c.weights.cfg.Vision.PatchDim()
	for name, data := range map[string][]byte{
		"config.json": c.weights.cfg.JSON(), weightsFile: c.weights.Safetensors(), "inputs.json": inputs,
		"pixels.safetensors": encodeSafetensors([]Tensor{{"pixels", []int{len(pixels) / dim, dim}, pixels}}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// batch scores every id but a row's first and the pads.
func (c peerCase) batch() batch.Batch {
	var rows []batch.Row
	for i, ids := range c.ids {
		r := batch.Row{ID: fmt.Sprint("row", i), IDs: ids, LossMask: make([]uint8, len(ids)),
			Images: []rollout.ImageUse{{SHA256: fmt.Sprint("image", i), Grid: c.grid}}}
		for t := 1; t < len(ids); t++ {
			if ids[t] != c.weights.cfg.ImageTokenID {
				r.LossMask[t] = 1
			}
		}
		rows = append(rows, r)
	}
	return batchOf(rows...)
}

// A peer is the other side.
type peer struct {
	threads int // of both
	in      io.Writer
	out     *bufio.Reader
}

func startPeer(t *testing.T, python string, threads int) *peer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, "../../learner/bench/peer.py", strconv.Itoa(threads))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &peer{threads, in, bufio.NewReader(out)}
}

// A cost is what a piece of work took.
type cost struct{ Seconds, CPU float64 }

type peerAnswer struct {
	cost
	Error string
	Loss  float64
	IDs   [][]int32
}

// measure runs work in this process.
func measure(work func()) cost {
	start, before := time.Now(), processorTime()
	work()
	return cost{time.Since(start).Seconds(), (processorTime() - before).Seconds()}
}

func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // not for this process
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// ask sends a request and waits for the answer.
func (p *peer) ask(t *testing.T, request map[string]any) (a peerAnswer) {
	t.Helper()
	line, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	answer, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(answer, &a)
	}
	if err != nil {
		t.Fatalf("peer.py, asked %s: %v", line, err)
	}
	time.Sleep(50 * time.Millisecond) // until its threads have stopped waiting for more
	return a
}

// median takes the median of each part.
func median(costs []cost) cost {
	part := func(of func(cost) float64) float64 {
		var x []float64
		for _, c := range costs {
			x = append(x, of(c))
		}
		slices.Sort(x)
		return x[len(x)/2]
	}
	return cost{part(func(c cost) float64 { return c.Seconds }), part(func(c cost) float64 { return c.CPU })}
}

// report prints a line of the table, and the ratios against the best peer.
func report(name string, ours []cost, peers map[string][]cost) {
	own, best := median(ours), cost{math.Inf(1), math.Inf(1)}
	line := fmt.Sprintf("%-16s ours %.0f (%.0f) ms", name, 1000*own.Seconds, 1000*own.CPU)
	for _, kind := range slices.Sorted(maps.Keys(peers)) {
		c := median(peers[kind])
		line += fmt.Sprintf(", %s %.0f (%.0f) ms", kind, 1000*c.Seconds, 1000*c.CPU)
		best = cost{min(best.Seconds, c.Seconds), min(best.CPU, c.CPU)}
	}
	fmt.Printf("%s\nratio %s %.2f\nratio %s-cpu %.2f\n", line, name, best.Seconds/own.Seconds, name, best.CPU/own.CPU)
}

func (p *peer) train(t *testing.T, name string, turns int, c peerCase) {
	l, err := NewLearner(c.weights.cfg, c.weights.Clone(), LearnerOptions{Threads: p.threads, MicroTokens: 2048, Images: numberedImage, Processor: c.processor()})
	if err != nil {
		t.Fatal(err)
	}
	p.ask(t, map[string]any{"do": "load", "dir": c.write(t)})
	data, o := c.batch(), objective("sft", 1e-5)
	o.MaxNorm = 0
	var ours []cost
	peers := map[string][]cost{}
	for turn := range turns + 1 {
		var loss float64
		own := measure(func() { loss = step(t, l, data, o).Loss })
		for _, kind := range []string{"eager", "compile"} {
			a := p.ask(t, map[string]any{"do": kind})
			switch {
			case a.Error != "":
				t.Logf("%s: %s was not measured: %s", name, kind, a.Error)
			case turn > 0: // the first compiles
				peers[kind] = append(peers[kind], a.cost)
			case !(math.Abs(loss-a.Loss) < 1e-3):
				t.Fatalf("%s: our loss is %v, PyTorch's (%s) %v: not the same work", name, loss, kind, a.Loss)
			}
		}
		if turn > 0 { // the first builds the graph
			ours = append(ours, own)
		}
	}
	report(name, ours, peers)
}

func (p *peer) decode(t *testing.T, name string, turns int, c peerCase) {
	c = c.prompts()
	e, err := NewEngine(c.weights.cfg, EngineOptions{Processor: c.processor(), MaxBatch: peerBatch, Threads: p.threads})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p.ask(t, map[string]any{"do": "load", "dir": c.write(t)})
	var ours, theirs []cost
	for turn := range turns + 1 {
		if err := e.Load(c.weights, 3); err != nil { // forgets all rows and images
			t.Fatal(err)
		}
		var ids [][]int32
		own := measure(func() { ids = c.sample(t, e) })
		generated := p.ask(t, map[string]any{"do": "generate", "new": c.new})
		if turn == 0 {
			requireSameStart(t, name, ids, generated.IDs)
			continue
		}
		ours, theirs = append(ours, own), append(theirs, generated.cost)
	}
	report(name, ours, map[string][]cost{"generate": theirs})
}

// sample decodes all rows at once, greedily.
func (c peerCase) sample(t *testing.T, e *Engine) [][]int32 {
	made := make([][]int32, len(c.ids))
	var wg sync.WaitGroup
	for i, ids := range c.ids {
		wg.Go(func() {
			req := loop.SampleRequest{Version: 3, IDs: slices.Concat(ids[:3], ids[18:]), Seed: 1,
				Images:   [][]byte{c.image(i)},
				Sampling: rollout.Sampling{TopP: 1, MaxTokens: c.new}}
			r, err := e.Sample(t.Context(), req)
			if err != nil {
				t.Error(err)
			}
			made[i] = r.Turn.OutputIDs
		})
	}
	wg.Wait()
	return made
}

// requireSameStart holds the first ids to be the same in nearly all rows;
// behind a near tie rows may go apart.
func requireSameStart(t *testing.T, name string, ours, theirs [][]int32) {
	t.Helper()
	same := 0
	for i := range ours {
		if ours[i][0] == theirs[i][0] {
			same++
		}
	}
	if same < len(ours)-1 {
		t.Fatalf("%s: %d of %d rows begin with the same id: not the same work", name, same, len(ours))
	}
}
