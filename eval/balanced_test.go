package eval

import (
	"math"
	"math/rand/v2"
	"testing"

	"xragent/dataset"
)

func TestBalance(t *testing.T) {
	var rows []Row
	add := func(template, key string, n, right int) {
		for i := range n {
			rows = append(rows, Row{Template: template, Kind: dataset.Closed, Key: key, Strict: i < right})
		}
	}
	add("a", "left", 6, 3)  // 1/2
	add("a", "right", 2, 2) // 1
	add("b", "yes", 1, 0)
	add("b", "no", 2, 1)
	add("b", "The no", 1, 0) // the same answer: 1/3
	b := Balance(rows, func(r Row) bool { return r.Strict })
	if want := (8*0.75 + 4*(0+1./3)/2) / 12; math.Abs(b.Value-want) > 1e-12 || b.Constant != 0.5 || b.N != 12 {
		t.Errorf("%+v, want %v against 0.5", b, want)
	}
	if b.Low >= b.Value || b.High <= b.Value || b.Low < 0 {
		t.Errorf("interval %+v", b)
	}
	if c := Balance(rows, strongest(rows)); math.Abs(c.Value-c.Constant) > 1e-12 {
		t.Errorf("a constant answer has %+v", c)
	}
	if none := Balance(nil, nil); none != (Balanced{}) || none.Leaks() {
		t.Errorf("of no question %+v", none)
	}
	if both := b.With(b); both.N != 24 || math.Abs(both.Value-b.Value) > 1e-12 || both.High >= b.High {
		t.Errorf("twice %+v", both)
	}
}

// A policy that follows another film has less than the most frequent answer and
// the balanced accuracy of a constant one; a policy that knows a tenth of the
// right films is found out by the second only.
func TestBalanceTellsALeak(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	drawn := func() string {
		if rng.Float64() < 0.8 {
			return "no"
		}
		return "yes"
	}
	for _, tc := range []struct {
		knows float64
		leaks bool
	}{{0, false}, {0.1, true}} {
		var rows []Row
		for range 20000 {
			key, given := drawn(), drawn()
			if rng.Float64() < tc.knows {
				given = key
			}
			rows = append(rows, Row{Template: "t", Kind: dataset.Closed, Key: key, Given: given, Strict: given == key})
		}
		strict, constant, most := 0, 0, strongest(rows)
		for _, r := range rows {
			strict, constant = strict+one(r.Strict), constant+one(most(r))
		}
		b := Balance(rows, func(r Row) bool { return r.Strict })
		if strict >= constant || b.Leaks() != tc.leaks {
			t.Errorf("knows %v: %d right, a constant answer %d; balanced %v, leaks %v", tc.knows, strict, constant, b, b.Leaks())
		}
	}
}

func TestForm(t *testing.T) {
	for _, tc := range []struct {
		kind      dataset.Kind
		key, same string
	}{
		{dataset.Closed, "above the carina", "above carina"},
		{dataset.MultipleChoice, "PA", "pa"},
		{dataset.Report, "[effusion volume loss tube malposition]", "effusion, tube malposition, volume loss"},
		{dataset.Report, "[]", "normal"},
	} {
		if form(tc.kind, tc.key) != form(tc.kind, tc.same) {
			t.Errorf("%q is %q, %q is %q", tc.key, form(tc.kind, tc.key), tc.same, form(tc.kind, tc.same))
		}
	}
	if form(dataset.Report, "") != "" {
		t.Error("no answer counts as a normal report")
	}
	wrong := Row{Kind: dataset.Closed, Template: "t", Key: "PA", Given: "ap"}
	right := Row{Kind: dataset.Closed, Template: "t", Key: "AP", Given: "AP", Strict: true}
	if p := dealt([]Row{wrong, right}); p.All.Right != 1 {
		t.Errorf("an answer of another case is dealt out as another: %+v", p)
	}
}
