package reward

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"xragent/dataset"
)

func choice(n int) dataset.Prompt {
	options := []string{"Right upper zone", "Left upper zone", "Right lower zone", "Left lower zone", "Both apices", "Retrocardiac"}
	return dataset.Prompt{Kind: dataset.MultipleChoice, Options: options[:n]}
}

type extraction struct{ text, want string } // want "": none

func check(t *testing.T, p dataset.Prompt, extract func(string, dataset.Prompt) (string, bool), cases []extraction) {
	t.Helper()
	for _, c := range cases {
		got, ok := extract(c.text, p)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%q gives %q, %v; want %q", c.text, got, ok, c.want)
		}
	}
}

func TestExtractLetter(t *testing.T) {
	check(t, choice(6), Extract, []extraction{
		// a tag decides, and the last one
		{"<answer>B</answer>", "B"}, {"<answer> B. </answer>", "B"}, {"<answer>(B)</answer>", "B"},
		{"<answer>**B**</answer>", "B"}, {"<answer>B) Left upper zone</answer>", "B"}, {"<answer>B: Left upper zone</answer>", "B"},
		{"<answer>Option E</answer>", "E"}, {"<answer>B Left upper zone</answer>", "B"},
		{"<answer>A</answer> no, <answer>D</answer>", "D"}, {"<answer>A</answer><answer></answer>", ""},
		{"The answer is B. <answer>C</answer>", "C"},
		// inside a tag: no letter, or more than one
		{"<answer></answer>", ""}, {"<answer>b</answer>", ""}, {"<answer>Left lower zone</answer>", ""},
		{"<answer>A nodule</answer>", ""}, {"<answer>A or B</answer>", ""}, {"<answer>A, B</answer>", ""},
		{"<answer>A/B</answer>", ""}, {"<answer>A and C</answer>", ""}, {"<answer>A) one B) two</answer>", ""}, {"<answer>G</answer>", ""},
		{"<answer>B", ""},
		// reasoning and tool blocks do not count
		{"<think>It could be A.</think><answer>C</answer>", "C"}, {"<think><answer>A</answer></think>", ""},
		{"<think>the answer is A", ""}, {"the answer is A</think>\nThe answer is D", "D"},
		{"<evidence>A</evidence><answer>B</answer>", "B"}, {"<evidence>ctr=0.5 normal\n<answer>B</answer>", "B"},
		{"<think><tool_call>x</tool_call><answer>A</answer></think>", ""},
		{`<tool_call>{"region":"A"}</tool_call>`, ""}, {"<tool_response>The answer is A</tool_response>", ""}, {"<assess>B</assess>", ""},
		// phrases
		{"The answer is B", "B"}, {"The correct option is D) Left lower zone.", "D"}, {"**Final answer: F**", "F"},
		{"Answer: **C**", "C"}, {"answer is option E", "E"}, {"the best choice is (A).", "A"}, {`\boxed{C}`, "C"},
		{`The answer is $\boxed{C}$.`, "C"}, {"The answer is A because the apex is clear.", "A"}, {"The answer is A.\nIt is in the right upper zone.", "A"},
		{"Option A is wrong, option C is right. Answer: C", "C"}, {"The answer is unclear at first. Answer: C", "C"},
		{"The incorrect answer is A. The answer is B.", "B"}, {"The answer is B. Yes, the answer is B.", "B"},
		{"The answer is A. Or the answer is B.", ""}, {"The answer is A or B.", ""}, {"The answer is not A.", ""},
		{"The answer is A nodule in the apex.", ""}, {"the answer is b", ""}, {"The answer is Because.", ""},
		// nothing but the letter
		{"C", "C"}, {"C.", "C"}, {"(D)", "D"}, {"**E**", "E"}, {"D) Left lower zone", "D"}, {"b", ""}, {"", ""},
		// prose
		{"A nodule is seen.", ""}, {"A nodule is seen in the right upper zone.", ""}, {"Because the heart is enlarged, effusion is likely.", ""},
		{"I am not able to determine this from the image.", ""}, {"Either B or C, hard to say.", ""},
	})
	check(t, choice(4), Extract, []extraction{{"E", ""}, {"<answer>E</answer>", ""}, {"<answer>D</answer>", "D"}})
}

func TestExtractOtherKinds(t *testing.T) {
	check(t, dataset.Prompt{Kind: dataset.Binary}, Extract, []extraction{
		{"<answer>yes</answer>", "yes"}, {"<answer>No.</answer>", "no"}, {"<answer>Yes, on the left</answer>", "yes"},
		{"The answer is yes", "yes"}, {"Final answer: **No**", "no"}, {"Yes.", "yes"}, {"NO", "no"},
		{"<answer>yes or no</answer>", ""}, {"<answer>no effusion</answer>", ""}, {"<answer>yes, or rather no</answer>", ""},
		{"There is no effusion.", ""}, {"<answer>maybe</answer>", ""}, {"The answer is yes. The answer is no.", ""}, {"<answer>B</answer>", ""},
	})
	check(t, dataset.Prompt{Kind: dataset.Closed}, Extract, []extraction{
		{"<answer>The Left Lower-Zone.</answer>", "left lower zone"}, {"<answer>  </answer>", ""}, {"<answer>1.5 cm</answer>", "1.5 cm"},
		{"The answer is right lung.", "right lung"}, {"PA", "pa"}, {"<answer>a</answer>", "a"},
		{"The film was taken with the patient lying down, so it is AP.", ""},
	})
	check(t, dataset.Prompt{Kind: dataset.Closed, Options: []string{"PA", "AP", "lateral"}}, Extract, []extraction{
		{"<answer>pa</answer>", "pa"}, {"<answer>oblique</answer>", ""}, {"<answer>PA view</answer>", ""},
	})
	check(t, dataset.Prompt{Kind: dataset.Report}, Extract, []extraction{
		{"<answer>volume loss, edema</answer>", "edema, volume loss"},
		{"<answer>there is a nodule in the left upper zone</answer>", ""},
	})
	check(t, dataset.Prompt{Kind: dataset.Report, Options: []string{"effusion", "nodule", "tube malposition"}}, Extract, []extraction{
		{"<answer>nodule, Effusion</answer>", "effusion, nodule"}, {"<answer>nodule; nodule</answer>", "nodule"},
		{"<answer>Normal</answer>", "normal"}, {"<answer>no findings.</answer>", "normal"}, {"<answer>tube_malposition</answer>", "tube malposition"},
		{"<answer>normal, nodule</answer>", ""}, {"<answer>fracture</answer>", ""}, {"<answer></answer>", ""},
	})
}

func TestExtractLenient(t *testing.T) {
	check(t, choice(6), ExtractLenient, []extraction{
		{"<answer>B</answer>", "B"}, {"b", "B"}, {"<answer>c</answer>", "C"}, {"<answer>D", "D"},
		{"<answer>Left lower zone</answer>", "D"}, {"I would go for C here", "C"}, {"I see it in the left upper zone", "B"},
		{"A nodule is seen.", ""}, {"B or C", ""}, {"left upper zone or right lower zone", ""}, {"", ""}, {"<think>B</think>", ""},
	})
	check(t, dataset.Prompt{Kind: dataset.Binary}, ExtractLenient, []extraction{
		{"There is no effusion.", "no"}, {"Yes, there is.", "yes"}, {"yes and no", ""}, {"unclear", ""}, {"<answer>Yes", "yes"},
	})
	check(t, dataset.Prompt{Kind: dataset.Closed}, ExtractLenient, []extraction{{"<answer>PA view", "pa view"}})
}

func TestExtractCases(t *testing.T) {
	f, err := os.Open("../../shared/cases/answer_extraction.jsonl")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("not checked: the shared extraction cases are absent")
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c struct {
			Text, Why string
			Options   []string
			Want      *string
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		p := dataset.Prompt{Kind: dataset.MultipleChoice, Options: choice(6).Options[:len(c.Options)]}
		got, ok := Extract(c.Text, p)
		if ok != (c.Want != nil) || ok && got != *c.Want {
			t.Errorf("%s: %q gives %q, %v", c.Why, c.Text, got, ok)
		}
	}
}

// FuzzExtract holds what callers rely on: an answer is one that the question
// allows, reads back as itself inside a tag, and lenient never contradicts strict.
func FuzzExtract(f *testing.F) {
	for _, s := range []string{"<answer>B</answer>", "The answer is A.", `\boxed{C}`, "<think>A", "yes", "no, never", "normal", "a, b; c", "1..5.", "İ", "(A) or (B)"} {
		f.Add(s, uint8(0))
		f.Add(s, uint8(6))
	}
	f.Fuzz(func(t *testing.T, text string, options uint8) {
		for _, kind := range dataset.Kinds {
			p := choice(int(options % 7))
			p.Kind = kind
			answer, ok := Extract(text, p)
			if ok != (answer != "") {
				t.Fatalf("%s: answer %q, ok %v", kind, answer, ok)
			}
			lenient, lok := ExtractLenient(text, p)
			if ok && lenient != answer {
				t.Fatalf("%s: strict %q, lenient %q", kind, answer, lenient)
			}
			if kind == dataset.MultipleChoice && lok && !slices.Contains(p.Letters(), lenient) {
				t.Fatalf("letter %q of %d options", lenient, len(p.Options))
			}
			if kind == dataset.Binary && lok && lenient != "yes" && lenient != "no" {
				t.Fatalf("binary answer %q", lenient)
			}
			if again, _ := Extract("<answer>"+answer+"</answer>", p); ok && again != answer {
				t.Fatalf("%s: %q reads back as %q", kind, answer, again)
			}
			if strings.TrimSpace(answer) != answer {
				t.Fatalf("%s: answer %q has blanks around it", kind, answer)
			}
		}
	})
}
