package radcot

import (
	"cmp"
	"reflect"
	"regexp"
	"slices"
	"strconv"
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

// What a look-up concludes follows from what stands in it.
func TestLookupsConclude(t *testing.T) {
	d := drillDeps(t)
	sides := regexp.MustCompile(`So (\w+) against (\w+): (\w+)\.`)
	limits := regexp.MustCompile(`([\d.]+) against ([\d.]+): (not )?over\. So (\w+)\.`)
	patterns := regexp.MustCompile(`right lung: [^.]* pattern (\w+) [^.]*\. .*pattern (\w+) against (\w+): (\w+)\.`)
	opacities := regexp.MustCompile(`: opacity (\d+) other side (\d+) [^,]*, (\w+)\.`)
	seen := map[string]int{}
	for _, r := range drills(t, Lookup, 5, 600) {
		whole := d.Codec.(*chat.Codec).Decode(r.IDs)
		for _, m := range sides.FindAllStringSubmatch(whole, -1) {
			if seen["side "+m[3]]++; (m[1] == m[2]) != (m[3] == "yes") {
				t.Errorf("%s", m[0])
			}
		}
		for _, m := range limits.FindAllStringSubmatch(whole, -1) {
			if seen["limit "+m[4]]++; (number(t, m[1]) > number(t, m[2])) != (m[4] == "yes") || (m[3] == "") != (m[4] == "yes") {
				t.Errorf("%s", m[0])
			}
		}
		for _, m := range patterns.FindAllStringSubmatch(whole, -1) {
			verdict := []string{"even", "right", "left"}[(cmp.Compare(slices.Index(Patterns, m[2]), slices.Index(Patterns, m[3]))+3)%3]
			if seen["pattern "+verdict]++; m[1] != m[2] || m[4] != verdict {
				t.Errorf("%s: want %s", m[0], verdict)
			}
		}
		for _, m := range opacities.FindAllStringSubmatch(whole, -1) {
			diff, word := number(t, m[1])-number(t, m[2]), "even"
			if diff >= 2 {
				word = "higher"
			} else if diff <= -2 {
				word = "lower"
			}
			if seen[word]++; m[3] != word {
				t.Errorf("%s: want %s", m[0], word)
			}
		}
	}
	for _, k := range []string{"side yes", "side no", "limit yes", "limit no", "higher", "lower", "even", "pattern right", "pattern left", "pattern even"} {
		if seen[k] < 5 {
			t.Errorf("%s occurs %d times", k, seen[k])
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDrillsRefuseTooFewOptions(t *testing.T) {
	d := drillDeps(t)
	d.Options = d.Options[:3]
	if _, err := Drills(Lookup, 1, 1, d); err == nil {
		t.Error("three options were enough for six")
	}
}

// A film trains what it shows; in the whole form, the calls as well.
func TestFilms(t *testing.T) {
	d := drillDeps(t)
	use := func(name string, wide int) rollout.ImageUse {
		return rollout.ImageUse{SHA256: strings.Repeat(name, 64), Grid: [3]int{1, wide, 4}}
	}
	film := Film{Use: use("a", 4), Coarse: []string{"pa view", "rotated"}, Crops: []View{
		{"right apex", "pleural line", "right apex 3.0x", use("b", 8)}, {"trachea", "no tube", "trachea 2.0x", use("c", 4)}}}
	film.Image = dataset.Image{SHA256: film.Use.SHA256}
	look, err := film.Look("x", 2, d)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := film.Study("y", 2, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []batch.Row{look, whole} {
		said, pads := inLoss(row, d)
		for _, want := range []string{"<assess>pa view, rotated</assess>", "<think>right apex: pleural line. trachea: no tube.</think>"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %q is not in the loss: %s", row.ID, want, said)
			}
		}
		if called := strings.Contains(said, `"region": "right apex"`); called != (row.ID == "y") {
			t.Errorf("%s: calls in the loss: %v", row.ID, called)
		}
		if want := 4 + 8 + 4; pads != want || len(row.Images) != 3 {
			t.Errorf("%s: %d image pads and %d images, want %d and 3", row.ID, pads, len(row.Images), want)
		}
	}
}

// inLoss returns the text in a row's loss, and how many image pads the row has.
func inLoss(row batch.Row, d DrillDeps) (said string, pads int) {
	var ids []int32
	for i, id := range row.IDs {
		if row.LossMask[i] == 1 {
			ids = append(ids, id)
		}
		if id == d.Codec.ImagePad() {
			pads++
		}
	}
	return d.Codec.(*chat.Codec).Decode(ids), pads
}
