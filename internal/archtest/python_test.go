package archtest

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	pythonDefined = regexp.MustCompile(`(?m)^(?:async def|def|class) (\w+)|^(\w+)(?:, (\w+))?(?:: [^=\n]+)? = `)
	pythonFrom    = regexp.MustCompile(`(?m)^\s*from \.?(?:segmenter\.)?(\w+) import ([\w, ]+)`)
	pythonImport  = regexp.MustCompile(`(?m)^\s*import (\w+)(?:\s+#.*)?$`)
)

// What the Python files use of one another is there. Their own tests need
// packages of gigabytes and are skipped where those are missing, so that a name
// that moved would be noticed by whoever runs them next.
func TestPythonNames(t *testing.T) {
	sources := map[string]string{}
	err := filepath.WalkDir(filepath.Join(root, "learner"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") { // an environment
			return filepath.SkipDir
		}
		if err == nil && strings.HasSuffix(path, ".py") && d.Name() != "__init__.py" {
			text, err := os.ReadFile(path)
			sources[strings.TrimSuffix(d.Name(), ".py")] = string(text)
			return err
		}
		return err
	})
	if err != nil || len(sources) < 10 {
		t.Fatalf("%d Python files: %v", len(sources), err)
	}
	defined := map[string][]string{}
	for module, text := range sources {
		for _, m := range pythonDefined.FindAllStringSubmatch(text, -1) {
			defined[module] = append(defined[module], m[1:]...)
		}
	}
	for _, module := range slices.Sorted(maps.Keys(sources)) {
		for from, names := range pythonUses(sources[module]) {
			for _, name := range names {
				if there, ours := defined[from]; ours && !slices.Contains(there, name) {
					t.Errorf("learner: %s.py uses %s of %s.py, which has no such name", module, name, from)
				}
			}
		}
	}
}

// pythonUses lists which names a file uses of which modules.
func pythonUses(text string) map[string][]string {
	uses := map[string][]string{}
	for _, m := range pythonFrom.FindAllStringSubmatch(text, -1) {
		for name := range strings.SplitSeq(m[2], ",") {
			name, _, _ = strings.Cut(strings.TrimSpace(name), " as ")
			uses[m[1]] = append(uses[m[1]], name)
		}
	}
	for _, m := range pythonImport.FindAllStringSubmatch(text, -1) {
		for _, used := range regexp.MustCompile(`\b`+m[1]+`\.(\w+)`).FindAllStringSubmatch(text, -1) {
			if used[1] != "py" && used[1] != "json" { // a file's name
				uses[m[1]] = append(uses[m[1]], used[1])
			}
		}
	}
	return uses
}
