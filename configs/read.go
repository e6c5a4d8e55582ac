package configs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"xragent/trainer/loss"
)

// maxBytes bounds a configuration file.
const maxBytes = 1 << 20

// Read reads a pipeline file strictly, applies the settings ("key=value", keys
// with dots) over it, and validates the whole. Unknown keys, keys given twice
// and keys without effect are errors; those of the file name its line and column.
func Read(path string, settings []string) (Run, error) {
	run := Default()
	text, err := readBounded(path)
	if err != nil {
		return run, fmt.Errorf("config: %w", err)
	}
	given, err := run.take(path, text, settings)
	if err != nil {
		return run, err
	}
	if _, ok := given["grpo.loss.preset"]; ok {
		chosen, err := loss.Preset(run.GRPO.Loss.Preset)
		if err != nil {
			return run, fmt.Errorf("config: %s: grpo: loss.%w", path, err)
		}
		run = Default()
		run.GRPO.Loss = chosen // what the file says of the loss stands over the preset
		if given, err = run.take(path, text, settings); err != nil {
			return run, err
		}
	}
	if run.Run.Name == "" {
		run.Run.Name = nameOf(path)
	}
	keys := slices.Sorted(maps.Keys(given))
	if run.Policy.Backend == "remote" && under(keys, "stages") == "" {
		run.Stages = slices.DeleteFunc(run.Stages, func(s string) bool { return s == StagePre })
	}
	if bytes.HasPrefix(text, []byte(resolvedMark)) {
		keys = keysOf(settings)
	}
	run.derive()
	return run, run.validate(path, keys)
}

// take overlays the file's text and the settings, and returns the keys that they
// give with their values.
func (r *Run) take(path string, text []byte, settings []string) (map[string]any, error) {
	given := map[string]any{}
	if err := overlay(r, text, given); err != nil {
		return nil, fmt.Errorf("config: %s:%w", path, err)
	}
	for _, s := range settings {
		if err := set(r, s, given); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// Parse reads a configuration that another process of the run resolved.
func Parse(text []byte) (Run, error) {
	run := Default()
	if err := decode(text, &run); err != nil {
		return run, fmt.Errorf("config:%w", err)
	}
	run.derive()
	return run, run.validate("config", nil)
}

// readBounded reads a file, which may be a pipe, without its byte order mark.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%s has more than the %d bytes that are read", path, maxBytes)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), err
}

func nameOf(path string) string {
	base := path[strings.LastIndexByte(path, '/')+1:]
	return strings.TrimSuffix(strings.TrimSuffix(base, ".yaml"), ".yml")
}

// resolvedMark begins a file that gives every key, so that those without effect
// are no mistake in it.
const resolvedMark = "# Every key of a run, as it was resolved. A pipeline file needs those that differ from the defaults only.\n"

// keysOf returns the keys of settings.
func keysOf(settings []string) []string {
	var keys []string
	for _, s := range settings {
		key, _, _ := strings.Cut(s, "=")
		keys = append(keys, key)
	}
	return keys
}

// Marshal writes the resolved configuration.
func (r Run) Marshal() ([]byte, error) { return yaml.Marshal(r) }

// File writes the resolved configuration as a pipeline file, which [Read] reads.
func (r Run) File() ([]byte, error) {
	text, err := r.Marshal()
	return append([]byte(resolvedMark), text...), err
}

// overlay sets what text gives, and adds its dotted keys with their values to
// given. Errors start with line:column where there is one.
func overlay(run *Run, text []byte, given map[string]any) error {
	found, err := leaves(text)
	if err != nil {
		return err
	}
	if len(found) == 0 { // decoding nothing would clear the defaults
		return nil
	}
	if err := decode(text, run); err != nil {
		return err
	}
	maps.Copy(given, found)
	return run.checkValues(found)
}

// decode overlays the one document in text on run.
func decode(text []byte, run *Run) (err error) {
	defer readable(&err)
	dec := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := dec.Decode(run); err != nil && !errors.Is(err, io.EOF) {
		return explain(err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return errors.New(" more than one document: remove what follows the second ---")
	}
	return nil
}

// readable makes an error of the decoder's panic, as on a tag that it does not
// know.
func readable(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf(" not readable as YAML: %v", p)
	}
}

// checkValues refuses what the decoder would pass over: a key without a value,
// and the fraction of a number that is to be whole.
func (r Run) checkValues(given map[string]any) error {
	text, err := r.Marshal()
	if err != nil {
		return err
	}
	resolved, err := leaves(text)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		now, isLeaf := resolved[key]
		_, isWhole := now.(uint64)
		fraction, isFloat := given[key].(float64)
		switch {
		case isLeaf && given[key] == nil:
			return fmt.Errorf(" %s has no value: give one, or remove the key", key)
		case isWhole && isFloat && fraction != math.Trunc(fraction):
			return fmt.Errorf(" %s = %v: want a whole number", key, fraction)
		}
	}
	return nil
}

var (
	position  = regexp.MustCompile(`^\[(\d+):(\d+)\] (.*)`)
	mistyped  = regexp.MustCompile(`^cannot unmarshal (.+) into Go (?:struct field \S+ of type|value of type) (\S+?)( \( overflow \))?$`)
	misspelt  = regexp.MustCompile(`^unknown field "(.*)"$`)
	typeNames = map[string]string{"int": "a whole number", "uint64": "a whole number of at least 0", "float64": "a number",
		"bool": "true or false", "string": "text", "time.Duration": "a duration such as 30s"}
)

// explain words the decoder's errors as line:column and what is wanted.
func explain(err error) error {
	first, _, _ := strings.Cut(err.Error(), "\n")
	where := ""
	if m := position.FindStringSubmatch(first); m != nil {
		where, first = m[1]+":"+m[2]+":", m[3]
	}
	if m := mistyped.FindStringSubmatch(first); m != nil {
		want := cmp.Or(typeNames[m[2]], m[2])
		if first = m[1] + " where " + want + " is wanted"; m[3] != "" {
			first = m[1] + " is outside the range of " + want
		}
	}
	if m := misspelt.FindStringSubmatch(first); m != nil {
		first += suggest(m[1])
	}
	return errors.New(where + " " + first)
}

// suggest names the key that was probably meant, of those at any depth.
func suggest(misspelt string) string {
	text, err := Default().Marshal()
	if err != nil {
		return ""
	}
	known, err := leaves(text)
	if err != nil {
		return ""
	}
	for _, dotted := range slices.Sorted(maps.Keys(known)) {
		for part := range strings.SplitSeq(dotted, ".") {
			if nearly(misspelt, part) {
				return fmt.Sprintf(": did you mean %s?", part)
			}
		}
	}
	return ""
}

// nearly reports whether two words differ in one letter that is wrong, missing
// or too many.
func nearly(a, b string) bool {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	a, b = a[n:], b[n:]
	return a != "" && (a[1:] == b || b != "" && a[1:] == b[1:]) || b != "" && a == b[1:]
}

// set overlays one key=value.
func set(run *Run, setting string, given map[string]any) error {
	key, value, ok := strings.Cut(setting, "=")
	if !ok || key == "" {
		return fmt.Errorf("config: --set %s: want key=value, e.g. grpo.steps=50", setting)
	}
	var doc strings.Builder
	parts := strings.Split(key, ".")
	for i, part := range parts {
		fmt.Fprintf(&doc, "%s%s:", strings.Repeat("  ", i), part)
		if i < len(parts)-1 {
			doc.WriteByte('\n')
		}
	}
	doc.WriteString(" " + value + "\n")
	if err := overlay(run, []byte(doc.String()), given); err != nil {
		_, reason, _ := strings.Cut(err.Error(), " ")
		return fmt.Errorf("config: --set %s: %s", setting, reason)
	}
	return nil
}

// leaves lists the dotted keys that text gives, with their values.
func leaves(text []byte) (found map[string]any, err error) {
	defer readable(&err)
	var doc any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, explain(err)
	}
	out := map[string]any{}
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			out[prefix] = v
			return
		}
		for k, inner := range m {
			walk(strings.TrimPrefix(prefix+"."+k, "."), inner)
		}
	}
	if doc != nil {
		walk("", doc)
	}
	return out, nil
}

// under returns the first given key at or below prefix.
func under(given []string, prefix string) string {
	i := slices.IndexFunc(given, func(k string) bool { return k == prefix || strings.HasPrefix(k, prefix+".") })
	if i < 0 {
		return ""
	}
	return given[i]
}
