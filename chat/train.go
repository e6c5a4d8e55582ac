package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// An Added is a token that is found in text before all else. Control tokens
// are hidden by decoders that skip special tokens; the others are text.
type Added struct {
	Content string
	Control bool
}

// AddedTokens are the added tokens of our own tokenizers, in the order of their
// ids. Qwen's come first, under their own names. The protocol's tags stand here
// too, not among the trained merges: a tag must be one id whatever stands
// before and behind it, so that a reward never hangs on how a bracket was cut.
var AddedTokens = []Added{
	{"<|endoftext|>", true}, {"<|im_start|>", true}, {"<|im_end|>", true},
	{"<|vision_start|>", true}, {"<|vision_end|>", true}, {"<|image_pad|>", true}, {"<|video_pad|>", true},
	{"<tool_call>", false}, {"</tool_call>", false}, {"<tool_response>", false}, {"</tool_response>", false},
	{"<think>", false}, {"</think>", false},
	{"<tools>", false}, {"</tools>", false},
	{"<assess>", false}, {"</assess>", false},
	{"<measurements>", false}, {"</measurements>", false},
	{"<evidence>", false}, {"</evidence>", false},
	{"<answer>", false}, {"</answer>", false},
}

// TrainBPE learns a byte-level vocabulary of exactly vocab ids (256 bytes,
// merges, added tokens) from texts and returns it as a tokenizer.json with
// Qwen's normaliser and splits. The most frequent pair is merged first; of
// equal ones the pair whose bytes sort first, so equal texts give equal files.
func TrainBPE(texts iter.Seq[string], vocab int, added []Added) ([]byte, error) {
	want := vocab - 256 - len(added)
	if want < 0 {
		return nil, fmt.Errorf("vocabulary of %d ids: 256 bytes and %d added tokens do not fit", vocab, len(added))
	}
	l := newLearner(texts, added)
	for len(l.tokens) < vocab-len(added) {
		if !l.mergeBest() {
			return nil, fmt.Errorf("vocabulary of %d ids: the text has pairs for only %d merges, want %d; give more text", vocab, len(l.tokens)-256, want)
		}
	}
	return l.file(added)
}

// A bpeLearner holds the words of a text as ids, and how often each pair occurs.
type bpeLearner struct {
	tokens [][]byte
	ids    map[string]int32 // of tokens by bytes: two merges may give the same token
	merges []pair
	words  []word
	counts map[pair]int
	where  map[pair]map[int]bool // words that may contain the pair
}

type word struct {
	ids   []int32
	count int
}

func newLearner(texts iter.Seq[string], added []Added) *bpeLearner {
	l := &bpeLearner{ids: map[string]int32{}, counts: map[pair]int{}, where: map[pair]map[int]bool{}}
	for _, b := range byteOrder() {
		l.token([]byte{b})
	}
	counts := countWords(texts, added)
	for _, text := range sortedKeys(counts) {
		w := word{count: counts[text]}
		for i := range len(text) {
			w.ids = append(w.ids, l.ids[text[i:i+1]])
		}
		l.words = append(l.words, w)
		l.count(len(l.words)-1, w.count)
	}
	return l
}

// countWords splits what lies between added tokens into words.
func countWords(texts iter.Seq[string], added []Added) map[string]int {
	cut := make([]string, 0, 2*len(added))
	for _, a := range added {
		cut = append(cut, a.Content, "\x00")
	}
	replacer := strings.NewReplacer(cut...)
	counts := map[string]int{}
	for text := range texts {
		for part := range strings.SplitSeq(replacer.Replace(text), "\x00") {
			for _, w := range splitQwen(nfc(part)) {
				counts[w]++
			}
		}
	}
	return counts
}

func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// count adds n to the count of every pair of word i.
func (l *bpeLearner) count(i, n int) {
	ids := l.words[i].ids
	for j := range len(ids) - 1 {
		p := pair{ids[j], ids[j+1]}
		l.counts[p] += n
		if l.where[p] == nil {
			l.where[p] = map[int]bool{}
		}
		l.where[p][i] = true
	}
}

// mergeBest makes a token of the best pair; false when no pair occurs twice.
func (l *bpeLearner) mergeBest() bool {
	best, most := pair{}, 1
	for p, n := range l.counts {
		if n > most || n == most && n > 1 && l.less(p, best) {
			best, most = p, n
		}
	}
	if most < 2 {
		return false
	}
	id := l.token(slices.Concat(l.tokens[best.left], l.tokens[best.right]))
	l.merges = append(l.merges, best)
	for i := range l.where[best] {
		l.count(i, -l.words[i].count)
		l.words[i].ids = replacePair(l.words[i].ids, best, id)
		l.count(i, l.words[i].count)
	}
	delete(l.counts, best)
	delete(l.where, best)
	return true
}

// token returns the id of raw, a new one where it has none.
func (l *bpeLearner) token(raw []byte) int32 {
	id, ok := l.ids[string(raw)]
	if !ok {
		id = int32(len(l.tokens))
		l.tokens = append(l.tokens, raw)
		l.ids[string(raw)] = id
	}
	return id
}

func (l *bpeLearner) less(a, b pair) bool {
	if c := bytes.Compare(l.tokens[a.left], l.tokens[b.left]); c != 0 {
		return c < 0
	}
	return bytes.Compare(l.tokens[a.right], l.tokens[b.right]) < 0
}

func replacePair(ids []int32, p pair, id int32) []int32 {
	out := ids[:0]
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == p.left && ids[i+1] == p.right {
			out = append(out, id)
			i++
			continue
		}
		out = append(out, ids[i])
	}
	return out
}

// file writes what was learned as a tokenizer.json.
func (l *bpeLearner) file(added []Added) ([]byte, error) {
	no, yes := false, true
	level := component{Type: "ByteLevel", AddPrefixSpace: &no, TrimOffsets: &no, UseRegex: &no}
	f := tokenizerFile{
		Version:    "1.0",
		Normalizer: &component{Type: "NFC"},
		PreTokenizer: &component{Type: "Sequence", PreTokenizers: []component{
			{Type: "Split", Pattern: &patternFile{qwenPattern}, Behavior: "Isolated", Invert: &no}, level}},
		Decoder: &component{Type: "ByteLevel", AddPrefixSpace: &no, TrimOffsets: &yes, UseRegex: &yes},
		Model:   modelFile{Type: "BPE", Vocab: make(map[string]int32, len(l.tokens))},
	}
	for id, raw := range l.tokens {
		f.Model.Vocab[toByteLevel(raw)] = int32(id)
	}
	for _, m := range l.merges {
		f.Model.Merges = append(f.Model.Merges, mergeText{toByteLevel(l.tokens[m.left]), toByteLevel(l.tokens[m.right])})
	}
	for i, a := range added {
		f.AddedTokens = append(f.AddedTokens, addedFile{ID: int32(len(l.tokens) + i), Content: a.Content, Special: a.Control})
	}
	var w bytes.Buffer
	enc := json.NewEncoder(&w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(f)
	return w.Bytes(), err
}
