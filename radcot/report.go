package radcot

import (
	"fmt"
	"io"
	"slices"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

// A Report says what a build kept and rejected, and why.
type Report struct {
	Kinds   []KindCount     `json:"kinds"`
	Rules   []RuleCount     `json:"rules"`
	Measure []SimilarityRow `json:"similarity"` // of report-style candidates that have a reference

	Calls      int `json:"calls"`      // executed for kept records
	Suboptimal int `json:"suboptimal"` // kept records whose routing was worsened
	Shown      int `json:"shown"`      // kept records with at least one measurement shown

	threshold float64
	idf       tfidf
	scores    [len(measureNames)][]float64
}

// A KindCount counts the records of one kind.
type KindCount struct {
	Kind       dataset.Kind `json:"kind"`
	Wanted     int          `json:"wanted"`
	Kept       int          `json:"kept"`
	Tried      int          `json:"tried"`     // candidates written and judged
	Available  int          `json:"available"` // candidates that might have been
	Suboptimal int          `json:"suboptimal"`
}

// A RuleCount counts the rejections by one rule.
type RuleCount struct {
	Rule     Rule     `json:"rule"`
	Rejected int      `json:"rejected"`
	Rate     float64  `json:"rate"`               // of the candidates tried
	Examples []string `json:"examples,omitempty"` // "sample: detail", the first few
}

// A SimilarityRow is the distribution of one similarity between reasoning and
// reference. Only the ratio rejects; the others stand beside it.
type SimilarityRow struct {
	Measure string  `json:"measure"`
	N       int     `json:"n"`
	Mean    float64 `json:"mean"`
	P95     float64 `json:"p95"`
	Max     float64 `json:"max"`
	Above   int     `json:"above"` // candidates above the ratio's threshold
}

var measureNames = [...]string{"ratio", "rouge_l", "tfidf_cosine"}

const maxExamples = 5

func newReport(cfg Config, src Sources) Report {
	r := Report{threshold: cfg.Filters.Similarity}
	for _, k := range dataset.Kinds {
		r.Kinds = append(r.Kinds, KindCount{Kind: k})
	}
	for _, rule := range Rules {
		r.Rules = append(r.Rules, RuleCount{Rule: rule})
	}
	var references []string
	for _, s := range src.Samples {
		if s.Prompt.Kind == dataset.Report && s.Reference != "" {
			references = append(references, s.Reference)
		}
	}
	r.idf = newTFIDF(references)
	return r
}

// Kept is the number of records in the corpus.
func (r *Report) Kept() int {
	n := 0
	for _, k := range r.Kinds {
		n += k.Kept
	}
	return n
}

// Tried is the number of candidates written and judged.
func (r *Report) Tried() int {
	n := 0
	for _, k := range r.Kinds {
		n += k.Tried
	}
	return n
}

func (r *Report) of(kind dataset.Kind) *KindCount {
	return &r.Kinds[slices.Index(dataset.Kinds, kind)]
}

func (r *Report) wanted(kind dataset.Kind, wanted, available int) {
	r.of(kind).Wanted, r.of(kind).Available = wanted, available
}

func (r *Report) count(rec Record, s dataset.Sample, rejection *Rejection) {
	k := r.of(s.Prompt.Kind)
	k.Tried++
	if s.Prompt.Kind == dataset.Report {
		if m, ok := similarityTo(s.Reference, rec, r.idf); ok {
			for i, v := range m {
				r.scores[i] = append(r.scores[i], v)
			}
		}
	}
	if rejection != nil {
		r.rejected(s.ID, *rejection)
		return
	}
	k.Kept++
	r.Calls += len(rec.Calls)
	if rec.Suboptimal {
		k.Suboptimal++
		r.Suboptimal++
	}
	if len(rec.Bundle.Shown) > 0 {
		r.Shown++
	}
}

func (r *Report) rejected(id string, why Rejection) {
	c := &r.Rules[slices.Index(Rules, why.Rule)]
	c.Rejected++
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, id+": "+why.Detail)
	}
}

// finish computes what needs all counts.
func (r *Report) finish() {
	for i := range r.Rules {
		if n := r.Tried(); n > 0 {
			r.Rules[i].Rate = float64(r.Rules[i].Rejected) / float64(n)
		}
	}
	for i, name := range measureNames {
		if len(r.scores[i]) > 0 {
			r.Measure = append(r.Measure, summary(name, r.scores[i], r.threshold))
		}
	}
}

func summary(name string, scores []float64, threshold float64) SimilarityRow {
	sorted := slices.Sorted(slices.Values(scores))
	row := SimilarityRow{Measure: name, N: len(sorted), Max: sorted[len(sorted)-1], P95: sorted[(len(sorted)*95)/100]}
	for _, v := range sorted {
		row.Mean += v / float64(len(sorted))
		if v > threshold {
			row.Above++
		}
	}
	return row
}

// Short returns the kinds of which fewer records were kept than wanted.
func (r *Report) Short() []KindCount {
	var out []KindCount
	for _, k := range r.Kinds {
		if k.Kept < k.Wanted {
			out = append(out, k)
		}
	}
	return out
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%-16s %8s %8s %8s %10s\n", "kind", "wanted", "kept", "tried", "available")
	for _, k := range r.Kinds {
		if err == nil {
			_, err = fmt.Fprintf(w, "%-16s %8d %8d %8d %10d\n", k.Kind, k.Wanted, k.Kept, k.Tried, k.Available)
		}
	}
	for _, c := range r.Rules {
		if err == nil {
			_, err = fmt.Fprintf(w, "rejected by %-12s %6d  %5.2f %%\n", c.Rule, c.Rejected, 100*c.Rate)
		}
	}
	for _, m := range r.Measure {
		if err == nil {
			_, err = fmt.Fprintf(w, "similarity %-13s mean %.3f  p95 %.3f  max %.3f  above %.2f: %d of %d\n",
				m.Measure, m.Mean, m.P95, m.Max, r.threshold, m.Above, m.N)
		}
	}
	return err
}

// A Manifest says what a corpus is made of and from.
type Manifest struct {
	Definitions map[string]string `json:"definitions"` // versions of record, teacher and reward
	Generator   string            `json:"generator"`   // hash of the phantom generator
	Config      Config            `json:"config"`
	Sources     []string          `json:"sources"` // readers of the samples with their versions
	Records     int               `json:"records"`
	SHA256      string            `json:"sha256"` // of the records' lines
	Report      Report            `json:"report"`
}

// NewManifest describes the corpus that w has written.
func NewManifest(cfg Config, src Sources, report Report, w *Writer) Manifest {
	m := Manifest{Definitions: definitions, Generator: phantom.Hash(), Config: cfg, Records: w.Records(), SHA256: w.SHA256(), Report: report}
	for _, s := range src.Samples {
		if !slices.Contains(m.Sources, s.Source) {
			m.Sources = append(m.Sources, s.Source)
		}
	}
	slices.Sort(m.Sources)
	return m
}
