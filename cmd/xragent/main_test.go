package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"xragent": main})
}

// TestScripts runs testdata/script: each file reads like a page of the manual.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			root, err := os.Getwd()
			env.Setenv("CONFIGS", root+"/../../configs")
			env.Setenv("ASSETS", root+"/../../chat/assets")
			env.Setenv("GOLDEN", root+"/../../policy/embedded/testdata/golden")
			return err
		},
	})
}
