//go:build integration

package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestIntegrationPrometheus scrapes a live run and asks every expression of the
// dashboard: each must return at least one finite point.
func TestIntegrationPrometheus(t *testing.T) {
	metrics, prom := freePort(t), freePort(t)
	start(t, "..", os.Getenv("XRAGENT_BIN"), "run", "configs/smoke.yaml",
		"--set", "run.dir="+t.TempDir(), "--set", "web.listen="+metrics, "--set", "web.linger=120s", "--set", "tools.deadline=5m")
	start(t, ".", "prometheus", "--config.file="+scrapeConfig(t, metrics), "--web.listen-address="+prom,
		"--storage.tsdb.path="+t.TempDir(), "--log.level=error")
	missing := Expressions()
	for deadline := time.Now().Add(20 * time.Minute); len(missing) > 0 && time.Now().Before(deadline); time.Sleep(2 * time.Second) {
		missing = unanswered(prom, missing)
	}
	if len(missing) > 0 {
		t.Fatalf("%d of %d expressions returned no finite point:\n%s", len(missing), len(Expressions()), strings.Join(missing, "\n"))
	}
	t.Logf("%d expressions returned finite points", len(Expressions()))
}

func start(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func scrapeConfig(t *testing.T, target string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prometheus.yaml")
	rules, err := filepath.Abs("../configs/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nrule_files: [%s]\nscrape_configs: [{job_name: xragent, static_configs: [{targets: [%q]}]}]\n", rules, target)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func unanswered(prom string, exprs []string) []string {
	var out []string
	for _, e := range exprs {
		if !answered(prom, e) {
			out = append(out, e)
		}
	}
	return out
}

func answered(prom, expr string) bool {
	expr = strings.NewReplacer("$run", ".*", "$__rate_interval", "10s").Replace(expr)
	now := time.Now().Unix()
	q := url.Values{"query": {expr}, "start": {strconv.FormatInt(now-300, 10)}, "end": {strconv.FormatInt(now, 10)}, "step": {"1"}}
	resp, err := http.Get("http://" + prom + "/api/v1/query_range?" + q.Encode())
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var body struct {
		Data struct {
			Result []struct{ Values [][2]any }
		}
	}
	if json.NewDecoder(resp.Body).Decode(&body) != nil {
		return false
	}
	for _, series := range body.Data.Result {
		for _, v := range series.Values {
			if f, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
				return true
			}
		}
	}
	return false
}
