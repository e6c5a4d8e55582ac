package radcot

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/rollout"
)

// The wanted ratios are those of Python's difflib.SequenceMatcher over words.
func TestRatio(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want float64
	}{
		{"a b c d", "b c d e", 0.75}, {"the heart is large", "the heart is enlarged and large", 0.8}, {"a x b y c", "a b c", 0.75},
		{"q a b x a b c d", "a b c d q a b", 8. / 15}, {"", "", 1}, {"a", "", 0}, {"One, two.", "one two", 1},
	} {
		if got := Ratio(c.a, c.b); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("ratio of %q and %q is %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestOtherSimilarities(t *testing.T) {
	if got := RougeL("police killed the gunman", "police kill the gunman"); got != 0.75 {
		t.Errorf("rouge-l is %v, want 0.75", got)
	}
	if got := RougeL("the gunman kill police", "police kill the gunman"); got != 0.5 {
		t.Errorf("rouge-l is %v, want 0.5", got)
	}
	idf := newTFIDF([]string{"the heart", "the lung", "the rib"})
	if got := idf.Cosine("the heart", "the heart"); math.Abs(got-1) > 1e-12 {
		t.Errorf("cosine with itself is %v", got)
	}
	// the: 1; heart and lung: ln(4/2)+1
	w := math.Log(2) + 1
	if got, want := idf.Cosine("the heart", "the lung"), 1/(1+w*w); math.Abs(got-want) > 1e-12 {
		t.Errorf("cosine is %v, want %v", got, want)
	}
	if got := idf.Cosine("", "the lung"); got != 0 {
		t.Errorf("cosine with nothing is %v", got)
	}
}

// The similarities lie in [0, 1], are 1 for equal texts, and the matching words
// are never more than the longest common subsequence.
func TestSimilarityProperties(t *testing.T) {
	text := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "heart"}), 1, 20), func(w []string) string { return strings.Join(w, " ") })
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		ratio, rouge, cosine := Ratio(a, b), RougeL(a, b), newTFIDF([]string{a, b}).Cosine(a, b)
		for _, v := range []float64{ratio, rouge, cosine} {
			if !(v >= 0 && v <= 1+1e-12) {
				t.Fatalf("similarity %v", v)
			}
		}
		if ratio > rouge+1e-12 || Ratio(a, a) != 1 || RougeL(a, a) != 1 {
			t.Fatalf("ratio %v, rouge-l %v, with itself %v and %v", ratio, rouge, Ratio(a, a), RougeL(a, a))
		}
	})
}

// good is a record that passes, and its sample.
func good() (Record, dataset.Sample) {
	s := dataset.Sample{ID: "train-000001-r", Study: "train-000001", Prompt: dataset.Prompt{Kind: dataset.Report, Question: "List the findings."},
		Positive:  []string{"nodule"},
		Reference: "PA chest film. A smooth nodule of 22 mm lies in the left upper zone. The heart is of normal size."}
	r := Record{
		Turn1: "<assess>pa view, nodule left upper zone</assess>\n" + rollout.FormatCall(cropTool, []byte(`{"region": "left upper zone"}`)),
		Calls: []rollout.Call{{Tool: cropTool, Status: rollout.CallOK, Observation: "left upper zone 3.0x", Image: "ab"}},
		Turn2: "<think>" + strings.Repeat("The lung is clear here and the edge is sharp. ", 5) + "So nodule.</think>\n<answer>nodule</answer>",
	}
	return r, s
}

func TestFilters(t *testing.T) {
	if r, s := good(); DefaultFilters().Check(r, s) != nil {
		t.Fatalf("a good record is rejected: %+v", DefaultFilters().Check(r, s))
	}
	think := func(text string) func(*Record, *dataset.Sample) {
		return func(r *Record, _ *dataset.Sample) {
			r.Turn2 = "<think>" + text + "</think>\n<answer>nodule</answer>"
		}
	}
	long := func(n int) string { return strings.Repeat("word ", n-1) + "end." }
	for _, c := range []struct {
		name string
		edit func(*Record, *dataset.Sample)
		want Rule
	}{
		{"39 words", think(long(39)), Length}, {"40 words", think(long(40)), ""},
		{"900 words", think(long(900)), ""}, {"901 words", think(long(901)), Length},
		{"short, but no report", func(r *Record, s *dataset.Sample) {
			s.Prompt.Kind, s.Answer = dataset.Closed, "nodule"
			think("It is round.")(r, s)
		}, ""},
		{"no think", func(r *Record, _ *dataset.Sample) { r.Turn2 = "<answer>nodule</answer>" }, Malformed},
		{"no assessment", func(r *Record, _ *dataset.Sample) { r.Turn1 = "hm" }, Malformed},
		{"empty assessment", func(r *Record, _ *dataset.Sample) { r.Turn1, r.Calls = "<assess> </assess>", nil }, Malformed},
		{"two answers", func(r *Record, _ *dataset.Sample) { r.Turn2 += "<answer>nodule</answer>" }, Malformed},
		{"breaks off", think(strings.TrimSuffix(long(50), ".")), Malformed},
		{"refuses", think("I cannot tell. " + long(50)), Malformed},
		{"junk", think("\u00e2\u0080 " + long(50)), Malformed},
		{"call without observation", func(r *Record, _ *dataset.Sample) { r.Calls[0].Observation, r.Calls[0].Image = "", "" }, Malformed},
		{"call not executed", func(r *Record, _ *dataset.Sample) { r.Calls = nil }, Malformed},
		{"wrong answer", func(_ *Record, s *dataset.Sample) { s.Positive = []string{"effusion"} }, WrongTruth},
		{"mentions the report", think("As the report states. " + long(50)), Leakage},
		{"mentions ground truth", think("By ground truth. " + long(50)), Leakage},
		{"blanks of a de-identified report", think("Seen on ___ before. " + long(50)), Leakage},
		{"names the study", think("train-000001 shows. " + long(50)), Leakage},
		{"answers first", think("The answer is nodule. " + long(50)), Leakage},
		{"answers in turn 1", func(r *Record, _ *dataset.Sample) {
			r.Turn1, r.Calls = "<assess>the answer is nodule</assess>", nil
		}, Leakage},
		{"quotes 8 words", think("a smooth nodule of 22 mm lies in. " + long(50)), Leakage},
		{"quotes 7 words", think("a smooth nodule of 22 mm lies. " + long(50)), ""},
		{"near copy", func(r *Record, s *dataset.Sample) {
			words := strings.Fields(long(50))
			for i := range words {
				words[i] = string(rune('a'+i%26)) + string(rune('a'+i/26))
			}
			s.Reference = strings.Join(words, " ")
			for i := 6; i < len(words); i += 7 { // no 8 words in a row
				words[i] = "zz"
			}
			think(strings.Join(words, " ")+".")(r, s)
		}, Similarity},
	} {
		r, s := good()
		c.edit(&r, &s)
		got := DefaultFilters().Check(r, s)
		if (got == nil) != (c.want == "") || got != nil && (got.Rule != c.want || got.Detail == "") {
			t.Errorf("%s: rejected for %+v, want %q", c.name, got, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("{}\n")
	f.Add(`{"sample":{"id":"a"},"turn1":"<assess>x</assess>"}` + "\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for r, err := range Read(strings.NewReader(text)) {
			if err == nil && r.Sample.ID == "" {
				t.Fatal("a record without a sample was read")
			}
		}
	})
}
