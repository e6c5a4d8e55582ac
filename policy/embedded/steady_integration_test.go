//go:build integration

package embedded

import (
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"

	"xragent/rollout"
)

// 2,000 steps of batches of every size, with new weights to an engine and turns
// sampled in between, leave neither memory nor goroutines behind.
func TestIntegrationSteadyOver2000Steps(t *testing.T) {
	cfg := tiny()
	l := newTestLearner(t, cfg, 2, 80)
	w := testWeights(t)
	e := newTestEngine(t, w, EngineOptions{MaxBatch: 8, Threads: 2, CacheBytes: 1 << 20})
	var settled, goroutines int
	for i := range 2000 {
		b := batchOf(testRow(cfg, i, 10+i%60, i%3-1), testRow(cfg, i+1, 12+(i*7)%90, i%5), testRow(cfg, i+2, 30, -1))
		step(t, l, b, objective([]string{"grpo", "sft"}[i%2], 1e-4))
		if i%50 == 0 {
			if err := e.Load(w, rollout.PolicyVersion(3)); err != nil {
				t.Fatal(err)
			}
			sampleGroups(t, e, 2)
		}
		switch i {
		case 500:
			settled, goroutines = resident(t), runtime.NumGoroutine()
		case 1999:
			now, running := resident(t), runtime.NumGoroutine()
			t.Logf("resident %d MiB after 500 steps, %d MiB after 2,000; %d and %d goroutines", settled>>20, now>>20, goroutines, running)
			if now > settled+settled/10 || running != goroutines {
				t.Error("steps leave something behind")
			}
		}
	}
}

var residentLine = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// resident returns the resident memory in bytes once what is free was given back.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc here: memory over 2,000 steps was not measured")
	}
	n, err := strconv.Atoi(string(residentLine.FindSubmatch(status)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
