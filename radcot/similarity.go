package radcot

import (
	"math"
	"strings"
	"unicode"
)

// tokens splits text into lower-case words; punctuation separates.
func tokens(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
}

// Ratio is the similarity 2M/T of two texts by words: T words in both, M of
// them in matching blocks, found by taking the longest common block first and
// going on to its left and right (Ratcliff and Obershelp 1988; Python's difflib
// without its junk heuristics). Two empty texts have ratio 1.
func Ratio(a, b string) float64 {
	x, y := tokens(a), tokens(b)
	if len(x)+len(y) == 0 {
		return 1
	}
	return 2 * float64(matching(x, y)) / float64(len(x)+len(y))
}

func matching(x, y []string) int {
	if len(x) == 0 || len(y) == 0 {
		return 0
	}
	i, j, n := longestBlock(x, y)
	if n == 0 {
		return 0
	}
	return n + matching(x[:i], y[:j]) + matching(x[i+n:], y[j+n:])
}

// longestBlock returns the first of the longest common blocks, by its place in
// x, then in y.
func longestBlock(x, y []string) (i, j, n int) {
	above := make([]int, len(y)+1) // length of the block that ends at x[k-1], y[l-1]
	for k := range x {
		row := make([]int, len(y)+1)
		for l := range y {
			if x[k] != y[l] {
				continue
			}
			row[l+1] = above[l] + 1
			if row[l+1] > n {
				n = row[l+1]
				i, j = k-n+1, l-n+1
			}
		}
		above = row
	}
	return i, j, n
}

// RougeL is the F1 of the longest common subsequence by words (Lin 2004, with
// β = 1).
func RougeL(a, b string) float64 {
	x, y := tokens(a), tokens(b)
	if len(x) == 0 || len(y) == 0 {
		return 0
	}
	return 2 * float64(subsequence(x, y)) / float64(len(x)+len(y))
}

func subsequence(x, y []string) int {
	above := make([]int, len(y)+1)
	for _, w := range x {
		diagonal := 0
		for l := range y {
			up := above[l+1]
			if y[l] == w {
				above[l+1] = diagonal + 1
			} else {
				above[l+1] = max(up, above[l])
			}
			diagonal = up
		}
	}
	return above[len(y)]
}

// A tfidf weighs words by how few texts of a collection hold them:
// ln((1+N)/(1+df)) + 1.
type tfidf struct {
	texts int
	df    map[string]int
}

func newTFIDF(texts []string) tfidf {
	t := tfidf{len(texts), map[string]int{}}
	for _, text := range texts {
		seen := map[string]bool{}
		for _, w := range tokens(text) {
			if !seen[w] {
				seen[w] = true
				t.df[w]++
			}
		}
	}
	return t
}

// Cosine is the cosine of the two texts' weighted word counts. Sums run in the
// order of words, so that equal texts give equal bits.
func (t tfidf) Cosine(a, b string) float64 {
	x, y := tokens(a), tokens(b)
	cx, cy := counts(x), counts(y)
	dot, xx, yy := 0.0, 0.0, 0.0
	for _, w := range distinct(x) {
		v := cx[w] * t.weight(w)
		xx += v * v
		dot += v * cy[w] * t.weight(w)
	}
	for _, w := range distinct(y) {
		v := cy[w] * t.weight(w)
		yy += v * v
	}
	if xx == 0 || yy == 0 {
		return 0
	}
	return dot / math.Sqrt(xx*yy)
}

func (t tfidf) weight(w string) float64 {
	return math.Log(float64(1+t.texts)/float64(1+t.df[w])) + 1
}

func counts(words []string) map[string]float64 {
	n := map[string]float64{}
	for _, w := range words {
		n[w]++
	}
	return n
}

func distinct(words []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out
}

// sharesRun reports whether a and b have n words in a row in common.
func sharesRun(a, b string, n int) bool {
	x, y := tokens(a), tokens(b)
	runs := map[string]bool{}
	for i := 0; i+n <= len(y); i++ {
		runs[strings.Join(y[i:i+n], " ")] = true
	}
	for i := 0; i+n <= len(x); i++ {
		if runs[strings.Join(x[i:i+n], " ")] {
			return true
		}
	}
	return false
}
