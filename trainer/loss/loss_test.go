package loss

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func preset(t testing.TB, name string) Config {
	t.Helper()
	c, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	if c.Aggregate == SeqMeanTokenSumNorm {
		c.Length = 320
	}
	return c
}

func TestPresetsAreValid(t *testing.T) {
	for _, name := range Presets {
		if err := preset(t, name).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Preset("ppo"); err == nil || !strings.Contains(err.Error(), `preset = "ppo"`) {
		t.Errorf("an unknown preset: %v", err)
	}
}

func TestValidateRefuses(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`preset = "grpo"`:                                func(c *Config) { c.Preset = "grpo" },
		`old = "base"`:                                   func(c *Config) { c.Old = "base" },
		`ratio = "word"`:                                 func(c *Config) { c.Ratio = "word" },
		`surrogate = ""`:                                 func(c *Config) { c.Surrogate = "" },
		`aggregate = "mean"`:                             func(c *Config) { c.Aggregate = "mean" },
		`kl.estimator = "k4"`:                            func(c *Config) { c.KL.Estimator = "k4" },
		`correction.level = "batch"`:                     func(c *Config) { c.Correction.Level = "batch" },
		`correction.mode = "drop"`:                       func(c *Config) { c.Correction.Mode = "drop" },
		"clip_low = 0, clip_high":                        func(c *Config) { c.ClipLow = 0 },
		"clip_low = 1.5":                                 func(c *Config) { c.ClipLow = 1.5 },
		"clip_high = 0":                                  func(c *Config) { c.ClipHigh = 0 },
		"kl.coef = NaN":                                  func(c *Config) { c.KL.Coef = math.NaN() },
		"log_clamp = +Inf":                               func(c *Config) { c.LogClamp = math.Inf(1) },
		"delta = -1":                                     func(c *Config) { c.Delta = -1 },
		"delta = 1.1: must be above":                     func(c *Config) { c.Delta = 1.1 },
		"dual_clip = 0.5: must be above 1":               func(c *Config) { c.DualClip = 0.5 },
		"set one of them":                                func(c *Config) { c.DualClip, c.Delta = 3, 3 },
		"no effect with surrogate cispo":                 func(c *Config) { c.Surrogate, c.DualClip = ClipWeight, 3 },
		"length = 10: no effect":                         func(c *Config) { c.Length = 10 },
		"count_eps = 1e-08: no effect":                   func(c *Config) { c.Aggregate, c.CountEps = TokenSum, 1e-8 },
		"count_eps = 2: must be below 1":                 func(c *Config) { c.CountEps = 2 },
		"high = 2, log_clamp = 0: no effect":             func(c *Config) { c.Correction.High = 2 },
		"every weight is 1 with old behaviour":           func(c *Config) { c.Correction = Correction{Level: PerToken, Mode: Mask, High: 2} },
		"low = 3, high = 2":                              func(c *Config) { c.Old, c.Correction = Learner, Correction{PerToken, Mask, 3, 2, 0} },
		"correction.low = 0, high = 0: high must be pos": func(c *Config) { c.Old, c.Correction = Learner, Correction{PerToken, Truncate, 0, 0, 0} },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A row of advantage 0 has no loss and no gradient in any preset without KL.
func TestNoAdvantageTeachesNothing(t *testing.T) {
	r := Row{Logprobs: []float64{-1, -2}, Old: []float64{-3, -0.5}, Behaviour: []float64{-1, -1}, Reference: []float64{-1, -1}}
	for _, name := range Presets {
		c := preset(t, name)
		c.KL.Coef = 0
		loss, gradient := c.Batch([]Row{r})
		if loss != 0 || gradient[0][0] != 0 || gradient[0][1] != 0 {
			t.Errorf("%s: loss %v, gradient %v", name, loss, gradient)
		}
	}
}

// On policy, where all log-probs are the same, every preset with standard
// surrogates is the plain policy gradient: -A over the divisor.
func TestOnPolicyIsThePolicyGradient(t *testing.T) {
	lp := []float64{-1, -2, -0.3}
	r := Row{lp, lp, lp, lp, 0.7}
	for _, name := range Presets {
		c := preset(t, name)
		_, gradient := c.Batch([]Row{r})
		for i, g := range gradient[0] {
			if want := -0.7 / c.Divisor(3, Count{3, 1}); math.Abs(g-want) > 1e-12 {
				t.Errorf("%s: gradient %d is %v, want %v", name, i, g, want)
			}
		}
	}
}

func drawRow(t *rapid.T) Row {
	n := rapid.IntRange(1, 6).Draw(t, "tokens")
	near := func(name string, spread float64) []float64 {
		return rapid.SliceOfN(rapid.Float64Range(-2-spread, -2+spread), n, n).Draw(t, name)
	}
	return Row{near("logprobs", 0.5), near("old", 0.5), near("behaviour", 0.5), near("reference", 1.5),
		rapid.Float64Range(-2, 2).Draw(t, "advantage")}
}

// drawConfig draws settings whose Slope is the derivative of what they compute:
// no stopped gradients.
func drawConfig(t *rapid.T) Config {
	c := Default()
	c.Old = Learner
	c.Ratio = rapid.SampledFrom([]string{PerToken, PerSequence}).Draw(t, "ratio")
	c.LogClamp = rapid.SampledFrom([]float64{0, 0.4, 20}).Draw(t, "clamp")
	c.DualClip = rapid.SampledFrom([]float64{0, 1.5}).Draw(t, "dual")
	if c.DualClip == 0 {
		c.Delta = rapid.SampledFrom([]float64{0, 1.4}).Draw(t, "delta")
	}
	c.KL = KL{rapid.SampledFrom([]float64{0, 0.3}).Draw(t, "coef"), rapid.SampledFrom([]string{K1, K2, K3, K3Clamped}).Draw(t, "estimator")}
	c.Correction = Correction{PerSequence, rapid.SampledFrom([]string{Truncate, Mask}).Draw(t, "mode"), 0.5, 2, 20}
	return c
}

func total(c Config, r Row) float64 {
	tokens, sum := make([]Token, len(r.Logprobs)), 0.0
	c.Tokens(r, tokens)
	for _, t := range tokens {
		sum += t.Loss
	}
	return sum
}

// Slope is the derivative of the row's sum of terms, away from corners.
func TestFiniteDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, r := drawConfig(t), drawRow(t)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		tokens := make([]Token, len(r.Logprobs))
		c.Tokens(r, tokens)
		const h = 1e-6
		for i, at := range r.Logprobs {
			move := func(by float64) float64 {
				r.Logprobs[i] = at + by
				defer func() { r.Logprobs[i] = at }()
				return total(c, r)
			}
			left, right := (move(0)-move(-h))/h, (move(h)-move(0))/h
			if math.Abs(left-right) > 1e-3 {
				continue // a corner
			}
			if want := (left + right) / 2; math.Abs(tokens[i].Slope-want) > 1e-4 {
				t.Fatalf("slope %d is %v, differences say %v (%+v)", i, tokens[i].Slope, want, c)
			}
		}
	})
}

// A correction that drops every term leaves the KL.
func TestCorrectionLeavesKL(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, r := drawConfig(t), drawRow(t)
		c.KL.Coef = 0.3
		c.Correction = Correction{PerToken, Mask, 1e8, 1e9, 0} // drops every term
		tokens := make([]Token, len(r.Logprobs))
		c.Tokens(r, tokens)
		for i, token := range tokens {
			if token.Loss != 0.3*token.KL {
				t.Fatalf("term %d is %v, its KL %v", i, token.Loss, token.KL)
			}
		}
	})
}
