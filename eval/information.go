package eval

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Information is how much one thing tells of another within strata, in bits.
type Information struct {
	N       int     `json:"n"`
	Plain   float64 `json:"plain"`   // of the observed frequencies; biased upwards
	Bits    float64 `json:"bits"`    // after the correction; may fall below 0
	Chance  float64 `json:"chance"`  // 95th percentile of Plain where x is shuffled within strata
	Exceeds bool    `json:"exceeds"` // Plain is above Chance
}

// shuffles is how many permutations give the 95th percentile by chance.
const shuffles = 400

// MutualInformation returns I(x; y | stratum) of parallel lists, with the
// correction of Miller (1955) and Madow, (K_xy − K_x − K_y + 1)/(2·N·ln 2) over
// the cells that occur, taken per stratum, and a seeded permutation for what
// chance alone gives.
func MutualInformation(x, y, stratum []string, seed uint64) Information {
	groups := grouped(stratum)
	out := Information{N: len(x)}
	for _, g := range groups {
		share := float64(len(g)) / float64(len(x))
		plain, bias := information(at(x, g), at(y, g))
		out.Plain += share * plain
		out.Bits += share * (plain - bias)
	}
	out.Chance = chance(x, y, groups, seed)
	out.Exceeds = out.Plain > out.Chance
	return out
}

func chance(x, y []string, groups [][]int, seed uint64) float64 {
	rng := rand.New(rand.NewPCG(seed, 0x1f83d9ab))
	values := make([]float64, shuffles)
	for i := range values {
		for _, g := range groups {
			xs := at(x, g)
			rng.Shuffle(len(xs), func(a, b int) { xs[a], xs[b] = xs[b], xs[a] })
			plain, _ := information(xs, at(y, g))
			values[i] += float64(len(g)) / float64(len(x)) * plain
		}
	}
	slices.Sort(values)
	return values[shuffles*95/100]
}

// information is I(x; y) in bits with its Miller–Madow bias.
func information(x, y []string) (bits, bias float64) {
	n := float64(len(x))
	px, py, pxy := map[string]float64{}, map[string]float64{}, map[[2]string]float64{}
	var cells [][2]string // in order of appearance: sums have one order
	for i := range x {
		c := [2]string{x[i], y[i]}
		if pxy[c] == 0 {
			cells = append(cells, c)
		}
		px[x[i]]++
		py[y[i]]++
		pxy[c]++
	}
	for _, c := range cells {
		bits += pxy[c] / n * math.Log2(pxy[c]*n/(px[c[0]]*py[c[1]]))
	}
	k := len(pxy) - len(px) - len(py) + 1
	return max(0, bits), float64(k) / (2 * n * math.Ln2)
}

// grouped returns the places of equal keys, in order of appearance.
func grouped(keys []string) [][]int {
	place := map[string]int{}
	var out [][]int
	for i, k := range keys {
		g, ok := place[k]
		if !ok {
			g = len(out)
			place[k] = g
			out = append(out, nil)
		}
		out[g] = append(out[g], i)
	}
	return out
}

func at(list []string, places []int) []string {
	out := make([]string, len(places))
	for i, p := range places {
		out[i] = list[p]
	}
	return out
}
