// Package advantage computes group-relative advantages in float64.
//
// A group is keyed by its id, never by its position, so that a lost or
// reordered trajectory cannot corrupt a neighbour's statistics. Two rules come
// before any formula: rewards that are all equal give advantage exactly 0, and
// so does a group of one. No epsilon ever decides whether a group has a signal.
// NaN and infinite rewards are refused.
package advantage

import (
	"fmt"
	"math"
	"slices"
)

// The presets, named after the code bases whose formula they follow. With n
// rewards r, mean m and standard deviation s (ddof 1):
//
//	verl      (r - m) / (s + 1e-6)
//	trl       (r - m) / (s + 1e-4)
//	drgrpo    r - m                     (Liu et al. 2025, "Dr. GRPO")
//	nemo-loo  (r - m') / (s' + 1e-6)    m', s' over the other n-1 rewards;
//	                                    no division where s' is 0 or n is 2
//
// verl itself gives a group of one its raw reward; here it is 0 in every preset.
const (
	Verl    = "verl"
	TRL     = "trl"
	DrGRPO  = "drgrpo"
	NeMoLOO = "nemo-loo"
)

// Presets lists every preset.
var Presets = []string{Verl, TRL, DrGRPO, NeMoLOO}

// Compute returns the advantage of each reward relative to the rewards with
// the same group id. groups and rewards are parallel and may come in any order.
func Compute(preset string, groups []int, rewards []float64) ([]float64, error) {
	if len(groups) != len(rewards) {
		return nil, fmt.Errorf("advantages: %d group ids for %d rewards", len(groups), len(rewards))
	}
	members := map[int][]int{}
	for i, g := range groups {
		members[g] = append(members[g], i)
	}
	out := make([]float64, len(rewards))
	for i, g := range groups {
		rows := members[g]
		if rows[0] != i {
			continue // done with the group's first row
		}
		of := make([]float64, len(rows))
		for k, row := range rows {
			of[k] = rewards[row]
		}
		adv, err := Group(preset, of)
		if err != nil {
			return nil, fmt.Errorf("advantages: group %d: %w", g, err)
		}
		for k, row := range rows {
			out[row] = adv[k]
		}
	}
	return out, nil
}

// Group returns the advantages within one group.
func Group(preset string, rewards []float64) ([]float64, error) {
	if !slices.Contains(Presets, preset) {
		return nil, fmt.Errorf("unknown preset %q, want one of %v", preset, Presets)
	}
	for i, r := range rewards {
		if math.IsNaN(r) || math.IsInf(r, 0) {
			return nil, fmt.Errorf("reward %d is %v", i, r)
		}
	}
	out := make([]float64, len(rewards))
	if ZeroVariance(rewards) {
		return out, nil
	}
	if preset == NeMoLOO {
		leaveOneOut(out, rewards)
		return out, nil
	}
	mean, std := moments(rewards)
	for i, r := range rewards {
		out[i] = (r - mean) / scale(preset, std)
	}
	return out, nil
}

// ZeroVariance reports whether the rewards carry no signal: none, one, or all
// equal.
func ZeroVariance(rewards []float64) bool {
	return len(rewards) < 2 || slices.Max(rewards) == slices.Min(rewards)
}

func scale(preset string, std float64) float64 {
	switch preset {
	case Verl:
		return std + 1e-6
	case TRL:
		return std + 1e-4
	}
	return 1
}

func leaveOneOut(out, rewards []float64) {
	others := make([]float64, 0, len(rewards)-1)
	for i, r := range rewards {
		others = append(append(others[:0], rewards[:i]...), rewards[i+1:]...)
		mean, std := others[0], 0.0
		if !ZeroVariance(others) {
			mean, std = moments(others)
		}
		out[i] = r - mean
		if std > 0 {
			out[i] /= std + 1e-6
		}
	}
}

// moments returns mean and standard deviation (ddof 1), in two passes over the
// distances from the first value, so that a large common offset costs nothing.
func moments(x []float64) (mean, std float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += v - x[0]
	}
	mean = x[0] + mean/n
	sum := 0.0
	for _, v := range x {
		sum += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(sum / (n - 1))
}
