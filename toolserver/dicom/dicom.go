// Package dicom reads projection radiographs from DICOM files: bytes in,
// pixels and allowed facts out.
//
// It reads what CR and DX files hold: explicit and implicit, little and big
// endian, deflated data sets, with and without preamble; pixels that are
// uncompressed, RLE, JPEG baseline, extended (8 and 12 bits) and lossless, of 8
// to 16 bits. JPEG 2000 and JPEG-LS need a program built with the tags openjpeg
// and charls; without them those files are refused by name.
//
// Nothing else leaves: the tags that are looked at stand in an allow-list,
// free text is never returned (a protocol's name is only searched for a view),
// and no error quotes a value that could name a person. Burnt-in text cannot be
// removed from pixels; [Image.BurntIn] reports the risk.
//
// Refused, with a [Refusal] that says why: other modalities, files without
// pixels, several frames, truncated files, sizes beyond the limits (before
// anything is allocated), and data that expands beyond what its header says.
package dicom

import (
	"errors"
	"fmt"
	"image"
	"strings"
)

// Limits bound what a file may make the reader allocate.
type Limits struct {
	Bytes  int // of a data set, after inflating
	Pixels int // rows × columns
}

// DefaultLimits fit the largest detectors (about 20 million pixels).
var DefaultLimits = Limits{Bytes: 128 << 20, Pixels: 64 << 20}

// An Image is a radiograph with what may be known of it.
type Image struct {
	Gray *image.Gray // as displayed: rescaled, windowed, bone bright; 8 bits

	Modality string // CR, DX, ...; "" when unknown
	BodyPart string // CHEST, ...; OTHER for a term that is not a known one; "" when unknown
	View     View
	ViewFrom string // view_position, view_code, protocol_name or "" when unknown
	AgeYears float64
	Mirrored bool // rows run to the patient's right, as the file says; nothing is flipped
	Against  View // Other or Lateral where the patient's orientation speaks against an upright frontal film
	BurntIn  Risk
	Spacing  Spacing

	Syntax      string // the transfer syntax in words
	Photometric string // as stored
	Bits        int    // bits stored
	Shown       string // what made the grey values: voi_lut, window, full_range, range

	// Notes say what was odd and how it was taken. They quote no values.
	Notes []string

	stored stored
}

// Stored returns the pixel values as stored, before rescaling, windowing and
// inversion, row by row.
func (m *Image) Stored() []int32 { return m.stored.values }

// Risk says whether text may be burnt into the pixels.
type Risk string

// The risks: as the file declares it; a file that declares nothing is unknown.
const (
	BurntInYes     Risk = "yes"
	BurntInNo      Risk = "no"
	BurntInUnknown Risk = "unknown"
)

// A Refusal says why a file is not read. Reason is a fixed word for counting,
// Detail is for people; neither quotes a person's data.
type Refusal struct {
	Reason string
	Detail string
}

// The reasons of refusals.
const (
	NotDICOM      = "not_dicom"
	Truncated     = "truncated"
	Damaged       = "damaged"
	NoPixels      = "no_pixels"
	NotRadiograph = "not_a_radiograph"
	Frames        = "several_frames"
	TooLarge      = "too_large"
	Unsupported   = "unsupported"
)

func (r *Refusal) Error() string { return "dicom: " + r.Detail }

// refuse makes a Refusal.
func refuse(reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// Is reports whether file looks like DICOM: by its magic word, or by starting
// with an element of the groups that stand first in files without one.
func Is(file []byte) bool {
	return hasMagic(file) || startsBare(file)
}

// Decode reads a radiograph. Its error is a *Refusal.
func Decode(file []byte, limits Limits) (*Image, error) {
	h, err := readHeader(file, limits)
	if err != nil {
		return nil, err
	}
	m := &Image{Syntax: h.syntax.name, Photometric: h.term(tagPhotometric)}
	if err := m.describe(h); err != nil {
		return nil, err
	}
	f, err := h.frame(limits)
	if err != nil {
		return nil, err
	}
	m.Bits = f.stored
	if m.stored, err = f.decode(h); err != nil {
		return nil, err
	}
	m.render(h, f)
	return m, nil
}

// describe takes the facts that are allowed out, and refuses what is no
// projection radiograph.
func (m *Image) describe(h *header) error {
	m.Modality = h.term(tagModality)
	if err := radiograph(m.Modality, h.text(tagSOPClass)); err != nil {
		return err
	}
	m.BodyPart = bodyPart(h.term(tagBodyPart))
	m.View, m.ViewFrom = viewOf(h)
	m.AgeYears = age(h.text(tagAge))
	m.Mirrored = strings.HasPrefix(strings.ToUpper(h.text(tagOrientation)), "R")
	m.Against = against(h.text(tagOrientation))
	m.BurntIn = burntIn(h.term(tagBurntIn))
	m.Spacing = spacingOf(h)
	return nil
}

// ReasonOf returns a refusal's reason, "" for other errors.
func ReasonOf(err error) string {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Reason
	}
	return ""
}
