package trainer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"xragent/rollout"
)

// replaceFile gives path new content: written aside, synced, renamed, so that a
// crash leaves the old content or the new.
func replaceFile(path string, data []byte) error {
	aside := path + ".tmp"
	f, err := os.OpenFile(aside, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(aside, path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func replaceJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(path, append(data, '\n'))
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// syncDir makes renames and new names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// sealTree syncs every file and directory under dir and lists the files, in
// the order of their names.
func sealTree(dir string) ([]rollout.File, error) {
	var files []rollout.File
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return syncDir(path)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		file, err := sealFile(path)
		file.Name = filepath.ToSlash(name)
		files = append(files, file)
		return err
	})
	return files, err
}

func sealFile(path string) (rollout.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return rollout.File{}, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return rollout.File{}, err
	}
	return digest(f)
}

func digest(r io.Reader) (rollout.File, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return rollout.File{SHA256: hex.EncodeToString(h.Sum(nil)), Size: n}, err
}

// verifyFile holds a file against what a manifest says of it.
func verifyFile(dir string, want rollout.File) error {
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(want.Name)))
	if err != nil {
		return fmt.Errorf("file %s is missing", want.Name)
	}
	defer f.Close()
	got, err := digest(f)
	switch {
	case err != nil:
		return fmt.Errorf("file %s: %w", want.Name, err)
	case got.Size != want.Size:
		return fmt.Errorf("file %s has %d bytes, the manifest says %d", want.Name, got.Size, want.Size)
	case got.SHA256 != want.SHA256:
		return fmt.Errorf("file %s has sha256 %.12s…, the manifest says %.12s…", want.Name, got.SHA256, want.SHA256)
	}
	return nil
}
