package radcot

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/reward"
	"xragent/rollout"
)

// A lesson is one record in the making.
type lesson struct {
	sample dataset.Sample
	coarse []string // what the coarse view shows; nil for a real image
	right  []ask    // the calls that would serve best
	asks   []ask    // the calls that are made
	// seen tells what a crop of a region shows; nil for a real image.
	seen func(region string) string
}

// How often calls are worse than they could be, in parts of Config.Suboptimal:
// where the teacher has the habit of asking nothing, and elsewhere. A fault
// that is only now and then a policy averages away when it decodes greedily;
// a habit it learns, and reinforcement has to unlearn it. On phantoms the two
// come to about 1 together.
const (
	habitual   = 2
	occasional = 0.7
)

// plan draws the calls from the question and the coarse view. The draw depends
// on the seed and the sample's id, never on its answer.
func plan(s dataset.Sample, coarse []string, cfg Config) lesson {
	h := fnv.New64a()
	h.Write([]byte(s.ID))
	rng := rand.New(rand.NewPCG(cfg.Seed, h.Sum64()))
	right, lax := direct(s.Prompt.Question, coarse)
	right = right[:min(len(right), cfg.KMax)]
	l := lesson{sample: s, coarse: coarse, right: right, asks: right}
	switch luck := rng.Float64(); {
	case lax && luck < habitual*cfg.Suboptimal:
		l.asks = nil
	case !lax && luck < occasional*cfg.Suboptimal:
		l.asks = worsen(right, rng)
		l.asks = l.asks[:min(len(l.asks), cfg.KMax)]
	}
	return l
}

// turn1 writes the assessment and the calls.
func (l lesson) turn1() string {
	text := "<assess>" + assessment(l.coarse, l.sample.Prompt) + "</assess>"
	for _, a := range l.asks {
		text += "\n" + rollout.FormatCall(a.tool, a.arguments())
	}
	return text
}

// turn2 writes reasoning, evidence line and answer from what is at hand.
func (l lesson) turn2(calls []rollout.Call, b rollout.Bundle) string {
	think := l.brief(calls, b)
	if l.sample.Prompt.Kind == dataset.Report {
		think = l.rationale(calls, b)
	}
	text := "<think>" + think + "</think>\n"
	if claims := claims(b, l.sample.Relevant); len(claims) > 0 {
		text += rollout.FormatClaims(claims) + "\n"
	}
	return text + "<answer>" + l.answer() + "</answer>"
}

// claims copies the measurements that bear on the question, as they are shown.
func claims(b rollout.Bundle, relevant []string) []rollout.Claim {
	var out []rollout.Claim
	for _, name := range b.Shown {
		if m, ok := b.Find(name); ok && slices.Contains(relevant, name) {
			out = append(out, rollout.Claim{Name: name, Value: m.Value, Category: m.Category})
		}
	}
	return out
}

// answer is what stands in the answer block: a letter, a string, yes or no, or
// findings.
func (l lesson) answer() string {
	if l.sample.Prompt.Kind != dataset.Report {
		return l.sample.Answer
	}
	if len(l.sample.Positive) == 0 {
		return reward.Normal
	}
	return strings.Join(l.sample.Positive, ", ")
}

// answerWords is the answer in words, for the reasoning.
func (l lesson) answerWords() string {
	if l.sample.Prompt.Kind == dataset.MultipleChoice {
		return l.sample.Prompt.Options[l.sample.Answer[0]-'A']
	}
	return l.answer()
}

// brief is the reasoning of a short question: what was observed, then what
// follows. Where the evidence at hand does not suffice it says so.
func (l lesson) brief(calls []rollout.Call, b rollout.Bundle) string {
	parts := slices.Concat(l.cited(), l.observations(calls), l.measured(b))
	answer := withLetter(l.answerWords(), l.letter())
	if !l.suffices(calls, b) || l.contradicted(calls, b) {
		return strings.Join(append(parts, "Not shown clearly; most likely "+answer+"."), " ")
	}
	parts = append(parts, l.overLimit(calls, b)...)
	return strings.Join(append(parts, "So "+l.turned()+answer+"."), " ")
}

// cited repeats what the coarse view shows that bears on the question.
func (l lesson) cited() []string {
	r, _ := routeOf(l.sample.Prompt.Question)
	words := r.cites
	if words == nil {
		words = r.seen
	}
	var parts []string
	for _, c := range l.coarse {
		if shows([]string{c}, words) {
			parts = append(parts, c+".")
		}
	}
	return parts
}

// turned holds the side of a finding against the side that yes or no is about:
// a small policy says yes or no to two words that stand together, and did not
// learn to from afar. Of a real film no does not mean the other side.
func (l lesson) turned() string {
	asked := l.askedSide()
	switch {
	case asked == "":
		return ""
	case l.sample.Answer == "yes":
		return SideStatement(asked, asked)
	}
	return SideStatement(otherSide[asked], asked)
}

// askedSide is the one side that a yes or no is about, "" where there is none.
func (l lesson) askedSide() string {
	question := strings.ToLower(l.sample.Prompt.Question)
	if l.seen == nil || l.sample.Prompt.Kind != dataset.Binary || zoneOf.MatchString(question) {
		return ""
	}
	if strings.Contains(question, "same side") { // as the effusion, which is large
		for _, c := range l.coarse {
			if side, ok := strings.CutSuffix(c, " base opaque"); ok {
				return side
			}
		}
	}
	if sides := sideOf.FindAllString(question, -1); len(sides) == 1 {
		return sides[0]
	}
	return ""
}

// SideStatement is how reasoning holds the side that was found against another.
func SideStatement(found, against string) string { return found + " against " + against + ": " }

// overLimit holds a ratio against the limit that was looked up for it.
func (l lesson) overLimit(calls []rollout.Call, b rollout.Bundle) []string {
	ctr, ok := b.Find(rollout.CTR)
	if !ok || !slices.Contains(b.Shown, rollout.CTR) || !strings.Contains(l.sample.Prompt.Question, "over the limit") {
		return nil
	}
	for _, c := range calls {
		if m := looked.FindStringSubmatch(c.Observation); m != nil {
			return []string{LimitStatement(rollout.FormatValue(ctr.Value), m[1], l.sample.Answer == "yes")}
		}
	}
	return nil
}

var looked = regexp.MustCompile(`limit (\d\.\d+)`)

// LimitStatement is how reasoning holds a value against a limit: the verdict
// stands behind both.
func LimitStatement(value, limit string, over bool) string {
	verdict := "not over"
	if over {
		verdict = "over"
	}
	return value + " against " + limit + ": " + verdict + "."
}

// letter is the answer's letter, "" where answers have none.
func (l lesson) letter() string {
	if l.sample.Prompt.Kind == dataset.MultipleChoice {
		return l.sample.Answer
	}
	return ""
}

// withLetter names an option by its words and its letter, so that the letter is
// looked up at the words and only repeated in the answer. Nothing stands
// between the two: a small policy finds the option by the id that it has just
// written, and did not learn to from behind a bracket.
func withLetter(words, letter string) string {
	return strings.TrimSpace(words + " " + letter)
}

// observations tells what the calls returned, shortened; of several crops of
// which nothing can be told, only how many they are.
func (l lesson) observations(calls []rollout.Call) []string {
	var parts, crops []string
	pattern := map[string]string{}
	for i, c := range calls {
		if m := patterned.FindStringSubmatch(c.Observation); m != nil && c.Tool == parseTool {
			pattern[l.asks[i].arg] = m[1]
		}
		switch {
		case c.Status != rollout.CallOK:
			parts = append(parts, fmt.Sprintf("No result for %s.", l.asks[i].arg))
		case c.Image != "" && l.shown(l.asks[i]) != "":
			parts = append(parts, CropStatement(l.asks[i].arg, l.shown(l.asks[i])))
		case c.Image != "":
			crops = append(crops, l.asks[i].arg)
		case c.Tool == parseTool:
			parts = append(parts, ParseStatement(l.asks[i].arg, first(c.Observation, 12)))
		default:
			parts = append(parts, first(l.clause(c.Observation), 12)+".")
		}
	}
	switch len(crops) {
	case 0:
	case 1:
		parts = append(parts, "Crop of "+crops[0]+" seen.")
	default:
		parts = append(parts, fmt.Sprintf("%d crops seen.", len(crops)))
	}
	if right, left := pattern["right lung"], pattern["left lung"]; right != "" && left != "" {
		parts = append(parts, PatternStatement(right, left))
	}
	return parts
}

// PatternStatement is how reasoning holds the pattern that region_parse returned
// of the right lung against that of the left.
func PatternStatement(right, left string) string {
	verdict := "even"
	switch r, l := slices.Index(Patterns, right), slices.Index(Patterns, left); {
	case r > l:
		verdict = "right"
	case l > r:
		verdict = "left"
	}
	return "pattern " + right + " against " + left + ": " + verdict + "."
}

// Patterns are the words of region_parse for a lung's texture, the faintest first.
var Patterns = []string{"none", "weak", "strong"}

var patterned = regexp.MustCompile(`pattern (none|weak|strong)\b`)

// shown returns what the crop of a call shows, "" where that is not known.
func (l lesson) shown(a ask) string {
	if l.seen == nil {
		return ""
	}
	return l.seen(a.arg)
}

// ParseStatement is how reasoning tells what region_parse returned of a region:
// a side's opacity is held against the other's before it counts as a sign.
func ParseStatement(region, returned string) string {
	m := paired.FindStringSubmatch(returned)
	if m == nil {
		return region + ": " + returned + "."
	}
	own, _ := strconv.Atoi(m[1])
	other, _ := strconv.Atoi(m[2])
	word := "even"
	switch {
	case own >= other+opacityDiffers:
		word = "higher"
	case other >= own+opacityDiffers:
		word = "lower"
	}
	return region + ": " + returned + ", " + word + "."
}

var paired = regexp.MustCompile(`opacity (\d+) other side (\d+)`)

// opacityDiffers is the difference of opacity, of 100, that region_parse does
// not find on sound films.
const opacityDiffers = 2

// CropStatement is how reasoning tells what a crop of a region shows.
func CropStatement(region, shown string) string { return region + ": " + shown + "." }

// clause returns the part of a looked-up text that holds the answer, or the
// limit that is asked about, or all of it.
func (l lesson) clause(text string) string {
	answer := " " + reward.Normalise(l.answerWords()) + " "
	limited := strings.Contains(l.sample.Prompt.Question, "over the limit")
	for part := range strings.SplitSeq(text, ";") {
		if limited && looked.MatchString(part) || !limited && strings.Contains(" "+reward.Normalise(part)+" ", answer) {
			return part
		}
	}
	return text
}

// first returns the first n words of text on one line, without a full stop at
// the end or what the protocol would misread.
func first(text string, n int) string {
	text = strings.NewReplacer("<", "", ">", "").Replace(text)
	words := strings.Fields(text)
	return strings.TrimRight(strings.Join(words[:min(n, len(words))], " "), ".,;: ")
}

// measured tells the measurements that bear on the question.
func (l lesson) measured(b rollout.Bundle) []string {
	if len(l.sample.Relevant) == 0 {
		return nil
	}
	var out []string
	for _, c := range claims(b, l.sample.Relevant) {
		out = append(out, sentence(c))
	}
	if out == nil {
		return []string{"Measurements withheld."}
	}
	return out
}

func sentence(c rollout.Claim) string {
	return strings.TrimSpace(c.Name+" "+rollout.FormatValue(c.Value)+" "+c.Category) + "."
}

// suffices reports whether the evidence at hand answers the question. Of a
// phantom it is known what is needed; of a real image, the calls that serve the
// question must have been made.
func (l lesson) suffices(calls []rollout.Call, b rollout.Bundle) bool {
	switch phantom.Need(l.sample.Need) {
	case phantom.NeedCoarse:
		return true
	case phantom.NeedBundle:
		return len(claims(b, l.sample.Relevant)) > 0
	case phantom.NeedMisleading:
		return false
	case phantom.NeedLookup: // and what the looked-up limit is for
		return l.asked(calls, l.sample.Need) && (len(l.sample.Relevant) == 0 || len(claims(b, l.sample.Relevant)) > 0)
	case phantom.NeedCrop, phantom.NeedParse: // named after the tools, of which a general question has both
		return l.asked(calls, "")
	}
	return l.asked(calls, "") || len(claims(b, l.sample.Relevant)) > 0
}

var (
	spots   = regexp.MustCompile(`\bspots (\d+)`)
	pattern = regexp.MustCompile(`\bpattern (none|weak|strong)`)
	graded  = map[string]string{"none": "clear", "weak": "slight", "strong": "marked"}
	// categorical answers stand as such in a measurement's category.
	categorical = []string{"normal", "borderline", "enlarged", "right", "left"}
)

// contradicted reports whether what was measured says another answer than the
// right one: tools err and bands are coarse, and reasoning may not pretend that
// they agree.
func (l lesson) contradicted(calls []rollout.Call, b rollout.Bundle) bool {
	question, answer := strings.ToLower(l.sample.Prompt.Question), l.answerWords()
	for _, c := range calls {
		if m := spots.FindStringSubmatch(c.Observation); m != nil && strings.HasPrefix(question, "how many") && m[1] != answer {
			return true
		}
		if m := pattern.FindStringSubmatch(c.Observation); m != nil && strings.Contains(question, "texture") && graded[m[1]] != answer {
			return true
		}
	}
	if l.sideless(question, answer, calls) {
		return true
	}
	for _, c := range claims(b, l.sample.Relevant) {
		if c.Category != "" && slices.Contains(categorical, answer) && !strings.Contains(c.Category, answer) {
			return true
		}
	}
	return false
}

// sideless reports whether a question for the abnormal lung has an answer of
// whose side no call has shown a sign.
func (l lesson) sideless(question, answer string, calls []rollout.Call) bool {
	need := phantom.Need(l.sample.Need)
	if need != phantom.NeedParse && need != phantom.NeedCrop {
		return false
	}
	side := answer
	if m := sideOf.FindString(question); m != "" && l.sample.Prompt.Kind == dataset.Binary && strings.Contains(question, "lung the abnormal one") {
		side = map[bool]string{true: m, false: otherSide[m]}[answer == "yes"]
	}
	if otherSide[side] == "" || !strings.Contains(question, "abnormal") && !strings.Contains(question, "less air") {
		return false
	}
	for i, c := range calls {
		if i < len(l.asks) && strings.HasPrefix(l.asks[i].arg, side) && l.sign(l.asks[i], c) {
			return false
		}
	}
	return true
}

var otherSide = map[string]string{"right": "left", "left": "right"}

// sign reports whether a call has shown anything that is not on every film.
func (l lesson) sign(a ask, c rollout.Call) bool {
	if c.Tool == cropTool {
		shown := l.shown(a)
		return shown == "pleural line" || strings.HasSuffix(shown, " nodule") && shown != "no nodule"
	}
	p, s := pattern.FindStringSubmatch(c.Observation), spots.FindStringSubmatch(c.Observation)
	return p != nil && p[1] != "none" || s != nil && s[1] != "0" && phantom.Need(l.sample.Need) == phantom.NeedCrop
}

// asked reports whether every call that serves the question best was made and
// answered, and one of them with this tool ("": any).
func (l lesson) asked(calls []rollout.Call, tool string) bool {
	found := false
	for _, a := range l.right {
		i := slices.Index(l.asks, a)
		if i < 0 || calls[i].Status != rollout.CallOK {
			return false
		}
		found = found || tool == "" || a.tool == tool
	}
	return found
}

// A sign is how a finding of the closed list shows.
type sign struct {
	finding string
	coarse  string // part of a coarse statement
	measure string // measurement that tells it
	lungs   bool   // seen where both lungs were looked at
}

var signs = []sign{
	{finding: phantom.Cardiomegaly, coarse: "heart large", measure: rollout.CTR},
	{finding: phantom.Effusion, coarse: "base opaque", lungs: true},
	{finding: phantom.Pneumothorax, coarse: "edge free"},
	{finding: phantom.Consolidation, coarse: "zone opaque", lungs: true},
	{finding: phantom.Nodule, coarse: "nodule", lungs: true},
	{finding: phantom.VolumeLoss, coarse: "lung small", measure: rollout.Asymmetry},
	{finding: phantom.TubeMalposition, coarse: "tube"},
	{finding: phantom.Edema, coarse: "texture", lungs: true},
}

// rationale is the reasoning of a report: the view, the observations, the
// measurements, then each finding in turn.
func (l lesson) rationale(calls []rollout.Call, b rollout.Bundle) string {
	parts := []string{"The film shows: " + assessment(l.coarse, l.sample.Prompt) + "."}
	parts = append(parts, l.observations(calls)...)
	if len(calls) == 0 {
		parts = append(parts, "Nothing further was asked for, so the view has to do.")
	}
	parts = append(parts, l.reportMeasured(b)...)
	parts = append(parts, "Each finding in turn:")
	var checked []string
	for _, s := range signs {
		checked = append(checked, s.finding+" "+l.verdict(s, calls, b))
	}
	parts = append(parts, strings.Join(checked, ", ")+".")
	return strings.Join(append(parts, "Together this makes "+l.answer()+"."), " ")
}

func (l lesson) reportMeasured(b rollout.Bundle) []string {
	if len(b.Shown) == 0 {
		return []string{"The measurements are withheld and cannot decide about heart and volume."}
	}
	var out []string
	for _, c := range claims(b, []string{rollout.CTR, rollout.Asymmetry}) {
		out = append(out, sentence(c))
	}
	return out
}

// verdict says yes only of what the view, a measurement or a tool could show.
func (l lesson) verdict(s sign, calls []rollout.Call, b rollout.Bundle) string {
	switch {
	case slices.Contains(l.sample.Masked, s.finding):
		return "unclear"
	case !slices.Contains(l.sample.Positive, s.finding):
		return "no"
	case shows(l.coarse, []string{s.coarse}), slices.Contains(b.Shown, s.measure), s.lungs && l.asked(calls, ""):
		return "yes"
	}
	return "likely"
}
