package loss

import "fmt"

// The presets. Each is what the named code does by default, or what its paper
// says, for one optimizer step a batch; every field can be set on its own. The
// code bases compute the old policy's log-probs anew before the step, which
// makes the ratio 1; the papers' old policy is the one that sampled.
//
//	xragent   the default: the ratio is taken to the behaviour policy, higher
//	          upper clip, mean over the batch's tokens
//	verl      verl 0.9: dual clip 3, mean over tokens
//	trl       TRL 1.16: loss type dapo, sequences off by more than 3 masked
//	drgrpo    Liu et al. 2025: no standard deviation, no length in a denominator
//	dapo      Yu et al. 2025: higher upper clip, mean over tokens, no KL
//	gspo      Zheng et al. 2025: the ratio of a whole sequence; verl's form
//	cispo     MiniMax 2025: clipped weights, every token keeps its gradient
//	nemo-loo  NeMo RL: leave-one-out baseline, KL against the reference
const (
	XRAgent = "xragent"
	Verl    = "verl"
	TRL     = "trl"
	DrGRPO  = "drgrpo"
	DAPO    = "dapo"
	GSPO    = "gspo"
	CISPO   = "cispo"
	NeMoLOO = "nemo-loo"
)

// Presets lists every preset, the default first.
var Presets = []string{XRAgent, Verl, TRL, DrGRPO, DAPO, GSPO, CISPO, NeMoLOO}

// Default returns the preset xragent.
func Default() Config {
	return Config{
		Preset: XRAgent, Advantage: "verl", Old: Behaviour, Ratio: PerToken, Surrogate: ClipRatio, ClipLow: 0.2, ClipHigh: 0.28,
		Aggregate: TokenMean, KL: KL{Estimator: K3}, Correction: Correction{Level: NoCorrection, Mode: Truncate},
	}
}

// Preset returns the settings of that name.
func Preset(name string) (Config, error) {
	c := Default()
	c.Preset = name
	if name == XRAgent {
		return c, nil
	}
	c.ClipHigh = 0.2
	switch name {
	case Verl:
		c.Old, c.DualClip, c.LogClamp, c.KL.Estimator = Learner, 3, 20, K3Clamped
	case TRL:
		c.Old, c.Advantage = Learner, "trl"
		c.Correction = Correction{Level: PerSequence, Mode: Mask, High: 3}
	case DrGRPO:
		c.Advantage, c.Aggregate = "drgrpo", SeqMeanTokenSumNorm
	case DAPO:
		c.ClipHigh = 0.28
	case GSPO:
		c.Ratio, c.ClipLow, c.ClipHigh, c.LogClamp = PerSequence, 3e-4, 4e-4, 10
		c.Aggregate, c.CountEps = SeqMeanTokenMean, 1e-8
	case CISPO:
		c.Surrogate, c.ClipLow, c.ClipHigh = ClipWeight, 1, 4
	case NeMoLOO:
		c.Old, c.Advantage, c.CountEps = Learner, "nemo-loo", 1e-8
		c.KL = KL{Coef: 0.01, Estimator: K3Clamped}
	default:
		return Config{}, fmt.Errorf("preset = %q: must be one of %v", name, Presets)
	}
	return c, nil
}
