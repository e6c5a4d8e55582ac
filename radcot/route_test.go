package radcot

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
)

func TestDirect(t *testing.T) {
	dark := []string{"pa view", "heart size unclear", "no large finding"}
	for _, c := range []struct {
		question string
		coarse   []string
		want     string
	}{
		{"Which projection is this film?", dark, ""},
		{"Protocol P-0123: when is follow-up due?", dark, "evidence_lookup P-0123"},
		{"Where is the tube tip?", dark, "roi_crop trachea"},
		{"What is the heart size?", dark, ""},
		{"Which lung has lost volume?", dark, ""},
		{"How abnormal is the texture of the left upper zone?", dark, "region_parse left upper zone"},
		{"Is the left middle zone abnormal?", dark, "region_parse left middle zone"},
		{"Is the left middle zone abnormal?", []string{"left middle zone opaque"}, ""},
		{"How many nodules are in the right lung?", dark, "region_parse right lung"},
		{"What margin has the nodule in the right upper zone?", dark, "roi_crop right upper zone"},
		{"Is the nodule in the left lung?", dark, "roi_crop left upper zone, roi_crop left middle zone, roi_crop left lower zone"},
		{"Where is the nodule?", dark, "roi_crop right upper zone, roi_crop right middle zone, roi_crop right lower zone, roi_crop left upper zone, roi_crop left middle zone"},
		{"Where is the nodule?", []string{"pa view", "nodule left upper zone"}, ""},
		{"On which side is the pneumothorax?", dark, "roi_crop right apex, roi_crop left apex"},
		{"Is the effusion on the right?", dark, "roi_crop right costophrenic angle"},
		{"Where is the tube tip?", []string{"pa view", "tube ends low"}, ""},
		{"Is the heart over the limit of protocol P-0123?", dark, "evidence_lookup P-0123"},
		{"Is the heart over the limit of protocol P-0123?", []string{"pa view", "heart small"}, ""},
		{"Which lung has less air?", dark, "region_parse right lung, region_parse left lung"},
		{"Which lung has less air?", []string{"right base opaque"}, ""},
		{"Which lung is abnormal?", dark, "region_parse right lung, region_parse left lung, roi_crop right apex, roi_crop left apex"},
		{"What is the main finding?", dark, "region_parse right lung, region_parse left lung, roi_crop right apex, roi_crop left apex, roi_crop right costophrenic angle"},
		{"Main finding: effusion, pneumothorax, nodule, cardiomegaly or volume loss?", dark, "region_parse right lung, region_parse left lung, roi_crop right apex, roi_crop left apex, roi_crop right costophrenic angle"},
		{"Are the nodule and the effusion on the same side?", []string{"left base opaque"}, "roi_crop right upper zone, roi_crop right middle zone, roi_crop right lower zone, roi_crop left upper zone, roi_crop left middle zone"},
		{"Is the mediastinum shifted to the right or left?", dark, ""},
		{"List the findings.", dark, "region_parse right lung, region_parse left lung, roi_crop right apex, roi_crop left apex"},
		{"Is there evidence of pneumonia in the right lower lobe?", nil, "region_parse right lower zone"},
		{"Was a biopsy taken?", nil, ""},
	} {
		var got []string
		asks, _ := direct(c.question, c.coarse)
		for _, a := range asks {
			got = append(got, a.tool+" "+a.arg)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%q with %q asks %q, want %q", c.question, c.coarse, strings.Join(got, ", "), c.want)
		}
	}
}

// Worsened routing is never the right routing.
func TestWorsened(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, s := range phantoms(studies).Samples {
		for range 3 {
			right, _ := direct(s.Prompt.Question, []string{"pa view"})
			if got := worsen(right, rng); slices.Equal(got, right) {
				t.Fatalf("%q: worsened to the right calls %v", s.Prompt.Question, got)
			}
		}
	}
}

// Where the teacher has a habit, asking nothing is what it mostly does, and
// asking what helps what it sometimes does; elsewhere it mostly asks that.
func TestHabit(t *testing.T) {
	for _, c := range []struct {
		question string
		low      float64
		high     float64
	}{
		{"Where is the nodule?", 0.25, 0.35},
		{"Which lung is abnormal?", 0.70, 0.80},
	} {
		cfg, right := Default(), 0
		s := dataset.Sample{Prompt: dataset.Prompt{Question: c.question}}
		for i := range 2000 {
			s.ID = fmt.Sprint(i)
			l := plan(s, []string{"pa view"}, cfg)
			if slices.Equal(l.asks, l.right) {
				right++
			}
		}
		if got := float64(right) / 2000; got < c.low || got > c.high {
			t.Errorf("%q: asked as it should be in %.3f, want %v to %v", c.question, got, c.low, c.high)
		}
	}
}

// Reasoning does not draw "so" from a measurement that says otherwise.
func TestContradicted(t *testing.T) {
	observed := []rollout.Call{{Tool: parseTool, Status: rollout.CallOK, Observation: "opacity 34 other side 31 pattern weak spots 2"}}
	shown := rollout.Bundle{Shown: rollout.Measurements, Measurements: []rollout.Measurement{
		{Name: rollout.CTR, Value: 0.5, Category: "borderline"}, {Name: rollout.Asymmetry, Value: -0.2, Category: "right smaller"}, {Name: rollout.Shift, Value: 0.01}}}
	for _, c := range []struct {
		question, relevant, answer string
		want                       bool
	}{
		{"How many nodules are in the right lung?", "", "2", false}, {"How many nodules are in the right lung?", "", "1", true},
		{"How abnormal is the texture of the left upper zone?", "", "slight", false}, {"How abnormal is the texture of the left upper zone?", "", "clear", true},
		{"Is the left upper zone abnormal?", "", "no", false},
		{"What is the heart size?", rollout.CTR, "borderline", false}, {"What is the heart size?", rollout.CTR, "enlarged", true},
		{"Is the heart enlarged?", rollout.CTR, "no", false},
		{"Which lung has lost volume?", rollout.Asymmetry, "right", false}, {"Which lung has lost volume?", rollout.Asymmetry, "left", true},
		{"To which side is the mediastinum shifted?", rollout.Shift, "left", false},
	} {
		var l lesson
		l.sample.Prompt.Question, l.sample.Answer, l.sample.Relevant = c.question, c.answer, []string{c.relevant}
		if got := l.contradicted(observed, shown); got != c.want {
			t.Errorf("%q answered %q: contradicted is %v", c.question, c.answer, got)
		}
	}
}

func TestClause(t *testing.T) {
	text := "Site protocol P-9913: follow-up after 6 months; CTR limit 0.52; film reviewed by the nurse."
	for answer, want := range map[string]string{
		"nurse": "film reviewed by the nurse", "6 months": "Site protocol P-9913: follow-up after 6 months", "0.52": "CTR limit 0.52",
		"12 months": "Site protocol P-9913: follow-up after 6 months; CTR limit 0.52; film reviewed",
	} {
		var l lesson
		l.sample.Answer = answer
		if got := first(l.clause(text), 12); got != want {
			t.Errorf("the clause for %q is %q, want %q", answer, got, want)
		}
	}
}

// The calls say next to nothing of the answer, given the question: the bound is
// on their mutual information in bits, less what shuffled answers have.
func TestCallsDoNotTellTheAnswer(t *testing.T) {
	const n, bound = 2000, 0.01
	cfg := config()
	var cells []string // the question's family with what it names
	var calls, answers []string
	for i := range n {
		s := phantom.Describe(phantom.Config{Seed: 17, Train: n}, i)
		q := s.Samples[0]
		if q.Prompt.Kind == dataset.Report {
			continue
		}
		l := plan(q, s.Truth.Coarse, cfg)
		said := fmt.Sprint(len(l.asks)) // of a misplaced call, which region it hits is chance
		if len(l.asks) > 0 && slices.Equal(l.asks, l.right) {
			said = fmt.Sprint(l.asks)
			if l.asks[0].tool == lookupTool {
				said = lookupTool
			}
		}
		cells = append(cells, q.Template+strings.Join(sideOf.FindAllString(q.Prompt.Question, -1), " "))
		calls, answers = append(calls, said), append(answers, l.answerWords())
	}
	rng := rand.New(rand.NewPCG(1, 2))
	chance := 0.0
	const shuffles = 20
	for range shuffles {
		chance += conditionalInformation(cells, calls, shuffledWithin(rng, cells, answers)) / shuffles
	}
	got := conditionalInformation(cells, calls, answers) - chance
	t.Logf("I(calls; answer | question) = %.4f bits above the %.4f of shuffled answers", got, chance)
	if got > bound {
		t.Errorf("the calls tell %.4f bits of the answer, want at most %v", got, bound)
	}
}

// shuffledWithin shuffles the answers of each cell.
func shuffledWithin(rng *rand.Rand, cells, answers []string) []string {
	at := map[string][]int{}
	for i, c := range cells {
		at[c] = append(at[c], i)
	}
	out := slices.Clone(answers)
	for _, c := range slices.Sorted(maps.Keys(at)) {
		list := at[c]
		rng.Shuffle(len(list), func(i, j int) { out[list[i]], out[list[j]] = out[list[j]], out[list[i]] })
	}
	return out
}

// conditionalInformation returns I(x; y | z) of the counts, in bits.
func conditionalInformation(z, x, y []string) float64 {
	nz, nx, ny, nxy := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	for i := range z {
		nz[z[i]]++
		nx[z[i]+"|"+x[i]]++
		ny[z[i]+"|"+y[i]]++
		nxy[z[i]+"|"+x[i]+"|"+y[i]]++
	}
	sum := 0.0
	for i := range z { // in a fixed order: one term an observation
		sum += math.Log2(nxy[z[i]+"|"+x[i]+"|"+y[i]] * nz[z[i]] / (nx[z[i]+"|"+x[i]] * ny[z[i]+"|"+y[i]]))
	}
	return sum / float64(len(z))
}
