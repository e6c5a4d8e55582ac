package certify

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"xragent/dataset/phantom"
	"xragent/dataset/phantom/certify/internal/cnn"
	"xragent/internal/simd"
)

// least is how often a statement must be true of the training films for the
// probe to be taught it.
const least = 20

// A reader is the network on the coarse view. It is taught every statement
// that is true of a film and the numbers of its geometry; on top of the same
// features it answers the questions, with heads of its own for those that the
// coarse view should suffice for and for the others, and says whether a tool
// is needed.
type reader struct {
	net        *cnn.Net
	maps       []string // findings with a place
	labels     []string
	labelHead  int
	numberHead int
	answers    map[string][]string // by template
	heads      map[string]int
}

func (e *examination) coarse(ctx context.Context) error {
	train, test := coarseFirst(e.world.train, e.Train), e.world.test[:e.Test]
	e.report("coarse view: rendering")
	pixels := e.views(ctx, train)
	r := newReader(train, e.Seed)
	examples := make([]cnn.Example, len(train))
	for i, s := range train {
		examples[i] = cnn.Example{Pixels: pixels[i], Targets: r.targets(s), Maps: r.places(s)}
	}
	if err := r.net.Train(ctx, examples, e.options("coarse view", e.Epochs)); err != nil {
		return err
	}
	e.judge(r, train, test, e.views(ctx, test))
	return ctx.Err()
}

// coarseFirst takes n studies, up to six tenths of them such that the coarse
// view suffices for: so the reader sees more of what it should learn to see.
// Its heads are apart by that class, so that no answer becomes likelier.
func coarseFirst(all []*study, n int) []*study {
	var coarse, other []*study
	for _, s := range all {
		if s.need() == phantom.NeedCoarse {
			coarse = append(coarse, s)
		} else {
			other = append(other, s)
		}
	}
	coarse = coarse[:min(len(coarse), n*6/10)]
	other = other[:min(len(other), n-len(coarse))]
	return slices.Concat(coarse, other)
}

func (e *examination) views(ctx context.Context, all []*study) [][]uint8 {
	out := make([][]uint8, len(all))
	simd.For(e.Threads, len(all), func(lo, hi int) {
		for i := lo; i < hi && ctx.Err() == nil; i++ {
			out[i] = e.world.coarse(all[i])
		}
	})
	return out
}

func newReader(train []*study, seed uint64) *reader {
	r := &reader{answers: map[string][]string{}, heads: map[string]int{}}
	counts, placed := map[string]int{}, map[string]bool{}
	for _, s := range train {
		for _, l := range statements(s.truth) {
			counts[l]++
		}
		for _, f := range s.truth.Findings {
			if f.X > 0 {
				placed[sized(f)] = true
			}
		}
		if t := s.question.Template; !s.report() && !slices.Contains(r.answers[t], s.answer) {
			r.answers[t] = append(r.answers[t], s.answer)
			slices.Sort(r.answers[t])
		}
	}
	for _, l := range slices.Sorted(maps.Keys(counts)) {
		if counts[l] >= least {
			r.labels = append(r.labels, l)
		}
	}
	r.maps = slices.Sorted(maps.Keys(placed))
	shape := cnn.Usual
	shape.Maps = len(r.maps)
	r.net = cnn.New(shape, seed)
	r.labelHead, r.numberHead = r.net.AddHead(max(1, len(r.labels))), r.net.AddHead(len(numbers(phantom.Truth{})))
	for _, s := range train {
		r.addHeads(s)
	}
	return r
}

// The classes of questions that have heads of their own, and majorities of
// their own to be compared with: those that the coarse view should suffice for,
// those that need a tool, and those that need a measurement. The reader is told
// the class, so that what it gains over the majority is what the view tells of
// the answer, and not that it tells which class a question is of.
const (
	coarseClass = "coarse: "
	toolClass   = "tool: "
	numberClass = "measurement: "
)

var classes = []string{coarseClass, toolClass, numberClass}

func classOf(s *study) string {
	switch {
	case s.need() == phantom.NeedCoarse:
		return coarseClass
	case s.tool():
		return toolClass
	}
	return numberClass
}

// headNames are the heads of a question: those of its template and those of its
// template and place, first for the answer, then for the need.
func headNames(s *study) (answer, need []string) {
	t := s.question.Template
	at := t + "/" + places(s.question.Prompt.Question)
	class := classOf(s)
	return []string{class + t, class + at}, []string{"need: " + t, "need: " + at}
}

func (r *reader) addHeads(s *study) {
	answer, need := headNames(s)
	add := func(names []string, outputs int) {
		for _, n := range names {
			if _, ok := r.heads[n]; !ok {
				r.heads[n] = r.net.AddHead(outputs)
			}
		}
	}
	add(need, 1)
	if !s.report() {
		add(answer, len(r.answers[s.question.Template]))
	}
}

// find returns those of the named heads that training has made.
func (r *reader) find(names []string) []int {
	var out []int
	for _, n := range names {
		if h, ok := r.heads[n]; ok {
			out = append(out, h)
		}
	}
	return out
}

func (r *reader) targets(s *study) []cnn.Target {
	there := make([]float32, max(1, len(r.labels)))
	for _, l := range statements(s.truth) {
		if i, ok := slices.BinarySearch(r.labels, l); ok {
			there[i] = 1
		}
	}
	answer, need := headNames(s)
	out := []cnn.Target{
		{Heads: []int{r.labelHead}, Loss: cnn.Labels, Values: there, Weight: float32(len(there)) / 8},
		{Heads: r.find(need), Loss: cnn.Labels, Values: []float32{float32(one(s.tool()))}, Weight: 0.5},
	}
	if s.truth.View != phantom.Lateral {
		out = append(out, cnn.Target{Heads: []int{r.numberHead}, Loss: cnn.Numbers, Values: numbers(s.truth), Weight: 2})
	}
	if !s.report() {
		out = append(out, cnn.Target{
			Heads: r.find(answer), Loss: cnn.Classes, Class: slices.Index(r.answers[s.question.Template], s.answer), Weight: 1,
		})
	}
	return out
}

// statements returns what is true of a film, at several levels of detail.
func statements(t phantom.Truth) []string {
	out := []string{"view " + string(t.View)}
	if t.Fault != phantom.NoFault {
		out = append(out, string(t.Fault), string(t.Fault)+" "+t.FaultSide)
	}
	for _, f := range t.Findings {
		name := sized(f)
		for _, l := range []string{name, name + " " + f.Side, name + " " + f.Side + " " + f.Zone, name + " " + f.Margin} {
			if !slices.Contains(out, l) {
				out = append(out, l)
			}
		}
	}
	return out
}

// sized names a finding with whether it is large.
func sized(f phantom.Finding) string {
	if f.SizeMM >= 15 {
		return "large " + f.Name
	}
	return f.Name
}

// places returns the maps of a film: the cells that a finding lies in.
func (r *reader) places(s *study) []float32 {
	const scale, cell = phantom.Size / cnn.Side, cnn.Side / cnn.Cells
	out := make([]float32, len(r.maps)*cnn.Cells*cnn.Cells)
	for _, f := range s.truth.Findings {
		k := slices.Index(r.maps, sized(f))
		if k < 0 || f.X <= 0 {
			continue
		}
		reach := max(cell/2, f.SizeMM/phantom.SpacingMM/scale/2)
		for i := range cnn.Cells * cnn.Cells {
			x, y := float64(i%cnn.Cells)*cell+cell/2, float64(i/cnn.Cells)*cell+cell/2
			if math.Abs(x-f.X/scale) <= reach && math.Abs(y-f.Y/scale) <= reach {
				out[k*cnn.Cells*cnn.Cells+i] = 1
			}
		}
	}
	return out
}

// numbers returns the geometry of a film, each in units of about its spread.
func numbers(t phantom.Truth) []float32 {
	return []float32{
		float32((t.Apparent.CTR - 0.5) / 0.06), float32(t.Apparent.Asymmetry / 0.15), float32(t.Apparent.Shift / 0.04),
		float32((t.Anatomical.CTR - 0.5) / 0.06),
	}
}

// answer returns the reader's answer among those that the question offers.
func (r *reader) answer(s *study, pixels []uint8) string {
	names, _ := headNames(s)
	heads := r.find(names)
	if len(heads) == 0 {
		return ""
	}
	list := r.answers[s.question.Template]
	offered := func(i int) bool {
		o := s.question.Prompt.Options
		return len(o) == 0 || slices.Contains(o, list[i])
	}
	i := argmax(r.net.Outputs(pixels, heads...), offered)
	if i < 0 {
		return ""
	}
	return list[i]
}

// A score compares the reader with the most frequent answers.
type score struct{ right, majority, n int }

func (s score) plus(o score) score {
	return score{s.right + o.right, s.majority + o.majority, s.n + o.n}
}

func (s score) figure(group, name string) Figure {
	f := share(group, name, s.right, s.n)
	f.Note = fmt.Sprintf("majority %.3f", float64(s.majority)/float64(max(s.n, 1)))
	return f
}

// scores are kept by any name, the needs' and the templates' among them.
type scores map[string]score

func (s scores) add(hit score, names ...string) {
	for _, n := range names {
		s[n] = s[n].plus(hit)
	}
}

const reading = "coarse view: a small convolutional network"

// judge writes the reader's figures.
func (e *examination) judge(r *reader, train, test []*study, views [][]uint8) {
	s := r.scores(train, test, views)
	e.add(s["coarse"].figure(reading, "questions that it should suffice for").atLeast(0.90))
	tool := s["any tool"]
	e.add(tool.figure(reading, "questions that need a tool").atMost(float64(tool.majority)/float64(tool.n) + 0.05))
	for _, n := range phantom.Needs {
		if n.Need != phantom.NeedCoarse {
			e.add(s[string(n.Need)].figure(reading, "  need "+string(n.Need)))
		}
	}
	e.add(r.needFigure(test, views))
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if strings.Contains(name, ": ") {
			e.add(s[name].figure(reading, "  "+name))
		}
	}
}

// scores asks the reader every question. The majority is that of the template
// within the class of need, since the reader is told the class.
func (r *reader) scores(train, test []*study, views [][]uint8) scores {
	priors := map[string]prior{}
	for _, class := range classes {
		priors[class] = newPrior(slices.DeleteFunc(asked(train), func(s *study) bool { return classOf(s) != class }))
	}
	out := scores{}
	for i, s := range test {
		if s.report() {
			continue
		}
		class, t := classOf(s), s.question.Template
		hit := score{one(r.answer(s, views[i]) == s.answer), one(priors[class][t] == s.answer), 1}
		out.add(hit, s.question.Need, class+t)
		if s.tool() {
			out.add(hit, "any tool")
		}
	}
	return out
}

// needFigure says how well the reader tells whether a tool is needed.
func (r *reader) needFigure(test []*study, views [][]uint8) Figure {
	var scores []float64
	var tool []bool
	for i, s := range test {
		_, need := headNames(s)
		if h := r.find(need); len(h) > 0 {
			scores, tool = append(scores, float64(r.net.Outputs(views[i], h...)[0])), append(tool, s.tool())
		}
	}
	return aucFigure(reading, "AUC of tool needed, from text and coarse view", scores, tool).atLeast(0.85)
}
