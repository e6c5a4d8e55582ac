package embedded

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"xragent/internal/simd"
	"xragent/rollout"
)

// A choice is one sampled id with its log-softmax at the temperature that it was
// sampled at, at 1 where it was decoded greedily. The learner recomputes the
// same quantity.
type choice struct {
	id      int32
	logprob float32
}

// A sampler draws ids from logits. Its scratch is reused. Barred ids are never
// drawn: they stand for images, and a prompt that continued one would have a
// placeholder without an image. Log-probs are not renormalised for them.
type sampler struct {
	barred []int32
	open   []float32 // the logits, barred ones −Inf
	p      []float32
	order  []int32
}

// draw picks from one row of logits, which it leaves as they are. u lies in
// [0, 1) and is the only randomness. A row that is not finite is an error.
func (s *sampler) draw(logits []float32, by rollout.Sampling, u float64) (choice, error) {
	s.p = stretch(s.p, len(logits))
	top := simd.Max(logits)
	scale := cmp.Or(by.Temperature, 1) // greedy decoding is told of at 1
	total := s.temper(logits, top, scale)
	logTotal := math.Log(float64(total))
	if math.IsNaN(logTotal) || math.IsInf(logTotal, 0) {
		return choice{}, fmt.Errorf("logits are not finite (log of their sum is %v); the loaded weights are broken", float64(top)+logTotal)
	}
	s.open = append(s.open[:0], logits...)
	for _, id := range s.barred {
		s.open[id], s.p[id] = float32(math.Inf(-1)), 0
	}
	id := s.choose(by, u)
	if scale == 1 {
		return choice{id, float32(float64(logits[id]) - (float64(top) + logTotal))}, nil
	}
	return choice{id, float32(float64(logits[id]-top)/scale - logTotal)}, nil
}

// temper sets p to the unnormalised probabilities at a temperature and returns
// their sum.
func (s *sampler) temper(logits []float32, top float32, temperature float64) float32 {
	if temperature == 1 {
		return simd.ExpSub(s.p, logits, top)
	}
	inverse := float32(1 / temperature)
	for i, v := range logits {
		s.p[i] = (v - top) * inverse
	}
	return simd.ExpSub(s.p, s.p, 0)
}

// choose picks from open, or from p.
func (s *sampler) choose(by rollout.Sampling, u float64) int32 {
	if by.Temperature == 0 {
		return argmax(s.open)
	}
	return s.pick(by.TopP, u)
}

// argmax returns the index of the largest logit, the lowest where several are.
// No logit may be NaN.
func argmax(logits []float32) int32 {
	return int32(slices.Index(logits, simd.Max(logits)))
}

// pick inverts the cumulative distribution: over all ids in order, or over the
// fewest most probable ids whose probabilities reach topP.
func (s *sampler) pick(topP, u float64) int32 {
	if topP < 1 {
		return s.pickNucleus(topP, u)
	}
	target := u * sum64(s.p)
	last := int32(0)
	for i, p := range s.p {
		if p == 0 {
			continue
		}
		last = int32(i)
		if target -= float64(p); target < 0 {
			break
		}
	}
	return last
}

// pickNucleus samples as top-p does (Holtzman et al. 2020). Equal
// probabilities are ordered by id.
func (s *sampler) pickNucleus(topP, u float64) int32 {
	s.order = s.order[:0]
	for i := range s.p {
		s.order = append(s.order, int32(i))
	}
	slices.SortStableFunc(s.order, func(a, b int32) int {
		switch pa, pb := s.p[a], s.p[b]; {
		case pa > pb:
			return -1
		case pa < pb:
			return 1
		}
		return 0
	})
	limit, mass, kept := topP*sum64(s.p), 0.0, 0
	for kept < len(s.order) && (kept == 0 || mass < limit) {
		mass += float64(s.p[s.order[kept]])
		kept++
	}
	target := u * mass
	for _, id := range s.order[:kept] {
		if target -= float64(s.p[id]); target < 0 {
			return id
		}
	}
	return s.order[kept-1]
}

func sum64(x []float32) float64 {
	total := 0.0
	for _, v := range x {
		total += float64(v)
	}
	return total
}

// uniform returns the i-th number in [0, 1) of a seed's stream. It is a
// function of its arguments: a turn's randomness does not depend on what else
// is sampled.
func uniform(seed uint64, i int) float64 {
	return float64(mix64(mix64(seed)+uint64(i))>>11) / (1 << 53)
}

// checkSampling reports the first parameter that cannot be sampled with.
func checkSampling(s rollout.Sampling) error {
	switch {
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0):
		return fmt.Errorf("temperature is %v, must be 0 (greedy) or more", s.Temperature)
	case !(s.TopP > 0 && s.TopP <= 1):
		return fmt.Errorf("top_p is %v, must be above 0 and at most 1 (1 keeps every token)", s.TopP)
	case s.MaxTokens < 1:
		return fmt.Errorf("max_tokens is %d, must be at least 1", s.MaxTokens)
	}
	return nil
}
