package trainer

import (
	"fmt"
	"math"

	"xragent/trainer/batch"
)

// An Optimizer holds AdamW's constants and the learning rate over the steps.
type Optimizer struct {
	LR      float64 `yaml:"lr" json:"lr"`
	WarmUp  int     `yaml:"warm_up" json:"warm_up"`   // steps of linear rise from 0
	Decay   string  `yaml:"decay" json:"decay"`       // constant, linear or cosine, after the warm-up
	FinalLR float64 `yaml:"final_lr" json:"final_lr"` // at the last step, as a share of lr
	Beta1   float64 `yaml:"beta1" json:"beta1"`
	Beta2   float64 `yaml:"beta2" json:"beta2"`
	Eps     float64 `yaml:"eps" json:"eps"`
	Weight  float64 `yaml:"weight_decay" json:"weight_decay"` // decoupled
	MaxNorm float64 `yaml:"max_norm" json:"max_norm"`         // of the whole gradient; 0: none

	// Spike cuts a gradient whose norm exceeds this many times the median of the
	// last twenty steps' to that; 0: off.
	Spike float64 `yaml:"spike,omitempty" json:"spike,omitempty"`
}

// Validate reports the first setting that cannot train.
func (o Optimizer) Validate() error {
	switch {
	case !(o.LR > 0) || math.IsInf(o.LR, 0):
		return fmt.Errorf("lr = %v: must be a positive number", o.LR)
	case o.WarmUp < 0:
		return fmt.Errorf("warm_up = %d: must be at least 0", o.WarmUp)
	case o.Decay != "constant" && o.Decay != "linear" && o.Decay != "cosine":
		return fmt.Errorf("decay = %q: must be constant, linear or cosine", o.Decay)
	case !(o.FinalLR >= 0 && o.FinalLR <= 1):
		return fmt.Errorf("final_lr = %v: must lie between 0 and 1", o.FinalLR)
	case !(o.Beta1 >= 0 && o.Beta1 < 1) || !(o.Beta2 >= 0 && o.Beta2 < 1):
		return fmt.Errorf("beta1 = %v, beta2 = %v: must lie in [0, 1)", o.Beta1, o.Beta2)
	case !(o.Eps > 0):
		return fmt.Errorf("eps = %v: must be positive", o.Eps)
	case !(o.Weight >= 0) || !(o.MaxNorm >= 0):
		return fmt.Errorf("weight_decay = %v, max_norm = %v: must not be negative", o.Weight, o.MaxNorm)
	case o.Spike != 0 && !(o.Spike > 1) || math.IsInf(o.Spike, 0):
		return fmt.Errorf("spike = %v: must be above 1, or 0 (off)", o.Spike)
	}
	return nil
}

// Rate returns the learning rate of a step, 1-based, in a run of total steps.
func (o Optimizer) Rate(step, total int) float64 {
	if step <= o.WarmUp {
		return o.LR * float64(step) / float64(o.WarmUp)
	}
	done := float64(step-o.WarmUp) / float64(max(1, total-o.WarmUp))
	switch o.Decay {
	case "linear":
		return o.LR * (1 - (1-o.FinalLR)*done)
	case "cosine":
		return o.LR * (o.FinalLR + (1-o.FinalLR)*(1+math.Cos(math.Pi*done))/2)
	}
	return o.LR
}

// objective returns that of a step behind steps with those gradient norms.
func (o Optimizer) objective(kind string, step, total int, norms []float64) batch.Objective {
	most := o.MaxNorm
	if bound := o.spikeBound(norms); bound > 0 && (most == 0 || bound < most) {
		most = bound
	}
	return batch.Objective{
		Kind: kind, LR: o.Rate(step, total), MaxNorm: most,
		Weight: batch.Adam{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, Decay: o.Weight},
	}
}
