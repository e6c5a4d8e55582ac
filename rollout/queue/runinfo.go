package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// runsBucket holds one document a run.
const runsBucket = "xragent_runs"

// PutRunInfo publishes what a process needs to join a run: an opaque document,
// usually JSON, that names the blob server and the hashes of what it serves.
func PutRunInfo(ctx context.Context, js jetstream.JetStream, run string, document []byte) error {
	if err := CheckRun(run); err != nil {
		return err
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: runsBucket})
	if err == nil {
		_, err = kv.Put(ctx, run, document)
	}
	if err != nil {
		return fmt.Errorf("publish run %s: %w", run, err)
	}
	return nil
}

// ErrNoRun is wrapped by the errors of joining a run that is not there.
var ErrNoRun = errors.New("no such run on this server; start it first, or correct its name or the address")

// GetRunInfo returns the document of [PutRunInfo].
func GetRunInfo(ctx context.Context, js jetstream.JetStream, run string) ([]byte, error) {
	if err := CheckRun(run); err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, runsBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, fmt.Errorf("run %s: %w", run, ErrNoRun)
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", run, err)
	}
	entry, err := kv.Get(ctx, run)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, fmt.Errorf("run %s: %w", run, ErrNoRun)
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", run, err)
	}
	return entry.Value(), nil
}
