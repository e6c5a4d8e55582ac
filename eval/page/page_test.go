package page

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"xragent/dataset"
	"xragent/eval"
)

// sections are the parts of every page.
var sections = []string{"mind", "accuracy", "curves", "priors", "routing", "tools", "gate", "churn", "shift", "confusion", "calibration"}

// full is a report with something of everything.
func full(t *testing.T, template string) eval.Report {
	t.Helper()
	var rs eval.Results
	jobs, _ := eval.Plan(eval.Full, []string{"sft", "grpo"}, eval.Facts{Truth: true, Needs: true, OOD: true})
	for k, j := range jobs {
		res := eval.Result{Name: j.Policy, Condition: j.Condition, Split: j.Split, Questions: string(j.Split)}
		for i := range 60 {
			row := eval.Row{Sample: fmt.Sprint(i), Cluster: fmt.Sprint(i), Template: template, Kind: dataset.Closed, Key: []string{"right", "left"}[i%2],
				Given: []string{"left", "right"}[(i+k)%2], Need: []string{"coarse", "bundle_valid", "bundle_misleading"}[i%3], Calls: (i + k) % 3,
				Shown: i%4 > 0, Admitted: i%4 > 0, Seen: fmt.Sprint((i * k) % 5)}
			row.Strict = row.Key == row.Given
			res.Rows = append(res.Rows, row)
		}
		rs = append(rs, res)
	}
	rep, err := eval.Analyse(rs, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	rep.Run, rep.Source, rep.Data = "run", "phantom", "0123456789abcdef"
	return rep
}

var panels = []Panel{
	{Title: "SFT", Lines: []Line{{"loss", []float64{1, 2, 3}, []float64{3, math.NaN(), 1}}, {"validation", []float64{2}, []float64{2}}}},
	{Title: "empty"},
}

func write(t *testing.T, r eval.Report) string {
	t.Helper()
	var w bytes.Buffer
	if err := Write(&w, r, panels); err != nil {
		t.Fatal(err)
	}
	return w.String()
}

func TestPageHasEverySection(t *testing.T) {
	for name, r := range map[string]eval.Report{"full": full(t, "side"), "least": least(t)} {
		html := write(t, r)
		for _, id := range sections {
			if !strings.Contains(html, `id="`+id+`"`) {
				t.Errorf("%s: no section %s", name, id)
			}
		}
		if strings.Contains(html, "NaN") || strings.Contains(html, "Inf") || strings.Contains(html, "ZgotmplZ") {
			t.Errorf("%s: a figure is no number", name)
		}
	}
}

// least is a report of one policy without controls.
func least(t *testing.T) eval.Report {
	t.Helper()
	rep, err := eval.Analyse(eval.Results{{Name: "p", Condition: eval.Plain, Split: dataset.Test, Rows: []eval.Row{{Sample: "1", Kind: dataset.Binary}}}}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// outside is what makes a browser fetch something.
var outside = regexp.MustCompile(`(?i)<(script|link|img|iframe|object|embed|image|use)\b|\b(src|srcset|data|poster|background)\s*=|url\(|@import|https?:|href="[^#]`)

func TestPageLoadsNothing(t *testing.T) {
	html := write(t, full(t, `"><script src="http://evil.example/x.js"></script>`))
	body := strings.ReplaceAll(html, `http://evil.example`, "") // as text, escaped
	if m := outside.FindString(regexp.MustCompile(`&lt;.*?&gt;`).ReplaceAllString(body, "")); m != "" {
		t.Errorf("the page holds %q", m)
	}
	if strings.Contains(html, "<script") || !strings.Contains(html, "default-src 'none'") {
		t.Error("a template's name became a script, or the page may load things")
	}
}

// Beside controls that were asked of some questions stands the policy on those.
func TestFrontierIsOfTheQuestionsOfTheControls(t *testing.T) {
	r := full(t, "side")
	r.AsIs.Lines[0].Strict, r.AsIs.Lines[0].Calls = eval.Wilson(3, 7), 1.25
	if html := write(t, r); !strings.Contains(html, "grpo: 1.25 calls, 42.9") {
		t.Errorf("the policy is not drawn as on the controls' questions:\n%s", regexp.MustCompile(`grpo: [0-9.]+ calls, [^<]*`).FindString(html))
	}
}

func TestPageIsTheSameForTheSameReport(t *testing.T) {
	r := full(t, "side")
	if write(t, r) != write(t, r) {
		t.Error("two pages of one report differ")
	}
}

func TestTicksLieInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(-1e4, 1e4).Draw(t, "low")
		s := scale{low, low + rapid.Float64Range(1e-3, 1e5).Draw(t, "width"), 10, 500}
		ticks := s.ticks()
		if len(ticks) < 2 || len(ticks) > 8 {
			t.Fatalf("%d ticks on %+v", len(ticks), s)
		}
		for _, k := range ticks {
			if k.At < 10-1e-6 || k.At > 500+1e-6 {
				t.Fatalf("tick %+v lies outside %+v", k, s)
			}
		}
	})
}

func TestSpanIsNeverEmpty(t *testing.T) {
	for _, values := range [][]float64{nil, {3}, {math.NaN()}, {math.Inf(1), 2}, {1, 2}, {1, 1 - 1e-16}} {
		if low, high := span(values); !(high-low > 1e-9) {
			t.Errorf("span(%v) = %v, %v", values, low, high)
		}
	}
}

func TestSmooth(t *testing.T) {
	got := fmt.Sprint(Smooth([]float64{2, 4, 6, 8}, 2))
	if got != "[2 3 5 7]" {
		t.Errorf("Smooth = %s", got)
	}
}
