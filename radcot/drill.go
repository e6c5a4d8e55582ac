package radcot

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"xragent/chat"
	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
	"xragent/trainer/batch"
)

// A Drill is a kind of text-only exercise for a policy without pre-training.
type Drill string

// The drills, in the order of a curriculum. A small transformer learns to look
// something up in its context only when the signal is dense; repeats give the
// ability, lookups turn it to the protocol's forms.
const (
	Repeat Drill = "repeat" // say random ids once more
	Lookup Drill = "lookup" // letters of options, measurements, tool responses; one in five a repeat
	Cells  Drill = "cells"  // what each token of an image shows; see [GridRow]
	See    Drill = "see"    // what the coarse view of a film and crops show; see [Film]
)

// DrillDeps is what drills are made from.
type DrillDeps struct {
	Codec   Codec
	Tools   []json.RawMessage // schemas of the system prompt
	Plain   int32             // ids below it are ordinary text
	Options []string          // option texts to draw from, at least six
}

const (
	drillRounds  = 6 // look-ups a row
	drillOptions = 6
	repeatMin    = 8
	repeatMax    = 32
)

// Drills makes n rows of a kind. They hold no image and no answer of any
// sample; equal seeds give equal rows.
func Drills(kind Drill, seed uint64, n int, d DrillDeps) ([]batch.Row, error) {
	if len(d.Options) < drillOptions || d.Plain < 2 {
		return nil, fmt.Errorf("drills: %d option texts and %d ordinary ids: want at least %d and 2", len(d.Options), d.Plain, drillOptions)
	}
	rows := make([]batch.Row, n)
	for i := range rows {
		w := driller{d, rand.New(rand.NewPCG(seed, uint64(i)))}
		id := fmt.Sprintf("%s-%06d", kind, i)
		if kind == Repeat || w.rng.IntN(5) == 0 {
			rows[i] = w.repeat(id)
		} else {
			rows[i] = w.lookup(id)
		}
	}
	return rows, nil
}

// A View is an image and what it shows in words.
type View struct {
	Region   string // of a crop
	Shown    string
	Returned string // the text that the crop came with
	Use      rollout.ImageUse
}

// A Film is what see drills tell of one study: the coarse view, and crops of it.
type Film struct {
	Image  dataset.Image
	Use    rollout.ImageUse
	Coarse []string
	Crops  []View
}

// Look is a row that says what the coarse view of a film shows, then what crops
// of it show, without the system prompt: a policy sees most films an hour so.
func (f Film) Look(id string, merge int, d DrillDeps) (batch.Row, error) {
	return f.row(id, d.Codec.Encode("<|im_start|>user\n"+chat.ImageMark+"<|im_end|>\n<|im_start|>assistant\n"), "", merge, d)
}

// Study is the same in the form of both turns, with the calls that crop. It is
// no question's: a policy learns from it where its turns begin and end.
func (f Film) Study(id string, merge int, d DrillDeps) (batch.Row, error) {
	prompt := dataset.Prompt{Kind: dataset.Closed, Question: "What is seen?", Images: []dataset.Image{f.Image}}
	var calls string
	for _, c := range f.Crops {
		calls += "\n" + rollout.FormatCall(cropTool, ask{cropTool, c.Region}.arguments())
	}
	return f.row(id, d.Codec.Triage(prompt, d.Tools), calls, merge, d)
}

func (f Film) row(id string, prompt []int32, calls string, merge int, d DrillDeps) (batch.Row, error) {
	said := func(text string) batch.Segment {
		return batch.Segment{IDs: append(d.Codec.Encode(text), d.Codec.EndOfTurn()), Loss: true}
	}
	turn1, err := chat.Expand(prompt, []int{f.Use.PadTokens(merge)}, d.Codec.ImagePad())
	if err != nil {
		return batch.Row{}, fmt.Errorf("%s: turn 1: %w", id, err)
	}
	segments := []batch.Segment{{IDs: turn1}, said("<assess>" + strings.Join(f.Coarse, ", ") + "</assess>" + calls)}
	uses := []rollout.ImageUse{f.Use}
	var returned []rollout.Call
	var pads []int
	var shown []string
	for _, c := range f.Crops {
		uses = append(uses, c.Use)
		returned = append(returned, rollout.Call{Tool: cropTool, Status: rollout.CallOK, Observation: c.Returned, Image: c.Use.SHA256})
		pads = append(pads, c.Use.PadTokens(merge))
		shown = append(shown, CropStatement(c.Region, c.Shown))
	}
	if len(f.Crops) > 0 {
		turn2, err := chat.Expand(d.Codec.Integration(returned, rollout.Bundle{Image: -1}), pads, d.Codec.ImagePad())
		if err != nil {
			return batch.Row{}, fmt.Errorf("%s: turn 2: %w", id, err)
		}
		segments = append(segments, batch.Segment{IDs: turn2}, said("<think>"+strings.Join(shown, " ")+"</think>"))
	}
	return batch.FromSegments(id, segments, uses), nil
}

// CropRegions are the regions of which crop captions tell something.
func CropRegions() []string {
	return append(slices.Clone(zones), "right apex", "left apex", "right costophrenic angle", "left costophrenic angle", "trachea")
}

type driller struct {
	DrillDeps
	rng *rand.Rand
}

// repeat is a user's turn of random ids and an assistant's turn of the same.
func (d driller) repeat(id string) batch.Row {
	said := make([]int32, repeatMin+d.rng.IntN(repeatMax-repeatMin))
	for i := range said {
		said[i] = int32(d.rng.IntN(int(d.Plain)))
	}
	return batch.FromSegments(id, []batch.Segment{
		{IDs: d.Codec.Encode("<|im_start|>user\n")},
		{IDs: slices.Clone(said)},
		{IDs: d.Codec.Encode("<|im_end|>\n<|im_start|>assistant\n")},
		{IDs: append(said, d.Codec.EndOfTurn()), Loss: true},
	}, nil)
}

// lookup is a conversation in the protocol's form, without a film, whose last
// turn looks up several things in what stands before it.
func (d driller) lookup(id string) batch.Row {
	prompt := dataset.Prompt{Kind: dataset.Closed, Question: "What is seen?"}
	var calls []rollout.Call
	bundle := rollout.Bundle{Image: -1}
	var text string
	switch d.rng.IntN(6) {
	case 0, 1:
		prompt, text = d.letters()
	case 2:
		bundle, text = d.measurements()
	case 3:
		calls, text = d.responses()
	case 4:
		prompt.Question, text = d.sides()
	case 5:
		prompt.Question, text = d.limits()
	}
	end := d.Codec.EndOfTurn()
	return batch.FromSegments(id, []batch.Segment{
		{IDs: d.Codec.Triage(prompt, d.Tools)},
		{IDs: append(d.Codec.Encode("<assess>no film</assess>"), end), Loss: true},
		{IDs: d.Codec.Integration(calls, bundle)},
		{IDs: append(d.Codec.Encode(text), end), Loss: true},
	}, nil)
}

// letters asks for the letters of a question's options, in any order.
func (d driller) letters() (dataset.Prompt, string) {
	var options []string
	for _, i := range d.rng.Perm(len(d.Options))[:drillOptions] {
		options = append(options, d.Options[i])
	}
	lines := make([]string, drillRounds)
	for k := range lines {
		i := d.rng.IntN(len(options))
		lines[k] = fmt.Sprintf("<think>So %s.</think>\n<answer>%s</answer>", withLetter(options[i], dataset.Letter(i)), dataset.Letter(i))
	}
	return dataset.Prompt{Kind: dataset.MultipleChoice, Question: "Which one?", Options: options}, strings.Join(lines, "\n")
}

var drillCategories = []string{"normal", "borderline", "enlarged", "right smaller", "left smaller", "right", "left"}

// measurements cites a bundle of any values, one to two claims at a time.
func (d driller) measurements() (rollout.Bundle, string) {
	b := rollout.Bundle{Shown: slices.Clone(rollout.Measurements)}
	var claims []rollout.Claim
	for _, name := range rollout.Measurements {
		v := float64(d.rng.IntN(1000)) / 1000
		if name != rollout.CTR && d.rng.IntN(2) == 0 {
			v = -v
		}
		category := drillCategories[d.rng.IntN(len(drillCategories))]
		b.Measurements = append(b.Measurements, rollout.Measurement{Name: name, Value: v, Category: category})
		claims = append(claims, rollout.Claim{Name: name, Value: v, Category: category})
	}
	lines := make([]string, drillRounds/2)
	for k := range lines {
		d.rng.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
		c := claims[0]
		lines[k] = fmt.Sprintf("<think>%s So %s.</think>\n%s", sentence(c), c.Category, rollout.FormatClaims(claims[:1+d.rng.IntN(2)]))
	}
	return b, strings.Join(lines, "\n")
}

// sides says yes or no to a side that is found and one that is asked about.
func (d driller) sides() (question, text string) {
	sides := [2]string{"right", "left"}
	var given, said []string
	for range drillRounds {
		found, asked := sides[d.rng.IntN(2)], sides[d.rng.IntN(2)]
		given = append(given, found+" "+asked)
		said = append(said, "So "+SideStatement(found, asked)+yesNo(found == asked)+".")
	}
	return "Sides: " + strings.Join(given, ", "), "<think>" + strings.Join(said, " ") + "</think>"
}

// limits holds values against limits, half of them close.
func (d driller) limits() (question, text string) {
	var given, said []string
	for range drillRounds {
		limit := 400 + 20*d.rng.IntN(11)
		v := limit - 100 + d.rng.IntN(201)
		if d.rng.IntN(2) == 0 {
			v = limit - 20 + d.rng.IntN(41)
		}
		value, bound := rollout.FormatValue(float64(v)/1000), fmt.Sprintf("%.2f", float64(limit)/1000)
		given = append(given, value+" limit "+bound)
		said = append(said, LimitStatement(value, bound, v > limit)+" So "+yesNo(v > limit)+".")
	}
	return "Limits: " + strings.Join(given, ", "), "<think>" + strings.Join(said, " ") + "</think>"
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// responses repeats what tools returned, in the order of the calls, and holds
// the lungs' patterns against each other.
func (d driller) responses() ([]rollout.Call, string) {
	var calls []rollout.Call
	var lines []string
	told := map[string]string{}
	regions := slices.Clone(drillRegions)
	if d.rng.IntN(2) == 0 {
		regions = bothLungs
	}
	for _, i := range d.rng.Perm(len(regions))[:min(len(regions), drillRounds/2)] {
		obs, pattern := d.parsed()
		told[regions[i]] = pattern
		calls = append(calls, rollout.Call{Tool: parseTool, Status: rollout.CallOK, Observation: obs})
		lines = append(lines, ParseStatement(regions[i], obs))
	}
	text, _ := phantom.Protocol(fmt.Sprintf("P-%04d", d.rng.IntN(10000))) // all of these codes are known
	calls = append(calls, rollout.Call{Tool: lookupTool, Status: rollout.CallOK, Observation: text})
	lines = append(lines, text)
	if right, left := told["right lung"], told["left lung"]; right != "" && left != "" {
		lines = append(lines, PatternStatement(right, left))
	}
	return calls, "<think>" + strings.Join(lines, " ") + "</think>"
}

// parsed is what region_parse might return, its opacities close half of the time.
func (d driller) parsed() (obs, pattern string) {
	own, apart := 20+d.rng.IntN(40), 6
	if d.rng.IntN(2) == 0 {
		apart = 2
	}
	pattern = Patterns[d.rng.IntN(len(Patterns))]
	return fmt.Sprintf("opacity %d other side %d pattern %s spots %d", own, own-apart+d.rng.IntN(2*apart+1), pattern, d.rng.IntN(8)), pattern
}

var bothLungs = []string{"right lung", "left lung"}

var drillRegions = []string{"right upper zone", "right middle zone", "right lower zone",
	"left upper zone", "left middle zone", "left lower zone", "right lung", "left lung"}
