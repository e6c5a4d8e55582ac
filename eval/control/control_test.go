package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"xragent/chat"
	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/eval"
	"xragent/reward"
	"xragent/rollout"
	"xragent/rollout/loop"
)

// A policy writes turn 1 by what the prompt ends with, turn 2 from what it saw.
type policy struct {
	codec  *chat.Codec
	first  string // turn 1, without its end
	rest   string // what follows a begun call
	mu     sync.Mutex
	second []string // the prompts of turn 2
}

func (p *policy) Sample(_ context.Context, req loop.SampleRequest) (loop.SampleResult, error) {
	prompt := p.codec.Decode(req.IDs)
	text := p.first
	switch {
	case strings.Contains(prompt, "<measurements>"):
		text = "<think>So yes.</think>\n<answer>yes</answer>"
		p.mu.Lock()
		p.second = append(p.second, prompt)
		p.mu.Unlock()
	case strings.Contains(prompt, "<|im_start|>assistant\n<assess>"):
		text = p.rest
	}
	ids := append(p.codec.Encode(text), p.codec.EndOfTurn())
	res := loop.SampleResult{Turn: rollout.Turn{PromptIDs: req.IDs, OutputIDs: ids, Logprobs: make([]float32, len(ids)), Finish: rollout.FinishStop}}
	for _, img := range req.Images {
		res.Images = append(res.Images, rollout.ImageUse{SHA256: digest(img), Grid: [3]int{1, 2, 2}})
	}
	return res, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Tools name the film that they looked at.
type tools struct{ bundles map[string]rollout.Bundle }

func (tools) Call(_ context.Context, tool string, args json.RawMessage, images [][]byte, _ []dataset.Image) (rollout.Observation, error) {
	film := "no film"
	if len(images) > 0 {
		film = string(images[0])
	}
	obs := rollout.Observation{Text: fmt.Sprintf("%s of %s: pattern none spots 0 %s", tool, film, args)}
	if tool == cropTool {
		obs.PNG = []byte("crop of " + film)
	}
	return obs, nil
}

func (t tools) Measure(_ context.Context, images [][]byte, _ []dataset.Image) (rollout.Bundle, error) {
	return t.bundles[string(images[0])], nil
}

func (tools) Schemas() []json.RawMessage {
	return []json.RawMessage{json.RawMessage(`{"name": "region_parse"}`)}
}

type films map[string][]byte

func (f films) Get(_ context.Context, sha string) ([]byte, error) { return f[sha], nil }

func bundle(ctr float64, admitted bool) rollout.Bundle {
	b := rollout.Bundle{Image: -1, Measurements: []rollout.Measurement{{Name: rollout.CTR, Value: ctr, Computed: true, Admitted: admitted}}}
	if admitted {
		b.Image = 0
	}
	return b
}

// newBench is a bench of four films, the last of which the gate withholds.
func newBench(t testing.TB, p *policy) (*Bench, []dataset.Sample) {
	t.Helper()
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	p.codec = codec
	store, bundles := films{}, map[string]rollout.Bundle{}
	var samples []dataset.Sample
	for i, ctr := range []float64{0.40, 0.45, 0.55, 0.60} {
		film := fmt.Sprint("film ", i)
		store[digest([]byte(film))] = []byte(film)
		bundles[film] = bundle(ctr, i < 3)
		samples = append(samples, dataset.Sample{ID: fmt.Sprint("q", i), Study: film, Answer: "yes", Template: "t", Need: string(phantom.NeedParse),
			Prompt: dataset.Prompt{Kind: dataset.Binary, Question: fmt.Sprint("Question about nodule ", i), Images: []dataset.Image{{SHA256: digest([]byte(film))}}}})
	}
	blank, sha := eval.BlankImage()
	store[sha] = blank
	cfg := loop.Default()
	return &Bench{Loop: cfg, Sampler: p, Tools: tools{bundles}, Exact: tools{bundles}, Codec: codec, Blobs: store, Seed: 1, Parallel: 2}, eval.Select(samples, 0)
}

const assess = "<assess>lungs clear</assess>"

func call(tool string) string {
	return "\n" + rollout.FormatCall(tool, json.RawMessage(`{"region": "right lung"}`))
}

// under runs one condition and returns its rows with the prompts of turn 2.
func under(t testing.TB, b *Bench, cond eval.Condition, samples []dataset.Sample, plain eval.Result) eval.Result {
	t.Helper()
	roll, err := b.Rollout(context.Background(), cond, samples, plain)
	if err != nil {
		t.Fatal(err)
	}
	cfg := eval.Default
	cfg.Questions, cfg.Parallel = 0, 1 // prompts of turn 2 in order
	res, err := eval.Run(context.Background(), cfg, "p", cond, samples, 0, roll, reward.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range res.Rows {
		if row.Error != "" {
			t.Fatalf("%s: %s", row.Sample, row.Error)
		}
	}
	return res
}

func calls(r eval.Result) (out []int) {
	for _, row := range r.Rows {
		out = append(out, row.Calls)
	}
	return out
}

func TestRouting(t *testing.T) {
	for _, tc := range []struct {
		cond  eval.Condition
		first string
		want  []int
		seen  string // in turn 2's prompt
	}{
		{eval.Plain, assess + call(cropTool), []int{1, 1, 1, 1}, "roi_crop of film"},
		{eval.NeverCall, assess + call(cropTool) + call(parseTool), []int{0, 0, 0, 0}, assess + "<|im_end|>"},
		{eval.AlwaysCall, assess, []int{1, 1, 1, 1}, "region_parse of film"},
		{eval.AlwaysCall, assess + call(cropTool), []int{1, 1, 1, 1}, "roi_crop of film"}, // its own call stays
		{eval.OracleCall, assess + call(cropTool), []int{1, 1, 1, 1}, "region_parse of film"},
		{eval.OracleCall, assess + call(cropTool) + call(parseTool), []int{2, 2, 2, 2}, "region_parse of film"},
	} {
		p := &policy{first: tc.first, rest: parseTool + `", "arguments": {"region": "right lung"}}` + "\n</tool_call>"}
		if tc.cond == eval.OracleCall { // the tool is named for it
			p.rest = ` {"region": "right lung"}}` + "\n</tool_call>"
		}
		b, samples := newBench(t, p)
		res := under(t, b, tc.cond, samples, eval.Result{})
		if !slices.Equal(calls(res), tc.want) || !strings.Contains(p.second[0], tc.seen) {
			t.Errorf("%s of %q: calls %v, turn 2 sees %q", tc.cond, tc.first, calls(res), p.second[0])
		}
	}
}

// What is begun for the policy is as a turn that it writes itself is encoded.
func TestBegunCallIsEncodedAsATurn(t *testing.T) {
	codec, err := chat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := assess + "\n" + rollout.FormatCall(parseTool, json.RawMessage(`{"region": "left upper zone"}`))
	for _, cutAt := range []string{`{"name": "`, `"arguments":`} {
		i := strings.Index(whole, cutAt) + len(cutAt)
		if begun := codec.Encode(whole[:i]); !slices.Equal(codec.Encode(whole)[:len(begun)], begun) {
			t.Errorf("%q is no prefix in ids of the whole turn", whole[:i])
		}
	}
}

func TestOracleRouterCallsNothingWhereNothingIsNeeded(t *testing.T) {
	p := &policy{first: assess + call(cropTool)}
	b, samples := newBench(t, p)
	samples[1].Need = string(phantom.NeedBundle)
	p.rest = ` {"region": "right lung"}}` + "\n</tool_call>"
	if got := calls(under(t, b, eval.OracleCall, samples, eval.Result{})); got[1] != 0 || got[0] != 1 {
		t.Errorf("calls %v, want none in the second", got)
	}
	samples[0].Need = ""
	if _, err := b.Rollout(context.Background(), eval.OracleCall, samples, eval.Result{}); err == nil || !strings.Contains(err.Error(), samples[0].ID) {
		t.Errorf("error %v, want one that names %s", err, samples[0].ID)
	}
}

func TestRandomRoutingKeepsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		called := rapid.SliceOfN(rapid.Bool(), 1, 50).Draw(t, "called")
		var samples []dataset.Sample
		var plain eval.Result
		want := 0
		for i, c := range called {
			id := fmt.Sprint(i)
			samples = append(samples, dataset.Sample{ID: id})
			row := eval.Row{Sample: id}
			if c {
				row.Calls = 2
				want++
			}
			plain.Rows = append(plain.Rows, row)
		}
		plans, err := (&Bench{Seed: rapid.Uint64().Draw(t, "seed")}).plans(eval.RandomCall, samples, plain)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, p := range plans {
			if p.do == force {
				got++
			}
		}
		if got != want {
			t.Fatalf("%d of %d are called for, the policy called for %d", got, len(plans), want)
		}
	})
}

func TestRandomRoutingWantsTheSameQuestions(t *testing.T) {
	b, samples := newBench(t, &policy{})
	for _, rows := range [][]eval.Row{nil, {{Sample: "x"}, {Sample: "y"}, {Sample: "z"}, {Sample: "w"}}} {
		if _, err := b.Rollout(context.Background(), eval.RandomCall, samples, eval.Result{Rows: rows}); err == nil {
			t.Errorf("random routing over %d other rows was accepted", len(rows))
		}
	}
}

func TestToolsAboutAnotherStudy(t *testing.T) {
	p := &policy{first: assess + call(cropTool)}
	b, samples := newBench(t, p)
	under(t, b, eval.OtherTools, samples, eval.Result{})
	for i, s := range samples {
		if strings.Contains(p.second[i], "of "+s.Study) {
			t.Errorf("question %s was told of its own %s: %q", s.ID, s.Study, p.second[i])
		}
	}
}

func TestToolTextComesWithoutImage(t *testing.T) {
	p := &policy{first: assess + call(cropTool)}
	b, samples := newBench(t, p)
	res := under(t, b, eval.ToolText, samples, eval.Result{})
	for i, s := range samples {
		if !strings.Contains(p.second[i], "roi_crop of "+s.Study) || strings.Count(p.second[i], "<|image_pad|>") != 1 {
			t.Errorf("question %s: %q", s.ID, p.second[i])
		}
	}
	if !res.Rows[0].Shown {
		t.Error("the real film's measurements were not shown")
	}
}

func TestTextOnlyShowsNothing(t *testing.T) {
	p := &policy{first: assess + call(cropTool)}
	b, samples := newBench(t, p)
	res := under(t, b, eval.TextOnly, samples, eval.Result{})
	if strings.Contains(p.second[0], "<|image_pad|>") || strings.Contains(p.second[0], "roi_crop of") || strings.Contains(p.second[0], "<tools>") || res.Rows[0].Shown {
		t.Errorf("turn 2 sees %q", p.second[0])
	}
}

func TestOracleToolsTellTheTruth(t *testing.T) {
	p := &policy{first: assess + call(parseTool) + call(cropTool)}
	b, samples := newBench(t, p)
	b.Truth = func(study string) (phantom.Truth, bool) {
		return phantom.Truth{Findings: []phantom.Finding{
			{Name: phantom.Nodule, Side: "right", Zone: "upper", X: 128, Y: 256},
			{Name: phantom.Nodule, Side: "left", Zone: "upper", X: 400, Y: 256},
			{Name: phantom.Edema, Side: "right", Zone: "lower"},
		}}, true
	}
	under(t, b, eval.OracleTools, samples, eval.Result{})
	for _, want := range []string{"pattern weak spots 1", `"box":[0.125,0.375,0.375,0.625]`} {
		if !strings.Contains(p.second[0], want) {
			t.Errorf("turn 2 sees %q, want %q", p.second[0], want)
		}
	}
	b.Truth = nil
	if _, err := b.Rollout(context.Background(), eval.OracleTools, samples, eval.Result{}); err == nil {
		t.Error("oracle tools without truth were accepted")
	}
}

func TestGates(t *testing.T) {
	p := &policy{first: assess}
	b, samples := newBench(t, p)
	b.Truth = func(study string) (phantom.Truth, bool) {
		ctr := map[string]float64{"film 0": 0.40, "film 1": 0.52, "film 2": 0.54, "film 3": 0.60}[study]
		return phantom.Truth{View: phantom.PA, Anatomical: phantom.Measures{CTR: ctr}}, true
	}
	shown := func(cond eval.Condition) string {
		p.second = nil
		under(t, b, cond, samples, eval.Result{})
		out := make([]string, 4)
		for i, s := range samples {
			_, ctr, _ := strings.Cut(p.second[i], "<measurements>\nctr ")
			out[s.Study[5]-'0'], _, _ = strings.Cut(ctr, "\n")
		}
		return strings.Join(out, " ")
	}
	if got := shown(eval.Plain); got != "0.400 0.450 0.550 withheld" {
		t.Errorf("gate on: %s", got)
	}
	if got := shown(eval.GateOff); got != "0.400 0.450 0.550 0.600" {
		t.Errorf("gate off: %s", got)
	}
	if got := shown(eval.GateOracle); got != "0.400 withheld 0.550 0.600" {
		t.Errorf("by truth: %s", got)
	}
	if got := shown(eval.GateRandom); strings.Count(got, "withheld") != 1 {
		t.Errorf("by chance: %s, want one withheld", got)
	}
	if got := shown(eval.BundleSwap); got != "0.550 0.550 0.400 withheld" && got != "0.550 0.550 0.450 withheld" {
		t.Errorf("swapped: %s, want CTRs at least 0.1 away", got)
	}
}

func TestSwapsAreFarAndAnothers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var own []rollout.Bundle
		var samples []dataset.Sample
		for i := range rapid.IntRange(1, 30).Draw(t, "n") {
			own = append(own, bundle(rapid.Float64Range(0.3, 0.7).Draw(t, "ctr"), rapid.Bool().Draw(t, "admitted")))
			samples = append(samples, dataset.Sample{Study: fmt.Sprint(i)})
		}
		for i, b := range swapped(samples, own, rapid.Uint64().Draw(t, "seed")) {
			was, ok := admittedCTR(own[i])
			is, still := admittedCTR(b)
			if ok != still || was != is && math.Abs(was-is) < SwapAtLeast {
				t.Fatalf("film %d: CTR %v (%v) became %v (%v)", i, was, ok, is, still)
			}
		}
	})
}

func TestCorrect(t *testing.T) {
	findings := []phantom.Finding{{Name: phantom.Nodule, Side: "left", Zone: "upper"}, {Name: phantom.Nodule, Side: "left", Zone: "lower"}, {Name: phantom.Edema, Side: "left", Zone: "lower"}}
	const measured = "opacity 40 other side 41 pattern strong spots 7"
	for region, want := range map[string]string{
		"left lung":       "opacity 40 other side 41 pattern strong spots 7", // the texture's own spots among them
		"left upper zone": "opacity 40 other side 41 pattern none spots 1",
		"left upper":      "opacity 40 other side 41 pattern none spots 1",
		"right lung":      "opacity 40 other side 41 pattern none spots 0",
	} {
		if got := correct(measured, region, findings); got != want {
			t.Errorf("%s: %q, want %q", region, got, want)
		}
	}
	if got := correct("unknown region", "nowhere", findings); got != "unknown region" {
		t.Errorf("an error became %q", got)
	}
}

func TestSought(t *testing.T) {
	film := []phantom.Finding{
		{Name: phantom.Scar, Side: "right", X: 90, Y: 300}, {Name: phantom.Nodule, Side: "left", X: 350, Y: 200}, {Name: phantom.Pneumothorax, Side: "right"},
	}
	for _, c := range []struct {
		question string
		findings []phantom.Finding
		want     string
	}{
		{"Where is the nodule?", film, phantom.Nodule},
		{"Which side is abnormal?", film, phantom.Nodule}, // a scar is no answer
		{"Which finding is there?", []phantom.Finding{film[0], film[2]}, ""},
		{"Is there a pneumothorax on the right?", film, ""}, // it has no one place
		{"Where is the tip of the tube?", film, ""},         // not on this film
		{"Where is the tip of the tube?", []phantom.Finding{film[1], {Name: "tube", X: 256, Y: 100}}, "tube"},
	} {
		f, ok := sought(dataset.Prompt{Question: c.question}, c.findings)
		if ok != (c.want != "") || ok && f.Name != c.want {
			t.Errorf("%s: %q, %v, want %q", c.question, f.Name, ok, c.want)
		}
	}
}

func TestTruthAdmitsWholeBundlesWhereTheGateDoes(t *testing.T) {
	b := Bench{Truth: func(string) (phantom.Truth, bool) {
		return phantom.Truth{View: phantom.PA, Anatomical: phantom.Measures{CTR: 0.5, Shift: 0.1}}, true
	}}
	own := []rollout.Bundle{{Image: 0, Measurements: []rollout.Measurement{
		{Name: rollout.CTR, Value: 0.51, Computed: true, Admitted: true}, {Name: rollout.Shift, Value: 0, Computed: true, Admitted: true}}}}
	for whole, want := range map[bool]string{false: "[ctr]", true: "[]"} {
		b.Whole = whole
		got, err := b.byTruth([]dataset.Sample{{}}, own)
		if err != nil || fmt.Sprint(got[0].Admit(rollout.GateOn)) != want {
			t.Errorf("whole %v: %v admitted (%v), want %s", whole, got[0].Admit(rollout.GateOn), err, want)
		}
	}
}
