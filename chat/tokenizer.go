package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Tokenizer is a byte-level byte-pair encoder as Qwen models use it: NFC
// normalisation, the Qwen split into words, merges by rank, and added tokens
// that are found in the text before all else. It gives the ids that Hugging
// Face tokenizers gives for the same tokenizer.json. It is safe for concurrent
// use.
type Tokenizer struct {
	tokens [][]byte         // by id; what an id stands for
	ids    map[string]int32 // of added tokens by content, of others by bytes
	bytes  [256]int32       // id of each single byte
	merges map[pair]merge
	added  [256][]addedToken // by first byte, longest first
	isMark []bool            // by id: an added token
	nfc    bool
	split  func(text string) []string
}

type pair struct{ left, right int32 }

type merge struct{ rank, id int32 }

type addedToken struct {
	content string
	id      int32
}

// maxVocab bounds the ids of a tokenizer.json; Qwen3's lie below 152,000.
const maxVocab = 1 << 20

// tokenizerFile is what this package reads and writes of a tokenizer.json.
type tokenizerFile struct {
	Version       string      `json:"version"`
	Truncation    any         `json:"truncation"`
	Padding       any         `json:"padding"`
	AddedTokens   []addedFile `json:"added_tokens"`
	Normalizer    *component  `json:"normalizer"`
	PreTokenizer  *component  `json:"pre_tokenizer"`
	PostProcessor *component  `json:"post_processor"`
	Decoder       *component  `json:"decoder"`
	Model         modelFile   `json:"model"`
}

type addedFile struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type component struct {
	Type           string         `json:"type"`
	PreTokenizers  []component    `json:"pretokenizers,omitempty"`
	Pattern        *patternFile   `json:"pattern,omitempty"`
	Behavior       string         `json:"behavior,omitempty"`
	Invert         *bool          `json:"invert,omitempty"`
	AddPrefixSpace *bool          `json:"add_prefix_space,omitempty"`
	TrimOffsets    *bool          `json:"trim_offsets,omitempty"`
	UseRegex       *bool          `json:"use_regex,omitempty"`
	SpecialTokens  map[string]any `json:"special_tokens,omitempty"`
}

type patternFile struct {
	Regex string
}

type modelFile struct {
	Type         string           `json:"type"`
	Dropout      *float64         `json:"dropout"`
	UnkToken     *string          `json:"unk_token"`
	Prefix       string           `json:"continuing_subword_prefix"`
	Suffix       string           `json:"end_of_word_suffix"`
	FuseUnk      bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
	IgnoreMerges bool             `json:"ignore_merges"`
	Vocab        map[string]int32 `json:"vocab"`
	Merges       []mergeText      `json:"merges"`
}

// mergeText is a merge; it reads both forms, "a b" and ["a", "b"], and writes
// the first, which every version of Hugging Face tokenizers reads.
type mergeText [2]string

func (m mergeText) MarshalText() ([]byte, error) { return []byte(m[0] + " " + m[1]), nil }

func (m *mergeText) UnmarshalJSON(data []byte) error {
	var both [2]string
	if json.Unmarshal(data, &both) == nil {
		*m = both
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("merge %s is neither a string nor a pair", data)
	}
	left, right, ok := strings.Cut(text, " ")
	if !ok {
		return fmt.Errorf("merge %q has no space", text)
	}
	*m = mergeText{left, right}
	return nil
}

// ParseTokenizer reads a tokenizer.json. It refuses, by name, whatever would
// make its ids differ from Hugging Face's.
func ParseTokenizer(data []byte) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := f.supported(); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t := &Tokenizer{nfc: f.Normalizer != nil, ids: map[string]int32{}, merges: make(map[pair]merge, len(f.Model.Merges))}
	var err error
	if t.split, err = splitter(f.pattern()); err != nil {
		return nil, fmt.Errorf("tokenizer.json: field pre_tokenizer: %w", err)
	}
	for _, read := range []func(*tokenizerFile) error{t.readVocab, t.readMerges, t.readAdded} {
		if err := read(&f); err != nil {
			return nil, fmt.Errorf("tokenizer.json: %w", err)
		}
	}
	return t, nil
}

// supported reports the first part of f that this package does not implement.
func (f *tokenizerFile) supported() error {
	m := f.Model
	switch {
	case m.Type != "BPE":
		return fmt.Errorf("field model.type is %q, want BPE", m.Type)
	case m.unsupported() != "":
		return fmt.Errorf("field model.%s is not supported; use a Qwen tokenizer", m.unsupported())
	case f.Normalizer != nil && f.Normalizer.Type != "NFC":
		return fmt.Errorf("field normalizer is %q, want NFC or none", f.Normalizer.Type)
	case f.pattern() == "":
		return fmt.Errorf("field pre_tokenizer is not a Split by an isolated regex followed by ByteLevel; use a Qwen tokenizer")
	case f.PostProcessor.adds():
		return fmt.Errorf("field post_processor is %q and adds ids; want ByteLevel, an empty template, or none", f.PostProcessor.typ())
	case f.Decoder.typ() != "ByteLevel":
		return fmt.Errorf("field decoder is %q, want ByteLevel", f.Decoder.typ())
	}
	return nil
}

// adds reports whether a post-processor changes ids. transformers 5 saves an
// empty template.
func (c *component) adds() bool {
	switch c.typ() {
	case "", "ByteLevel":
		return false
	case "TemplateProcessing":
		return len(c.SpecialTokens) > 0
	}
	return true
}

// typ is "" for what is absent.
func (c *component) typ() string {
	if c == nil {
		return ""
	}
	return c.Type
}

// unsupported names the first field of a BPE model that this package lacks.
func (m *modelFile) unsupported() string {
	switch {
	case m.ByteFallback:
		return "byte_fallback"
	case m.IgnoreMerges:
		return "ignore_merges"
	case m.Dropout != nil && *m.Dropout != 0:
		return "dropout"
	case m.Prefix != "":
		return "continuing_subword_prefix"
	case m.Suffix != "":
		return "end_of_word_suffix"
	}
	return ""
}

// pattern returns the regex of a Qwen pre-tokenizer, "" for any other.
func (f *tokenizerFile) pattern() string {
	p := f.PreTokenizer
	if p == nil || p.Type != "Sequence" || len(p.PreTokenizers) != 2 {
		return ""
	}
	split, level := p.PreTokenizers[0], p.PreTokenizers[1]
	is := func(b *bool) bool { return b != nil && *b }
	if split.Type != "Split" || split.Behavior != "Isolated" || is(split.Invert) || split.Pattern == nil ||
		level.Type != "ByteLevel" || is(level.AddPrefixSpace) || level.UseRegex == nil || *level.UseRegex {
		return ""
	}
	return split.Pattern.Regex
}

func (t *Tokenizer) readVocab(f *tokenizerFile) error {
	size := len(f.Model.Vocab)
	for _, a := range f.AddedTokens {
		size = max(size, int(a.ID)+1)
	}
	if size > maxVocab {
		return fmt.Errorf("ids up to %d, want at most %d", size-1, maxVocab)
	}
	t.tokens, t.isMark = make([][]byte, size), make([]bool, size)
	for text, id := range f.Model.Vocab {
		raw, err := fromByteLevel(text)
		switch {
		case err != nil:
			return fmt.Errorf("field model.vocab: token %q: %w", text, err)
		case id < 0 || int(id) >= size || t.tokens[id] != nil:
			return fmt.Errorf("field model.vocab: token %q has id %d, which is out of range [0, %d) or taken", text, id, size)
		}
		t.tokens[id] = raw
		t.ids[string(raw)] = id
	}
	for b := range t.bytes {
		id, ok := t.ids[string([]byte{byte(b)})]
		if !ok {
			return fmt.Errorf("field model.vocab: no token for byte 0x%02x", b)
		}
		t.bytes[b] = id
	}
	return nil
}

func (t *Tokenizer) readMerges(f *tokenizerFile) error {
	for rank, m := range f.Model.Merges {
		left, okLeft := f.Model.Vocab[m[0]]
		right, okRight := f.Model.Vocab[m[1]]
		id, ok := f.Model.Vocab[m[0]+m[1]]
		if !ok || !okLeft || !okRight {
			return fmt.Errorf("field model.merges: merge %d of %q and %q is not made of tokens", rank, m[0], m[1])
		}
		if _, twice := t.merges[pair{left, right}]; !twice {
			t.merges[pair{left, right}] = merge{int32(rank), id}
		}
	}
	return nil
}

func (t *Tokenizer) readAdded(f *tokenizerFile) error {
	for _, a := range f.AddedTokens {
		switch {
		case a.Content == "" || a.ID < 0:
			return fmt.Errorf("field added_tokens: token %q with id %d", a.Content, a.ID)
		case a.SingleWord || a.LStrip || a.RStrip || a.Normalized:
			return fmt.Errorf("field added_tokens: token %q: single_word, lstrip, rstrip and normalized are not supported", a.Content)
		case t.tokens[a.ID] != nil && string(t.tokens[a.ID]) != a.Content:
			return fmt.Errorf("field added_tokens: id %d of token %q is taken", a.ID, a.Content)
		}
		t.tokens[a.ID], t.ids[a.Content], t.isMark[a.ID] = []byte(a.Content), a.ID, true
		first := &t.added[a.Content[0]]
		*first = append(*first, addedToken{a.Content, a.ID})
		slices.SortStableFunc(*first, func(x, y addedToken) int { return len(y.content) - len(x.content) })
	}
	return nil
}

// Vocab returns the number of ids, which are [0, Vocab).
func (t *Tokenizer) Vocab() int { return len(t.tokens) }

// ID returns the id of an added token by its content, or of any other token by
// the bytes it stands for.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Encode returns the ids of text. Added tokens are recognised in it, the
// leftmost first and of several the longest: never pass it text that must not
// be able to end a turn or stand for an image; see [Tokenizer.EncodePlain].
func (t *Tokenizer) Encode(text string) []int32 {
	ids := make([]int32, 0, len(text)/3+1)
	for {
		start, token := t.nextAdded(text)
		ids = t.appendPlain(ids, text[:start])
		if token.content == "" {
			return ids
		}
		ids = append(ids, token.id)
		text = text[start+len(token.content):]
	}
}

// nextAdded finds the first added token in text; without one it returns
// len(text) and the zero token.
func (t *Tokenizer) nextAdded(text string) (start int, token addedToken) {
	for i := range len(text) {
		for _, a := range t.added[text[i]] {
			if strings.HasPrefix(text[i:], a.content) {
				return i, a
			}
		}
	}
	return len(text), token
}

// EncodePlain returns the ids of text in which no added token is recognised:
// "<|im_end|>" becomes ids for its characters.
func (t *Tokenizer) EncodePlain(text string) []int32 {
	return t.appendPlain(make([]int32, 0, len(text)/3+1), text)
}

func (t *Tokenizer) appendPlain(ids []int32, text string) []int32 {
	if t.nfc {
		text = nfc(text)
	}
	for _, word := range t.split(text) {
		ids = t.appendWord(ids, word)
	}
	return ids
}

// appendWord merges a word's bytes, lowest rank first and of equal ranks the
// leftmost.
func (t *Tokenizer) appendWord(ids []int32, word string) []int32 {
	if len(word) >= longWord {
		return t.appendLong(ids, word)
	}
	return t.appendShort(ids, word)
}

// appendShort merges in place.
func (t *Tokenizer) appendShort(ids []int32, word string) []int32 {
	start := len(ids)
	for i := range len(word) {
		ids = append(ids, t.bytes[word[i]])
	}
	for {
		piece, at, best := ids[start:], -1, merge{}
		for i := range len(piece) - 1 {
			m, ok := t.merges[pair{piece[i], piece[i+1]}]
			if ok && (at < 0 || m.rank < best.rank) {
				at, best = i, m
			}
		}
		if at < 0 {
			return ids
		}
		piece[at] = best.id
		ids = slices.Delete(ids, start+at+1, start+at+2)
	}
}

// Decode returns the text of ids, added tokens included. Ids that stand for
// nothing are left out. Bytes that are not UTF-8 become U+FFFD, one for as many
// of them as begin a rune, as Hugging Face (and Unicode, chapter 3.9) has it.
func (t *Tokenizer) Decode(ids []int32) string {
	var out []byte
	for _, id := range ids {
		if id >= 0 && int(id) < len(t.tokens) {
			out = append(out, t.tokens[id]...)
		}
	}
	return lossy(out)
}

func lossy(raw []byte) string {
	if utf8.Valid(raw) {
		return string(raw)
	}
	var w strings.Builder
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		if r == utf8.RuneError && size == 1 {
			size = truncated(raw)
		}
		w.WriteRune(r)
		raw = raw[size:]
	}
	return w.String()
}

// truncated returns how many of the first bytes of raw, which are no rune,
// could begin one; at least 1.
func truncated(raw []byte) int {
	for n := min(3, len(raw)); n > 1; n-- {
		if beginsRune(raw[:n]) {
			return n
		}
	}
	return 1
}

// beginsRune reports whether some continuation makes a rune of start.
func beginsRune(start []byte) bool {
	for _, fill := range []byte{0x80, 0xbf} { // the least and the greatest
		whole := append(bytes.Clone(start), fill, fill, fill)
		if _, size := utf8.DecodeRune(whole); size > len(start) {
			return true
		}
	}
	return false
}
