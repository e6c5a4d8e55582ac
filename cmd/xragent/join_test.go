package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"xragent/internal/blobs"
	"xragent/internal/bus/bustest"
)

func TestOneFolderOwnsARunsNameOnAServer(t *testing.T) {
	_, nc := bustest.Start(t)
	js := bustest.JetStream(t, nc)
	open := func(dir string) *session {
		s := &session{dir: dir, log: io.Discard}
		s.cfg.Run.Name, s.cfg.Queue.URL = "one", "nats://elsewhere"
		var err error
		if s.codec, err = newCodec(t.Context(), s.cfg.Policy); err != nil {
			t.Fatal(err)
		}
		if s.blobs, err = blobs.Open(s.path("blobs"), false); err != nil {
			t.Fatal(err)
		}
		return s
	}
	mine := t.TempDir()
	for range 2 { // begun, and continued by another process
		if err := open(mine).publishRunInfo(t.Context(), js); err != nil {
			t.Fatal(err)
		}
	}
	err := open(t.TempDir()).publishRunInfo(t.Context(), js)
	if bad := new(usageError); !errors.As(err, bad) || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("a second folder: %v", err)
	}
	own := open(t.TempDir())
	own.cfg.Queue.URL = ""
	if err := own.publishRunInfo(t.Context(), js); err != nil {
		t.Errorf("the embedded server: %v", err)
	}
}
