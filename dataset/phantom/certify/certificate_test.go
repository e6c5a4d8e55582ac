package certify

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		f    Figure
		pass bool
	}{
		{Figure{Value: 0.5}, true},
		{Figure{Value: 0.5}.atLeast(0.5), true},
		{Figure{Value: 0.49}.atLeast(0.5), false},
		{Figure{Value: 0.51}.atMost(0.5), false},
		{Figure{Value: 0.6}.atLeast(0.5).atMost(0.7), true},
		{Figure{Value: math.NaN()}.atMost(1), false},
		{share("g", "nothing was counted", 0, 0).atMost(1), false},
		{share("g", "nothing was counted, nor asked", 0, 0), true},
	} {
		if got := c.f.judged().Pass; got != c.pass {
			t.Errorf("value %v, bound %q: pass %v, want %v", c.f.Value, c.f.Bound(), got, c.pass)
		}
	}
}

func TestWilson(t *testing.T) { // values of Brown, Cai and DasGupta 2001's formula by hand
	for _, c := range []struct {
		hits, n   int
		low, high float64
	}{{0, 10, 0, 0.2775}, {5, 10, 0.2366, 0.7634}, {81, 263, 0.2553, 0.3662}} {
		if low, high := wilson(c.hits, c.n); math.Abs(low-c.low) > 1e-4 || math.Abs(high-c.high) > 1e-4 {
			t.Errorf("wilson(%d, %d) = %.4f, %.4f, want %.4f, %.4f", c.hits, c.n, low, high, c.low, c.high)
		}
	}
}

func TestCheck(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	good := Certificate{Generator: hash, Examiner: Version, Passed: true, Figures: []Figure{{Group: "g", Name: "n", Pass: true}}}
	change := func(f func(*Certificate)) Certificate { c := good; f(&c); return c }
	dir := t.TempDir()
	for name, c := range map[string]struct {
		certificate Certificate
		want        string
	}{
		"good":           {good, ""},
		"of another":     {change(func(c *Certificate) { c.Generator = strings.Repeat("cd", 32) }), "is of generator cdcdcdcdcdcd, this one is abababababab"},
		"by another":     {change(func(c *Certificate) { c.Examiner = "v0" }), "made by examiner v0"},
		"quick":          {change(func(c *Certificate) { c.Quick = true }), "a quick look"},
		"failed":         {change(func(c *Certificate) { c.Passed = false }), "failed"},
		"said to passed": {change(func(c *Certificate) { c.Figures = []Figure{{Name: "n"}} }), "1 figures are out of bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := c.certificate.WriteFile(path); err != nil {
				t.Fatal(err)
			}
			expect(t, Check(path, hash), c.want)
		})
	}
	expect(t, Check(filepath.Join(dir, "none"), hash), "make one with xragent phantom certify")
	if err := os.WriteFile(filepath.Join(dir, "broken"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, Check(filepath.Join(dir, "broken"), hash), "make it again")
}

// expect wants an error with that text, or none for "".
func expect(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
