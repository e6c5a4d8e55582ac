package certify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"xragent/dataset/phantom"
	"xragent/dataset/phantom/certify"
	"xragent/toolserver"
)

func examine(t *testing.T, threads int) certify.Certificate {
	t.Helper()
	c := toolserver.Default()
	c.Protocols = phantom.Protocol
	tools, err := toolserver.New(c)
	if err != nil {
		t.Fatal(err)
	}
	cfg := certify.Config{Seed: 1, Texts: 240, Train: 24, Test: 12, Tooled: 6, Crops: 6, Epochs: 1, Threads: threads}
	out, err := certify.Run(context.Background(), cfg, tools, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRun makes a whole examination in small, twice.
func TestRun(t *testing.T) {
	c := examine(t, 1)
	if !c.Quick || c.Generator != phantom.Hash() {
		t.Errorf("quick %v, generator %s: want a quick look at this generator", c.Quick, c.Generator)
	}
	var table strings.Builder
	if err := c.WriteText(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"need roi_crop", "blind: trained on text only", "bundles withheld", "pattern: sensitivity",
		"accuracy", "nodule", "questions that need a tool", "certifies nothing",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the certificate has no line %q:\n%s", want, table.String())
		}
	}
	a, b := marshal(t, c), marshal(t, examine(t, 2))
	if !bytes.Equal(a, b) {
		t.Error("one and two threads make different certificates")
	}
}

func marshal(t *testing.T, c certify.Certificate) []byte {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRunRefuses(t *testing.T) {
	cfg := certify.Quick()
	cfg.Epochs = 0
	if _, err := certify.Run(context.Background(), cfg, nil, nil); err == nil || !strings.Contains(err.Error(), "field epochs is 0") {
		t.Errorf("error %v, want one that names the field epochs", err)
	}
	cfg = certify.Quick()
	cfg.Train = cfg.Texts
	if _, err := certify.Run(context.Background(), cfg, nil, nil); err == nil || !strings.Contains(err.Error(), "field texts") {
		t.Errorf("error %v, want one that names the field texts", err)
	}
}
