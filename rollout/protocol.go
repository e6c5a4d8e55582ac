package rollout

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The protocol's text forms. Tool calls and responses use Qwen's own tags, so
// that a Qwen base model knows them:
//
//	turn 1   <assess>…</assess>
//	         <tool_call>
//	         {"name": "roi_crop", "arguments": {"region": "left lower zone"}}
//	         </tool_call>
//	turn 2   <think>…</think>
//	         <evidence>ctr=0.512 borderline; shift=0.004 normal</evidence>
//	         <answer>B</answer>
var (
	assessBlock = regexp.MustCompile(`(?s)^<assess>(.*?)</assess>`)
	callBlock   = regexp.MustCompile(`(?s)^<tool_call>(.*?)</tool_call>`)
	thinkBlock  = regexp.MustCompile(`(?s)^<think>(.*?)</think>`)
	evidence    = regexp.MustCompile(`^<evidence>([^\n]*?)</evidence>`)
	answerBlock = regexp.MustCompile(`(?s)^<answer>(.*?)</answer>`)
)

// A Triage is turn 1 as written by the policy.
type Triage struct {
	Assessment string
	Calls      []Call // Tool and Arguments set; Status CallMalformed where the JSON is not a call
	Problem    string // why the turn is not well formed; "" when it is
}

// ParseTriage reads turn 1: one <assess> block, then only <tool_call> blocks.
// It keeps every call that it can find, also in a malformed turn.
func ParseTriage(text string) Triage {
	var t Triage
	rest := strings.TrimSpace(text)
	if m := assessBlock.FindStringSubmatch(rest); m != nil && !strings.Contains(m[1], "<assess>") {
		t.Assessment = strings.TrimSpace(m[1])
		rest = strings.TrimSpace(rest[len(m[0]):])
	} else {
		t.Problem = "turn 1 does not start with one <assess> block"
	}
	for {
		start := strings.Index(rest, "<tool_call>")
		if start < 0 {
			break
		}
		m := callBlock.FindStringSubmatch(rest[start:])
		if start > 0 || m == nil {
			t.note("text between or inside the blocks of turn 1")
		}
		if m == nil {
			t.Calls = append(t.Calls, Call{Status: CallMalformed})
			return t
		}
		t.Calls = append(t.Calls, parseCall(m[1]))
		if t.Calls[len(t.Calls)-1].Status == CallMalformed {
			t.note("a tool call is not a JSON object with name and arguments")
		}
		rest = strings.TrimSpace(rest[start+len(m[0]):])
	}
	if rest != "" {
		t.note("text after the blocks of turn 1")
	}
	return t
}

func (t *Triage) note(problem string) {
	if t.Problem == "" {
		t.Problem = problem
	}
}

func parseCall(body string) Call {
	var raw struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	if dec.Decode(&raw) != nil || dec.More() || raw.Name == "" || !isObject(raw.Arguments) {
		return Call{Tool: raw.Name, Status: CallMalformed}
	}
	return Call{Tool: raw.Name, Arguments: raw.Arguments}
}

func isObject(raw json.RawMessage) bool {
	return strings.HasPrefix(strings.TrimSpace(string(raw)), "{")
}

// FormatCall writes a tool call as the protocol has it.
func FormatCall(tool string, arguments json.RawMessage) string {
	return fmt.Sprintf("<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", tool, arguments)
}

// A Claim is one measurement cited in the evidence line.
type Claim struct {
	Name     string
	Value    float64
	Category string
}

// An Integration is turn 2 as written by the policy.
type Integration struct {
	Think   string
	Claims  []Claim
	Answer  string // inside <answer>, trimmed
	Problem string // why the turn is not well formed; "" when it is
}

// ParseIntegration reads turn 2: one <think> block, at most one <evidence>
// line, exactly one <answer> block, nothing else.
func ParseIntegration(text string) Integration {
	var t Integration
	rest := strings.TrimSpace(text)
	block := func(re *regexp.Regexp) (string, bool) {
		m := re.FindStringSubmatch(rest)
		if m == nil {
			return "", false
		}
		rest = strings.TrimSpace(rest[len(m[0]):])
		return strings.TrimSpace(m[1]), true
	}
	var ok bool
	if t.Think, ok = block(thinkBlock); !ok {
		t.Problem = "turn 2 does not start with one <think> block"
		return t
	}
	if line, ok := block(evidence); ok {
		if t.Claims, ok = parseClaims(line); !ok {
			t.Problem = "the evidence line is not name=value category; …"
		}
	}
	if t.Answer, ok = block(answerBlock); !ok && t.Problem == "" {
		t.Problem = "turn 2 has no <answer> block after its <think> block"
	}
	if rest != "" && t.Problem == "" {
		t.Problem = "text outside the blocks of turn 2"
	}
	return t
}

func parseClaims(line string) ([]Claim, bool) {
	var claims []Claim
	for part := range strings.SplitSeq(line, ";") {
		name, rest, ok := strings.Cut(strings.TrimSpace(part), "=")
		number, category, _ := strings.Cut(strings.TrimSpace(rest), " ")
		value, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil {
			return nil, false
		}
		claims = append(claims, Claim{strings.TrimSpace(name), value, strings.TrimSpace(category)})
	}
	return claims, true
}

// FormatClaims writes an evidence line.
func FormatClaims(claims []Claim) string {
	parts := make([]string, len(claims))
	for i, c := range claims {
		parts[i] = strings.TrimSpace(fmt.Sprintf("%s=%s %s", c.Name, FormatValue(c.Value), c.Category))
	}
	return "<evidence>" + strings.Join(parts, "; ") + "</evidence>"
}

// FormatValue writes a measurement as turn 2 shows it: three decimals, so that
// a copied value is within the reward's tolerance.
func FormatValue(v float64) string {
	s := strconv.FormatFloat(v, 'f', 3, 64)
	if s == "-0.000" {
		return "0.000"
	}
	return s
}

// FormatBundle writes the <measurements> block of turn 2: what is in b.Shown,
// and the others withheld without a reason, which would give the view away.
func FormatBundle(b Bundle) string {
	var w strings.Builder
	w.WriteString("<measurements>\n")
	if len(b.Shown) > 0 && b.Image > 0 {
		fmt.Fprintf(&w, "image %d\n", b.Image+1)
	}
	for _, name := range Measurements {
		m, ok := b.Find(name)
		if !ok || !contains(b.Shown, name) {
			fmt.Fprintf(&w, "%s withheld\n", name)
			continue
		}
		fmt.Fprintln(&w, strings.TrimSpace(name+" "+FormatValue(m.Value)+" "+m.Category))
	}
	w.WriteString("</measurements>")
	return w.String()
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// FormatObservation writes what a call returned, in Qwen's form. A returned
// image follows its text; imageMark stands for it.
func FormatObservation(c Call, imageMark string) string {
	text := c.Observation
	if c.Image != "" {
		text = strings.TrimSpace(text + "\n" + imageMark)
	}
	return "<tool_response>\n" + text + "\n</tool_response>"
}
