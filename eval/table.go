package eval

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"xragent/dataset"
)

// A Line is one row of the table: a group of questions with its score.
type Line struct {
	Group    string   `json:"group"`
	Strict   Interval `json:"strict"`
	Lenient  float64  `json:"lenient"`
	Majority float64  `json:"majority"` // strongest constant answer per template on these questions
	Invalid  int      `json:"invalid"`
	Calls    float64  `json:"calls"` // mean
}

// A Summary is what one condition's rows come to.
type Summary struct {
	Name      string        `json:"name"`
	Condition Condition     `json:"condition"`
	Split     dataset.Split `json:"split"`
	Lines     []Line        `json:"lines"` // "all" first, then kinds, capabilities, needs
	Macro     float64       `json:"macro"` // unweighted mean over kinds
	Errors    int           `json:"errors"`
	Reward    float64       `json:"reward"` // mean
	// Clustered is the accuracy's interval where questions share patients or
	// studies, whole ones resampled; nil where none do.
	Clustered *[2]float64 `json:"clustered,omitempty"`
}

// All returns the line over all questions.
func (s Summary) All() Line { return s.Lines[0] }

// Summarise groups a result's rows. Majorities are taken per template over all
// rows, then averaged within each group.
func (r Result) Summarise() Summary {
	constant := strongest(r.Rows)
	s := Summary{Name: r.Name, Condition: r.Condition, Split: r.Split, Clustered: clustered(r.Rows)}
	add := func(group string, keep func(Row) bool) {
		if line, ok := summarise(group, r.Rows, constant, keep); ok {
			s.Lines = append(s.Lines, line)
		}
	}
	add("all", func(Row) bool { return true })
	kinds := 0
	for _, k := range dataset.Kinds {
		before := len(s.Lines)
		add(string(k), func(row Row) bool { return row.Kind == k })
		if len(s.Lines) > before {
			s.Macro += s.Lines[before].Strict.Value
			kinds++
		}
	}
	s.Macro /= float64(max(1, kinds))
	for _, c := range distinct(r.Rows, func(row Row) string { return row.Capability }) {
		add("capability "+c, func(row Row) bool { return row.Capability == c })
	}
	for _, n := range distinct(r.Rows, func(row Row) string { return row.Need }) {
		add("need "+n, func(row Row) bool { return row.Need == n })
	}
	for _, row := range r.Rows {
		if row.Error != "" {
			s.Errors++
		}
		s.Reward += row.Reward / float64(len(r.Rows))
	}
	return s
}

// clustered is nil where every question is a cluster of its own.
func clustered(rows []Row) *[2]float64 {
	if len(distinct(rows, func(r Row) string { return r.Cluster })) == len(rows) {
		return nil
	}
	var right []float64
	var cluster []string
	for _, r := range rows {
		right, cluster = append(right, float64(one(r.Strict))), append(cluster, r.Cluster)
	}
	low, high := ClusterBootstrap(right, cluster, 1)
	return &[2]float64{low, high}
}

func summarise(group string, rows []Row, constant func(Row) bool, keep func(Row) bool) (Line, bool) {
	line := Line{Group: group}
	right, lenient, majority, n := 0, 0, 0, 0
	for _, row := range rows {
		if !keep(row) {
			continue
		}
		n++
		right += one(row.Strict)
		lenient += one(row.Lenient)
		majority += one(constant(row))
		line.Invalid += one(row.Invalid)
		line.Calls += float64(row.Calls)
	}
	if n == 0 {
		return line, false
	}
	line.Strict = Wilson(right, n)
	line.Lenient = float64(lenient) / float64(n)
	line.Majority = float64(majority) / float64(n)
	line.Calls /= float64(n)
	return line, true
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// strongest reports what the most frequent answer of each template gets right; of
// equally frequent ones it takes the one that sorts first.
func strongest(rows []Row) func(Row) bool {
	counts := map[string]map[string]int{}
	for _, r := range rows {
		if counts[r.Template] == nil {
			counts[r.Template] = map[string]int{}
		}
		counts[r.Template][r.key()]++
	}
	best := map[string]string{}
	for template, byKey := range counts {
		best[template] = mostFrequent(byKey)
	}
	return func(r Row) bool { return r.key() == best[r.Template] }
}

func mostFrequent(counts map[string]int) string {
	var keys []string
	for k := range counts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return keys[0]
}

func distinct(rows []Row, key func(Row) string) []string {
	var out []string
	for _, r := range rows {
		if k := key(r); k != "" && !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Compare pairs two results on the questions that both hold. It refuses
// results of different questions.
func Compare(before, after Result) (Pair, error) {
	if b, a := before.Questions, after.Questions; b != "" && a != "" && b != a {
		return Pair{}, fmt.Errorf("eval: %s and %s were asked different questions (digests %.12s and %.12s): evaluate both on the same set",
			before.Name, after.Name, b, a)
	}
	if len(before.Rows) != len(after.Rows) {
		return Pair{}, fmt.Errorf("eval: %s has %d questions, %s has %d: evaluate both on the same set",
			before.Name, len(before.Rows), after.Name, len(after.Rows))
	}
	b, a := make([]bool, len(before.Rows)), make([]bool, len(after.Rows))
	for i := range before.Rows {
		if before.Rows[i].Sample != after.Rows[i].Sample {
			return Pair{}, fmt.Errorf("eval: row %d is question %s in %s and %s in %s: evaluate both on the same set",
				i+1, before.Rows[i].Sample, before.Name, after.Rows[i].Sample, after.Name)
		}
		b[i], a[i] = before.Rows[i].Strict, after.Rows[i].Strict
	}
	return McNemar(b, a), nil
}

// WriteTable writes summaries as one text table, the first in full and the
// others as one line each unless full is set.
func WriteTable(w io.Writer, summaries []Summary, full bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "policy\tcondition\tquestions\tn\taccuracy\t95 % interval\tmajority\tlenient\tinvalid\tcalls")
	for _, s := range summaries {
		lines := s.Lines
		if !full {
			lines = lines[:1]
		}
		condition := string(s.Condition)
		if s.Split == dataset.OOD {
			condition += ", " + string(s.Split)
		}
		for _, l := range lines {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%.1f\t[%.1f, %.1f]\t%.1f\t%.1f\t%d\t%.2f\n",
				s.Name, condition, strings.ReplaceAll(l.Group, "_", " "), l.Strict.N, 100*l.Strict.Value,
				100*l.Strict.Low, 100*l.Strict.High, 100*l.Majority, 100*l.Lenient, l.Invalid, l.Calls)
		}
	}
	return tw.Flush()
}
