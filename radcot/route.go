package radcot

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"xragent/dataset"
)

// The auxiliary tools.
const (
	parseTool  = "region_parse"
	cropTool   = "roi_crop"
	lookupTool = "evidence_lookup"
)

// An ask is one call that the teacher makes.
type ask struct {
	tool string
	arg  string // a region, or what to look up
}

func (a ask) arguments() json.RawMessage {
	name := "region"
	if a.tool == lookupTool {
		name = "query"
	}
	return json.RawMessage(fmt.Sprintf(`{%q: %q}`, name, a.arg))
}

// A route says what to ask for where a question has certain words.
type route struct {
	words []string // the question holds one of them
	seen  []string // coarse statements that make the calls needless
	cites []string // coarse statements that bear on the question; nil: seen
	tool  string   // "": the measurements or the view suffice
	part  string   // of the chest: "" for the zone or lung that is asked about
	small bool     // what is sought shows in a zone's crop, not in a lung's
	more  []ask    // asked as well
	lax   bool     // the teacher is used to asking nothing here, though it would help
}

// Where anything may be abnormal, the lungs are parsed for spots and texture,
// and the apices cropped for a pleural line.
var (
	apices  = []ask{{cropTool, "right apex"}, {cropTool, "left apex"}}
	general = []string{"opaque", "nodule", "edge free", "lung small", "shifted"}
)

// routes stands most specific first.
var routes = []route{
	{words: []string{"over the limit"}, seen: []string{"heart large", "heart small"}, tool: lookupTool, lax: true},
	{words: []string{"protocol"}, tool: lookupTool},
	{words: []string{"tube", "tip of"}, seen: []string{"tube ends"}, tool: cropTool, part: "trachea"},
	{words: []string{"main finding"}, seen: []string{"nodule", "base opaque", "edge free", "heart large", "lung small"},
		tool: parseTool, part: "each lung", more: append(slices.Clone(apices), ask{cropTool, "right costophrenic angle"})},
	{words: []string{"projection", "view"}, seen: []string{" view"}},
	{words: []string{"heart", "cardiomegaly", "cardiothoracic"}, seen: []string{"heart large", "heart small"}},
	{words: []string{"volume"}, seen: []string{"lung small"}},
	{words: []string{"shift", "mediastin"}, seen: []string{"shifted"}},
	{words: []string{"texture", "edema", "oedema"}, tool: parseTool},
	{words: []string{"how many"}, seen: []string{"nodule"}, tool: parseTool},
	{words: []string{"same side"}, seen: []string{"nodule"}, cites: []string{"nodule", "base opaque"}, tool: cropTool, small: true, lax: true},
	{words: []string{"nodule", "mass"}, seen: []string{"nodule"}, tool: cropTool, small: true, lax: true},
	{words: []string{"pneumothorax"}, seen: []string{"edge free"}, tool: cropTool, part: "apex"},
	{words: []string{"effusion", "costophrenic"}, seen: []string{"base opaque"}, tool: cropTool, part: "costophrenic angle", lax: true},
	{words: []string{"less air", "more opaque"}, seen: []string{"opaque", "lung small"}, tool: parseTool, part: "each lung", lax: true},
	{words: []string{"which lung is abnormal", "the abnormal one"}, seen: general, tool: parseTool, part: "each lung", more: apices},
	{words: []string{"abnormal", "opaque", "opacity", "consolidat", "infiltrat", "pneumonia", "lung", "zone", "lobe"},
		seen: []string{"opaque", "nodule"}, tool: parseTool},
	{words: []string{"findings"}, seen: append(slices.Clone(general), "heart large"), tool: parseTool, part: "each lung", more: apices},
}

// lateral is what a film shows of which no region can be asked for.
var lateral = []string{"lateral view"}

// direct returns the calls that serve the question best, and whether the
// teacher is used to leaving them out. Both depend on the question's words and
// the coarse view alone.
func direct(question string, coarse []string) (asks []ask, lax bool) {
	r, ok := routeOf(question)
	if !ok || r.tool == "" || shows(coarse, r.seen) || r.tool != lookupTool && shows(coarse, lateral) {
		return nil, false
	}
	return r.asks(strings.ToLower(question)), r.lax
}

// routeOf returns the first route for the question's words.
func routeOf(question string) (route, bool) {
	question = strings.ToLower(question)
	for _, r := range routes {
		if slices.ContainsFunc(r.words, func(w string) bool { return strings.Contains(question, w) }) {
			return r, true
		}
	}
	return route{}, false
}

// shows reports whether a coarse statement holds one of the words.
func shows(coarse, words []string) bool {
	return slices.ContainsFunc(coarse, func(s string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
	})
}

var (
	protocolCode = regexp.MustCompile(`(?i)\bp-\d{4}\b`)
	sideOf       = regexp.MustCompile(`\b(right|left)\b`)
	zoneOf       = regexp.MustCompile(`\b(right|left) (upper|middle|lower) (?:zone|lobe)`)
)

func (r route) asks(question string) []ask {
	switch {
	case r.tool == lookupTool:
		if code := protocolCode.FindString(question); code != "" {
			return []ask{{lookupTool, strings.ToUpper(code)}}
		}
		return []ask{{lookupTool, strings.TrimRight(question, "?. ")}}
	case r.part == "trachea":
		return []ask{{r.tool, r.part}}
	case r.part == "each lung":
		return append([]ask{{r.tool, "right lung"}, {r.tool, "left lung"}}, r.more...)
	}
	if m := zoneOf.FindStringSubmatch(question); m != nil && r.part == "" {
		return []ask{{r.tool, m[1] + " " + m[2] + " zone"}}
	}
	sides := sideOf.FindAllString(question, -1)
	if r.small {
		return r.search(sides)
	}
	part := r.part
	if part == "" {
		part = "lung"
	}
	if len(sides) == 1 {
		return []ask{{r.tool, sides[0] + " " + part}}
	}
	return []ask{{r.tool, "right " + part}, {r.tool, "left " + part}}
}

// search looks through the zones of the side that is asked about, or of both
// but for the last one, which is left over when the others are clear.
func (r route) search(sides []string) []ask {
	var out []ask
	for _, zone := range zones {
		if len(sides) != 1 || strings.HasPrefix(zone, sides[0]) {
			out = append(out, ask{r.tool, zone})
		}
	}
	if len(out) == len(zones) {
		out = out[:len(zones)-1]
	}
	return out
}

var zones = []string{"right upper zone", "right middle zone", "right lower zone", "left upper zone", "left middle zone", "left lower zone"}

var regions = append(slices.Clone(zones), "right lung", "left lung", "right apex", "left apex",
	"right costophrenic angle", "left costophrenic angle", "trachea", "heart")

// worsen returns calls that serve worse than the right ones: none where some
// are due, one too many where none is, another region, or another tool.
func worsen(right []ask, rng *rand.Rand) []ask {
	if len(right) == 0 {
		return []ask{{pick(rng, parseTool, cropTool), pick(rng, regions...)}}
	}
	switch rng.IntN(3) {
	case 0:
		return nil
	case 1:
		return []ask{misplace(right[0], rng)}
	}
	return swap(right, rng)
}

// misplace asks the same tool about something else.
func misplace(a ask, rng *rand.Rand) ask {
	if a.tool == lookupTool {
		return ask{lookupTool, pick(rng, "follow-up", "heart size", "nodule", "effusion")}
	}
	for {
		if other := pick(rng, regions...); other != a.arg {
			return ask{a.tool, other}
		}
	}
}

// swap asks another tool about the same.
func swap(right []ask, rng *rand.Rand) []ask {
	var out []ask
	for _, a := range right {
		switch a.tool {
		case parseTool:
			a.tool = cropTool
		case cropTool:
			a.tool = parseTool
		default:
			a = ask{parseTool, pick(rng, regions...)}
		}
		out = append(out, a)
	}
	return out
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// assessment is the text of turn 1's block: what the coarse view shows, or of a
// real image what its tags say.
func assessment(coarse []string, p dataset.Prompt) string {
	if len(coarse) > 0 {
		return strings.Join(coarse, ", ")
	}
	view := "view unknown"
	if v := p.Images[0].View; v != "" {
		view = strings.ToLower(v) + " view"
	}
	if n := len(p.Images); n > 1 {
		return fmt.Sprintf("%d films, first %s", n, view)
	}
	return "chest film, " + view
}
