//go:build integration

package main

import (
	"context"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// evaluated is as small as a run can be that is evaluated under every control.
const evaluated = `
run: {name: tiny, seed: 7}
stages: [data, corpus, sft, grpo, eval]
data: {phantom: {train: 40, validation: 8, test: 16, ood: 8}}
corpus: {samples: 40}
policy: {embedded: {threads: 1}}
sft: {max_steps: 40, eval_every: 20, batch_tokens: 2048, optimizer: {lr: 0.002, warm_up: 10}}
grpo: {steps: 2, prompts: 2, group_size: 4, checkpoint_every: 1, max_tokens: 64}
eval: {questions: 8, max_tokens: 64, controls: full}
web: {listen: ""}
`

// TestIntegrationEvaluationPage opens the page of a real evaluation in a real
// browser, and evaluates again, which runs nothing.
func TestIntegrationEvaluationPage(t *testing.T) {
	r := run{filepath.Join(t.TempDir(), "tiny.yaml"), t.TempDir()}
	if err := os.WriteFile(r.config, []byte(evaluated), 0o644); err != nil {
		t.Fatal(err)
	}
	r.start(t, "run").succeed(t)
	report := r.path("eval", "report.html")
	t.Run("DOM", func(t *testing.T) { testPageDOM(t, report) })
	t.Run("Screenshot", func(t *testing.T) { testPageScreenshot(t, report) })
	t.Run("Again", func(t *testing.T) { testEvaluatedAgain(t, r) })
}

// browse opens a page in headless Chromium, which may reach nothing.
func browse(t *testing.T, page string, flags ...string) []byte {
	t.Helper()
	bin := os.Getenv("XRAGENT_CHROMIUM")
	if bin == "" {
		t.Fatal("XRAGENT_CHROMIUM names no browser: run make integration, or set it to a Chromium")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir=" + t.TempDir()}, flags...)
	cmd := exec.CommandContext(ctx, bin, append(args, "file://"+page)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", bin, err, said.String())
	}
	return out
}

var loads = regexp.MustCompile(`(?i)<(script|link|img|iframe|object|embed)\b|\bsrc\s*=|https?://|href="[^#]`)

func testPageDOM(t *testing.T, page string) {
	dom := string(browse(t, page, "--dump-dom"))
	for _, id := range []string{"mind", "accuracy", "curves", "priors", "routing", "tools", "gate", "churn", "shift", "confusion", "calibration"} {
		if !strings.Contains(dom, `id="`+id+`"`) {
			t.Errorf("the page has no section %s", id)
		}
	}
	if n := strings.Count(dom, "<svg"); n < 10 {
		t.Errorf("the page has %d plots, want at least 10", n)
	}
	if m := loads.FindString(dom); m != "" {
		t.Errorf("the page may load something from outside: it holds %q", m)
	}
	if strings.Contains(dom, "Not run") {
		t.Error("a section was left out of a full evaluation")
	}
}

// testPageScreenshot looks whether anything is drawn, on a light ground.
func testPageScreenshot(t *testing.T, page string) {
	shot := filepath.Join(t.TempDir(), "page.png")
	browse(t, page, "--hide-scrollbars", "--window-size=1240,2400", "--screenshot="+shot)
	f, err := os.Open(shot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	light, dark, n := 0, 0, 0
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			switch sum := (r + g + b) / 3 >> 8; {
			case sum > 230:
				light++
			case sum < 130:
				dark++
			}
			n++
		}
	}
	if light*100 < n*80 || dark*1000 < n*2 {
		t.Errorf("of %d pixels %d are light and %d dark: want text on a light ground", n, light, dark)
	}
}

// testEvaluatedAgain evaluates a second time: every result is there already,
// and the report is the same.
func testEvaluatedAgain(t *testing.T, r run) {
	before, err := os.ReadFile(r.path("eval", "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	p := r.start(t, "eval")
	p.succeed(t)
	if n := strings.Count(p.stderr(), "there already"); n < 25 {
		t.Errorf("%d results were taken up, want all", n)
	}
	after, err := os.ReadFile(r.path("eval", "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("the same results made another report")
	}
}
