package certify

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"xragent/dataset/phantom"
	"xragent/reward"
	"xragent/rollout"
)

// The oracle has perfect eyes and real tools: it sees every finding that the
// film or a crop of it shows, with its place, the view and the kind of fault;
// all else it has from the tools, with their errors, and from the measurements,
// also those that are withheld. It does not see the anatomical numbers, the
// degree of a fault, or which evidence a question needs. What it gets right is
// what the world's evidence is worth; that the eyes can be had is what the
// probes of the coarse view and of the crops show.
type oracle struct {
	s       *study
	v       evidence
	choices []string // of the question, or what its like has for answers
}

// A rule answers the questions of one template, in words.
type rule func(oracle) string

// rules has one for each template but the report's, whose answer is a list.
var rules = map[string]rule{
	"projection": func(o oracle) string {
		return map[phantom.View]string{"PA": "PA", "AP": "AP", "LATERAL": "lateral"}[o.s.truth.View]
	},
	"nodule-zone":        sighted(func(o oracle) string { f := o.find(phantom.Nodule); return f.Side + " " + f.Zone + " zone" }),
	"nodule-margin":      func(o oracle) string { return o.nodule().Margin },
	"nodule-side":        func(o oracle) string { return yes(o.find(phantom.Nodule).Side == o.side()) },
	"nodule-count":       oracle.count,
	"same-side":          func(o oracle) string { return yes(o.find(phantom.Nodule).Side == o.find(phantom.Effusion).Side) },
	"less-air":           sighted(oracle.lessAir),
	"abnormal-zone":      func(o oracle) string { return yes(o.abnormalZone()) },
	"texture":            func(o oracle) string { return [3]string{"clear", "slight", "marked"}[o.v.parse[o.zone()].pattern] },
	"pneumothorax-side":  sighted(func(o oracle) string { return o.find(phantom.Pneumothorax).Side }),
	"pneumothorax-on":    func(o oracle) string { return yes(o.find(phantom.Pneumothorax).Side == o.side()) },
	"effusion-side":      sighted(func(o oracle) string { return o.find(phantom.Effusion).Side }),
	"effusion-on":        func(o oracle) string { return yes(o.find(phantom.Effusion).Side == o.side()) },
	"diagnosis":          sighted(oracle.diagnosis),
	"abnormal-side":      sighted(oracle.abnormalSide),
	"abnormal-on":        func(o oracle) string { return yes(o.abnormalSide() == o.side()) },
	"tube-tip":           oracle.tip,
	"heart-size":         func(o oracle) string { return [3]string{"normal", "borderline", "enlarged"}[heartCategory(o.ratio())] },
	"heart-enlarged":     func(o oracle) string { return yes(o.ratio() > 0.50) },
	"shift-side":         func(o oracle) string { return sideOf(o.shift()) },
	"protocol-follow-up": oracle.lookedUp,
	"protocol-limit":     oracle.lookedUp,
	"protocol-reviewer":  oracle.lookedUp,
	"protocol-heart":     oracle.overLimit,
}

// sighted is a rule of questions that a lateral film cannot answer.
func sighted(r rule) rule {
	return func(o oracle) string {
		if o.s.truth.View == phantom.Lateral {
			return phantom.CannotTell
		}
		return r(o)
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// side and zone are those that the question names.
func (o oracle) side() string {
	side, _, _ := strings.Cut(places(o.s.question.Prompt.Question), " ")
	return side
}
func (o oracle) zone() string { return places(o.s.question.Prompt.Question) + " zone" }

// find returns the finding of that name, the largest of several.
func (o oracle) find(name string) (found phantom.Finding) {
	for _, f := range o.s.truth.Findings {
		if f.Name == name && (found.Name == "" || f.SizeMM > found.SizeMM) {
			found = f
		}
	}
	return found
}

// nodule returns the nodule that the question means.
func (o oracle) nodule() phantom.Finding {
	for _, f := range o.s.truth.Findings {
		if f.Name == phantom.Nodule && f.Side+" "+f.Zone == places(o.s.question.Prompt.Question) {
			return f
		}
	}
	return o.find(phantom.Nodule)
}

// count counts nodules by eye: what has no edge in a crop is none.
func (o oracle) count() string {
	n := 0
	for _, f := range o.s.truth.Findings {
		n += one(f.Name == phantom.Nodule && f.Side == o.side())
	}
	return fmt.Sprint(n)
}

func sideOf(leftward float64) string {
	if leftward > 0 {
		return "left"
	}
	return "right"
}

func (o oracle) abnormalZone() bool {
	for _, f := range o.s.truth.Findings {
		if f.Name == phantom.Consolidation {
			return f.Side+" "+f.Zone+" zone" == o.zone()
		}
	}
	return o.v.parse[o.zone()].pattern > 0
}

// diagnosis takes what is to be seen, and else what is to be measured.
func (o oracle) diagnosis() string {
	for _, name := range []string{phantom.Effusion, phantom.Pneumothorax, phantom.Nodule} {
		if o.find(name).Name != "" {
			return name
		}
	}
	if o.ratio() > 0.50 {
		return "cardiomegaly"
	}
	return "volume loss"
}

// abnormalSide returns the lung with something to be seen, and else the one
// whose texture or volume is off.
func (o oracle) abnormalSide() string {
	return o.firstOf(phantom.Consolidation, phantom.Effusion, phantom.Pneumothorax, phantom.Nodule)
}

// lessAir returns the lung that is opaque to see, and else to measure.
func (o oracle) lessAir() string { return o.firstOf(phantom.Consolidation, phantom.Effusion) }

// firstOf returns the side of the first of the findings that is there. Where
// there is none to be seen, an admitted measurement that calls a lung small
// goes before the texture that region_parse reports, and a strong texture
// before a number that should not have been shown: false alarms are weak ones.
func (o oracle) firstOf(names ...string) string {
	for _, name := range names {
		if f := o.find(name); f.Name != "" {
			return f.Side
		}
	}
	if side, ok := o.small(); ok {
		return side
	}
	if side, ok := o.strongest(); ok {
		return side
	}
	return o.smaller()
}

// strongest returns the side with the stronger texture, where it is strong.
func (o oracle) strongest() (side string, ok bool) {
	top := map[string]int{}
	for _, z := range zones {
		side, _, _ := strings.Cut(z, " ")
		top[side] = max(top[side], o.v.parse[z].pattern)
	}
	return sideOf(float64(top["left"] - top["right"])), top["left"] != top["right"] && max(top["left"], top["right"]) == 2
}

// tip reads the tube's end off a crop, or the coarse view.
func (o oracle) tip() string {
	for _, f := range o.s.truth.Findings {
		switch {
		case f.TipMM > 0:
			return "in the right bronchus"
		case f.TipMM < 0:
			return "above the carina"
		}
	}
	return ""
}

// What faults do to the numbers on average, with which the oracle corrects
// those that it should not have been shown. The changes of shift and ln are
// towards the side of the fault, right or left.
const (
	widensAP     = 1.15
	addsExpired  = 0.045
	addsCropped  = 0.03
	shiftRotated = 0.05
	lnRotated    = 0.15
	lnCropped    = 0.14
)

// value returns a measurement, shown or not.
func (o oracle) value(name string) float64 {
	m, _ := o.v.bundle.Find(name)
	return m.Value
}

// ratio returns the cardiothoracic ratio as it would be on a perfect film.
func (o oracle) ratio() float64 {
	v := o.value(rollout.CTR)
	switch {
	case o.s.truth.View == phantom.AP:
		return v / widensAP
	case o.s.truth.Fault == phantom.PoorInspiration:
		return v - addsExpired
	case o.s.truth.Fault == phantom.Cropped:
		return v - addsCropped
	}
	return v
}

// towards returns 1 where the fault lies on the left, -1 on the right.
func (o oracle) towards() float64 {
	if o.s.truth.FaultSide == "left" {
		return 1
	}
	return -1
}

func (o oracle) shift() float64 {
	v := o.value(rollout.Shift)
	if o.s.truth.Fault == phantom.Rotated {
		v -= o.towards() * shiftRotated
	}
	return v
}

// small returns the lung that an admitted measurement calls small.
func (o oracle) small() (side string, ok bool) {
	m, _ := o.v.bundle.Find(rollout.Asymmetry)
	side, ok = strings.CutSuffix(m.Category, " smaller")
	return side, ok && m.Admitted
}

// smaller returns the lung that has lost volume, by the asymmetry's distance
// from what is usual for the heart.
func (o oracle) smaller() string {
	v := o.value(rollout.Asymmetry) - (0.46*o.value(rollout.CTR) - 0.10) // toolserver/measure's line through healthy films
	switch o.s.truth.Fault {
	case phantom.Rotated: // the lung that the chest is turned to looks larger
		v += o.towards() * lnRotated
	case phantom.Cropped:
		v -= o.towards() * lnCropped
	}
	return sideOf(v)
}

// lookedUp returns the option that the looked-up text holds.
func (o oracle) lookedUp() string {
	text := " " + strings.NewReplacer(";", " ", ".", " ", ":", " ").Replace(strings.ReplaceAll(o.v.lookup, "0.", "0_")) + " "
	for _, a := range o.choices {
		if strings.Contains(text, " "+strings.ReplaceAll(a, "0.", "0_")+" ") {
			return a
		}
	}
	return ""
}

var limitForm = regexp.MustCompile(`CTR limit (0\.\d+)`)

// overLimit compares the heart with the protocol's limit.
func (o oracle) overLimit() string {
	m := limitForm.FindStringSubmatch(o.v.lookup)
	if m == nil {
		return ""
	}
	limit, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return ""
	}
	return yes(o.ratio() > limit)
}

// heartCategory returns the category of a ratio on a PA film: 0 normal, 1
// borderline, 2 enlarged.
func heartCategory(ctr float64) int {
	switch {
	case ctr < 0.48:
		return 0
	case ctr <= 0.52:
		return 1
	}
	return 2
}

// oracle asks the rules.
func (e *examination) oracle(films []*study, all []evidence) {
	right, n := 0, 0
	byNeed, byTemplate := map[string][2]int{}, map[string][2]int{}
	unknown := map[string]bool{}
	answers := choicesOf(asked(e.world.train))
	for i, s := range films {
		if s.report() {
			continue
		}
		n++
		r, ok := rules[s.question.Template]
		if !ok {
			unknown[s.question.Template] = true
		}
		hit := ok && r(oracle{s, all[i], offered(s, answers)}) == s.answer
		right += one(hit)
		tally(byNeed, s.question.Need, hit)
		tally(byTemplate, s.question.Template, hit)
	}
	const group = "oracle with all evidence"
	f := share(group, "accuracy", right, n).atLeast(0.95)
	if len(unknown) > 0 {
		f.Note = "no rule for " + strings.Join(slices.Sorted(maps.Keys(unknown)), ", ")
	}
	e.add(f)
	e.add(alwaysCalling(films, float64(right)/float64(n)))
	for _, need := range phantom.Needs {
		if t := byNeed[string(need.Need)]; t[1] > 0 {
			e.add(share(group, "  where the need is "+string(need.Need), t[0], t[1]))
		}
	}
	for _, t := range slices.Sorted(maps.Keys(byTemplate)) {
		e.add(share(group, "  template "+t, byTemplate[t][0], byTemplate[t][1]))
	}
}

// alwaysCalling says what the price of calls takes from a policy that answers
// as the oracle does but makes all calls that are allowed, against one that
// makes the one call that a question needs: the difference in reward, as points
// of accuracy at the reward of a right answer.
func alwaysCalling(films []*study, accuracy float64) Figure {
	r := reward.Default()
	calls := 0
	for _, s := range films {
		calls += one(s.tool())
	}
	routed := float64(calls) / float64(len(films))
	lost := r.LambdaT * (float64(r.KMax) - routed) * accuracy
	return Figure{
		Group: "oracle with all evidence", Name: "lost by always calling, in accuracy", N: len(films),
		Value: lost / (1 + r.LambdaM - r.LambdaT*routed),
	}.atLeast(0.03)
}

func tally(m map[string][2]int, key string, hit bool) {
	t := m[key]
	m[key] = [2]int{t[0] + one(hit), t[1] + 1}
}
