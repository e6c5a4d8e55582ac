package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"xragent/dataset"
	"xragent/dataset/jsonl"
	"xragent/dataset/phantom"
)

// TestToolsNeedNoTruth asks all tools about a written world, deletes the truth
// and asks new ones again.
func TestToolsNeedNoTruth(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "world")
	cfg := phantom.Config{Seed: 3, Test: 8}
	if _, err := jsonl.WritePhantoms(context.Background(), dir, cfg, nil); err != nil {
		t.Fatal(err)
	}
	before := askAll(t, dir)
	if err := os.RemoveAll(filepath.Join(dir, "truth")); err != nil {
		t.Fatal(err)
	}
	if _, err := jsonl.PhantomTruth(dir, "test-000000"); err == nil {
		t.Fatal("the truth is still there")
	}
	if after := askAll(t, dir); !slices.Equal(before, after) {
		t.Error("the tools answer differently once the truth is deleted")
	}
}

// askAll returns every tool's answers about every question of the folder.
func askAll(t *testing.T, dir string) []string {
	t.Helper()
	set, err := jsonl.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := certifyTools()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	var out []string
	for _, s := range set.Samples {
		file, err := set.Image(s.Prompt.Images[0].SHA256)
		if err != nil {
			t.Fatal(err)
		}
		images, meta := [][]byte{file}, s.Prompt.Images
		bundle, err := tools.Measure(ctx, images, meta)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%+v", bundle))
		for _, call := range []struct{ tool, args string }{
			{"region_parse", `{"region":"right lung"}`}, {"region_parse", `{"region":"left lower zone"}`},
			{"roi_crop", `{"region":"trachea"}`}, {"evidence_lookup", query(t, s)},
		} {
			o, err := tools.Call(ctx, call.tool, json.RawMessage(call.args), images, meta)
			if err != nil || o.Invalid || o.Error != "" {
				t.Fatalf("%s: %+v, %v", call.tool, o, err)
			}
			out = append(out, fmt.Sprintf("%+v", o))
		}
	}
	return out
}

func query(t *testing.T, s dataset.Sample) string {
	t.Helper()
	text, err := json.Marshal(map[string]string{"query": s.Prompt.Question})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCertifyCommandRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"phantom", "certify", "--scale", "0"},
		{"phantom", "certify", "--scale", "NaN"},
		{"phantom", "certify", "--quick", "--only", "everything"},
		{"phantom", "certify", "more"},
	} {
		var out bytes.Buffer
		if code := Main(args, &out, &out); code != exitUsage {
			t.Errorf("%v ends with status %d, want %d: %s", args, code, exitUsage, &out)
		}
	}
}
