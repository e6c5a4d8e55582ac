package toolserver

import (
	"errors"
	"fmt"
	"image"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"xragent/dataset"
	"xragent/toolserver/masks"
	"xragent/toolserver/segment"
)

// A MaskSource has stored segmentations of images by their path. It is safe for
// concurrent use; [masks.Table] is one.
type MaskSource interface {
	Name() string // changes with what it holds; part of cache keys
	Find(path string, size image.Point) (set masks.Set, found bool, err error)
}

// leastQuality is the quality below which stored masks are not used: the cut
// that CheXmask's authors recommend.
const leastQuality = 0.7

// storedMasks fills in an image's masks and reports whether any are stored.
// Where they are but cannot be used, nothing else takes their place.
func (s *Server) storedMasks(v *view, meta dataset.Image) bool {
	if s.maskPath(meta) == "" || meta.Domain == "phantom" {
		return false
	}
	set, found, err := FindMasks(s.masks, meta.Path, v.gray.Rect.Size())
	switch {
	case err != nil:
		v.failed = err.Error()
	case found:
		nan := math.NaN()
		v.masks = &segment.Masks{RightLung: set.RightLung, LeftLung: set.LeftLung, Heart: set.Heart,
			Spine: nan, Trachea: nan, Airway: nan, Clavicle: nan, Level: nan}
		v.masks.Contrast = segment.Contrast(v.gray, *v.masks)
	}
	return found || err != nil
}

// FindMasks returns the masks of an image that a source holds, and whether it
// holds any. Ones of too low a quality are an error.
func FindMasks(src MaskSource, path string, size image.Point) (set masks.Set, found bool, err error) {
	set, found, err = src.Find(path, size)
	if err == nil && found && set.Quality < leastQuality { // never of a NaN
		err = fmt.Errorf("stored masks of quality %.2f (reverse classification accuracy), want %.2f or more", set.Quality, leastQuality)
	}
	return set, found, err
}

// maskPath is what an image's stored masks go by; "" when none are stored.
func (s *Server) maskPath(m dataset.Image) string {
	if s.masks == nil {
		return ""
	}
	return m.Path
}

// OpenMasks opens a CheXmask CSV file, which is read into memory as a whole, or
// a folder of PNG files.
func OpenMasks(path string) (MaskSource, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return openMaskFolder(path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	table, err := masks.ReadTable(file, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return table, nil
}

// A maskFolder is a folder with NAME_right_lung.png, NAME_left_lung.png and
// NAME_heart.png for an image NAME.png, NAME.dcm and so on.
type maskFolder struct {
	dir  string
	name string
}

// openMaskFolder looks at a folder once: its files must not change later.
func openMaskFolder(dir string) (*maskFolder, error) {
	parts := [][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("masks: %w", err)
	}
	for _, e := range entries { // in the order of their names
		info, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("masks: %w", err)
		}
		parts = append(parts, fmt.Appendf(nil, "%s %d %d", e.Name(), info.Size(), info.ModTime().UnixNano()))
	}
	return &maskFolder{dir, fmt.Sprintf("folder/%.12x", keyOf(parts...))}, nil
}

// Name identifies the folder by its files' names, sizes and times.
func (f *maskFolder) Name() string { return f.name }

// Find reads the masks of the image at a path. All three must be there, or none.
func (f *maskFolder) Find(path string, size image.Point) (set masks.Set, found bool, err error) {
	base := filepath.Base(path)
	stem := strings.TrimSuffix(base, filepath.Ext(base))
	set.Quality = masks.NoQuality
	for i, m := range []**image.Alpha{&set.RightLung, &set.LeftLung, &set.Heart} {
		name := filepath.Join(f.dir, stem+"_"+masks.Parts[i]+".png")
		file, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) && i == 0 {
			return masks.Set{}, false, nil
		}
		if err == nil {
			*m, err = masks.PNG(file, size)
		}
		if err != nil {
			return masks.Set{}, true, fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
	}
	return set, true, nil
}
