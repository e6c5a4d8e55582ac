package main

import (
	"fmt"
	"path/filepath"
)

// An output is a file that a command is to write, and the input that it is made
// from.
type output struct{ path, from string }

// keepApart refuses outputs that would overwrite an input or each other, before
// anything is read.
func keepApart(inputs []string, outputs []output) error {
	made := map[string]output{}
	for _, o := range outputs {
		at := place(o.path)
		if other, ok := made[at]; ok {
			return usageError{fmt.Errorf("%s and %s would both be written to %s: rename one, or give them to two calls with folders of their own", other.from, o.from, o.path)}
		}
		made[at] = o
	}
	for _, in := range inputs {
		if o, ok := made[place(in)]; ok {
			return usageError{fmt.Errorf("%s would be overwritten by what is made of %s: write to another folder", in, o.from)}
		}
	}
	return nil
}

// place is where a path leads, as far as it exists.
func place(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path
}
