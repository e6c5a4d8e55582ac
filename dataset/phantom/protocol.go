package phantom

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"

	"xragent/dataset"
)

// A fact is one entry of a site protocol.
type fact struct {
	name   string
	values []string
}

// The facts that every protocol states.
var (
	followUp = fact{"protocol-follow-up", []string{"1 month", "3 months", "6 months", "9 months", "12 months"}}
	limit    = fact{"protocol-limit", []string{"0.46", "0.48", "0.50", "0.52", "0.54"}}
	reviewer = fact{"protocol-reviewer", []string{"registrar", "consultant", "nurse", "physicist", "surgeon"}}
)

// limitValues are the limit's values as numbers.
var limitValues = []float64{0.46, 0.48, 0.50, 0.52, 0.54}

const (
	protocols    = 10000 // codes P-0000 to P-9999
	heldOutTenth = 3     // tenths of the codes that only the test splits ask for
)

// Protocol returns the text of the site protocol with that code, P-0000 to
// P-9999. The sites and their rules are invented.
func Protocol(code string) (text string, ok bool) {
	var n int
	if len(code) != 6 {
		return "", false
	}
	if _, err := fmt.Sscanf(code, "P-%04d", &n); err != nil || protocolCode(n) != code {
		return "", false
	}
	return fmt.Sprintf("Site protocol %s: follow-up after %s; CTR limit %s; film reviewed by the %s.",
		code, followUp.in(code), limit.in(code), reviewer.in(code)), true
}

func protocolCode(n int) string { return fmt.Sprintf("P-%04d", n) }

// in returns the fact's value in the protocol with that code.
func (f fact) in(code string) string { return f.values[f.index(code)] }

func (f fact) index(code string) int {
	h := sha256.Sum256([]byte(f.name + " " + code))
	return (int(h[0])<<16 | int(h[1])<<8 | int(h[2])) % len(f.values)
}

// heldOut reports whether a code occurs in the test splits only.
func heldOut(code string) bool {
	h := sha256.Sum256([]byte("held out " + code))
	return (int(h[0])<<8|int(h[1]))%10 < heldOutTenth
}

// drawCode draws a code whose protocol states value a of the fact.
func (f fact) drawCode(rng *rand.Rand, split dataset.Split, a int) string {
	for {
		code := protocolCode(rng.IntN(protocols))
		public := split == dataset.Test || split == dataset.OOD || !heldOut(code)
		if public && f.index(code) == a {
			return code
		}
	}
}

func protocolTemplate(f fact, capability, words string) template {
	return template{
		name: f.name, capability: capability, need: map[Need]float64{NeedLookup: 1.2},
		answers: f.values, words: words, closed: words, allow: anything,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.code = f.drawCode(rng, p.split, a) },
	}
}
