package eval

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func near(got, want, within float64) bool { return math.Abs(got-want) <= within }

// Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3.
func TestWilsonAsPublished(t *testing.T) {
	for _, tc := range []struct {
		right, n  int
		low, high float64
	}{
		{81, 263, 0.2553, 0.3662},
		{15, 148, 0.0624, 0.1605},
		{0, 20, 0, 0.1611},
		{1, 29, 0.0061, 0.1718},
	} {
		got := Wilson(tc.right, tc.n)
		if !near(got.Low, tc.low, 5e-5) || !near(got.High, tc.high, 5e-5) {
			t.Errorf("Wilson(%d, %d) = [%.4f, %.4f], want [%.4f, %.4f]", tc.right, tc.n, got.Low, got.High, tc.low, tc.high)
		}
	}
}

// The approval ratings of Agresti (1990, page 350): 150 changed one way, 86 the
// other; the exact p-value as binomial tables give it.
func TestMcNemarAsPublished(t *testing.T) {
	got := NewPair(86, 150, 1600)
	if !near(got.P, 3.716e-05, 5e-9) {
		t.Errorf("p = %v, want 3.716e-05", got.P)
	}
	if !near(got.Gain, -0.04, 1e-12) || got.Low > -0.04 || got.High < -0.04 {
		t.Errorf("gain %v [%v, %v], want -0.04 inside", got.Gain, got.Low, got.High)
	}
}

// Airway responsiveness before and after transplantation (Fagerland, Lydersen
// and Laake 2014, Statistics in Medicine 33:2850): 1 and 7 of 21 discordant.
func TestPairIntervalByHand(t *testing.T) {
	got := NewPair(1, 7, 21)
	// d = (2−8)/23, variance (10/23 − d²)/23
	if !near(got.Low, -0.5084, 1e-4) || !near(got.High, -0.0133, 1e-4) {
		t.Errorf("interval [%.4f, %.4f], want [-0.5084, -0.0133]", got.Low, got.High)
	}
}

func TestPairsMirror(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(t, "n")
		b := rapid.IntRange(0, n).Draw(t, "fixed")
		c := rapid.IntRange(0, n-b).Draw(t, "broken")
		p, q := NewPair(b, c, n), NewPair(c, b, n)
		if p.P != q.P || p.Gain != -q.Gain || !near(p.Low, -q.High, 1e-12) || p.P < 0 || p.P > 1 {
			t.Fatalf("%+v is not the mirror of %+v", p, q)
		}
	})
}

// Connor 1987, page 209: discordant cells 0.45 and 0.05 need 23 pairs at 80 %.
func TestDetectableAsPublished(t *testing.T) {
	if got := Detectable(23, 0.5); got > 0.4 {
		t.Errorf("with 23 pairs %v is detectable, want 0.4", got)
	}
	if got := Detectable(22, 0.5); got < 0.4 {
		t.Errorf("with 22 pairs %v is detectable, want more than 0.4", got)
	}
}

// About 80 % of simulated pairs with the detectable difference are found.
func TestDetectableHoldsItsPower(t *testing.T) {
	const n, churn, tries = 500, 0.3, 1000
	d := Detectable(n, churn)
	rng := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range tries {
		fixed, broken := 0, 0
		for range n {
			switch u := rng.Float64(); {
			case u < (churn+d)/2:
				fixed++
			case u < churn:
				broken++
			}
		}
		found += one(NewPair(fixed, broken, n).P < 0.05)
	}
	if power := float64(found) / tries; power < 0.73 || power > 0.85 { // the exact test is a little conservative
		t.Errorf("power %.3f, want about 0.8", power)
	}
}

func TestHolm(t *testing.T) {
	got := Holm([]float64{0.04, 0.01, 0.03, 0.02, 0.05, 0.9})
	for i, want := range []float64{0.12, 0.06, 0.12, 0.1, 0.12, 0.9} {
		if !near(got[i], want, 1e-12) {
			t.Errorf("Holm[%d] = %v, want %v (all: %v)", i, got[i], want, got)
		}
	}
}

func TestHolmIsBetweenRawAndBonferroni(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 30).Draw(t, "p")
		for i, a := range Holm(p) {
			if a < p[i] || a > min(1, p[i]*float64(len(p)))+1e-12 {
				t.Fatalf("Holm of %v is %v among %d", p[i], a, len(p))
			}
		}
	})
}

// berkeley are admissions of men and women by department in 1973; the common
// odds ratio and its interval are those of R's mantelhaen.test.
var berkeley = []Stratum{
	{"A", 512, 825, 89, 108}, {"B", 353, 560, 17, 25}, {"C", 120, 325, 202, 593},
	{"D", 138, 417, 131, 375}, {"E", 53, 191, 94, 393}, {"F", 22, 373, 24, 341},
}

func TestOddsRatioAsPublished(t *testing.T) {
	got := OddsRatio(berkeley)
	if !near(got.Value, 0.9046968, 5e-8) || !near(got.Low, 0.7719074, 5e-8) || !near(got.High, 1.0603298, 5e-8) {
		t.Errorf("odds ratio %.7f [%.7f, %.7f], want 0.9046968 [0.7719074, 1.0603298]", got.Value, got.Low, got.High)
	}
}

// With one stratum both ratios and their variances are the crude ones: Woolf's
// for the odds, and 1/a − 1/n₁ + 1/c − 1/n₀ for the rates.
func TestRatiosOfOneStratum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := func(name string) (int, int) {
			n := rapid.IntRange(2, 400).Draw(t, name)
			return rapid.IntRange(1, n-1).Draw(t, name+" yes"), n
		}
		a, n1 := part("exposed")
		c, n0 := part("others")
		s := []Stratum{{"", a, n1, c, n0}}
		f := func(x int) float64 { return float64(x) }
		odds, rate := OddsRatio(s), RateRatio(s)
		woolf := math.Exp(z * math.Sqrt(1/f(a)+1/f(n1-a)+1/f(c)+1/f(n0-c)))
		crude := math.Exp(z * math.Sqrt(1/f(a)-1/f(n1)+1/f(c)-1/f(n0)))
		if !near(odds.High/odds.Value/woolf, 1, 1e-9) || !near(odds.Value, f(a)*f(n0-c)/(f(c)*f(n1-a)), 1e-9*odds.Value) {
			t.Fatalf("odds ratio %+v of %+v", odds, s)
		}
		if !near(rate.High/rate.Value/crude, 1, 1e-9) || !near(rate.Value, f(a)/f(n1)/(f(c)/f(n0)), 1e-9*rate.Value) {
			t.Fatalf("rate ratio %+v of %+v", rate, s)
		}
	})
}

func TestRatioOfNothingIsUnknown(t *testing.T) {
	for _, s := range [][]Stratum{nil, {{"all", 5, 5, 3, 3}}, {{"none", 0, 5, 0, 3}}} {
		if odds := OddsRatio(s); odds.Known {
			t.Errorf("odds ratio of %v is %+v, want unknown", s, odds)
		}
	}
}

func TestInformation(t *testing.T) {
	same := strings.Fields(strings.Repeat("a b ", 200))
	free := strings.Fields(strings.Repeat("a a b b ", 100))
	whole := make([]string, len(same))
	if got := MutualInformation(same, same, whole, 1); !near(got.Plain, 1, 1e-12) || !got.Exceeds || !near(got.Bits, 1+1/(800*math.Ln2), 1e-12) { // fewer cells than an independent pair has
		t.Errorf("of itself: %+v, want 1 bit and the correction", got)
	}
	if got := MutualInformation(same, free, whole, 1); got.Plain > 1e-12 || got.Exceeds {
		t.Errorf("of what is independent: %+v, want 0", got)
	}
	if got := MutualInformation(same, same, same, 1); got.Plain > 1e-12 {
		t.Errorf("within strata that hold it fixed: %+v, want 0", got)
	}
}

// Over independent lists the correction brings the mean near 0, and chance is
// exceeded in about one of twenty.
func TestInformationCorrectsItsBias(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	draw := func(n, k int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = strconv.Itoa(rng.IntN(k))
		}
		return out
	}
	plain, bits, exceeds := 0.0, 0.0, 0
	const tries = 30
	for i := range tries {
		got := MutualInformation(draw(300, 2), draw(300, 4), draw(300, 3), uint64(i))
		plain, bits, exceeds = plain+got.Plain/tries, bits+got.Bits/tries, exceeds+one(got.Exceeds)
	}
	if plain < 0.015 || math.Abs(bits) > plain/4 || exceeds > 6 {
		t.Errorf("mean %.4f bits, corrected %.4f, above chance %d of %d", plain, bits, exceeds, tries)
	}
}

func TestClusterBootstrap(t *testing.T) {
	var values []float64
	var alone, pairs []string
	for i := range 800 {
		values = append(values, float64(i/2%2)) // neighbours agree
		alone, pairs = append(alone, strconv.Itoa(i)), append(pairs, strconv.Itoa(i/2))
	}
	low, high := ClusterBootstrap(values, alone, 3)
	if !near(low, 0.5-z*0.5/math.Sqrt(800), 0.006) || !near(high, 0.5+z*0.5/math.Sqrt(800), 0.006) {
		t.Errorf("without clusters [%.3f, %.3f]", low, high)
	}
	wideLow, wideHigh := ClusterBootstrap(values, pairs, 3)
	if r := (wideHigh - wideLow) / (high - low); r < 1.25 || r > 1.6 {
		t.Errorf("twice in each cluster is %.2f times as wide, want √2", r)
	}
	if l, h := ClusterBootstrap(values, pairs, 3); l != wideLow || h != wideHigh {
		t.Error("the same seed gave another interval")
	}
}

func TestPool(t *testing.T) {
	pairs := []Pair{NewPair(250, 130, 2000), NewPair(240, 100, 2000), NewPair(260, 120, 2000)}
	own, err := Pool(pairs, false)
	if err != nil {
		t.Fatal(err)
	}
	// gains 0.06, 0.07, 0.07; s = 0.005774; t(2) = 4.302653
	if !near(own.Gain, 0.2/3, 1e-12) || !near(own.Between, 0.0057735, 1e-7) || !near(own.Low, 0.2/3-4.302653*0.0057735/math.Sqrt(3), 1e-6) {
		t.Errorf("pooled %+v", own)
	}
	same, err := Pool(pairs, true)
	if err != nil || same.Low >= own.Low {
		t.Errorf("the same questions for all seeds: %+v (%v), want a wider interval than %+v", same, err, own)
	}
	if ok, why := own.Claim(0.05, 0.03); !ok {
		t.Errorf("claim refused: %v", why)
	}
	if ok, why := own.Claim(0.08, 0.03); ok || len(why) != 1 {
		t.Errorf("a gain of 6.7 points was called 8 (%v)", why)
	}
}

func TestOneSeedSupportsNothing(t *testing.T) {
	if _, err := Pool([]Pair{NewPair(900, 10, 1000)}, false); err == nil || !strings.Contains(err.Error(), "1 seed") {
		t.Errorf("error %v, want a refusal of one seed", err)
	}
	two, err := Pool([]Pair{NewPair(300, 10, 1000), NewPair(310, 10, 1000)}, false)
	if err != nil {
		t.Fatal(err)
	}
	if ok, why := two.Claim(0.01, 0.01); ok || !strings.Contains(why[0], "2 seeds") {
		t.Errorf("two seeds claimed an improvement (%v)", why)
	}
}

// A difference that was never seen is not known to be none, and no interval
// leaves what a difference of shares can be.
func TestPoolOfFew(t *testing.T) {
	none, err := Pool([]Pair{NewPair(0, 0, 100), NewPair(0, 0, 100), NewPair(0, 0, 100)}, false)
	// variance 1/102² for each seed, a third of the mean over seeds
	if half := z / 102 / math.Sqrt(3); err != nil || !near(none.High, half, 1e-12) || !near(none.Low, -half, 1e-12) {
		t.Errorf("%+v (%v), want ±%.4f", none, err, half)
	}
	wide, err := Pool([]Pair{NewPair(1, 0, 2), NewPair(0, 1, 2)}, false)
	if err != nil || wide.Low != -1 || wide.High != 1 {
		t.Errorf("%+v (%v), want [-1, 1]", wide, err)
	}
}
