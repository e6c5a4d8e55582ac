package eval

import (
	"math/rand/v2"
	"slices"
)

// resamples is how many bootstrap samples an interval rests on.
const resamples = 2000

// ClusterBootstrap returns the 95 % percentile interval of the mean of values
// whose units are clusters, such as the questions of one patient (Efron and
// Tibshirani 1993, chapter 13; Field and Welsh 2007): whole clusters are drawn
// with replacement. It is the same for the same seed. With no value it spans
// [−1, 1].
func ClusterBootstrap(values []float64, cluster []string, seed uint64) (low, high float64) {
	if len(values) == 0 {
		return -1, 1
	}
	groups := grouped(cluster)
	sums := make([]float64, len(groups))
	for i, g := range groups {
		for _, p := range g {
			sums[i] += values[p]
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x9b05688c))
	means := make([]float64, resamples)
	for i := range means {
		sum, n := 0.0, 0
		for range groups {
			g := rng.IntN(len(groups))
			sum, n = sum+sums[g], n+len(groups[g])
		}
		means[i] = sum / float64(n)
	}
	slices.Sort(means)
	return means[resamples*25/1000], means[resamples*975/1000-1]
}
