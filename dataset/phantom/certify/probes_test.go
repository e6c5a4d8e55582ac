package certify

import (
	"context"
	"fmt"
	"image"
	"math"
	"math/rand/v2"
	"testing"

	"golang.org/x/image/draw"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

// TestScorerFindsALeak holds that the text probe finds what is in the words,
// and nothing where there is nothing.
func TestScorerFindsALeak(t *testing.T) {
	for _, leak := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(1, 2))
		make := func(n int) []*study {
			out := make([]*study, n)
			for i := range out {
				answer := rng.IntN(2)
				code := rng.IntN(1000)
				if leak {
					code = 2*code + answer*5000
				}
				word := "before"
				if leak && answer == 1 {
					word = "after"
				}
				out[i] = &study{answer: []string{"yes", "no"}[answer], question: dataset.Sample{
					Template: "t", Prompt: dataset.Prompt{Kind: dataset.Binary, Question: fmt.Sprintf("Is %d seen %s this?", code, word)},
				}}
			}
			return out
		}
		train, test := make(800), make(400)
		choices := choicesOf(train)
		s, err := fitScorer(context.Background(), answerRows(train, choices), 1)
		if err != nil {
			t.Fatal(err)
		}
		right := 0
		for _, r := range answerRows(test, choices) {
			right += one(s.best(r) == r.right)
		}
		if leak && right < 395 || !leak && (right < 160 || right > 240) {
			t.Errorf("leak %v: %d of 400 right", leak, right)
		}
	}
}

func TestAUC(t *testing.T) {
	for _, c := range []struct {
		scores   []float64
		positive []bool
		want     float64
	}{
		{[]float64{1, 2, 3, 4}, []bool{false, false, true, true}, 1},
		{[]float64{1, 2, 3, 4}, []bool{true, true, false, false}, 0},
		{[]float64{1, 1, 1, 1}, []bool{true, false, true, false}, 0.5},
		{[]float64{1, 2, 2, 3}, []bool{false, true, false, true}, 0.875},
	} {
		if got := aucFigure("", "", c.scores, c.positive).Value; math.Abs(got-c.want) > 1e-12 {
			t.Errorf("AUC of %v for %v is %v, want %v", c.scores, c.positive, got, c.want)
		}
	}
}

func TestMostUneven(t *testing.T) {
	answers := []string{"left", "right"}
	if off, a := mostUneven(map[string]int{"left": 700, "right": 300}, answers); math.Abs(off-0.2) > 1e-12 || a != "left" {
		t.Errorf("700 to 300: %v by %q, want left by 0.2", off, a)
	}
	if off, _ := mostUneven(map[string]int{"left": 52, "right": 48}, answers); off != 0 {
		t.Errorf("52 to 48 is off by %v, which chance explains", off)
	}
	if off, a := mostUneven(map[string]int{"left": 100}, answers); off <= 0 && a != "right" {
		t.Errorf("an answer that never occurs is not seen: %v, %q", off, a)
	}
}

func TestInformation(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var gate, same, other, template []string
	for range 600 {
		g := fmt.Sprint(rng.IntN(2))
		gate, same, other = append(gate, g), append(same, g), append(other, fmt.Sprint(rng.IntN(2)))
		template = append(template, fmt.Sprint(rng.IntN(3)))
	}
	if bits, p := information(gate, same, template, 1); bits < 0.95 || p > 0.01 {
		t.Errorf("the same variable: %.3f bits, p = %.3f, want 1 and nearly 0", bits, p)
	}
	if bits, p := information(gate, other, template, 1); bits > 0.01 || p < 0.01 {
		t.Errorf("another variable: %.3f bits, p = %.3f, want 0 and no small one", bits, p)
	}
}

func TestReadParse(t *testing.T) {
	got, err := readParse("opacity 41 other side 39 pattern weak spots 2")
	if want := (parsed{41, 39, 2, 1}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, text := range []string{"", "opacity 41", "opacity x pattern none spots 1", "opacity 1 pattern mild spots 1"} {
		if _, err := readParse(text); err == nil {
			t.Errorf("%q is read without an error", text)
		}
	}
}

func TestPlaces(t *testing.T) {
	for question, want := range map[string]string{
		"Is the right upper zone abnormal?": "right upper",
		"Which lung is abnormal?":           "",
		"Is the nodule in the LEFT lung?":   "left",
	} {
		if got := places(question); got != want {
			t.Errorf("places(%q) = %q, want %q", question, got, want)
		}
	}
}

// TestCoarseView compares with another implementation of the same kernel.
func TestCoarseView(t *testing.T) {
	film := phantom.Generate(phantom.Config{Seed: 2, Test: 1}, 0).Image
	want := image.NewGray(image.Rect(0, 0, 128, 128))
	draw.CatmullRom.Scale(want, want.Rect, film, film.Rect, draw.Src, nil)
	off := 0
	for i, v := range phantom.Coarse(film).Pix {
		x, y := i%128, i/128
		if x >= 2 && y >= 2 && x < 126 && y < 126 { // borders are handled differently
			off = max(off, int(v)-int(want.Pix[i]), int(want.Pix[i])-int(v))
		}
	}
	if off > 1 {
		t.Errorf("the coarse view is up to %d grey levels off", off)
	}
}
