package radcot

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"xragent/chat"
	"xragent/dataset"
	"xragent/rollout"
	"xragent/trainer/batch"
)

func drillDeps(t *testing.T) DrillDeps {
	t.Helper()
	c, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return DrillDeps{Codec: c, Plain: c.EndOfText(), Options: []string{"right", "left", "both sides", "neither side", "normal", "enlarged", "absent"}}
}

func drills(t *testing.T, kind Drill, seed uint64, n int) []batch.Row {
	t.Helper()
	rows, err := Drills(kind, seed, n, drillDeps(t))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestDrillsFollowFromTheirSeed(t *testing.T) {
	for _, kind := range []Drill{Repeat, Lookup} {
		a, b, other := drills(t, kind, 1, 20), drills(t, kind, 1, 20), drills(t, kind, 2, 20)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: equal seeds give different rows", kind)
		}
		if reflect.DeepEqual(a, other) {
			t.Errorf("%s: different seeds give equal rows", kind)
		}
	}
}

// Everything in a repeat's loss stood in the prompt before.
func TestRepeatsRepeat(t *testing.T) {
	for _, r := range drills(t, Repeat, 3, 50) {
		from := slices.Index(r.LossMask, 1)
		said := r.IDs[from : len(r.IDs)-1]
		if !strings.Contains(text(r.IDs[:from]), text(said)) || len(said) < repeatMin {
			t.Fatalf("%s: %v does not repeat %v", r.ID, said, r.IDs[:from])
		}
	}
}

// text makes a searchable string of ids.
func text(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteRune(rune(id) + 0x1000)
	}
	return b.String()
}

// The letters that a look-up says are those of the options above it.
func TestLookupsAreRight(t *testing.T) {
	d := drillDeps(t)
	c := d.Codec.(*chat.Codec)
	checked := 0
	for _, r := range drills(t, Lookup, 4, 200) {
		whole := c.Decode(r.IDs)
		for _, part := range strings.Split(whole, "<think>So ")[1:] {
			said, rest, _ := strings.Cut(part, ".</think>\n<answer>")
			if rest == "" {
				continue // a measurement
			}
			letter := rest[:1]
			words := strings.TrimSuffix(said, " "+letter)
			if !strings.Contains(whole, letter+") "+words+"\n") && !strings.Contains(whole, letter+") "+words+"<") || words == said {
				t.Fatalf("%s: %q is not an option with letter %s in\n%s", r.ID, words, letter, whole)
			}
			checked++
		}
	}
	if checked < 100 {
		t.Errorf("only %d letters were looked up in 200 rows", checked)
	}
}

func TestDrillsRefuseTooFewOptions(t *testing.T) {
	d := drillDeps(t)
	d.Options = d.Options[:3]
	if _, err := Drills(Lookup, 1, 1, d); err == nil {
		t.Error("three options were enough for six")
	}
}

// A crop's caption trains both turns: the call, and what the crop shows.
func TestCropCaption(t *testing.T) {
	d := drillDeps(t)
	film, crop := rollout.ImageUse{SHA256: strings.Repeat("a", 64), Grid: [3]int{1, 4, 4}}, rollout.ImageUse{SHA256: strings.Repeat("b", 64), Grid: [3]int{1, 8, 4}}
	row, err := CropCaption("x", dataset.Image{SHA256: film.SHA256}, []string{"pa view"}, "right apex", "pleural line", "right apex 3.0x",
		[2]rollout.ImageUse{film, crop}, 2, d)
	if err != nil {
		t.Fatal(err)
	}
	var said []int32
	pads := 0
	for i, id := range row.IDs {
		if row.LossMask[i] == 1 {
			said = append(said, id)
		}
		if id == d.Codec.ImagePad() {
			pads++
		}
	}
	text := d.Codec.(*chat.Codec).Decode(said)
	for _, want := range []string{"<assess>pa view</assess>", `"region": "right apex"`, "<think>right apex: pleural line.</think>"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the loss: %s", want, text)
		}
	}
	if want := film.PadTokens(2) + crop.PadTokens(2); pads != want || len(row.Images) != 2 {
		t.Errorf("%d image pads and %d images, want %d and 2", pads, len(row.Images), want)
	}
}
