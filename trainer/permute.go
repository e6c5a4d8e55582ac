package trainer

import "slices"

// A Permutation says how the rewards of a step were dealt out anew, as a
// control: trajectory i, counted through Groups in their order, was given the
// reward that trajectory Order[i] earned. What still is learnt then does not
// come from the rewards.
type Permutation struct {
	Groups []int `json:"groups"`
	Order  []int `json:"order"`
}

// permutation follows from the run's seed and the step alone.
func permutation(seed uint64, step int, groups []int, trajectories int) *Permutation {
	return &Permutation{slices.Clone(groups), shuffle(mix(seed, 'x', uint64(step)), trajectories)}
}

// Apply deals rewards, one a trajectory, out anew. A nil permutation leaves
// them as they are.
func (p *Permutation) Apply(rewards []float64) []float64 {
	if p == nil {
		return rewards
	}
	if len(p.Order) != len(rewards) {
		panic("trainer: permutation of another number of rewards")
	}
	out := make([]float64, len(rewards))
	for i, from := range p.Order {
		out[i] = rewards[from]
	}
	return out
}
