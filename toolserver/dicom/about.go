package dicom

import (
	"bytes"
	"image/png"
	"slices"

	"xragent/dataset"
)

// About returns what the file says of its image in the terms of a data set. An
// image of another part of the body has the view OTHER, and so has one that is
// stored mirrored: the patient's sides would be taken for each other.
// Millimetres are left out where pixels are not square.
func (m *Image) About() dataset.Image {
	a := dataset.Image{
		Width: m.Gray.Rect.Dx(), Height: m.Gray.Rect.Dy(), View: string(m.View), ViewFrom: m.ViewFrom,
		AgeYears: m.AgeYears, SquarePx: m.Spacing.Square, Domain: "radiograph",
	}
	if a.SquarePx {
		a.SpacingMM = m.Spacing.ColumnMM
	}
	if !slices.Contains(chestParts, m.BodyPart) {
		a.View, a.ViewFrom = string(Other), "body_part"
	}
	if m.Against != Unknown {
		a.View, a.ViewFrom = string(m.Against), "patient_orientation"
	}
	return a
}

// chestParts are the body parts, unknown ones included, that may be a chest.
var chestParts = []string{"", "OTHER", "CHEST", "THORAX", "LUNG", "RIB", "RIBS", "HEART", "CLAVICLE"}

// PNG returns the displayed image as a PNG file: what the rest of the program
// reads, with nothing of the DICOM file but its pixels.
func (m *Image) PNG() ([]byte, error) {
	var b bytes.Buffer
	err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&b, m.Gray)
	return b.Bytes(), err
}
