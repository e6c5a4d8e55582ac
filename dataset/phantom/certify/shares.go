package certify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

// shares checks the tables of the specification on described test studies,
// and on all of them that an answer follows from nothing in the wording or the
// way in which the film was taken.
func (e *examination) shares(context.Context) error {
	const group = "shares of the test split"
	test := e.world.test
	count := func(is func(*study) bool) (n int) {
		for _, s := range test {
			if is(s) {
				n++
			}
		}
		return n
	}
	around := func(name string, percent, slack float64, is func(*study) bool) {
		f := share(group, name, count(is), len(test))
		e.add(f.atLeast((percent - slack) / 100).atMost((percent + slack) / 100))
	}
	for _, n := range phantom.Needs {
		around("need "+string(n.Need), n.Percent, 1.5, func(s *study) bool { return s.need() == n.Need })
	}
	for _, v := range []struct {
		view           phantom.View
		fault          phantom.Fault
		percent, slack float64
	}{
		{phantom.PA, phantom.NoFault, 62, 3}, {phantom.AP, phantom.NoFault, 14, 2}, {phantom.Lateral, phantom.NoFault, 8, 2},
		{"", phantom.Rotated, 6, 1.5}, {"", phantom.Cropped, 5, 1.5}, {"", phantom.PoorInspiration, 5, 1.5},
	} {
		around("view "+strings.TrimSpace(string(v.view)+" "+string(v.fault)), v.percent, v.slack, func(s *study) bool {
			fault := s.truth.Fault
			if fault == phantom.MaskFailure {
				fault = phantom.NoFault // not of the view
			}
			return fault == v.fault && (v.view == "" || s.truth.View == v.view)
		})
	}
	e.misled()
	e.forms()
	e.even()
	return nil
}

// misled asks how often the number on a spoilt film suggests a wrong answer.
// A mask failure spoils no number of the film itself; see the tools' figures.
func (e *examination) misled() {
	wrong, n := 0, 0
	for _, s := range slices.Concat(e.world.train, e.world.test) {
		if s.need() == phantom.NeedMisleading && s.truth.Fault != phantom.MaskFailure {
			n++
			if s.truth.Misled {
				wrong++
			}
		}
	}
	e.add(share("evidence", "misleading number on the wrong side", wrong, n).atLeast(0.70))
}

// forms checks what kinds of question there are.
func (e *examination) forms() {
	const group = "forms"
	kinds, capabilities, needs := map[dataset.Kind]bool{}, map[string]bool{}, map[string]map[string]bool{}
	multiple, six, untold, crop, unplaced := 0, 0, 0, 0, 0
	for _, s := range e.world.test {
		q := s.question
		kinds[q.Prompt.Kind], capabilities[q.Capability] = true, true
		if needs[q.Template] == nil {
			needs[q.Template] = map[string]bool{}
		}
		needs[q.Template][q.Need] = true
		if q.Prompt.Kind == dataset.MultipleChoice {
			multiple++
			six += one(len(q.Prompt.Options) == 6 && slices.Contains(q.Prompt.Options, phantom.CannotTell))
			untold += one(s.answer == phantom.CannotTell)
		}
		if s.need() == phantom.NeedCrop && !s.report() {
			crop++
			unplaced += one(places(q.Prompt.Question) == "")
		}
	}
	two := 0
	for _, n := range needs {
		two += one(len(n) >= 2)
	}
	e.add(
		Figure{Group: group, Name: "kinds of question", Value: float64(len(kinds))}.atLeast(float64(len(dataset.Kinds))),
		Figure{Group: group, Name: "capabilities", Value: float64(len(capabilities))}.atLeast(7).atMost(7),
		share(group, "templates that serve two needs", two, len(needs)).atLeast(0.5),
		share(group, "six options, one of them that nothing can be told", six, multiple).atLeast(1),
		share(group, "nothing can be told is right", untold, multiple).atLeast(0.001).atMost(0.03),
		share(group, "roi_crop questions that do not say where", unplaced, crop).atLeast(0.4).atMost(0.6),
	)
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// even looks for cells (template, view, fault) where one answer is likelier
// than another. What is reported is the largest distance from the even share
// among those that chance does not explain (more than four standard
// deviations: there are some hundred of them).
func (e *examination) even() {
	cells := map[string]map[string]int{}
	answers := map[string]map[string]bool{}
	for _, s := range asked(slices.Concat(e.world.train, e.world.test)) {
		if s.ofView() {
			continue
		}
		cell := s.question.Template + ", " + strings.TrimSpace(string(s.truth.View)+" "+string(s.truth.Fault))
		add2(cells, cell, s.answer)
		if answers[s.question.Template] == nil {
			answers[s.question.Template] = map[string]bool{}
		}
		answers[s.question.Template][s.answer] = true
	}
	worst, note := 0.0, ""
	var uneven []string
	for _, cell := range slices.Sorted(maps.Keys(cells)) {
		template, _, _ := strings.Cut(cell, ", ")
		off, answer := mostUneven(cells[cell], slices.Sorted(maps.Keys(answers[template])))
		if off == 0 {
			continue
		}
		uneven = append(uneven, fmt.Sprintf("%s: %s by %.2f", cell, answer, off))
		if math.Abs(off) > math.Abs(worst) {
			worst, note = off, uneven[len(uneven)-1]
		}
	}
	if n := len(uneven) - 1; n > 0 {
		note += fmt.Sprintf("; and %d more", n)
	}
	e.add(Figure{
		Group: "evidence", Name: "P(answer | template, view, fault) off even", Value: math.Abs(worst), N: e.Texts, Note: note,
	}.atMost(0.02))
}

// mostUneven returns by how much the most uneven answer's share is off, and
// that answer; 0 when chance explains all.
func mostUneven(counts map[string]int, answers []string) (off float64, answer string) {
	n := 0
	for _, c := range counts {
		n += c
	}
	even := 1 / float64(len(answers))
	sigma := math.Sqrt(even * (1 - even) / float64(n))
	for _, a := range answers {
		d := float64(counts[a])/float64(n) - even
		if math.Abs(d) > 4*sigma && math.Abs(d) > math.Abs(off)+1e-9 {
			off, answer = d, a
		}
	}
	return off, answer
}

func add2(m map[string]map[string]int, a, b string) {
	if m[a] == nil {
		m[a] = map[string]int{}
	}
	m[a][b]++
}

// A prior holds the most frequent answer of each template in training.
type prior map[string]string

func newPrior(train []*study) prior {
	counts := map[string]map[string]int{}
	for _, s := range train {
		add2(counts, s.question.Template, s.answer)
	}
	p := prior{}
	for template, by := range counts {
		p[template] = slices.MaxFunc(slices.Sorted(maps.Keys(by)), func(a, b string) int {
			return cmp.Or(cmp.Compare(by[a], by[b]), cmp.Compare(b, a))
		})
	}
	return p
}

// right returns how many of the studies the prior gets right.
func (p prior) right(all []*study) (n int) {
	for _, s := range all {
		n += one(p[s.question.Template] == s.answer)
	}
	return n
}
