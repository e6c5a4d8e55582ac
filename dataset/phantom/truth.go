package phantom

import (
	"image"

	"xragent/dataset"
)

// A View is the projection of a film.
type View string

// The views.
const (
	PA      View = "PA"
	AP      View = "AP"
	Lateral View = "LATERAL"
)

// A Fault is what spoils a frontal film's measurements.
type Fault string

// The faults.
const (
	NoFault         Fault = ""
	Rotated         Fault = "rotated"
	PoorInspiration Fault = "poor_inspiration"
	Cropped         Fault = "cropped"
	MaskFailure     Fault = "mask_failure" // something dense hides a border from a segmenter
)

// The names of findings. [Findings] are those that count in report-style answers.
const (
	Cardiomegaly     = "cardiomegaly"
	Effusion         = "effusion"
	Pneumothorax     = "pneumothorax"
	Consolidation    = "consolidation"
	Nodule           = "nodule"
	VolumeLoss       = "volume loss"
	TubeMalposition  = "tube malposition"
	Edema            = "edema"
	Scar             = "pleural scar" // blunts a costophrenic angle as little fluid does
	tube             = "tube"         // well placed
	mediastinalShift = "mediastinal shift"
)

// Findings is the closed list of names for report-style answers.
var Findings = []string{Cardiomegaly, Effusion, Pneumothorax, Consolidation, Nodule, VolumeLoss, TubeMalposition, Edema}

// A Finding is one abnormality of a study.
type Finding struct {
	Name    string  `json:"name"`
	Side    string  `json:"side,omitempty"` // right or left: the patient's
	Zone    string  `json:"zone,omitempty"` // upper, middle or lower
	SizeMM  float64 `json:"size_mm,omitempty"`
	Margin  string  `json:"margin,omitempty"`  // of a nodule: smooth or spiculated
	Opacity float64 `json:"opacity,omitempty"` // added brightness, of 255
	TipMM   float64 `json:"tip_mm,omitempty"`  // of a tube: its tip below the carina
	X       float64 `json:"x,omitempty"`       // centre in source pixels
	Y       float64 `json:"y,omitempty"`

	side, zone int
	fx, fy     float64 // place in the zone, -0.5 to 0.5 of its extent
	phase      float64 // of what is irregular in it
}

// Measures are the three measurements of a bundle.
type Measures struct {
	CTR       float64 `json:"ctr"`       // heart over chest, widest horizontal extents
	Asymmetry float64 `json:"asymmetry"` // ln(right lung area / left lung area)
	Shift     float64 `json:"shift"`     // trachea from spine over chest width, positive to the left
}

// Truth is what the generator knows of a study. No tool may read it.
type Truth struct {
	ID    string        `json:"id"`
	Split dataset.Split `json:"split"`
	View  View          `json:"view"`
	Fault Fault         `json:"fault,omitempty"`
	// FaultDegree is the rotation in degrees, the share of the chest's width
	// that is cropped, or what a poor inspiration adds to the CTR.
	FaultDegree float64   `json:"fault_degree,omitempty"`
	FaultSide   string    `json:"fault_side,omitempty"` // rotated towards, cropped at
	Findings    []Finding `json:"findings"`
	// Anatomical holds what a perfect film would measure, Apparent what this
	// film does. Both are zero on a lateral film.
	Anatomical Measures `json:"anatomical"`
	Apparent   Measures `json:"apparent"`
	// Misled says that the apparent number suggests a wrong answer to the question.
	Misled bool     `json:"misled,omitempty"`
	Coarse []string `json:"coarse"` // what a view of 128 × 128 shows, in fixed wording

	scene scene
	key   splitKey
}

// Large reports whether the coarse view shows f.
func (f Finding) Large() bool { return f.coarse() != "" && f.coarse() != "tube" }

type splitKey struct {
	seed uint64
	k    int
}

// A Mask is one structure's pixels: 255 inside, 0 outside.
type Mask = *image.Gray

// Masks are the structures as projected; lungs are their aerated parts. All
// three are empty on a lateral film. Masks and [Render] need a truth that this
// package made: one that was read back from a file has lost its geometry.
type Masks struct {
	RightLung, LeftLung, Heart Mask
}

// Masks draws the masks of the study from its parameters.
func (t Truth) Masks() Masks {
	t.mustBeMade()
	frame := image.Rect(0, 0, Size, Size)
	m := Masks{image.NewGray(frame), image.NewGray(frame), image.NewGray(frame)}
	if t.View == Lateral {
		return m
	}
	film := &t.scene.film
	lungs := [2]Mask{m.RightLung, m.LeftLung}
	for side, lung := range lungs {
		for y := range Size {
			film.maskRow(side, y, lung.Pix[y*Size:(y+1)*Size], m.Heart.Pix[y*Size:(y+1)*Size])
		}
	}
	return m
}

// maskRow fills one side's pixels of a row of the lung's and the heart's mask.
func (t *thorax) maskRow(side, y int, lung, heart []uint8) {
	fy := float64(y) + 0.5
	inner, outer := t.span(side, fy)
	border := t.heartEdge(side, fy)
	for x := range lung {
		d := toward(side) * (float64(x) + 0.5 - t.spine)
		switch {
		case d < 0:
		case d < border:
			heart[x] = 255
		case d >= inner && d < outer && fy < t.floor(side, d):
			lung[x] = 255
		}
	}
}

// Render draws the film of a study that this package made.
func Render(t Truth) *image.Gray {
	t.mustBeMade()
	return render(&t.scene, stream(t.key.seed, t.Split, t.key.k, streamPixels))
}

func (t Truth) mustBeMade() {
	if t.scene.view == "" {
		panic("phantom: truth of study " + t.ID + " was not made by Describe or Generate")
	}
}
