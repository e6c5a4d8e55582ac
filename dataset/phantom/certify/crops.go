package certify

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/dataset/phantom/certify/internal/cnn"
	"xragent/internal/simd"
)

// A view is a crop that is worth taking: of which region, and what it shows.
type view struct {
	task   string // of cropTasks
	region string
	class  string
}

// wanted returns the crops that a study's small findings should be seen in,
// each with one of the other side, where there is none.
func wanted(s *study) []view {
	var out []view
	t := s.truth
	if t.View == phantom.Lateral {
		return nil
	}
	both := func(task, side, part string, clear func(side string) bool) {
		out = append(out, view{task, side + part, "there"})
		if other := opposite(side); clear(other) {
			out = append(out, view{task, other + part, "not there"})
		}
	}
	none := func(names ...string) func(string) bool {
		return func(side string) bool {
			return !slices.ContainsFunc(t.Findings, func(f phantom.Finding) bool { return f.Side == side && slices.Contains(names, f.Name) })
		}
	}
	for _, f := range t.Findings {
		switch {
		case f.Name == phantom.Nodule && f.SizeMM < 15:
			both("nodule", f.Side, " "+f.Zone+" zone", none(phantom.Nodule, phantom.Consolidation))
			out = append(out, view{"margin", f.Side + " " + f.Zone + " zone", f.Margin})
		case f.Name == phantom.Pneumothorax && f.SizeMM < 15:
			both("pleural line", f.Side, " apex", none(phantom.Pneumothorax))
		case f.Name == phantom.Effusion && f.SizeMM < 30:
			both("little fluid", f.Side, " costophrenic angle", none(phantom.Effusion))
		}
	}
	if s.question.Template == "tube-tip" && s.answer != phantom.CannotTell {
		out = append(out, view{"tube tip", "trachea", s.answer})
	}
	return out
}

func opposite(side string) string {
	if side == "right" {
		return "left"
	}
	return "right"
}

// cropTasks is the order of the tasks in the certificate.
var cropTasks = []string{"nodule", "margin", "pleural line", "little fluid", "tube tip"}

// A cut is a crop with what is to be read off it.
type cut struct {
	view
	pixels []uint8
}

// crops trains a probe on crops of the right places.
func (e *examination) crops(ctx context.Context) error {
	train, err := e.cuts(ctx, e.world.train, e.Crops)
	if err != nil {
		return err
	}
	test, err := e.cuts(ctx, e.world.test, max(e.Crops/4, 1))
	if err != nil {
		return err
	}
	r := newCropReader(train, e.Seed)
	if err := r.net.Train(ctx, r.examples(train), e.options("crops", e.Epochs*3/2)); err != nil {
		return err
	}
	for _, task := range cropTasks {
		right, n, most := 0, 0, map[string]int{}
		for _, c := range test {
			if c.task == task {
				n++
				right += one(r.read(c) == c.class)
				most[c.class]++
			}
		}
		f := share("probe on the right crop", task, right, n).atLeast(0.90)
		f.Note = fmt.Sprintf("most frequent %d of %d", highest(most), n)
		e.add(f)
	}
	return nil
}

// A cropReader is the network on crops, with a head for each task.
type cropReader struct {
	net     *cnn.Net
	classes map[string][]string // by task
	heads   map[string]int
}

func newCropReader(train []cut, seed uint64) *cropReader {
	r := &cropReader{net: cnn.New(cnn.Usual, seed), classes: map[string][]string{}, heads: map[string]int{}}
	for _, c := range train {
		if !slices.Contains(r.classes[c.task], c.class) {
			r.classes[c.task] = append(r.classes[c.task], c.class)
			slices.Sort(r.classes[c.task])
		}
	}
	for _, task := range slices.Sorted(maps.Keys(r.classes)) {
		r.heads[task] = r.net.AddHead(len(r.classes[task]))
	}
	return r
}

func (r *cropReader) examples(train []cut) []cnn.Example {
	out := make([]cnn.Example, len(train))
	for i, c := range train {
		out[i] = cnn.Example{Pixels: c.pixels, Targets: []cnn.Target{
			{Heads: []int{r.heads[c.task]}, Class: slices.Index(r.classes[c.task], c.class), Weight: 1},
		}}
	}
	return out
}

// read returns the class of a crop, "" for a task that training had none of.
func (r *cropReader) read(c cut) string {
	h, ok := r.heads[c.task]
	if !ok {
		return ""
	}
	return r.classes[c.task][argmax(r.net.Outputs(c.pixels, h), nil)]
}

func highest(m map[string]int) (most int) {
	for _, c := range m {
		most = max(most, c)
	}
	return most
}

// cuts takes the crops of the first n studies that have something to look for.
func (e *examination) cuts(ctx context.Context, all []*study, n int) ([]cut, error) {
	var from []*study
	for _, s := range all {
		if len(from) < n && len(wanted(s)) > 0 {
			from = append(from, s)
		}
	}
	cuts, errs := make([][]cut, len(from)), make([]error, len(from))
	simd.For(e.Threads, len(from), func(lo, hi int) {
		for i := lo; i < hi && ctx.Err() == nil; i++ {
			cuts[i], errs[i] = e.cutsOf(ctx, from[i])
		}
	})
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("study %s: %w", from[i].truth.ID, err)
		}
	}
	return slices.Concat(cuts...), ctx.Err()
}

func (e *examination) cutsOf(ctx context.Context, s *study) ([]cut, error) {
	file, meta, err := e.world.film(s)
	if err != nil {
		return nil, err
	}
	var out []cut
	for _, v := range wanted(s) {
		o, err := call(ctx, e.tools, cropTool, "region", v.region, [][]byte{file}, []dataset.Image{meta})
		if err != nil {
			return nil, err
		}
		pixels, err := decode(o.PNG)
		if err != nil {
			return nil, fmt.Errorf("crop of %s: %w", v.region, err)
		}
		out = append(out, cut{v, pixels})
	}
	return out, nil
}

// options of all probes.
func (e *examination) options(name string, epochs int) cnn.Options {
	return cnn.Options{
		Epochs: epochs, Batch: 16, Rate: 2e-3, Decay: 0.02, Drop: 0.2, Move: 3, Threads: e.Threads, Seed: e.Seed,
		After: func(epoch int, loss float64) {
			e.report(fmt.Sprintf("%s: epoch %d of %d, loss %.4f", name, epoch+1, epochs, loss))
		},
	}
}

// argmax returns the index of the largest value among those allowed; nil
// allows all.
func argmax(v []float32, allowed func(int) bool) int {
	best := -1
	for i, x := range v {
		if (allowed == nil || allowed(i)) && (best < 0 || x > v[best]) {
			best = i
		}
	}
	return best
}
