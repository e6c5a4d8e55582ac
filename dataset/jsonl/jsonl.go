// Package jsonl reads and writes data sets as a directory:
//
//	DIR/manifest.json        dataset.Manifest; optional for users' own data
//	DIR/samples.jsonl        one dataset.Sample a line
//	DIR/images/<sha256>.png  images, where a sample names no path of its own
//	DIR/truth/<study>.json   what a generator knows; no tool and no policy reads it
//
// In users' own data a sample names its images by a path relative to DIR, PNG,
// JPEG or DICOM, and leaves sha256, width and height out; the reader fills them
// in. Of a DICOM file it serves the displayed pixels as a PNG, and takes view,
// age and spacing where the row leaves them open; nothing else of it is kept.
//
//	{"id": "1", "split": "train", "study": "s1", "patient": "p1",
//	 "prompt": {"kind": "binary", "question": "Is there an effusion?",
//	            "images": [{"path": "films/1.png", "view": "PA", "view_from": "label"}]},
//	 "answer": "yes"}
//
// A set is read as a whole or not at all: the first unusable row is an error
// that names file, row, field and remedy.
package jsonl

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

// The names inside a data set's directory.
const (
	manifestFile = "manifest.json"
	samplesFile  = "samples.jsonl"
	imagesDir    = "images"
	truthDir     = "truth"
)

// A Set is a data set that was read.
type Set struct {
	Manifest dataset.Manifest
	Samples  []dataset.Sample

	files map[string]string // path by image hash
}

// Image returns the encoded image with that hash, PNG or JPEG.
func (s *Set) Image(sha string) ([]byte, error) {
	path, ok := s.files[sha]
	if !ok {
		return nil, fmt.Errorf("data set %s: no image with sha256 %.12s", s.Manifest.Name, sha)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("data set %s: %w", s.Manifest.Name, err)
	}
	if data, _, err = served(data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if got := digest(data); got != sha {
		return nil, fmt.Errorf("%s: file changed since it was read: sha256 is %.12s, was %.12s: start the run again", path, got, sha)
	}
	return data, nil
}

// PhantomTruth reads the truth of a phantom study, for the teacher and tests.
func PhantomTruth(dir, study string) (phantom.Truth, error) {
	var t phantom.Truth
	path := TruthPath(dir, study)
	data, err := os.ReadFile(path)
	if err != nil {
		return t, fmt.Errorf("truth of study %s: %w", study, err)
	}
	if err := strict(data, &t); err != nil {
		return t, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// TruthPath returns where the truth of a study lies in a data set.
func TruthPath(dir, study string) string { return filepath.Join(dir, truthDir, study+".json") }

func imagePath(dir, sha string) string { return filepath.Join(dir, imagesDir, sha+".png") }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
