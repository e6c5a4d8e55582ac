package chat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// realQwen names a published tokenizer.json of a Qwen; learner/parity/run.sh fetches one.
const realQwen = "XRAGENT_QWEN_TOKENIZER"

// qwen returns a published tokenizer, or skips.
func qwen(t testing.TB) (path string, tok *Tokenizer) {
	t.Helper()
	if path = os.Getenv(realQwen); path == "" {
		t.Skipf("%s is not set: our ids were not compared on a published tokenizer", realQwen)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if tok, err = ParseTokenizer(data); err != nil {
		t.Fatal(err)
	}
	return path, tok
}

// ask puts questions, texts or ids, to Hugging Face tokenizers.
func ask(t *testing.T, tokenizer string, questions []any) (answers []json.RawMessage) {
	t.Helper()
	python := os.Getenv("XRAGENT_PYTHON")
	if python == "" {
		t.Skip("XRAGENT_PYTHON is not set: our ids were not compared with Hugging Face tokenizers'")
	}
	var in, errs bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, q := range questions {
		if err := enc.Encode(q); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "../learner/check_tokenizer.py", tokenizer)
	cmd.Stdin, cmd.Stderr = &in, &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		answers = append(answers, json.RawMessage(slices.Clone(lines.Bytes())))
	}
	if len(answers) != len(questions)+1 {
		t.Fatalf("%d answers to %d questions", len(answers)-1, len(questions))
	}
	t.Logf("tokenizers %s", answers[0])
	return answers[1:]
}

// A splitting asks where the words of a text end, in runes.
type splitting struct {
	Text string `json:"split"`
}

func (s splitting) of(tok *Tokenizer) []int {
	ends, end := []int{}, 0
	for _, w := range tok.split(nfc(s.Text)) {
		end += utf8.RuneCountInString(w)
		ends = append(ends, end)
	}
	return ends
}

// compareWith holds our answers against tokenizers'.
func compareWith(t *testing.T, path string, tok *Tokenizer, questions []any) {
	t.Helper()
	differ := 0
	for i, raw := range ask(t, path, questions) {
		var got, want string
		switch q := questions[i].(type) {
		case string:
			got, want = fmt.Sprint(tok.Encode(q)), strings.ReplaceAll(string(raw), ",", "")
		case splitting:
			got, want = fmt.Sprint(q.of(tok)), strings.ReplaceAll(string(raw), ",", "")
		case []int32:
			got = tok.Decode(q)
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
		}
		if got != want {
			if differ++; differ <= 20 {
				t.Errorf("%+q: %+q, want %+q", questions[i], got, want)
			}
		}
	}
	t.Logf("%d questions, %d differences", len(questions), differ)
}

// TestQwenEveryRune puts every code point that may be assigned between letters,
// digits, spaces and marks, where the classes of the split and of normalisation
// show.
func TestQwenEveryRune(t *testing.T) {
	path, tok := qwen(t)
	var questions []any
	var w strings.Builder
	n := 0
	for r := rune(1); r <= utf8.MaxRune; r++ {
		if !utf8.ValidRune(r) || r > 0x3ffff && r < 0xe0000 || r > 0xe0fff && r < utf8.MaxRune-100 {
			continue
		}
		fmt.Fprintf(&w, "a%[1]cb %[1]c1%[1]c\u0301,%[1]c\u03341\u0345%[1]c%[1]c  %[1]c\n", r)
		if n++; n%16 == 0 {
			questions = append(questions, splitting{w.String()}, w.String())
			w.Reset()
		}
	}
	compareWith(t, path, tok, append(questions, splitting{w.String()}, w.String()))
}

// TestQwenTexts holds 100,000 texts of many kinds, and as many decodings of
// their ids and of ids at random.
func TestQwenTexts(t *testing.T) {
	path, tok := qwen(t)
	r := rand.New(rand.NewPCG(4, 2))
	source := newTextSource(t, tok)
	var questions []any
	for range 100_000 {
		text := source.text(r)
		ids := tok.Encode(text)
		if r.IntN(4) == 0 {
			ids = randomIDs(r, tok.Vocab())
		}
		questions = append(questions, text, ids)
	}
	compareWith(t, path, tok, questions)
}

// TestQwenOtherPattern holds texts under a split that has no scanner of its own:
// that of newer Qwen tokenizers, in which marks belong to letters.
func TestQwenOtherPattern(t *testing.T) {
	path, _ := qwen(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const marks = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`
	old, err := json.Marshal(qwenPattern)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(data, old[1:len(old)-1], []byte(marks), 1)
	if bytes.Equal(changed, data) {
		t.Fatal("the tokenizer has another pattern")
	}
	tok, err := ParseTokenizer(changed)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "tokenizer.json")
	writeTo(t, other, changed)
	r := rand.New(rand.NewPCG(6, 2))
	source := newTextSource(t, tok)
	var questions []any
	for range 10_000 {
		questions = append(questions, source.text(r))
	}
	compareWith(t, other, tok, questions)
}

// TestQwenTemplate holds the doctor's verdict on a tokenizer in which the
// protocol's tags are plain text.
func TestQwenTemplate(t *testing.T) {
	path, _ := qwen(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckTemplate(Template); err != nil {
		t.Error(err)
	}
}

// randomIDs draws ids, a few of them beyond the vocabulary; bytes among them
// are often no UTF-8.
func randomIDs(r *rand.Rand, vocab int) []int32 {
	ids := make([]int32, r.IntN(12))
	for i := range ids {
		ids[i] = int32(r.IntN(vocab + 300))
		if r.IntN(2) == 0 {
			ids[i] = int32(r.IntN(256))
		}
	}
	return ids
}

// A textSource draws texts of the kinds that a policy or a data set may hold.
type textSource struct {
	corpora []string
	pieces  []string
	alphas  [][]rune
}

func newTextSource(t *testing.T, tok *Tokenizer) textSource {
	t.Helper()
	s := textSource{pieces: []string{"'s", "'RE", "'ſ", "'LL", "  ", "\n\n", " \n ", "\r\n", "don't", "<|im_", "</think", "e\u0301", "\u0301\u0323", "0.512", "12,345", "...", "    ", "\t\t"}}
	for _, name := range []string{"testdata/corpus.txt", "testdata/text.txt", "tokenizer.go", "resize.go", "assets/chat_template.jinja", "../learner/check_tokenizer.py"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s.corpora = append(s.corpora, string(text))
	}
	for _, added := range tok.added {
		for _, a := range added {
			s.pieces = append(s.pieces, a.content)
		}
	}
	for _, span := range [][2]rune{{0, 0x7f}, {0x80, 0x24f}, {0x300, 0x36f}, {0x370, 0x7ff}, {0x900, 0xdff}, {0x1100, 0x11ff}, {0x1e00, 0x206f}, {0x2070, 0x2bff}, {0x3000, 0x30ff}, {0x4e00, 0x9fff},
		{0xac00, 0xd7a3}, {0xf900, 0xffff}, {0x1d400, 0x1d7ff}, {0x1f300, 0x1faff}, {0x20000, 0x2fa1f}, {0, utf8.MaxRune}} {
		var alpha []rune
		for c := span[0]; c <= span[1]; c += 1 + (span[1]-span[0])/5000 {
			if utf8.ValidRune(c) {
				alpha = append(alpha, c)
			}
		}
		s.alphas = append(s.alphas, alpha)
	}
	return s
}

// text joins up to five runs: of a corpus, of one script, of any code points,
// of awkward pieces, of white space.
func (s textSource) text(r *rand.Rand) string {
	var w strings.Builder
	for range 1 + r.IntN(5) {
		switch r.IntN(6) {
		case 0, 1:
			corpus := s.corpora[r.IntN(len(s.corpora))]
			at := r.IntN(len(corpus))
			w.WriteString(strings.ToValidUTF8(corpus[at:min(len(corpus), at+r.IntN(120))], ""))
		case 2:
			alpha, n := s.alphas[r.IntN(len(s.alphas))], r.IntN(20)
			if r.IntN(100) == 0 {
				n = 3 * longWord
			}
			for range n {
				w.WriteRune(alpha[r.IntN(len(alpha))])
			}
		case 3:
			for range r.IntN(12) {
				if c := rune(r.IntN(utf8.MaxRune)); utf8.ValidRune(c) {
					w.WriteRune(c)
				}
			}
		case 4:
			w.WriteString(s.pieces[r.IntN(len(s.pieces))])
		default:
			for range r.IntN(5) {
				w.WriteByte(" \n\t\r "[r.IntN(5)])
			}
		}
	}
	return w.String()
}
