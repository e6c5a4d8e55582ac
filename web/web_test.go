package web

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"xragent/trainer"
)

var update = flag.Bool("update", false, "rewrite the generated files under configs/")

// TestGeneratedFiles holds the committed dashboard and rules to the registry.
func TestGeneratedFiles(t *testing.T) {
	for path, want := range map[string][]byte{
		"../configs/grafana/dashboards/xragent.json": Dashboard(),
		"../configs/prometheus/alerts.yaml":          Alerts(),
	} {
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from the registry: run make dashboards (%v)", path, err)
		}
	}
}

var metricName = regexp.MustCompile(`xragent_[a-z_]+`)

func TestEveryExpressionNamesAMetricThatExists(t *testing.T) {
	texts := append(Expressions(), string(Alerts()))
	for _, text := range texts {
		for _, name := range metricName.FindAllString(text, -1) {
			base := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
			if find(name) == nil && find(base) == nil {
				t.Errorf("%q names %s, which no family has", text, name)
			}
		}
	}
}

func TestEveryFamilyIsOnTheDashboard(t *testing.T) {
	all := strings.Join(Expressions(), "\n")
	for _, f := range families {
		if !strings.Contains(all, f.name) {
			t.Errorf("%s is on no panel", f.name)
		}
	}
}

func TestPanelsTileTheGrid(t *testing.T) {
	var d struct {
		Panels []struct {
			ID      int
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(Dashboard(), &d); err != nil {
		t.Fatal(err)
	}
	taken := map[[2]int]int{}
	for _, p := range d.Panels {
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[cell]; other != 0 || cell[0] >= 24 {
					t.Fatalf("panel %d overlaps panel %d or leaves the grid at %v", p.ID, other, cell)
				}
				taken[cell] = p.ID
			}
		}
	}
}

func record() (trainer.StepRecord, trainer.StepTimes) {
	loss := 0.5
	return trainer.StepRecord{Stage: "grpo", Step: 3, Total: 10, Trajectories: 32, Reward: 1.5, Accuracy: 0.5,
			Groups: trainer.GroupCounts{Mixed: 4, AllRight: 2, AllWrong: 2}, Validation: &loss,
			Calls: []trainer.CallCount{{Tool: "roi_crop", Status: "ok", N: 5}},
			Gate:  []trainer.NamedCount{{Name: "admitted", N: 20}, {Name: "view", N: 12}}},
		trainer.StepTimes{Stage: "grpo", Step: 3, Seconds: map[string]float64{"train": 0.4}, Redelivered: 1, Generated: 900, TokensPerSec: 4000}
}

func TestRegistryIsClean(t *testing.T) {
	m := NewMetrics("test")
	m.Step(record())
	m.Tool("roi_crop", 0.01)
	got, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(got).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
}

func TestServer(t *testing.T) {
	runs := t.TempDir()
	dir := filepath.Join(runs, "quick", "grpo")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log := `{"stage":"sft","step":1}` + "\n" + `{"stage":"grpo","step":1}` + "\n" + `{"stage":"gr`
	if err := os.WriteFile(filepath.Join(dir, "steps.jsonl"), []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	m := NewMetrics("quick")
	m.Step(record())
	s, err := Start(Config{Listen: "127.0.0.1:0"}, m, runs, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, tc := range []struct {
		path   string
		status int
		want   string
	}{
		{"/metrics", 200, `xragent_reward_term_mean{run="quick",term="accuracy"} 0.5`},
		{"/metrics", 200, `xragent_redeliveries_total{run="quick"} 1`},
		{"/api/v1/runs/quick/steps", 200, `[{"stage":"sft","step":1},{"stage":"grpo","step":1}]`},
		{"/api/v1/runs/quick/steps?stage=grpo", 200, `[{"stage":"grpo","step":1}]`},
		{"/api/v1/runs/none/steps", 404, "no such run"},
		{"/api/v1/runs/..%2Fquick/steps", 404, "no such run"},
		{"/healthz", 200, "ok"},
	} {
		resp, err := http.Get(s.URL + tc.path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tc.status || !strings.Contains(string(body), tc.want) {
			t.Errorf("GET %s = %d %.200s, want %d with %q", tc.path, resp.StatusCode, body, tc.status, tc.want)
		}
	}
}

func TestPortInUseNamesTheRemedy(t *testing.T) {
	s, err := Start(Config{Listen: "127.0.0.1:0"}, NewMetrics("a"), t.TempDir(), http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = Start(Config{Listen: strings.TrimPrefix(s.URL, "http://")}, NewMetrics("b"), t.TempDir(), http.NotFoundHandler())
	if err == nil || !strings.Contains(err.Error(), "--set web.listen=") {
		t.Errorf("second listener: %v, want an error that names the remedy", err)
	}
}

func TestFamiliesAreUnique(t *testing.T) {
	var names []string
	for _, f := range families {
		if slices.Contains(names, f.name) {
			t.Errorf("%s is defined twice", f.name)
		}
		names = append(names, f.name)
	}
}

// A connection that never asks for anything does not fail the run's end.
func TestCloseWithSilentConnection(t *testing.T) {
	s, err := Start(Config{Listen: "127.0.0.1:0"}, NewMetrics("r"), t.TempDir(), http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
