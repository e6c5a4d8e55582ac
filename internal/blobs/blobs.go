// Package blobs keeps files by content: weights, images, and a run's public
// configuration.
//
// A blob's name is the SHA-256 of its bytes, so that whoever fetches one can
// tell that it is the right one and whole; nothing is ever handed out
// unverified. A [Store] keeps blobs in a directory, [Handler] serves them over
// HTTP with ranges, and a [Client] fetches them into a store of its own. The
// package knows nothing of what the bytes mean, and never deletes by itself.
package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrNotFound is wrapped by the error of a Get whose blob is not there.
var ErrNotFound = errors.New("blob not found")

// A Store keeps blobs in a directory, two levels deep: ab/abcd….
// It is safe for use by several goroutines and processes at once.
type Store struct {
	dir  string
	sync bool
}

// Open returns the store in dir, creating the directory when it is missing.
// With sync, a blob is on disk (fsync) before Put returns.
func Open(dir string, sync bool) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("blobs: %w", err)
	}
	return &Store{dir: dir, sync: sync}, nil
}

// Digest returns the name of data: its SHA-256 in lower-case hex.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Put stores data and returns its digest. A blob that is there already is
// not written again; a torn one is replaced.
func (s *Store) Put(ctx context.Context, data []byte) (string, error) {
	digest := Digest(data)
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("blob %s: %w", digest, err)
	}
	path := s.path(digest)
	if info, err := os.Stat(path); err == nil && info.Size() == int64(len(data)) {
		if _, err := s.Get(ctx, digest); err == nil {
			return digest, nil
		}
	}
	if err := s.write(path, data); err != nil {
		return "", fmt.Errorf("blob %s: %w", digest, err)
	}
	return digest, nil
}

// write puts data aside and renames it, so that path is whole or absent.
func (s *Store) write(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if s.sync {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if s.sync {
		return syncDir(dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Get returns the blob named by its digest, verified. The error of a missing
// blob wraps [ErrNotFound]; a torn or changed file is named with both digests.
func (s *Store) Get(ctx context.Context, digest string) ([]byte, error) {
	if err := checkName(digest); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("blob %s: %w", digest, err)
	}
	path := s.path(digest)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w in %s", digest, ErrNotFound, s.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", digest, err)
	}
	if got := Digest(data); got != digest {
		return nil, fmt.Errorf("blob %s: file %s is torn: its %d bytes have sha256 %s; delete it and store it again",
			digest, path, len(data), got)
	}
	return data, nil
}

// Has reports whether the store holds a blob of that name, without reading it.
func (s *Store) Has(digest string) bool {
	if checkName(digest) != nil {
		return false
	}
	_, err := os.Stat(s.path(digest))
	return err == nil
}

// Link takes a blob over from another store without copying its bytes, and
// reports whether it is there now. False means that the other store lacks it or
// lies on another file system: the caller stores the bytes itself.
func (s *Store) Link(from *Store, digest string) bool {
	if checkName(digest) != nil {
		return false
	}
	path := s.path(digest)
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return false
	}
	err := os.Link(from.path(digest), path)
	return err == nil || errors.Is(err, fs.ErrExist)
}

// Delete removes a blob; one that is not there is no error.
func (s *Store) Delete(digest string) error {
	if err := checkName(digest); err != nil {
		return err
	}
	if err := os.Remove(s.path(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blob %s: %w", digest, err)
	}
	return nil
}

func (s *Store) path(digest string) string {
	return filepath.Join(s.dir, digest[:2], digest)
}

// checkName keeps anything but a digest from becoming part of a path or URL.
func checkName(digest string) error {
	if len(digest) != 2*sha256.Size {
		return fmt.Errorf("blob %.80q: not a sha256: %d characters, want %d", digest, len(digest), 2*sha256.Size)
	}
	for _, c := range digest {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("blob %.80q: not a sha256: want lower-case hex", digest)
		}
	}
	return nil
}
