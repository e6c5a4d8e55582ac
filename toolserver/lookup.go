package toolserver

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"xragent/rollout"
)

// LookupArgs are the arguments of evidence_lookup.
type LookupArgs struct {
	Query string `json:"query" jsonschema:"a condition, sign, threshold or protocol code"`
}

// An Entry is one short statement of the knowledge base.
type Entry struct {
	Title  string `json:"title"`
	Terms  string `json:"terms"` // further words that it should be found by
	Text   string `json:"text"`  // at most 40 words
	Source string `json:"source"`
}

//go:embed knowledge.json
var knowledgeFile []byte

// maxQuery bounds a query, in bytes.
const maxQuery = 400

// lookupTool answers from the base, or, where m is a server, from that. A site's
// protocols go before both.
func lookupTool(base *knowledge, protocols func(string) (string, bool), m *model) Tool[LookupArgs, Entry] {
	return Tool[LookupArgs, Entry]{
		Name: lookupName, Description: "look up knowledge", Version: m.version() + "/" + base.version, Model: m,
		Run: func(ctx context.Context, s *Study, in LookupArgs) (Entry, error) {
			if strings.TrimSpace(in.Query) == "" || len(in.Query) > maxQuery {
				return Entry{}, argumentErrorf("query has %d bytes; want 1 to %d", len(in.Query), maxQuery)
			}
			if e, ok := findProtocol(in.Query, protocols); ok {
				return e, nil
			}
			if m != nil {
				return m.lookup(ctx, in)
			}
			return base.best(in.Query), nil
		},
		Show: func(e Entry) rollout.Observation { return rollout.Observation{Text: e.Text} },
	}
}

// lookupSystem asks a server for what a textbook would say, and no more.
const lookupSystem = "You are a textbook of chest radiology. State what is generally known about the subject, in at most 40 words. " +
	"You do not know any patient, image or question: do not diagnose, and do not choose between answers."

// lookup asks a server for knowledge. It is sent the subject alone: what reads
// like the answers of a question is cut off, so that no server can choose one.
func (m *model) lookup(ctx context.Context, in LookupArgs) (Entry, error) {
	in.Query = withoutOptions(in.Query)
	if in.Query == "" {
		return Entry{}, argumentErrorf("query holds nothing but answers to choose from; ask for a condition, sign or threshold")
	}
	out, err := m.ask(ctx, in, nil, lookupSystem, in.Query)
	if err == nil && strings.TrimSpace(out.Text) == "" {
		err = m.lacks("text")
	}
	return Entry{Title: in.Query, Text: firstWords(out.Text, 40), Source: "server"}, err
}

// Where answers to choose from begin: behind a heading, or at an A that a B
// follows.
var (
	optionsHeading = regexp.MustCompile(`(?i)\b(answer )?(options|choices|answers)\s*:`)
	optionsList    = regexp.MustCompile(`(?s)(^|[\s;,(\[])[Aa][).:\]]\s.*[\s;,(\[][Bb][).:\]]\s`)
)

func withoutOptions(query string) string {
	for _, re := range []*regexp.Regexp{optionsHeading, optionsList} {
		if at := re.FindStringIndex(query); at != nil {
			query = query[:at[0]]
		}
	}
	return strings.TrimSpace(query)
}

// findProtocol looks for a protocol code among the query's words.
func findProtocol(query string, protocols func(string) (string, bool)) (Entry, bool) {
	if protocols == nil {
		return Entry{}, false
	}
	for word := range strings.FieldsSeq(query) {
		word = strings.Trim(word, ".,;:?!()[]\"'")
		for _, code := range []string{word, strings.ToUpper(word)} {
			if text, ok := protocols(code); ok && code != "" {
				return Entry{Title: code, Text: firstWords(text, 40), Source: "site protocol"}, true
			}
		}
	}
	return Entry{}, false
}

func firstWords(text string, n int) string {
	words := strings.Fields(text)
	return strings.Join(words[:min(n, len(words))], " ")
}

// knowledge ranks entries by BM25 (Robertson and Zaragoza 2009, "The
// Probabilistic Relevance Framework", equation 3.15, with k1 = 1.2, b = 0.75).
type knowledge struct {
	version string
	entries []Entry
	counts  []map[string]float64 // term frequency by entry
	lengths []float64
	mean    float64        // of lengths
	df      map[string]int // entries that hold the term
}

func readKnowledge(file []byte) (*knowledge, error) {
	k := &knowledge{df: map[string]int{}, version: fmt.Sprintf("%.12x", keyOf(file))}
	if err := json.Unmarshal(file, &k.entries); err != nil {
		return nil, fmt.Errorf("knowledge base: %w", err)
	}
	for i, e := range k.entries {
		if e.Title == "" || e.Text == "" || e.Source == "" || len(strings.Fields(e.Text)) > 40 {
			return nil, fmt.Errorf("knowledge base: entry %d (%q): want title, source and a text of 1 to 40 words", i, e.Title)
		}
		k.index(e)
	}
	return k, nil
}

func (k *knowledge) index(e Entry) {
	counts := map[string]float64{}
	n := 0.
	// A title says what an entry is about, so it counts three times.
	for _, field := range []struct {
		text   string
		weight float64
	}{{e.Title, 3}, {e.Terms, 2}, {e.Text, 1}} {
		for _, t := range terms(field.text) {
			if counts[t] == 0 {
				k.df[t]++
			}
			counts[t] += field.weight
			n += field.weight
		}
	}
	k.counts, k.lengths = append(k.counts, counts), append(k.lengths, n)
	k.mean += (n - k.mean) / float64(len(k.lengths))
}

// best returns the entry with the query for its title, or else the
// highest-ranked one; of equals the first. A query that shares no term with any entry gets an entry that says so.
func (k *knowledge) best(query string) Entry {
	words := terms(query)
	slices.Sort(words)
	words = slices.Compact(words)
	best, top := Entry{Text: "no entry"}, 0.
	for i, e := range k.entries {
		if strings.EqualFold(strings.TrimSpace(query), e.Title) {
			return e
		}
		if s := k.score(i, words); s > top {
			best, top = k.entries[i], s
		}
	}
	return best
}

func (k *knowledge) score(i int, words []string) float64 {
	const k1, b = 1.2, 0.75
	norm := k1 * (1 - b + b*k.lengths[i]/k.mean)
	sum := 0.
	for _, w := range words {
		tf, df := k.counts[i][w], float64(k.df[w])
		if tf > 0 {
			idf := math.Log(1 + (float64(len(k.entries))-df+0.5)/(df+0.5))
			sum += idf * tf * (k1 + 1) / (tf + norm)
		}
	}
	return sum
}

var stopWords = strings.Fields("a an and are as at be by for from has if in is it of on or that the this to what when which with does do how")

// terms splits text into lower-case words without stop words, plural s, and
// the British "oe" and "ae", so that both spellings meet.
func terms(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	out := words[:0]
	for _, w := range words {
		if slices.Contains(stopWords, w) {
			continue
		}
		w = strings.NewReplacer("oe", "e", "ae", "e").Replace(w)
		if len(w) > 3 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") && !strings.HasSuffix(w, "is") {
			w = w[:len(w)-1]
		}
		out = append(out, w)
	}
	return out
}
