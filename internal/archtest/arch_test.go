// Package archtest holds the repository's rules as tests: who may import whom,
// one package comment a folder, no clock or global randomness in pure packages,
// no large files, no name that one Python file uses of another and that is not there.
//
// It parses the files itself instead of running "go list": the go command
// caches test results and sees only the files that a test opens.
package archtest

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// A layer is a row of packages that may import lower layers only. Peers lists
// the imports inside the layer that an ADR allows.
type layer struct {
	packages []string
	std      bool     // standard library only
	third    []string // further modules this layer may import; nil: any
}

// layers stands lowest first; changing it is an architecture decision, to be
// argued in docs/adr.
var layers = []layer{
	{packages: []string{"dataset", "rollout", "trainer/advantage", "trainer/loss"}, std: true},
	{packages: []string{"internal/simd", "internal/picture"}, third: []string{"golang.org/x/sys", "gonum.org/v1/gonum"}},
	{packages: []string{"trainer/coordinator", "trainer/batch", "reward", "chat", "dataset/phantom",
		"toolserver/dicom", "toolserver/segment", "toolserver/measure", "toolserver/masks"},
		third: []string{"github.com/dlclark/regexp2", "github.com/ardanlabs/jinja", "golang.org/x/image", "golang.org/x/text"}},
	{packages: []string{"internal/bus", "internal/blobs", "dataset/columnar", "toolserver/backend"}}, // edge leaves
	{packages: []string{"trainer", "rollout/loop", "eval", "agent", "radcot", "dataset/phantom/certify"}},
	{packages: []string{"rollout/queue", "rollout/queue/queuepb", "rollout/engine", "policy/embedded", "policy/remote", "toolserver", "eval/control", "eval/page",
		"dataset/jsonl", "dataset/vqarad", "dataset/phantom/layout", "web"}},
	{packages: []string{"configs", "study"}},
	{packages: []string{"cmd/xragent"}},
}

// peers are imports within one layer, each with the ADR that argues for it.
var peers = map[[2]string]string{
	{"rollout", "dataset"}:                     "0001",
	{"rollout/queue", "rollout/queue/queuepb"}: "generated code of its only importer",
}

// edgeLeavesFor says who may use the edge leaves.
var edgeLeavesFor = []int{5, 6, 7}

// pure packages read no clock, file, network or global randomness.
var pure = layers[0].packages
var alsoPure = layers[2].packages

func levelOf(pkg string) int {
	for i, l := range layers {
		if slices.Contains(l.packages, pkg) {
			return i
		}
	}
	return -1
}

func TestImports(t *testing.T) {
	for _, pkg := range packages(t) {
		if strings.HasSuffix(pkg, "test") || strings.Contains(pkg, "/internal/") || pkg == "scripts" || strings.HasPrefix(pkg, "scripts/") {
			continue // test support and generators
		}
		level := levelOf(pkg)
		if level < 0 {
			t.Errorf("%s is in no layer: give it one in internal/archtest and argue it in docs/adr", pkg)
			continue
		}
		for _, imp := range imports(t, pkg) {
			if msg := forbidden(pkg, level, imp); msg != "" {
				t.Errorf("%s imports %s: %s", pkg, imp, msg)
			}
		}
	}
}

func forbidden(pkg string, level int, imp string) string {
	own, ours := strings.CutPrefix(imp, "xragent/")
	host, _, _ := strings.Cut(imp, "/")
	switch {
	case ours:
		return forbiddenOwn(pkg, level, own)
	case !strings.Contains(host, "."):
		return ""
	case layers[level].std:
		return "its layer has the standard library only"
	case layers[level].third != nil && !slices.ContainsFunc(layers[level].third, func(m string) bool { return strings.HasPrefix(imp, m) }):
		return "its layer does not allow this module"
	case strings.Contains(imp, "apache/arrow") && pkg != "dataset/columnar":
		return "only dataset/columnar may import Arrow"
	case strings.HasPrefix(imp, "gorgonia.org") && pkg != "policy/embedded":
		return "only policy/embedded may import Gorgonia"
	}
	return ""
}

func forbiddenOwn(pkg string, level int, own string) string {
	to := levelOf(own)
	_, allowed := peers[[2]string{pkg, own}]
	switch {
	case allowed || strings.HasPrefix(own, pkg+"/internal/"):
		return ""
	case to < 0:
		return "which is in no layer"
	case to == level:
		return "which is of the same layer"
	case to > level:
		return "which is above it"
	case to == 3 && !slices.Contains(edgeLeavesFor, level):
		return "an edge leaf, which only the edge may use"
	}
	return ""
}

// forbiddenCalls are what pure packages may not say.
var forbiddenCalls = regexp.MustCompile(`^(time\.(Now|Since|Sleep|After|Tick|NewTimer|NewTicker)|rand\.(Int|IntN|Float64|Float32|Shuffle|Perm|N|Uint64)|os\.(Open|Create|ReadFile|WriteFile|Getenv))$`)

func TestPurePackagesReadNoClockFileOrChance(t *testing.T) {
	for _, pkg := range slices.Concat(pure, alsoPure) {
		for name, file := range parse(t, pkg) {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Obj == nil && forbiddenCalls.MatchString(x.Name+"."+n.Sel.Name) {
						t.Errorf("%s: %s.%s in a pure package: take it as input", name, x.Name, n.Sel.Name)
					}
				case *ast.GoStmt:
					t.Errorf("%s starts a goroutine in a pure package", name)
				}
				return true
			})
		}
	}
}

func TestOnePackageCommentAFolder(t *testing.T) {
	for _, pkg := range packages(t) {
		var with []string
		for name, file := range parse(t, pkg) {
			if file.Doc != nil && (strings.HasPrefix(file.Doc.Text(), "Package ") || strings.HasPrefix(file.Doc.Text(), "Command ") || strings.HasPrefix(file.Doc.Text(), "Xragent ")) {
				with = append(with, name)
			}
		}
		if len(with) != 1 && !strings.HasSuffix(pkg, "pb") {
			t.Errorf("%s has %d package comments %v, want one", pkg, len(with), with)
		}
	}
}

// TestNoLargeFiles keeps data out of the source tree.
func TestNoLargeFiles(t *testing.T) {
	const limit = 6 << 20 // the built-in base has 5.7 MB
	walk(t, func(path string, d fs.DirEntry) {
		if info, err := d.Info(); err == nil && !d.IsDir() && info.Size() > limit {
			t.Errorf("%s has %d bytes, more than %d", path, info.Size(), limit)
		}
	})
}

// skipped folders hold no source of ours.
var skipped = []string{".git", "bin", "runs", "testdata", ".venv", "node_modules"}

func walk(t *testing.T, visit func(path string, d fs.DirEntry)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains(skipped, d.Name()) {
			return fs.SkipDir
		}
		visit(path, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func packages(t *testing.T) []string {
	t.Helper()
	var out []string
	walk(t, func(path string, d fs.DirEntry) {
		if !d.IsDir() {
			return
		}
		entries, _ := os.ReadDir(path)
		source := func(e os.DirEntry) bool {
			return strings.HasSuffix(e.Name(), ".go") && !strings.HasSuffix(e.Name(), "_test.go")
		}
		if slices.ContainsFunc(entries, source) {
			rel, _ := filepath.Rel(root, path)
			out = append(out, filepath.ToSlash(rel))
		}
	})
	return out
}

func imports(t *testing.T, pkg string) []string {
	t.Helper()
	p, err := build.ImportDir(filepath.Join(root, pkg), 0)
	if err != nil {
		t.Errorf("%s: %v", pkg, err)
		return nil
	}
	return p.Imports
}

func parse(t *testing.T, pkg string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	entries, _ := os.ReadDir(filepath.Join(root, pkg))
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		path := filepath.Join(root, pkg, e.Name())
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		files[filepath.ToSlash(filepath.Join(pkg, e.Name()))] = f
	}
	return files
}
