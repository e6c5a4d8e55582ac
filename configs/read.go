package configs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/goccy/go-yaml"
)

// maxBytes bounds a configuration file.
const maxBytes = 1 << 20

// Read reads a pipeline file strictly, applies the settings ("key=value", keys
// with dots) over it, and validates the whole. Unknown keys, keys given twice
// and keys without effect are errors; those of the file name its line and column.
func Read(path string, settings []string) (Run, error) {
	run := Default()
	info, err := os.Stat(path)
	if err != nil {
		return run, fmt.Errorf("config: %w", err)
	}
	if info.Size() > maxBytes {
		return run, fmt.Errorf("config: %s has %d bytes, at most %d are read", path, info.Size(), maxBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return run, fmt.Errorf("config: %w", err)
	}
	if err := decode(text, &run); err != nil {
		return run, fmt.Errorf("config: %s:%w", path, err)
	}
	given, err := keys(text)
	if err != nil {
		return run, fmt.Errorf("config: %s:%w", path, err)
	}
	for _, s := range settings {
		key, err := set(&run, s)
		if err != nil {
			return run, err
		}
		given = append(given, key)
	}
	if run.Run.Name == "" {
		run.Run.Name = nameOf(path)
	}
	if run.Policy.Backend == "remote" && under(given, "stages") == "" {
		run.Stages = slices.DeleteFunc(run.Stages, func(s string) bool { return s == StagePre })
	}
	run.derive()
	return run, run.validate(path, given)
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

func nameOf(path string) string {
	base := path[strings.LastIndexByte(path, '/')+1:]
	return strings.TrimSuffix(strings.TrimSuffix(base, ".yaml"), ".yml")
}

// Marshal writes the resolved configuration.
func (r Run) Marshal() ([]byte, error) { return yaml.Marshal(r) }

var position = regexp.MustCompile(`^\[(\d+):(\d+)\] (.*)`)

// decode overlays text on run. Errors start with line:column.
func decode(text []byte, run *Run) error {
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(run)
	if err == nil || err.Error() == "EOF" {
		return nil
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	if m := position.FindStringSubmatch(first); m != nil {
		return fmt.Errorf("%s:%s: %s", m[1], m[2], m[3])
	}
	return errors.New(" " + first)
}

// set overlays one key=value.
func set(run *Run, setting string) (string, error) {
	key, value, ok := strings.Cut(setting, "=")
	if !ok || key == "" {
		return "", fmt.Errorf("config: --set %s: want key=value, e.g. grpo.steps=50", setting)
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
	if err := decode([]byte(doc.String()), run); err != nil {
		_, reason, _ := strings.Cut(err.Error(), " ")
		return "", fmt.Errorf("config: --set %s: %s", setting, reason)
	}
	return key, nil
}

// keys lists the dotted keys that text gives.
func keys(text []byte) ([]string, error) {
	var doc map[string]any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, errors.New(" " + first)
	}
	var out []string
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			out = append(out, prefix)
			return
		}
		for k, inner := range m {
			walk(strings.TrimPrefix(prefix+"."+k, "."), inner)
		}
	}
	walk("", doc)
	sort.Strings(out)
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
