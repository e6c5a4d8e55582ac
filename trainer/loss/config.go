package loss

import (
	"fmt"
	"math"
	"slices"
)

// A Config names every choice of the loss. The zero value of a number leaves
// that part out. docs/losses.md has the formulas.
type Config struct {
	Preset    string `yaml:"preset" json:"preset"`       // where the values began; see [Preset]
	Advantage string `yaml:"advantage" json:"advantage"` // a preset of package advantage

	Old       string  `yaml:"old" json:"old"`             // policy that the ratio is taken to: behaviour, or learner (before the step)
	Ratio     string  `yaml:"ratio" json:"ratio"`         // token, or sequence: the geometric mean over a row
	Surrogate string  `yaml:"surrogate" json:"surrogate"` // clip, or cispo: clipped weight times log-prob
	ClipLow   float64 `yaml:"clip_low" json:"clip_low"`   // ratio clipped to [1-clip_low, 1+clip_high]; clip_low 1: no lower bound
	ClipHigh  float64 `yaml:"clip_high" json:"clip_high"`
	DualClip  float64 `yaml:"dual_clip" json:"dual_clip"` // most that the ratio counts where the advantage is negative
	Delta     float64 `yaml:"delta" json:"delta"`         // most that the unclipped ratio counts
	LogClamp  float64 `yaml:"log_clamp" json:"log_clamp"` // most that the log of a ratio may be

	Aggregate string  `yaml:"aggregate" json:"aggregate"` // denominators: token-mean, token-sum, seq-mean-token-mean, …
	Length    float64 `yaml:"length" json:"length"`       // constant of seq-mean-token-sum-norm; 0: twice max_tokens, the longest completion
	CountEps  float64 `yaml:"count_eps" json:"count_eps"` // added to a denominator's count of tokens

	KL         KL         `yaml:"kl" json:"kl"`
	Correction Correction `yaml:"correction" json:"correction"`
}

// KL says how far the policy may go from the reference policy, which is the one
// that the stage began with. It is a term of the loss, not of the reward, and is
// neither clipped nor corrected.
type KL struct {
	Coef      float64 `yaml:"coef" json:"coef"`
	Estimator string  `yaml:"estimator" json:"estimator"` // k1, k2, k3, k3-clamped, k1+, k3+, k3-clamped+
}

// Correction weighs terms by the old policy's probability over the behaviour
// policy's, for samplers whose arithmetic is not the learner's. It changes no
// denominator.
type Correction struct {
	Level    string  `yaml:"level" json:"level"` // none, token, or sequence: the product over a row
	Mode     string  `yaml:"mode" json:"mode"`   // truncate into [low, high] (TIS), or mask: 0 outside (IcePop)
	Low      float64 `yaml:"low" json:"low"`
	High     float64 `yaml:"high" json:"high"`
	LogClamp float64 `yaml:"log_clamp" json:"log_clamp"` // most that the log of a weight may be, either way
}

// The names of the choices.
const (
	Behaviour, Learner            = "behaviour", "learner"
	NoCorrection                  = "none"
	PerToken, PerSequence         = "token", "sequence"
	ClipRatio, ClipWeight         = "clip", "cispo"
	Truncate, Mask                = "truncate", "mask"
	TokenMean, TokenSum           = "token-mean", "token-sum"
	SeqMeanTokenMean              = "seq-mean-token-mean"
	SeqMeanTokenSum               = "seq-mean-token-sum"
	SeqMeanTokenSumNorm           = "seq-mean-token-sum-norm"
	K1, K2, K3, K3Clamped         = "k1", "k2", "k3", "k3-clamped"
	K1Plus, K3Plus, K3ClampedPlus = "k1+", "k3+", "k3-clamped+"
)

var choices = map[string][]string{
	"old":              {Behaviour, Learner},
	"ratio":            {PerToken, PerSequence},
	"surrogate":        {ClipRatio, ClipWeight},
	"aggregate":        {TokenMean, TokenSum, SeqMeanTokenMean, SeqMeanTokenSum, SeqMeanTokenSumNorm},
	"kl.estimator":     {K1, K2, K3, K3Clamped, K1Plus, K3Plus, K3ClampedPlus},
	"correction.level": {NoCorrection, PerToken, PerSequence},
	"correction.mode":  {Truncate, Mask},
}

// Validate reports the first setting that has no meaning, or none beside the
// others. The advantage's name is not checked here.
func (c Config) Validate() error {
	if !slices.Contains(Presets, c.Preset) {
		return fmt.Errorf("preset = %q: must be one of %v", c.Preset, Presets)
	}
	for _, f := range []struct{ key, value string }{
		{"old", c.Old}, {"ratio", c.Ratio}, {"surrogate", c.Surrogate}, {"aggregate", c.Aggregate},
		{"kl.estimator", c.KL.Estimator}, {"correction.level", c.Correction.Level}, {"correction.mode", c.Correction.Mode},
	} {
		if !slices.Contains(choices[f.key], f.value) {
			return fmt.Errorf("%s = %q: must be one of %v", f.key, f.value, choices[f.key])
		}
	}
	for _, check := range []func() error{c.checkNumbers, c.checkClip, c.checkDenominator, c.checkCorrection} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// Resolved returns c with its length set, where it needs one that it lacks.
func (c Config) Resolved(longest float64) Config {
	if c.Aggregate == SeqMeanTokenSumNorm && c.Length == 0 {
		c.Length = longest
	}
	return c
}

// Ready reports why a learner could not use c: what Validate says, or a length
// that was not resolved.
func (c Config) Ready() error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.Aggregate == SeqMeanTokenSumNorm && c.Length == 0 {
		return fmt.Errorf("length = 0: aggregate %s divides by it", c.Aggregate)
	}
	return nil
}

// checkNumbers refuses what no setting may be: negative, NaN or infinite.
func (c Config) checkNumbers() error {
	for _, f := range []struct {
		key   string
		value float64
	}{
		{"clip_low", c.ClipLow}, {"clip_high", c.ClipHigh}, {"dual_clip", c.DualClip}, {"delta", c.Delta}, {"log_clamp", c.LogClamp},
		{"length", c.Length}, {"count_eps", c.CountEps}, {"kl.coef", c.KL.Coef},
		{"correction.low", c.Correction.Low}, {"correction.high", c.Correction.High}, {"correction.log_clamp", c.Correction.LogClamp},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("%s = %v: must be a number of at least 0", f.key, f.value)
		}
	}
	return nil
}

func (c Config) checkClip() error {
	switch {
	case !(c.ClipLow > 0 && c.ClipLow <= 1) || !(c.ClipHigh > 0):
		return fmt.Errorf("clip_low = %v, clip_high = %v: must be positive, and clip_low at most 1", c.ClipLow, c.ClipHigh)
	case c.DualClip > 0 && c.Delta > 0:
		return fmt.Errorf("dual_clip = %v and delta = %v: both bound the ratio from above, set one of them", c.DualClip, c.Delta)
	case c.Surrogate == ClipWeight && c.DualClip+c.Delta > 0:
		return fmt.Errorf("dual_clip = %v, delta = %v: no effect with surrogate cispo, set 0", c.DualClip, c.Delta)
	case c.DualClip > 0 && c.DualClip <= 1:
		return fmt.Errorf("dual_clip = %v: must be above 1, or 0 for none", c.DualClip)
	case c.Delta > 0 && c.Delta <= 1+c.ClipHigh:
		return fmt.Errorf("delta = %v: must be above 1 + clip_high = %v, or 0 for none", c.Delta, 1+c.ClipHigh)
	}
	return nil
}

func (c Config) checkDenominator() error {
	switch {
	case c.Length > 0 && c.Aggregate != SeqMeanTokenSumNorm:
		return fmt.Errorf("length = %v: no effect with aggregate %s, set 0", c.Length, c.Aggregate)
	case c.CountEps > 0 && c.Aggregate != TokenMean && c.Aggregate != SeqMeanTokenMean:
		return fmt.Errorf("count_eps = %v: no effect with aggregate %s, set 0", c.CountEps, c.Aggregate)
	case c.CountEps >= 1:
		return fmt.Errorf("count_eps = %v: must be below 1", c.CountEps)
	}
	return nil
}

func (c Config) checkCorrection() error {
	k := c.Correction
	switch {
	case k.Level == NoCorrection && k.Low+k.High+k.LogClamp > 0:
		return fmt.Errorf("correction.low = %v, high = %v, log_clamp = %v: no effect with correction.level none, set 0", k.Low, k.High, k.LogClamp)
	case k.Level == NoCorrection:
		return nil
	case c.Old == Behaviour:
		return fmt.Errorf("correction.level = %q: every weight is 1 with old behaviour, set old: learner", k.Level)
	case !(k.High > 0) || k.Low > k.High:
		return fmt.Errorf("correction.low = %v, high = %v: high must be positive and not below low", k.Low, k.High)
	}
	return nil
}
