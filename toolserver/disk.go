package toolserver

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"xragent/rollout"
)

// A disk keeps observations in a folder, at most a number of bytes of them (and
// of what processes that share it have just written); of too many the oldest go. A file is named by its key and begins with the digest
// of what follows, so that one cut short is known: it is removed and computed
// again. A disk that cannot be read or written costs time, never a call. nil is
// a disk that holds nothing.
type disk struct {
	dir   string
	limit int64

	mu      sync.Mutex
	files   map[string]diskFile
	used    int64
	written int64 // since the folder was looked at
}

type diskFile struct {
	bytes   int64
	written time.Time
}

// openDisk takes up a folder, which is made; dir "" is no disk.
func openDisk(dir string, limit int) (*disk, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("tools: field cache_dir: %w", err)
	}
	d := &disk{dir: dir, limit: int64(limit), files: map[string]diskFile{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("tools: field cache_dir: %w", err)
	}
	d.take(entries)
	d.shrink()
	return d, nil
}

// abandoned is the age from which on a file that was being written is one of a
// process that was killed.
const abandoned = time.Hour

// take counts what lies in the folder, of this process and of others.
func (d *disk) take(entries []fs.DirEntry) {
	d.used = 0
	clear(d.files)
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil || !info.Mode().IsRegular():
		case len(e.Name()) == 2*sha256.Size:
			d.note(e.Name(), info)
		case strings.HasPrefix(e.Name(), unfinished) && time.Since(info.ModTime()) > abandoned:
			_ = os.Remove(filepath.Join(d.dir, e.Name()))
		}
	}
}

func (d *disk) note(name string, info fs.FileInfo) {
	d.used += info.Size() - d.files[name].bytes
	d.files[name] = diskFile{info.Size(), info.ModTime()}
}

func (d *disk) get(k key) (obs rollout.Observation, ok bool) {
	if d == nil {
		return obs, false
	}
	name := fmt.Sprintf("%x", k[:])
	file, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil {
		return obs, false
	}
	var w wireObservation
	if !whole(file) || json.Unmarshal(file[sha256.Size:], &w) != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.remove(name)
		return obs, false
	}
	obs = rollout.Observation(w)
	obs.CacheHit = true
	return obs, true
}

func whole(file []byte) bool {
	if len(file) < sha256.Size {
		return false
	}
	sum := sha256.Sum256(file[sha256.Size:])
	return bytes.Equal(sum[:], file[:sha256.Size])
}

func (d *disk) put(k key, obs rollout.Observation) {
	if d == nil {
		return
	}
	body, err := json.Marshal(wireObservation(obs))
	if err != nil || int64(len(body)) > d.limit {
		return
	}
	sum := sha256.Sum256(body)
	name := fmt.Sprintf("%x", k[:])
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := replaceFile(filepath.Join(d.dir, name), append(sum[:], body...))
	if err != nil {
		return
	}
	d.note(name, info)
	if d.written += info.Size(); d.written > d.limit/16 { // others may write here too
		d.written = 0
		if entries, err := os.ReadDir(d.dir); err == nil {
			d.take(entries)
		}
	}
	d.shrink()
}

// unfinished begins the names of files that are being written.
const unfinished = "writing-"

// replaceFile writes a file that is there as a whole or not at all.
func replaceFile(path string, data []byte) (fs.FileInfo, error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), unfinished+"*")
	if err != nil {
		return nil, err
	}
	_, err = tmp.Write(data)
	if closed := tmp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return nil, err
	}
	return os.Stat(path)
}

// shrink removes the oldest files until the rest fit.
func (d *disk) shrink() {
	if d.used <= d.limit {
		return
	}
	names := make([]string, 0, len(d.files))
	for name := range d.files {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return d.files[a].written.Compare(d.files[b].written) })
	for _, name := range names {
		if d.used <= d.limit*9/10 { // not one at a time
			return
		}
		d.remove(name)
	}
}

func (d *disk) remove(name string) {
	_ = os.Remove(filepath.Join(d.dir, name)) // gone is what it should be
	d.used -= d.files[name].bytes
	delete(d.files, name)
}
