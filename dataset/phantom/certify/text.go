package certify

import (
	"context"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"

	"xragent/dataset"
)

// text trains on wording alone: an answerer, which may gain nothing over the
// most frequent answers, and a judge of whether a tool is needed.
func (e *examination) text(ctx context.Context) error {
	const group = "text alone"
	train, test := asked(e.world.train), asked(e.world.test)
	choices := choicesOf(train)
	blind, err := fitScorer(ctx, answerRows(train, choices), e.Seed)
	if err != nil {
		return err
	}
	right := 0
	for _, r := range answerRows(test, choices) {
		right += one(blind.best(r) == r.right)
	}
	majority := newPrior(train).right(test)
	e.add(
		share(group, "per-template majority", majority, len(test)),
		share(group, "blind: trained on text only", right, len(test)).atMost(float64(majority)/float64(len(test))+0.03),
	)
	judge, err := fitScorer(ctx, needRows(e.world.train), e.Seed)
	if err != nil {
		return err
	}
	var scores []float64
	var tool []bool
	for i, r := range needRows(e.world.test) {
		scores = append(scores, judge.score(r.options[1]))
		tool = append(tool, e.world.test[i].tool())
	}
	e.add(aucFigure(group, "AUC of tool needed", scores, tool).atMost(0.65))
	return nil
}

// A row is one decision: among options with features, one is right.
type row struct {
	options [][]uint32
	right   int // -1: none of those that training has seen
}

// choicesOf returns the answers of each template and kind that names none.
func choicesOf(train []*study) map[string][]string {
	seen := map[string][]string{}
	for _, s := range train {
		if k := choiceKey(s); len(s.question.Prompt.Options) == 0 && !slices.Contains(seen[k], s.answer) {
			seen[k] = append(seen[k], s.answer)
		}
	}
	for _, list := range seen {
		slices.Sort(list)
	}
	return seen
}

// offered returns the answers that a question has to choose from.
func offered(s *study, choices map[string][]string) []string {
	if list := s.question.Prompt.Options; len(list) > 0 {
		return list
	}
	return choices[choiceKey(s)]
}

func choiceKey(s *study) string { return s.question.Template + "/" + string(s.question.Prompt.Kind) }

func answerRows(all []*study, choices map[string][]string) []row {
	rows := make([]row, len(all))
	for i, s := range all {
		list := offered(s, choices)
		rows[i].right = slices.Index(list, s.answer)
		for at, o := range list {
			rows[i].options = append(rows[i].options, answerFeatures(s, list, at, o))
		}
	}
	return rows
}

// answerFeatures are those of one option: itself, its place, its neighbours and
// the words of the question.
func answerFeatures(s *study, list []string, at int, option string) []uint32 {
	t, place := s.question.Template, ""
	if s.question.Prompt.Kind == dataset.MultipleChoice {
		place = strconv.Itoa(at)
	}
	f := []uint32{feature("o", t, option), feature("k", choiceKey(s), option), feature("p", place), feature("tp", t, place)}
	for _, other := range list {
		if other != option {
			f = append(f, feature("n", t, option, other))
		}
	}
	for _, w := range grams(s.question.Prompt.Question) {
		f = append(f, feature("w", w, option))
	}
	return f
}

// needRows asks of each study whether a tool is needed: option 1.
func needRows(all []*study) []row {
	rows := make([]row, len(all))
	for i, s := range all {
		q := s.question.Prompt
		f := []uint32{feature("bias"), feature("t", s.question.Template), feature("k", choiceKey(s))}
		for _, w := range grams(q.Question) {
			f = append(f, feature("w", w), feature("tw", s.question.Template, w))
		}
		for at, o := range q.Options {
			f = append(f, feature("o", o), feature("to", s.question.Template, o), feature("op", o, strconv.Itoa(at)))
		}
		rows[i] = row{options: [][]uint32{nil, f}, right: one(s.tool())}
	}
	return rows
}

// grams returns the words of a text and its pairs of words.
func grams(text string) []string {
	words := strings.Fields(strings.ToLower(text))
	out := slices.Clone(words)
	for i := range len(words) - 1 {
		out = append(out, words[i]+" "+words[i+1])
	}
	return out
}

const scorerBits = 20

func feature(parts ...string) uint32 {
	h := fnv.New32a()
	for _, p := range parts {
		h.Write([]byte(p)) // never fails
		h.Write([]byte{0})
	}
	v := h.Sum32()
	return (v ^ v>>scorerBits) & (1<<scorerBits - 1)
}

// A scorer is a conditional logit over hashed features (McFadden 1974).
type scorer struct {
	w, squares []float32
}

func (s *scorer) score(features []uint32) (sum float64) {
	for _, f := range features {
		sum += float64(s.w[f])
	}
	return sum
}

func (s *scorer) best(r row) int {
	best, top := -1, math.Inf(-1)
	for i, o := range r.options {
		if v := s.score(o); v > top {
			best, top = i, v
		}
	}
	return best
}

// fitScorer fits by Adagrad (Duchi, Hazan and Singer 2011) and keeps the
// weights of the epoch that predicts a held-back tenth of the rows best, so
// that the probe is neither cut short nor spoilt by what it learnt by heart.
func fitScorer(ctx context.Context, rows []row, seed uint64) (*scorer, error) {
	const epochs, patience = 30, 4
	s := &scorer{make([]float32, 1<<scorerBits), make([]float32, 1<<scorerBits)}
	kept, least := slices.Clone(s.w), math.Inf(1)
	rng := rand.New(rand.NewPCG(seed, 3))
	hold := len(rows) / 10
	since := 0
	for range epochs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, i := range rng.Perm(len(rows) - hold) {
			s.learn(rows[hold+i])
		}
		since++
		if loss := s.loss(rows[:hold]); loss < least {
			least, since = loss, 0
			copy(kept, s.w)
		}
		if since == patience {
			break
		}
	}
	return &scorer{w: kept}, nil
}

// shares returns each option's probability.
func (s *scorer) shares(r row) []float64 {
	p := make([]float64, len(r.options))
	sum := 0.0
	for i, o := range r.options {
		p[i] = math.Exp(min(s.score(o), 30))
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

func (s *scorer) loss(rows []row) (sum float64) {
	for _, r := range rows {
		if r.right >= 0 {
			sum -= math.Log(max(s.shares(r)[r.right], 1e-9))
		}
	}
	return sum
}

func (s *scorer) learn(r row) {
	const rate = 0.05
	if r.right < 0 {
		return
	}
	for i, p := range s.shares(r) {
		g := float32(p)
		if i == r.right {
			g--
		}
		for _, f := range r.options[i] {
			s.squares[f] += g * g
			s.w[f] -= rate * g / (float32(math.Sqrt(float64(s.squares[f]))) + 1e-6)
		}
	}
}

// aucFigure returns the area under the ROC curve with the interval of Hanley
// and McNeil 1982.
func aucFigure(group, name string, scores []float64, positive []bool) Figure {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool { return scores[order[i]] < scores[order[j]] })
	ranks, pos := 0.0, 0.0
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && scores[order[j]] == scores[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			if positive[k] {
				ranks += float64(i+j+1) / 2 // the mean rank of equals
				pos++
			}
		}
		i = j
	}
	neg := float64(len(scores)) - pos
	a := (ranks - pos*(pos+1)/2) / (pos * neg)
	q1, q2 := a/(2-a), 2*a*a/(1+a)
	half := 1.96 * math.Sqrt((a*(1-a)+(pos-1)*(q1-a*a)+(neg-1)*(q2-a*a))/(pos*neg))
	return Figure{Group: group, Name: name, Value: a, Low: max(0, a-half), High: min(1, a+half), N: len(scores)}
}
