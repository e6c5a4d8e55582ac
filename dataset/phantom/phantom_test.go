package phantom

import (
	"bytes"
	"image"
	"image/png"
	"math"
	"slices"
	"sort"
	"strings"
	"testing"

	"xragent/dataset"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestGenerateIsDeterministic(t *testing.T) {
	for _, i := range []int{0, 7, 150, 399} {
		a, b := Generate(testConfig, i), Generate(testConfig, i)
		if !bytes.Equal(a.Image.Pix, b.Image.Pix) {
			t.Errorf("study %d: two renderings differ", i)
		}
		a.Image, b.Image = nil, nil // compared
		if d := cmp.Diff(a, b, cmpopts.IgnoreUnexported(Truth{}, Finding{})); d != "" {
			t.Errorf("study %d differs between two calls:\n%s", i, d)
		}
	}
}

func TestStudyDependsOnItsSplitAlone(t *testing.T) {
	alone := Config{Seed: testConfig.Seed, Test: 3}
	a, b := Generate(alone, 2), Generate(testConfig, testConfig.Train+testConfig.Validation+2)
	if a.ID != b.ID || !bytes.Equal(a.Image.Pix, b.Image.Pix) {
		t.Errorf("test study 2 changes with the size of the train split: %s, %s", a.ID, b.ID)
	}
	if c := Generate(Config{Seed: 2, Test: 3}, 2); bytes.Equal(a.Image.Pix, c.Image.Pix) {
		t.Error("another seed gives the same image")
	}
}

func TestEveryStudyIsItsOwn(t *testing.T) {
	seen := map[string]int{}
	for i := range 30 {
		s := Generate(testConfig, i)
		data, err := s.EncodePNG()
		if err != nil {
			t.Fatal(err)
		}
		if j, ok := seen[string(data)]; ok {
			t.Fatalf("studies %d and %d have the same image", j, i)
		}
		seen[string(data)] = i
		if i < 5 {
			checkPNG(t, data, s.Image)
		}
		if len(s.Samples[0].Prompt.Images[0].SHA256) != 64 {
			t.Fatalf("study %d: EncodePNG set no hash", i)
		}
	}
}

func checkPNG(t *testing.T, data []byte, want *image.Gray) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := img.(*image.Gray); !ok || got.Rect != want.Rect || !bytes.Equal(got.Pix, want.Pix) {
		t.Error("the PNG decodes to another image")
	}
}

func TestEncodePNGNeedsAnImage(t *testing.T) {
	s := Describe(testConfig, 0)
	if _, err := s.EncodePNG(); err == nil {
		t.Error("a study without an image encodes")
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Train: -1, Test: 5}, "field train is -1"},
		{Config{}, "set at least one"},
		{Config{OOD: 1}, ""},
	} {
		err := c.cfg.Validate()
		if got := ""; err != nil {
			got = err.Error()
			if c.want == "" || !strings.Contains(got, c.want) {
				t.Errorf("%+v: error %q, want %q", c.cfg, got, c.want)
			}
		} else if c.want != "" {
			t.Errorf("%+v: no error, want %q", c.cfg, c.want)
		}
	}
}

// plans draws n plans of a split, without their measurements.
func plans(split dataset.Split, n int) []*plan {
	out := make([]*plan, n)
	for k := range out {
		out[k] = newPlan(11, split, k)
	}
	return out
}

func TestShares(t *testing.T) {
	const n = 20000
	needs, views, faults := map[Need]float64{}, map[View]float64{}, map[Fault]float64{}
	for _, p := range plans(dataset.Test, n) {
		needs[p.need] += 100.0 / n
		faults[p.fault] += 100.0 / n
		if p.fault == NoFault || p.fault == MaskFailure {
			views[p.view] += 100.0 / n
		}
	}
	for _, c := range []struct {
		name            string
		got, want, band float64
	}{
		{"coarse", needs[NeedCoarse], 30, 1.5},
		{"crop", needs[NeedCrop], 20, 1.5},
		{"parse", needs[NeedParse], 15, 1.5},
		{"lookup", needs[NeedLookup], 10, 1.5},
		{"bundle", needs[NeedBundle], 13, 1.5},
		{"misleading", needs[NeedMisleading], 12, 1.5},
		{"PA", views[PA], 62, 3},
		{"AP", views[AP], 14, 3},
		{"lateral", views[Lateral], 8, 2},
		{"rotated", faults[Rotated], 6, 1.5},
		{"cropped", faults[Cropped], 5, 1.5},
		{"poor inspiration", faults[PoorInspiration], 5, 1.5},
		{"mask failure", faults[MaskFailure], 3, 1}, // so that about 31 % of the bundles are withheld
	} {
		if math.Abs(c.got-c.want) > c.band {
			t.Errorf("%s: %.1f %% of the studies, want %.1f ± %.1f", c.name, c.got, c.want, c.band)
		}
	}
}

// TestAnswersAreBalanced holds that no answer of a template is likelier than
// another by more than 2 % of all its questions, also within each need and each view.
func TestAnswersAreBalanced(t *testing.T) {
	counts, untold, multiple := map[string]map[int]int{}, 0, 0
	letters := map[string]int{}
	const n = 120000
	for k := range n {
		rng := stream(3, dataset.Test, k, streamPlan)
		p := &plan{split: dataset.Test, view: PA}
		p.ask(rng, newStratum(3, dataset.Test, k))
		p.conditions(rng)
		if p.untold {
			untold++
		} else {
			keys := []string{p.tmpl.name, p.tmpl.name + "/" + string(p.need)}
			if p.tmpl.only == nil { // else the needs, and with them the views, have answers of their own
				keys = append(keys, p.tmpl.name+"/"+string(p.view)+string(p.fault))
			}
			for _, key := range keys {
				if counts[key] == nil {
					counts[key] = map[int]int{}
				}
				counts[key][p.answer]++
			}
		}
		if p.kind == dataset.MultipleChoice {
			multiple++
			letters[dataset.Letter(slices.Index(p.options(rng), p.right()))]++
		}
	}
	for key, by := range counts {
		total := 0
		for _, c := range by {
			total += c
		}
		for a, c := range by {
			share, even := float64(c)/float64(total), 1/float64(len(by))
			slack := 4 * math.Sqrt(even*(1-even)/float64(total)) // hundreds are compared
			if math.Abs(share-even) > max(0.02, slack) {
				t.Errorf("%s: answer %d is right in %.3f of %d questions, want %.3f", key, a, share, total, even)
			}
		}
	}
	for l, c := range letters {
		if share := float64(c) / float64(multiple); math.Abs(share-1.0/options) > 0.02 {
			t.Errorf("letter %s is right in %.3f of the multiple-choice questions", l, share)
		}
	}
	if share := float64(untold) / float64(multiple); share == 0 || share > 0.03 {
		t.Errorf("%q is right in %.4f of the multiple-choice questions, want rarely but not never", CannotTell, share)
	}
}

func TestMostTemplatesServeTwoNeeds(t *testing.T) {
	two := 0
	for _, m := range templates {
		if len(m.need) >= 2 {
			two++
		}
	}
	if 2*two < len(templates) {
		t.Errorf("%d of %d templates serve two needs, want at least half", two, len(templates))
	}
}

// TestWordingDoesNotGiveTheNeedAway measures how well the template alone
// predicts that a tool is needed.
func TestWordingDoesNotGiveTheNeedAway(t *testing.T) {
	tool, all := map[string]float64{}, map[string]float64{}
	for _, p := range plans(dataset.Test, 8000) {
		all[p.tmpl.name]++
		if p.need == NeedCrop || p.need == NeedParse || p.need == NeedLookup {
			tool[p.tmpl.name]++
		}
	}
	if a := auc(tool, all); a > maxTextAUC {
		t.Errorf("the template predicts the need of a tool with AUC %.3f, want at most %.2f", a, maxTextAUC)
	} else {
		t.Logf("AUC of the template for the need of a tool: %.3f", a)
	}
}

const maxTextAUC = 0.65

// auc scores each template by its own rate of positives.
func auc(positive, all map[string]float64) float64 {
	var names []string
	for name := range all {
		names = append(names, name)
	}
	rate := func(i int) float64 { return positive[names[i]] / all[names[i]] }
	sort.Slice(names, func(i, j int) bool { return positive[names[i]]/all[names[i]] < positive[names[j]]/all[names[j]] })
	var wins, pos, neg float64
	for i, a := range names {
		pos += positive[a]
		neg += all[a] - positive[a]
		for j, b := range names {
			pairs := positive[a] * (all[b] - positive[b])
			switch {
			case rate(i) > rate(j):
				wins += pairs
			case rate(i) == rate(j):
				wins += pairs / 2
			}
		}
	}
	return wins / (pos * neg)
}

func TestSamples(t *testing.T) {
	kinds, capabilities, ids := map[dataset.Kind]int{}, map[string]int{}, map[string]bool{}
	cfg := Config{Seed: 5, Train: 400, Test: 600}
	for i := range cfg.Studies() {
		s := Describe(cfg, i)
		if want := 1; s.Split == dataset.Test && len(s.Samples) != want {
			t.Fatalf("%s: %d questions, want %d in the test split", s.ID, len(s.Samples), want)
		}
		for _, q := range s.Samples {
			kinds[q.Prompt.Kind]++
			capabilities[q.Capability]++
			checkSample(t, q)
			if ids[q.ID] {
				t.Fatalf("id %s occurs twice", q.ID)
			}
			ids[q.ID] = true
		}
	}
	for _, k := range dataset.Kinds {
		if kinds[k] == 0 {
			t.Errorf("no question of kind %s", k)
		}
	}
	if len(capabilities) != 7 {
		t.Errorf("%d capabilities, want 7: %v", len(capabilities), capabilities)
	}
}

func checkSample(t *testing.T, q dataset.Sample) {
	t.Helper()
	if err := q.Validate(); err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(q.Prompt.Question)); n > 25 {
		t.Errorf("%s: a question of %d words", q.ID, n)
	}
	if strings.ContainsAny(q.Prompt.Question, "{}") {
		t.Errorf("%s: unfilled wording %q", q.ID, q.Prompt.Question)
	}
	if q.Template == "" || q.Need == "" || q.Reference == "" {
		t.Errorf("%s: template, need or reference missing", q.ID)
	}
	if q.Prompt.Kind != dataset.MultipleChoice {
		return
	}
	unique := slices.Compact(slices.Sorted(slices.Values(q.Prompt.Options)))
	if len(unique) != options || !slices.Contains(unique, CannotTell) {
		t.Errorf("%s (%s): options %q", q.ID, q.Template, q.Prompt.Options)
	}
	for _, o := range q.Prompt.Options {
		if len(strings.Fields(o)) > 4 {
			t.Errorf("%s: option %q is long", q.ID, o)
		}
	}
}

func TestMisleadingNumbersMislead(t *testing.T) {
	wrong, all := map[string]int{}, map[string]int{}
	for k := range 6000 {
		p := newPlan(7, dataset.Test, k)
		if p.need != NeedMisleading || p.fault == MaskFailure {
			continue
		}
		name := p.tmpl.name
		all[name]++
		all[""]++
		if p.truth("x").Misled {
			wrong[name]++
			wrong[""]++
		}
	}
	t.Logf("misled %v of %v", wrong, all)
	if share := float64(wrong[""]) / float64(all[""]); share < 0.7 {
		t.Errorf("the number is on the wrong side in %.2f of the misleading cases, want 0.70", share)
	}
}

// TestMasksAgreeWithTruth measures the masks and compares with what the
// parameters say.
func TestMasksAgreeWithTruth(t *testing.T) {
	for i := range 40 {
		s := Describe(testConfig, i)
		if s.Truth.View == Lateral {
			continue
		}
		m := s.Truth.Masks()
		x0, x1 := extents(m.Heart)
		_, r1 := extents(m.LeftLung)
		l0, _ := extents(m.RightLung)
		if got := float64(x1-x0) / float64(r1-l0); math.Abs(got-s.Truth.Apparent.CTR) > 0.01 {
			t.Errorf("study %d (%s %s %v): CTR of the masks %.4f, truth %.4f", i, s.Truth.View, s.Truth.Fault, s.Truth.Coarse, got, s.Truth.Apparent.CTR)
		}
		ln := math.Log(float64(pixels(m.RightLung)) / float64(pixels(m.LeftLung)))
		if math.Abs(ln-s.Truth.Apparent.Asymmetry) > 0.03 {
			t.Errorf("study %d: asymmetry of the masks %.4f, truth %.4f", i, ln, s.Truth.Apparent.Asymmetry)
		}
	}
}

func extents(m Mask) (from, to int) {
	from = Size
	for i, v := range m.Pix {
		if v > 0 {
			from, to = min(from, i%Size), max(to, i%Size+1)
		}
	}
	return from, to
}

func pixels(m Mask) (n int) {
	for _, v := range m.Pix {
		if v > 0 {
			n++
		}
	}
	return n
}

func TestAnswersFollowFromTruth(t *testing.T) {
	for k := range 3000 {
		p := newPlan(9, dataset.Train, k)
		if p.untold || p.view == Lateral {
			continue
		}
		first := Finding{}
		for _, f := range slices.Backward(p.scene.findings) {
			if f.Name != Scar {
				first = f
			}
		}
		ok := true
		switch p.tmpl.name {
		case "nodule-zone":
			ok = p.right() == first.Side+" "+first.Zone+" zone"
		case "nodule-margin":
			ok = p.right() == first.Margin
		case "nodule-side":
			ok = (p.right() == "yes") == (first.side == p.askedSide)
		case "pneumothorax-side", "effusion-side", "shift-side":
			ok = p.right() == first.Side
		case "heart-size":
			ok = p.answer == heartCategory(p.ratio)
		case "protocol-limit":
			text, found := Protocol(p.code)
			ok = found && strings.Contains(text, p.right())
		}
		if !ok {
			t.Fatalf("study %d: template %s, answer %q, first finding %+v", k, p.tmpl.name, p.right(), first)
		}
	}
}

func TestProtocol(t *testing.T) {
	for _, code := range []string{"", "P-12", "P-12345", "Q-0001", "P-+001", "P- 123", "p-0001"} {
		if text, ok := Protocol(code); ok {
			t.Errorf("Protocol(%q) = %q, want none", code, text)
		}
	}
	a, ok := Protocol("P-0042")
	b, _ := Protocol("P-0042")
	if !ok || a != b || !strings.Contains(a, "P-0042") {
		t.Errorf("Protocol(P-0042) = %q, %q, %v", a, b, ok)
	}
}

func TestHeldOutProtocolsAreAskedInTestOnly(t *testing.T) {
	asked := func(split dataset.Split) (held, all float64) {
		for _, p := range plans(split, 6000) {
			if p.code == "" {
				continue
			}
			all++
			if heldOut(p.code) {
				held++
			}
		}
		return held, all
	}
	if held, all := asked(dataset.Train); held > 0 || all == 0 {
		t.Errorf("train asks for %v held-out protocols of %v", held, all)
	}
	if held, all := asked(dataset.Test); math.Abs(held/all-0.3) > 0.06 {
		t.Errorf("test asks for %.2f held-out protocols, want 0.30", held/all)
	}
}

func TestOODDiffers(t *testing.T) {
	contrast := func(split dataset.Split) (narrow int) {
		for _, p := range plans(split, 200) {
			if c := p.scene.style.contrast; c >= 0.9 && c <= 1.1 {
				narrow++
			}
		}
		return narrow
	}
	if n := contrast(dataset.OOD); n != 0 {
		t.Errorf("%d of 200 OOD films have a usual contrast", n)
	}
	if n := contrast(dataset.Test); n != 200 {
		t.Errorf("%d of 200 test films have a usual contrast", n)
	}
}

func TestCollimationCoversNoLung(t *testing.T) {
	for _, p := range plans(dataset.OOD, 1000) {
		f, border := p.scene.film, float64(p.scene.style.collimation)
		if p.fault == Cropped && border == 0 {
			continue
		}
		if f.spine-f.half[right] < border || f.spine+f.half[left] > Size-border {
			t.Fatalf("study %d: %+v under a border of %v", p.key.k, f, border)
		}
	}
}

// TestSmallFindingsHide holds that what needs a crop or a parse changes the film
// and not the coarse view.
func TestSmallFindingsHide(t *testing.T) {
	bare := func() *plan {
		p := newPlan(1, dataset.Train, 0)
		p.view, p.fault, p.scene.view = PA, NoFault, PA
		p.scene.style.noise, p.scene.style.grid = 0, 0
		p.scene.findings, p.scene.tube, p.body.fluid = nil, noTube, [2]float64{14, 14}
		p.scene.film = p.body
		return p
	}
	for name, change := range map[string]func(s *scene, sick bool){
		"texture": func(s *scene, sick bool) {
			if sick {
				s.findings = []Finding{{Name: Edema, Opacity: 18, side: right, zone: 1}}
			}
		},
		"pneumothorax": func(s *scene, sick bool) {
			if sick {
				s.findings = []Finding{{Name: Pneumothorax, SizeMM: 6, side: left}}
			}
		},
		"scar or fluid": func(s *scene, sick bool) {
			if sick {
				s.findings = []Finding{{Name: Scar, side: left}}
			}
		},
		"margin": func(s *scene, sick bool) {
			s.findings = []Finding{{Name: Nodule, SizeMM: 7, Margin: smooth, Opacity: 34, side: left, X: 340, Y: 200}}
			if sick {
				s.findings[0].Margin = spiculated
			}
		},
		"tube tip": func(s *scene, sick bool) {
			s.tube, s.tip = thinTube, -20
			if sick {
				s.tip = 18
			}
		},
	} {
		plain, sick := bare(), bare()
		change(&plain.scene, false)
		change(&sick.scene, true)
		a, b := film(plain), film(sick)
		if d := difference(a, b); d < 16 {
			t.Errorf("%s: pixels change by at most %d", name, d)
		}
		if d := difference(Coarse(a), Coarse(b)); d > 3 { // greys are rounded to multiples of 4
			t.Errorf("%s: the coarse view changes by %d", name, d)
		}
	}
}

func film(p *plan) *image.Gray { return render(&p.scene, stream(1, p.split, 0, streamPixels)) }

func difference(a, b *image.Gray) int {
	most := 0
	for i := range a.Pix {
		most = max(most, int(math.Abs(float64(int(a.Pix[i])-int(b.Pix[i])))))
	}
	return most
}

func TestIndexInvertsIDs(t *testing.T) {
	cfg := Config{Seed: 1, Train: 3, Test: 2, OOD: 2}
	for i := range cfg.Studies() {
		if got, ok := cfg.Index(Describe(cfg, i).ID); !ok || got != i {
			t.Errorf("Index of study %d is %d, %v", i, got, ok)
		}
	}
	for _, id := range []string{"", "train-3", "train-000003", "validate-000000", "test-+00001"} {
		if got, ok := cfg.Index(id); ok {
			t.Errorf("Index(%q) = %d, want none", id, got)
		}
	}
}

func TestHash(t *testing.T) {
	if h := Hash(); len(h) != 64 || h != Hash() {
		t.Errorf("Hash() = %q", h)
	}
}
