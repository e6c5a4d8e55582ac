package loss

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// A peerFile holds what verl's and TRL's own functions returned for our inputs,
// in float64; learner/parity/fixtures.py writes it.
type peerFile struct {
	Versions map[string]string
	Losses   []peerCase
	Splits   []splitCase
}

type peerCase struct {
	Name, Peer string
	Preset     bool // Settings are those of the preset that they name
	Settings   Config
	Rows       []Row
	Loss       float64
	Gradient   [][]float64
}

type splitCase struct {
	Name      string
	Invariant bool // the peer's loss does not depend on how a batch is split
	Settings  Config
	Rows      []Row
	Split     float64
}

func readPeers(t *testing.T) peerFile {
	t.Helper()
	data, err := os.ReadFile("testdata/peers.json")
	if err != nil {
		t.Fatal(err)
	}
	var p peerFile
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Losses) < 80 || len(p.Splits) < 10 || p.Versions["verl"] == "" || p.Versions["trl"] == "" {
		t.Fatalf("%d losses, %d splits by %v: the file is not whole", len(p.Losses), len(p.Splits), p.Versions)
	}
	return p
}

// near is absolute 1e-9, or float64's own precision where a value is above 1e5:
// the ratio at a distance of 25 is 7e10.
func near(got, want float64) bool { return math.Abs(got-want) <= max(1e-9, 1e-14*math.Abs(want)) }

func TestPeers(t *testing.T) {
	for _, c := range readPeers(t).Losses {
		if err := c.Settings.Validate(); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		loss, gradient := c.Settings.Batch(c.Rows)
		if !near(loss, c.Loss) {
			t.Errorf("%s: loss %.17g, %s says %.17g", c.Name, loss, c.Peer, c.Loss)
		}
		for i, want := range c.Gradient {
			if !slices.EqualFunc(gradient[i], want, near) {
				t.Errorf("%s: gradient of row %d is\n%v, %s says\n%v", c.Name, i, gradient[i], c.Peer, want)
			}
		}
	}
}

// The presets are the settings that were held against the peers. drgrpo's length
// is the run's own.
func TestPresetsAreThePeers(t *testing.T) {
	checked := map[string]bool{}
	for _, c := range readPeers(t).Losses {
		if !c.Preset {
			continue
		}
		want, err := Preset(c.Settings.Preset)
		if err != nil {
			t.Fatal(err)
		}
		got := c.Settings
		got.Length = 0
		if got.KL.Coef == 0 { // then it plays no part
			got.KL.Estimator = want.KL.Estimator
		}
		if want.LogClamp == 0 && got.LogClamp != 0 {
			t.Errorf("%s has log_clamp %v", c.Name, got.LogClamp)
		}
		if got != want {
			t.Errorf("%s: held against the peer were\n%+v, the preset is\n%+v", c.Name, got, want)
		}
		checked[want.Preset] = true
	}
	for _, name := range Presets {
		if !checked[name] && name != NeMoLOO { // whose parts are, one by one
			t.Errorf("preset %s was held against nothing", name)
		}
	}
}

// Our loss is that of the whole batch. Where a peer claims that splitting a
// batch over ranks and micro-batches changes nothing, its loss is ours.
func TestSplits(t *testing.T) {
	for _, c := range readPeers(t).Splits {
		if loss, _ := c.Settings.Batch(c.Rows); near(loss, c.Split) != c.Invariant {
			t.Errorf("%s: %.17g whole, %.17g split; invariant: %v", c.Name, loss, c.Split, c.Invariant)
		}
	}
}
