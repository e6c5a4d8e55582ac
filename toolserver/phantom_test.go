package toolserver

import (
	"context"
	"flag"
	"math"
	"slices"
	"testing"

	"xragent/dataset/phantom"
	"xragent/rollout"
)

var (
	filmCount = flag.Int("films", 20, "films on which the gate and region_parse are measured")
	filmSeed  = flag.Uint64("world", world.Seed, "seed of the world that the gate's films are of")
)

// TestGateAgainstTruth measures how the gate and the numbers agree with the
// generator's truth. With -v it prints the table; with -films 300 it takes half
// a minute and its figures are steady, and from some 9000 on each fault has the 299
// films that bound what is let through at 1 %.
func TestGateAgainstTruth(t *testing.T) {
	t.Parallel()
	s := serverFor(t, nil)
	stop := map[string]map[string]int{} // by kind of film, how often each check stopped it
	films, withheld := map[string]int{}, map[string]int{}
	var ctr, ln, shift []float64
	var smaller rates // a lung that has lost volume, by the asymmetry's category
	cfg := world
	cfg.Seed = *filmSeed
	cfg.Train = max(cfg.Train, *filmCount)
	for i := range *filmCount {
		study := phantom.Generate(cfg, i)
		kind := kindOf(study.Truth)
		b, err := s.Measure(context.Background(), [][]byte{encode(t, study.Image)}, study.Samples[0].Prompt.Images)
		if err != nil {
			t.Fatal(err)
		}
		films[kind]++
		if b.Image < 0 {
			withheld[kind]++
			if stop[kind] == nil {
				stop[kind] = map[string]int{}
			}
			for _, r := range b.Reasons {
				stop[kind][r]++
			}
			continue
		}
		off := func(name string, truth float64) float64 {
			m, _ := b.Find(name)
			return math.Abs(m.Value - truth)
		}
		m, _ := b.Find(rollout.Asymmetry)
		for _, side := range []string{"right", "left"} {
			smaller.add(has(study.Truth, phantom.VolumeLoss, side, ""), m.Category == side+" smaller")
		}
		ctr = append(ctr, off(rollout.CTR, study.Truth.Apparent.CTR))
		ln = append(ln, off(rollout.Asymmetry, study.Truth.Apparent.Asymmetry))
		shift = append(shift, off(rollout.Shift, study.Truth.Apparent.Shift))
	}
	var spoilt, caught, sound, lost int
	for _, kind := range kinds {
		t.Logf("%-24s films %3d withheld %3d; shown up to %.1f %%, withheld up to %.1f %%, 95 %% bounds %v", kind, films[kind], withheld[kind],
			100*atMostShare(films[kind]-withheld[kind], films[kind]), 100*atMostShare(withheld[kind], films[kind]), stop[kind])
		if kind == "sound" || kind == "sound, border hidden" {
			sound, lost = sound+films[kind], lost+withheld[kind]
		} else {
			spoilt, caught = spoilt+films[kind], caught+withheld[kind]
		}
	}
	t.Logf("withheld %d of %d; caught %d of %d spoilt; lost %d of %d sound", caught+lost, *filmCount, caught, spoilt, lost, sound)
	t.Logf("lost volume by category: %v", &smaller)
	for name, errs := range map[string][]float64{"ctr": ctr, "asymmetry": ln, "shift": shift} {
		slices.Sort(errs)
		t.Logf("%s: |error| median %.4f, 95th percentile %.4f", name, errs[len(errs)/2], errs[len(errs)*95/100])
	}
	if caught*100 < spoilt*80 {
		t.Errorf("caught %d of %d spoilt films, want at least 80 %%", caught, spoilt)
	}
	if lost*100 > sound*25 {
		t.Errorf("withheld %d of %d sound films, want at most 25 %%", lost, sound)
	}
	if m := ctr[len(ctr)/2]; m > 0.005 {
		t.Errorf("median error of the CTR is %.4f, want at most 0.005", m)
	}
}

var kinds = []string{
	"sound", "sound, border hidden", string(phantom.Lateral),
	string(phantom.Rotated), string(phantom.Cropped), string(phantom.PoorInspiration), string(phantom.MaskFailure),
}

// kindOf sorts a film: a border is hidden where much fluid or a large opacity lies.
func kindOf(truth phantom.Truth) string {
	switch {
	case truth.View == phantom.Lateral:
		return string(phantom.Lateral)
	case truth.Fault != phantom.NoFault:
		return string(truth.Fault)
	}
	for _, f := range truth.Findings {
		if f.Name == phantom.Effusion && f.SizeMM > 80 || f.Name == phantom.Consolidation {
			return "sound, border hidden"
		}
	}
	return "sound"
}

// TestParseAgainstTruth measures what region_parse misses and imagines.
func TestParseAgainstTruth(t *testing.T) {
	t.Parallel()
	s := serverFor(t, nil)
	var pattern, spots, opacity rates
	for i := range max(1, *filmCount/2) {
		study, images, meta := film(t, i)
		if study.Truth.View == phantom.Lateral || study.Truth.Fault != phantom.NoFault {
			continue
		}
		st, err := s.study(images, meta)
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range []string{"right", "left"} {
			lung, err := parseRegion(st, ParseArgs{Region: side + " lung"}, s.cfg.Noise)
			if err != nil {
				t.Fatal(err)
			}
			haze := has(study.Truth, "haze", side, "")
			if haze || len(study.Truth.Findings) == 0 {
				opacity.add(haze, lung.Opacity-lung.Other >= differs)
			}
			for _, zone := range []string{"upper", "middle", "lower"} {
				r, err := parseRegion(st, ParseArgs{Region: side + " " + zone}, s.cfg.Noise)
				if err != nil {
					t.Fatal(err)
				}
				pattern.add(has(study.Truth, phantom.Edema, side, zone), r.Pattern > 0)
				spots.add(has(study.Truth, phantom.Nodule, side, zone), r.Spots > 0)
			}
		}
	}
	t.Logf("pattern by zone: %v", &pattern)
	t.Logf("spots by zone: %v", &spots)
	t.Logf("denser side by lung: %v", &opacity)
	if s := pattern.specificity(); s < 0.8 {
		t.Errorf("pattern: specificity %.2f, want at least 0.80", s)
	}
	if s := spots.specificity(); s < 0.7 {
		t.Errorf("spots: specificity %.2f, want at least 0.70", s)
	}
}

func has(truth phantom.Truth, name, side, zone string) bool {
	return slices.ContainsFunc(truth.Findings, func(f phantom.Finding) bool {
		return f.Name == name && f.Side == side && f.Zone == zone
	})
}

// BenchmarkMeasure is decoding, segmentation and the bundle of one new image.
func BenchmarkMeasure(b *testing.B) {
	s := serverFor(b, func(c *Config) { c.Cache = 0 })
	_, images, meta := film(b, 0)
	for b.Loop() {
		if _, err := s.Measure(context.Background(), images, meta); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseLung is region_parse of one lung of an image seen before.
func BenchmarkParseLung(b *testing.B) {
	s := serverFor(b, nil)
	_, images, meta := film(b, 0)
	st, err := s.study(images, meta)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := parseRegion(st, ParseArgs{Region: "left lung"}, s.cfg.Noise); err != nil {
			b.Fatal(err)
		}
	}
}

// atMostShare returns the share of which k or fewer of n have a chance of 5 %: the
// one-sided exact bound of Clopper and Pearson (1934).
func atMostShare(k, n int) float64 {
	if k >= n {
		return 1
	}
	low, high := 0.0, 1.0
	for range 50 {
		p := (low + high) / 2
		if binomialTail(k, n, p) > 0.05 {
			low = p
		} else {
			high = p
		}
	}
	return high
}

// binomialTail is the chance of k or fewer of n, each with the chance p.
func binomialTail(k, n int, p float64) float64 {
	sum, term := 0.0, float64(n)*math.Log1p(-p)
	for i := 0; i <= k; i++ {
		sum += math.Exp(term)
		term += math.Log(float64(n-i)/float64(i+1)) + math.Log(p/(1-p))
	}
	return sum
}
