package embedded

import (
	"testing"

	"pgregory.net/rapid"
)

// No memory has two owners, what is given back is used again, and the pool holds
// no more than was once in use at a time.
func TestKVPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := &kvPool{cfg: tiny().Text}
		var live []*kvCache
		most := 0
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) { live = append(live, pool.newCache(rapid.IntRange(1, 100).Draw(t, "rows"))) },
			"extend": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing to extend")
				}
				c := rapid.SampledFrom(live).Draw(t, "cache")
				c.n = c.begin + c.own.rows
				n := rapid.IntRange(1, c.n).Draw(t, "shared rows")
				live = append(live, c.extend(n+rapid.IntRange(1, 50).Draw(t, "own rows"), n))
			},
			"drop": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing to drop")
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "cache")
				live[i].drop()
				live = append(live[:i], live[i+1:]...)
			},
			"": func(t *rapid.T) {
				users := map[*kvMemory]int{}
				for _, c := range live {
					for _, p := range append(c.shared[:len(c.shared):len(c.shared)], c.own) {
						users[p.kvMemory]++
					}
				}
				used, waiting := 0, 0
				for m, n := range users {
					used += m.bytes()
					if m.users != n {
						t.Fatalf("memory of %d users says %d", n, m.users)
					}
				}
				for _, m := range pool.free {
					waiting += m.bytes()
					if users[m] > 0 {
						t.Fatal("memory in use waits to be used")
					}
				}
				most = max(most, used)
				if pool.used != used || pool.waiting != waiting || pool.peak != most || used+waiting > most {
					t.Fatalf("%d used, %d waiting, %d at most; the pool says %d, %d, %d", used, waiting, most, pool.used, pool.waiting, pool.peak)
				}
			},
		})
	})
}

func TestKVPoolReuses(t *testing.T) {
	pool := &kvPool{cfg: tiny().Text}
	c := pool.newCache(48)
	m := c.own.kvMemory
	c.drop()
	if c = pool.newCache(30); c.own.kvMemory != m {
		t.Error("memory of 48 rows was not used again for 30")
	}
	c.drop()
	if pool.newCache(16).own.kvMemory == m {
		t.Error("16 rows in memory of 48: most of it idle")
	}
}
