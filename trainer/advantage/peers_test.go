package advantage

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// A peerGroup holds what verl's or TRL's own function returned for a group's
// rewards, in float64; learner/parity/fixtures.py writes it.
type peerGroup struct {
	Preset    string
	Rewards   []*float64 // nil: NaN
	Want      []*float64
	Deviation string // why ours is another value
}

// Advantages are the peers', but for what is declared: NaN is refused, a group of
// one and equal rewards give exactly 0.
func TestPeers(t *testing.T) {
	data, err := os.ReadFile("testdata/peers.json")
	if err != nil {
		t.Fatal(err)
	}
	var peers struct{ Groups []peerGroup }
	if err := json.Unmarshal(data, &peers); err != nil || len(peers.Groups) < 70 {
		t.Fatalf("%d groups: the file is not whole: %v", len(peers.Groups), err)
	}
	for _, c := range peers.Groups {
		rewards := values(c.Rewards)
		got, err := Group(c.Preset, rewards)
		switch {
		case slices.ContainsFunc(rewards, math.IsNaN):
			if err == nil {
				t.Errorf("%s of %v: accepted", c.Preset, rewards)
			}
		case err != nil:
			t.Errorf("%s of %v: %v", c.Preset, rewards, err)
		case c.Deviation != "":
			if slices.ContainsFunc(got, func(a float64) bool { return a != 0 }) {
				t.Errorf("%s of %v: %v, want exactly 0: %s", c.Preset, rewards, got, c.Deviation)
			}
		case !slices.EqualFunc(got, values(c.Want), func(a, b float64) bool { return math.Abs(a-b) <= 1e-9 }):
			t.Errorf("%s of %v: %v, the peer says %v", c.Preset, rewards, got, values(c.Want))
		}
	}
}

func values(of []*float64) []float64 {
	out := make([]float64, len(of))
	for i, v := range of {
		if out[i] = math.NaN(); v != nil {
			out[i] = *v
		}
	}
	return out
}
