package certify

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/internal/simd"
	"xragent/rollout"
)

// The tools' names and the regions that are parsed.
const (
	parseTool  = "region_parse"
	cropTool   = "roi_crop"
	lookupTool = "evidence_lookup"
)

var (
	zones = []string{"right upper zone", "right middle zone", "right lower zone", "left upper zone", "left middle zone", "left lower zone"}
	lungs = []string{"right lung", "left lung"}
)

// An evidence is what the machine has to say about a study, whether or not a
// policy may see it: the answers of the tools, and the measurements with the
// gate's verdict. Nothing in it comes from the truth.
type evidence struct {
	parse  map[string]parsed // by region
	texts  []string          // as region_parse wrote them
	lookup string            // of the question's words
	bundle rollout.Bundle
}

// shown reports whether the gate admits the measurement.
func (v evidence) shown(name string) bool {
	m, ok := v.bundle.Find(name)
	return ok && m.Admitted
}

// withheld reports whether nothing of the bundle may be shown.
func (v evidence) withheld() bool {
	return !slices.ContainsFunc(v.bundle.Measurements, func(m rollout.Measurement) bool { return m.Admitted })
}

// A parsed is what region_parse says of a region.
type parsed struct {
	opacity, other, spots int
	pattern               int // 0 none, 1 weak, 2 strong
}

var parseForm = regexp.MustCompile(`^opacity (\d+)(?: other side (\d+))? pattern (none|weak|strong) spots (\d+)$`)

func readParse(text string) (parsed, error) {
	m := parseForm.FindStringSubmatch(text)
	if m == nil {
		return parsed{}, fmt.Errorf("region_parse answers %q, which this examination cannot read: teach it the new form", text)
	}
	number := func(s string) int { n, _ := strconv.Atoi(s); return n } // digits by the form
	return parsed{number(m[1]), number(m[2]), number(m[4]), slices.Index([]string{"none", "weak", "strong"}, m[3])}, nil
}

// gather asks the tools everything about a study.
func (e *examination) gather(ctx context.Context, s *study) (evidence, error) {
	file, meta, err := e.world.film(s)
	if err != nil {
		return evidence{}, err
	}
	v := evidence{parse: map[string]parsed{}}
	images, metas := [][]byte{file}, []dataset.Image{meta}
	if v.bundle, err = e.tools.Measure(ctx, images, metas); err != nil {
		return v, err
	}
	for _, region := range slices.Concat(zones, lungs) {
		text, err := call(ctx, e.tools, parseTool, "region", region, images, metas)
		if err != nil {
			return v, err
		}
		v.texts = append(v.texts, text.Text)
		if v.parse[region], err = readParse(text.Text); err != nil {
			return v, err
		}
	}
	found, err := call(ctx, e.tools, lookupTool, "query", s.question.Prompt.Question, nil, nil)
	v.lookup = found.Text
	return v, err
}

// call calls a tool with one argument. What is no answer is an error.
func call(ctx context.Context, tools Tools, tool, name, value string, images [][]byte, meta []dataset.Image) (rollout.Observation, error) {
	args, err := json.Marshal(map[string]string{name: value})
	if err != nil {
		return rollout.Observation{}, err
	}
	o, err := tools.Call(ctx, tool, args, images, meta)
	if err == nil && (o.Invalid || o.Error != "") {
		err = fmt.Errorf("tool %s with %s: %s%s", tool, args, o.Text, o.Error)
	}
	return o, err
}

// tooled tries the tools on test films.
func (e *examination) tooled(ctx context.Context) error {
	films := e.world.test[:e.Tooled]
	all, err := e.gatherAll(ctx, films)
	if err != nil {
		return err
	}
	e.gate(films, all)
	e.rates(films, all)
	e.wording(all)
	e.oracle(films, all)
	return nil
}

func (e *examination) gatherAll(ctx context.Context, films []*study) ([]evidence, error) {
	all, errs := make([]evidence, len(films)), make([]error, len(films))
	simd.For(e.Threads, len(films), func(lo, hi int) {
		for i := lo; i < hi && ctx.Err() == nil; i++ {
			all[i], errs[i] = e.gather(ctx, films[i])
		}
	})
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("study %s: %w", films[i].truth.ID, err)
		}
	}
	return all, ctx.Err()
}

// gate asks how much is withheld, and whether that tells the answer.
func (e *examination) gate(films []*study, all []evidence) {
	withheld, misleading, caught := 0, 0, 0
	var gates, answers, templates []string
	for i, s := range films {
		withheld += one(all[i].withheld())
		if s.need() == phantom.NeedMisleading {
			misleading++
			caught += one(!all[i].shown(s.question.Relevant[0]))
		}
		if !s.report() && !s.ofView() {
			gates = append(gates, strconv.FormatBool(all[i].withheld()))
			answers, templates = append(answers, s.answer), append(templates, s.question.Template)
		}
	}
	bits, p := information(gates, answers, templates, e.Seed)
	e.add(
		share("gate", "bundles withheld", withheld, len(films)).atLeast(0.27).atMost(0.35),
		share("gate", "misleading measurements withheld", caught, misleading).atLeast(0.8),
		Figure{Group: "gate", Name: "I(gate; answer | template), bits above chance", Value: bits, N: len(gates)},
		Figure{Group: "gate", Name: "  its p-value by permutation", Value: p, N: len(gates)}.atLeast(0.01),
	)
}

// information returns the mutual information of a and b given c, less its mean
// over permutations of a within c, and the share of those that reach it.
func information(a, b, c []string, seed uint64) (bits, p float64) {
	groups := map[string][]int{}
	for i, g := range c {
		groups[g] = append(groups[g], i)
	}
	var order []string
	for g := range groups {
		order = append(order, g)
	}
	sort.Strings(order)
	measure := func(a []string) (sum float64) {
		for _, g := range order {
			sum += mutual(a, b, groups[g]) * float64(len(groups[g])) / float64(len(a))
		}
		return sum
	}
	const permutations = 400
	have, mean, reached := measure(a), 0.0, 1
	rng := rand.New(rand.NewPCG(seed, 5))
	mixed := slices.Clone(a)
	for range permutations {
		for _, g := range order {
			in := groups[g]
			rng.Shuffle(len(in), func(i, j int) { mixed[in[i]], mixed[in[j]] = mixed[in[j]], mixed[in[i]] })
		}
		v := measure(mixed)
		mean += v / permutations
		reached += one(v >= have)
	}
	return have - mean, float64(reached) / (permutations + 1)
}

// mutual returns the plug-in mutual information in bits of a and b at in.
func mutual(a, b []string, in []int) (bits float64) {
	joint, left, right := map[string]map[string]int{}, map[string]int{}, map[string]int{}
	for _, i := range in {
		add2(joint, a[i], b[i])
		left[a[i]]++
		right[b[i]]++
	}
	var terms []float64
	for x, by := range joint {
		for y, c := range by {
			terms = append(terms, float64(c)/float64(len(in))*math.Log2(float64(c)*float64(len(in))/float64(left[x]*right[y])))
		}
	}
	sort.Float64s(terms) // a sum in a fixed order
	for _, t := range terms {
		bits += t
	}
	return bits
}

// rates counts what region_parse misses and imagines on frontal films.
func (e *examination) rates(films []*study, all []evidence) {
	var pattern, spots counts
	for i, s := range films {
		if s.truth.View == phantom.Lateral || s.truth.Fault != phantom.NoFault {
			continue
		}
		for _, zone := range zones {
			pattern.add(has(s.truth, phantom.Edema, zone), all[i].parse[zone].pattern > 0)
			spots.add(has(s.truth, phantom.Nodule, zone), all[i].parse[zone].spots > 0)
		}
	}
	const group = "region_parse, by zone of frontal films without a fault"
	e.add(
		share(group, "pattern: sensitivity", pattern.hit, pattern.present).atLeast(0.80).atMost(0.90),
		share(group, "pattern: specificity", pattern.quiet, pattern.absent).atLeast(0.85).atMost(0.95),
		share(group, "spots: sensitivity", spots.hit, spots.present).atLeast(0.80).atMost(0.95),
		share(group, "spots: specificity", spots.quiet, spots.absent).atLeast(0.85).atMost(0.97),
	)
}

// counts are a sign's hits and quiet places.
type counts struct{ hit, present, quiet, absent int }

func (c *counts) add(present, reported bool) {
	if present {
		c.present++
		c.hit += one(reported)
		return
	}
	c.absent++
	c.quiet += one(!reported)
}

// has reports whether the zone, as "right upper zone", holds the finding.
func has(t phantom.Truth, name, zone string) bool {
	return slices.ContainsFunc(t.Findings, func(f phantom.Finding) bool {
		return f.Name == name && f.Side+" "+f.Zone+" zone" == zone
	})
}

// wording looks for words that region_parse shares with the answers and
// options of any question. Numbers are measurements, not words.
func (e *examination) wording(all []evidence) {
	said := map[string]bool{}
	for _, v := range all {
		for _, text := range v.texts {
			for _, w := range words(text) {
				said[w] = true
			}
		}
	}
	var shared []string
	for _, s := range slices.Concat(e.world.train, e.world.test) {
		for _, o := range append(slices.Clone(s.question.Prompt.Options), s.answer) {
			ws := words(o)
			all := len(ws) > 0 && !slices.ContainsFunc(ws, func(w string) bool { return !said[w] })
			if all && !slices.Contains(shared, o) {
				shared = append(shared, o)
			}
		}
	}
	sort.Strings(shared)
	e.add(Figure{
		Group: "evidence", Name: "options that region_parse's words can spell", Value: float64(len(shared)),
		Note: strings.Join(shared, ", "),
	}.atMost(0))
}

func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) })
}
