package phantom

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/rollout"
)

// A Need is the least evidence that suffices to answer a question.
type Need string

// The needs, from nothing but the coarse view to measurements that mislead
// where they are shown.
const (
	NeedCoarse     Need = "coarse"
	NeedCrop       Need = "roi_crop"
	NeedParse      Need = "region_parse"
	NeedLookup     Need = "evidence_lookup"
	NeedBundle     Need = "bundle_valid"
	NeedMisleading Need = "bundle_misleading"
)

// Needs lists every need with its share of the questions in percent.
var Needs = []struct {
	Need    Need
	Percent float64
}{
	{NeedCoarse, 30}, {NeedCrop, 20}, {NeedParse, 15}, {NeedLookup, 10}, {NeedBundle, 13}, {NeedMisleading, 12},
}

// CannotTell is an option of every multiple-choice question; it is rarely right.
const CannotTell = "cannot be determined"

// options is the number of options of a multiple-choice question.
const options = 6

// A template is a family of questions that share their wording and answers.
type template struct {
	name       string
	capability string
	relevant   []string // measurements that bear on it
	// general templates ask for anything abnormal; a measurement bears on them
	// only where it is the evidence.
	general bool
	// plain films only: PA, without a fault.
	plain bool
	// need maps each evidence class that it serves to its weight there.
	need    map[Need]float64
	answers []string // right equally often
	// only names the answers that can be right where a need is served; without
	// an entry, all of them.
	only    map[Need][]int
	fillers []string // options that are never right
	binary  bool
	words   string // {side}, {zone} and {at} stand for what is asked about
	closed  string // the wording that names the choices
	allow   []string
	// arrange makes answers[a] right.
	arrange func(p *plan, rng *rand.Rand, a int)
	// sided templates cannot be answered from a lateral film, and cropping
	// may hide what they ask for.
	sided bool
}

// A stratum is a point of the unit square that decides need and template, and
// the answer. The points of a split's studies are a (0, 2)-sequence in base 2
// (Sobol' 1967; Kollig and Keller 2002), shifted by the seed: from the first
// study on they fill the square evenly, and so does every strip of it, so that
// shares, and the answers within a template, are even in small samples too.
type stratum [2]float64

func newStratum(seed uint64, split dataset.Split, k int) stratum {
	rng := stream(seed, split, 0, streamStrata)
	shift := rng.Uint64()
	x, y := bits.Reverse32(uint32(k))^uint32(shift), uint32(shift>>32)
	for i, v := uint32(k), uint32(1)<<31; i != 0; i, v = i>>1, v^v>>1 {
		if i&1 != 0 {
			y ^= v
		}
	}
	return stratum{float64(x) / (1 << 32), float64(y) / (1 << 32)}
}

// of returns which of n equal parts a coordinate lies in.
func of(u float64, n int) int { return min(int(u*float64(n)), n-1) }

// ask makes the question: need, template, right answer and form.
func (p *plan) ask(rng *rand.Rand, at stratum) {
	p.need, p.tmpl = assign(at[0])
	p.answer = of(at[1], max(1, len(p.tmpl.answers)))
	if only := p.tmpl.only[p.need]; only != nil {
		p.answer = only[of(at[1], len(only))]
	}
	p.kind = dataset.MultipleChoice
	switch {
	case p.tmpl.binary:
		p.kind = dataset.Binary
	case p.tmpl.name == reportName:
		p.kind = dataset.Report
	case p.tmpl.closed != "" && chance(rng, 0.3):
		p.kind = dataset.Closed
	}
	p.askedSide, p.askedZone = rng.IntN(2), rng.IntN(3)
	p.placed = chance(rng, 0.5)
}

// assign returns the need and the template at u, each in its share of [0, 1).
func assign(u float64) (Need, *template) {
	at := u * 100
	for _, n := range Needs {
		if at -= n.Percent; at < 0 {
			return n.Need, drawTemplate(1+at/n.Percent, n.Need)
		}
	}
	return Needs[0].Need, drawTemplate(0, Needs[0].Need)
}

func drawTemplate(u float64, need Need) *template {
	total := 0.0
	for i := range templates {
		total += templates[i].need[need]
	}
	at := u * total
	last := -1
	for i := range templates {
		w := templates[i].need[need]
		if w > 0 {
			last = i
		}
		if at -= w; w > 0 && at < 0 {
			break
		}
	}
	if last < 0 {
		panic("phantom: no template serves " + string(need))
	}
	return &templates[last]
}

// right returns the right answer in words.
func (p *plan) right() string {
	if p.untold {
		return CannotTell
	}
	return p.tmpl.answers[p.answer]
}

// samples returns the study's questions: the planned one, and in the train and
// validation splits a report beside it.
func (p *plan) samples(id string, t Truth) []dataset.Sample {
	rng := stream(p.key.seed, p.split, p.key.k, streamWords)
	var out []dataset.Sample
	if p.kind == dataset.Report {
		return append(out, p.report(id+"-r", t))
	}
	out = append(out, p.question(id+"-q", rng, t))
	if (p.split == dataset.Train || p.split == dataset.Validation) && p.view != Lateral {
		out = append(out, p.report(id+"-r", t))
	}
	return out
}

// base fills what all questions of the study share.
func (p *plan) base(id string, t Truth) dataset.Sample {
	return dataset.Sample{
		ID: id, Source: "phantom/" + Version, Split: p.split, Study: t.ID, Patient: "patient-" + t.ID,
		Prompt: dataset.Prompt{Images: []dataset.Image{{
			Width: Size, Height: Size, View: string(p.view), ViewFrom: "tag", AgeYears: p.age,
			SpacingMM: SpacingMM, SquarePx: true, Domain: "phantom",
		}}},
	}
}

func (p *plan) question(id string, rng *rand.Rand, t Truth) dataset.Sample {
	s := p.base(id, t)
	s.Prompt.Kind, s.Prompt.Question = p.kind, p.words()
	s.Relevant, s.Capability = p.relevant(), p.tmpl.capability
	s.Template, s.Need = p.tmpl.name, string(p.need)
	s.Reference = reference(t)
	s.Answer = p.right()
	if p.kind == dataset.MultipleChoice {
		s.Prompt.Options = p.options(rng)
		s.Answer = dataset.Letter(slices.Index(s.Prompt.Options, p.right()))
	}
	return s
}

// relevant returns the measurements that bear on the question.
func (p *plan) relevant() []string {
	switch {
	case p.tmpl.general && p.need != NeedBundle && p.need != NeedMisleading:
		return nil
	case p.tmpl.name == diagnosisName && p.answer == enlargedHeart:
		return []string{rollout.CTR}
	}
	return slices.Clone(p.tmpl.relevant)
}

func (p *plan) words() string {
	text := p.tmpl.words
	if p.kind == dataset.Closed {
		text = p.tmpl.closed
	}
	place := sideNames[p.askedSide] + " " + zoneNames[p.askedZone] + " zone"
	at := ""
	if p.placed {
		at = " in the " + place
	}
	return strings.NewReplacer(
		"{at}", at, "{zone}", place, "{side}", sideNames[p.askedSide], "{code}", p.code,
	).Replace(text)
}

// options returns the right answer, others, and [CannotTell], shuffled.
func (p *plan) options(rng *rand.Rand) []string {
	var others []string
	for _, list := range [][]string{p.tmpl.answers, p.tmpl.fillers} {
		for _, o := range list {
			if o != p.right() {
				others = append(others, o)
			}
		}
	}
	if len(p.tmpl.fillers) == 0 { // more answers than options: any of them
		shuffle(rng, others)
	}
	list := []string{CannotTell}
	if !p.untold {
		list = append(list, p.right())
	}
	list = append(list, others...)[:options]
	shuffle(rng, list)
	return list
}

func shuffle[T any](rng *rand.Rand, s []T) {
	rng.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}
