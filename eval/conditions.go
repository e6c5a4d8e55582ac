package eval

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"slices"

	"xragent/dataset"
	"xragent/rollout"
)

// A Set names how many controls an evaluation has.
type Set string

// The sets. Minimal asks every question three times, Full some twenty times.
const (
	NoControls Set = "none"
	Minimal    Set = "minimal" // images shuffled and tools off, of the last policy
	Full       Set = "full"    // all conditions
)

// A Condition is a way to put the questions: the policy as it is, or a control.
type Condition string

// The conditions. What changes the prompt, the tools of a task, its gate mode or
// its sampling is done here; what changes a turn, a tool's answer or a
// measurement is done round the rollout loop, in package control.
const (
	Plain Condition = "plain"

	TextOnly Condition = "text_only"       // no image, no tools, no measurements
	Blank    Condition = "blank_image"     // a uniform grey image, which the tools see too
	Shuffled Condition = "images_shuffled" // every question gets another study's images

	ToolsOff   Condition = "tools_off"   // the prompt offers no tools
	NeverCall  Condition = "never_call"  // the prompt offers tools, turn 1's calls are cut off
	AlwaysCall Condition = "always_call" // where turn 1 calls nothing, it must
	RandomCall Condition = "random_call" // called at the policy's rate, on questions drawn by chance
	OracleCall Condition = "oracle_call" // the tool that the question needs, or none

	OracleTools Condition = "oracle_tools"       // answers from truth, about the right place
	OtherTools  Condition = "other_study_tools"  // answers about another study
	ToolText    Condition = "tool_text_no_image" // a blank image, and the tools' text about the real one
	GateOff     Condition = "gate_off"           // every computed measurement is shown
	GateOracle  Condition = "gate_oracle"        // those that are near the truth are shown
	GateRandom  Condition = "gate_random"        // shown at the gate's rate, on studies drawn by chance
	BundleSwap  Condition = "bundle_swapped"     // another study's measurements, whose CTR is at least 0.1 away

	// At temperature 1, twice each: the churn of chance.
	Sampled1    Condition = "sampled_1"
	Sampled2    Condition = "sampled_2"
	OffSampled1 Condition = "tools_off_sampled_1"
	OffSampled2 Condition = "tools_off_sampled_2"
)

// A Section is a part of the report.
type Section string

// The sections.
const (
	Priors  Section = "priors"
	Routing Section = "routing"
	Tools   Section = "tools"
	Gate    Section = "gate"
	Churn   Section = "churn"
)

// A Control says where a condition belongs and what it needs.
type Control struct {
	Condition Condition
	Section   Section
	Truth     bool // needs the generator's truth
	Need      bool // needs to be told what each question needs
	What      string
	Revision  int // of its definition, counted from 0; a result of another is made again
}

// Controls lists every control in the order of the report.
var Controls = []Control{
	{TextOnly, Priors, false, false, "the question alone: no image, no tools, no measurements", 0},
	{Blank, Priors, false, false, "a uniform grey image in place of each film; the tools see it too", 0},
	{Shuffled, Priors, false, false, "another study's images; the tools see them too", 0},
	{NeverCall, Routing, false, false, "the policy's own assessment, its calls cut off; then turn 2", 0},
	{AlwaysCall, Routing, false, false, "where turn 1 calls nothing, a call is begun after its assessment and the policy completes it", 0},
	{RandomCall, Routing, false, false, "the policy's decisions to call, permuted over the questions", 0},
	{OracleCall, Routing, false, true, "a call of the tool that the question needs, arguments by the policy; none where none is needed", 0},
	{ToolsOff, Tools, false, false, "the prompt offers no tools", 0},
	{OracleTools, Tools, true, false, "each call is answered as the best call of that tool would be: signs from truth, crops at the finding that is asked about, the question's own protocol", 1},
	{OtherTools, Tools, false, false, "each call is answered about another study with a question of the same template", 0},
	{ToolText, Tools, false, false, "a grey image, with the text that tools and measurements give of the real film; no crops", 0},
	{GateOff, Gate, false, false, "every measurement that could be computed", 0},
	{GateOracle, Gate, true, false, "the measurements that lie near the anatomical truth", 0},
	{GateRandom, Gate, false, false, "the gate's decisions, permuted over the studies", 0},
	{BundleSwap, Gate, false, false, "where measurements are shown, those of another study whose CTR differs by at least 0.1", 0},
	{Sampled1, Churn, false, false, "temperature 1", 0},
	{Sampled2, Churn, false, false, "temperature 1, another seed", 0},
	{OffSampled1, Churn, false, false, "tools off, temperature 1", 0},
	{OffSampled2, Churn, false, false, "tools off, temperature 1, another seed", 0},
}

// Find returns the control of a condition.
func Find(c Condition) (Control, bool) {
	i := slices.IndexFunc(Controls, func(x Control) bool { return x.Condition == c })
	if i < 0 {
		return Control{}, false
	}
	return Controls[i], true
}

func (c Condition) sampled() bool {
	return c == Sampled1 || c == Sampled2 || c == OffSampled1 || c == OffSampled2
}

// change makes a task the condition's.
func (c Condition) change(t *rollout.Task) {
	switch c {
	case TextOnly:
		t.Tools, t.Gate = false, rollout.GateEmpty
	case ToolsOff, OffSampled1, OffSampled2:
		t.Tools = false
	case GateOff:
		t.Gate = rollout.GateOff
	}
	if c.sampled() {
		t.Sampling.Temperature = 1
		t.Seed = hash(fmt.Sprintf("%d/%s", t.Seed, c))
	}
}

// put returns the samples with the prompts of a condition.
func put(c Condition, samples []dataset.Sample, seed uint64) []dataset.Sample {
	out := slices.Clone(samples)
	switch c {
	case TextOnly:
		for i := range out {
			out[i].Prompt.Images = nil
		}
	case Blank, ToolText:
		_, sha := BlankImage()
		for i := range out {
			out[i].Prompt.Images = slices.Clone(out[i].Prompt.Images)
			for j := range out[i].Prompt.Images {
				img := &out[i].Prompt.Images[j]
				img.SHA256, img.Width, img.Height = sha, blankSize, blankSize
			}
		}
	case Shuffled:
		for i, from := range Donors(samples, seed, sameImages) {
			out[i].Prompt.Images = samples[from].Prompt.Images
		}
	}
	return out
}

const blankSize = 512

// BlankImage is a uniform mid-grey image, encoded, and its hash. Who runs Blank
// or ToolText puts it where images are fetched from.
func BlankImage() (file []byte, sha256Hex string) {
	img := image.NewGray(image.Rect(0, 0, blankSize, blankSize))
	for i := range img.Pix {
		img.Pix[i] = 128
	}
	var w bytes.Buffer
	if err := png.Encode(&w, img); err != nil {
		panic(err) // a bytes.Buffer does not fail
	}
	sum := sha256.Sum256(w.Bytes())
	return w.Bytes(), hex.EncodeToString(sum[:])
}

// sameImages prefers donors with as many images.
func sameImages(a, b dataset.Sample) bool { return len(a.Prompt.Images) == len(b.Prompt.Images) }

// SameTemplate prefers donors with a question of the same template.
func SameTemplate(a, b dataset.Sample) bool { return a.Template == b.Template }

// Donors returns for each sample the place of another study's sample, by a
// seeded permutation: the next one round that satisfies prefer, or else the next
// of another study, or itself where there is only one study.
func Donors(samples []dataset.Sample, seed uint64, prefer func(receiver, donor dataset.Sample) bool) []int {
	n := len(samples)
	order := rand.New(rand.NewPCG(seed, 0x5bd1e995)).Perm(n)
	out := make([]int, n)
	for i, to := range order {
		out[to] = to
		for _, fit := range []func(a, b dataset.Sample) bool{prefer, func(a, b dataset.Sample) bool { return true }} {
			if out[to] = nextDonor(samples, order, i, fit); out[to] != to {
				break
			}
		}
	}
	return out
}

func nextDonor(samples []dataset.Sample, order []int, i int, fit func(a, b dataset.Sample) bool) int {
	to := order[i]
	for k := 1; k < len(order); k++ {
		from := order[(i+k)%len(order)]
		if study(samples[from]) != study(samples[to]) && fit(samples[to], samples[from]) {
			return from
		}
	}
	return to
}

// study is what makes two samples' images the same study's.
func study(s dataset.Sample) string {
	if s.Study != "" {
		return s.Study
	}
	return s.ID
}
