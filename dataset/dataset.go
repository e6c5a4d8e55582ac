// Package dataset holds the types of a data set: samples, splits and manifests.
//
// It reads and writes nothing; each public format has a reader in a package of
// its own below this one. A [Sample] separates what the policy may see (its
// [Prompt]) from what only the reward and the evaluation may see, so that an
// answer can never travel to a rollout worker.
package dataset

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// A Split names the part of a data set that a sample belongs to.
type Split string

// The splits. OOD is the out-of-distribution test split.
const (
	Train      Split = "train"
	Validation Split = "validate"
	Test       Split = "test"
	OOD        Split = "ood"
)

// A Kind says how a question is answered and scored.
type Kind string

// The kinds of question.
const (
	MultipleChoice Kind = "multiple_choice" // answer: an option letter
	Closed         Kind = "closed"          // answer: a short string, compared normalised
	Binary         Kind = "binary"          // answer: "yes" or "no"
	Report         Kind = "report"          // answer: a list of findings
)

// Kinds lists every kind in the order used by tables.
var Kinds = []Kind{MultipleChoice, Closed, Binary, Report}

// An Image refers to a radiograph by content. The pixels live in a blob store
// under SHA256, the lower-case hex digest of the encoded file.
type Image struct {
	SHA256    string  `json:"sha256"`
	Path      string  `json:"path,omitempty"` // where the reader found it; for messages only
	Width     int     `json:"width"`
	Height    int     `json:"height"`
	View      string  `json:"view,omitempty"`       // PA, AP, LATERAL, OTHER (none of them, or no chest) or "" when unknown
	ViewFrom  string  `json:"view_from,omitempty"`  // label, or a DICOM file's tag (view_position, ...), which also stands without a view where it cannot be read as one
	AgeYears  float64 `json:"age_years,omitempty"`  // 0 when unknown
	SpacingMM float64 `json:"spacing_mm,omitempty"` // 0 when unknown
	SquarePx  bool    `json:"square_px"`            // pixels are square by provenance
	Domain    string  `json:"domain,omitempty"`     // "phantom", "radiograph": see segmenters
}

// Completed fills in what i leaves open from what the image's file says. What is
// stated of a film goes before its file, but for what speaks against measuring
// it: a lateral or other view, and the lower age.
func (i Image) Completed(file Image) Image {
	if i.View == "" || file.View == "LATERAL" || file.View == "OTHER" {
		i.View, i.ViewFrom = file.View, file.ViewFrom
	}
	if i.AgeYears == 0 || file.AgeYears > 0 && file.AgeYears < i.AgeYears {
		i.AgeYears = file.AgeYears
	}
	if i.SpacingMM == 0 {
		i.SpacingMM = file.SpacingMM
	}
	if i.Domain == "" {
		i.Domain = file.Domain
	}
	i.SquarePx = i.SquarePx || file.SquarePx
	return i
}

// A Prompt is everything that the policy and the tools may know of a sample.
type Prompt struct {
	Kind     Kind     `json:"kind"`
	Question string   `json:"question"`
	Options  []string `json:"options,omitempty"` // option i has the letter 'A'+i
	Images   []Image  `json:"images"`
}

// Letter returns the letter of option i.
func Letter(i int) string { return string(rune('A' + i)) }

// Letters returns the letters of the prompt's options in order.
func (p Prompt) Letters() []string {
	letters := make([]string, len(p.Options))
	for i := range letters {
		letters[i] = Letter(i)
	}
	return letters
}

// A Sample is one question about one study, with its reference answer.
type Sample struct {
	ID      string `json:"id"`     // unique within a data set
	Source  string `json:"source"` // the reader and its version, e.g. "phantom/v1"
	Split   Split  `json:"split"`
	Study   string `json:"study"`
	Patient string `json:"patient,omitempty"`

	Prompt Prompt `json:"prompt"`

	// Answer is a letter (multiple choice), a string (closed), "yes" or "no"
	// (binary). Report-style samples have Positive and Masked instead.
	Answer   string   `json:"answer,omitempty"`
	Positive []string `json:"positive,omitempty"` // positive findings; empty on a normal film
	Masked   []string `json:"masked,omitempty"`   // findings that are blank or uncertain
	Critical []string `json:"critical,omitempty"` // positive findings that may not be missed

	// Relevant names the measurements that bear on the question; often none.
	Relevant []string `json:"relevant,omitempty"`

	Capability string `json:"capability,omitempty"` // detection, localization, ...
	Template   string `json:"template,omitempty"`   // wording family, for the per-template majority
	Need       string `json:"need,omitempty"`       // least evidence that suffices (phantoms)
	Reference  string `json:"reference,omitempty"`  // reference findings text, for the similarity filter
}

// maxID bounds an id in bytes: it stands in messages, file and table rows.
const maxID = 256

// Validate reports the first thing that makes s unusable, naming its field.
func (s Sample) Validate() error {
	switch {
	case s.ID == "":
		return fmt.Errorf("sample without id")
	case len(s.ID) > maxID:
		return fmt.Errorf("sample %.20s…: field id has %d bytes, at most %d", s.ID, len(s.ID), maxID)
	case strings.ContainsFunc(s.ID, unicode.IsControl):
		return fmt.Errorf("sample %q: field id has control characters", s.ID)
	case strings.TrimSpace(s.Prompt.Question) == "":
		return fmt.Errorf("sample %s: field question is empty", s.ID)
	case len(s.Prompt.Images) == 0:
		return fmt.Errorf("sample %s: field images is empty", s.ID)
	}
	for i, img := range s.Prompt.Images {
		if err := img.validate(); err != nil {
			return fmt.Errorf("sample %s: field images[%d].%w", s.ID, i, err)
		}
	}
	return s.validateAnswer()
}

// validate checks what a reader states about an image; the pixels are the
// reader's to check. The error starts with the field.
func (i Image) validate() error {
	switch {
	case !slices.Contains([]string{"", "PA", "AP", "LATERAL", "OTHER"}, i.View):
		return fmt.Errorf("view is %q, want PA, AP, LATERAL, OTHER or none", i.View)
	case !(i.AgeYears >= 0): // refuses NaN too
		return fmt.Errorf("age_years is %v, want 0 (unknown) or more", i.AgeYears)
	case !(i.SpacingMM >= 0):
		return fmt.Errorf("spacing_mm is %v, want 0 (unknown) or more", i.SpacingMM)
	}
	return nil
}

func (s Sample) validateAnswer() error {
	switch s.Prompt.Kind {
	case MultipleChoice:
		return s.validateLetter()
	case Closed:
		if strings.TrimSpace(s.Answer) == "" {
			return fmt.Errorf("sample %s: field answer is empty", s.ID)
		}
	case Binary:
		if s.Answer != "yes" && s.Answer != "no" {
			return fmt.Errorf("sample %s: field answer is %q, want yes or no", s.ID, s.Answer)
		}
	case Report:
	default:
		return fmt.Errorf("sample %s: field kind is %q, want one of %v", s.ID, s.Prompt.Kind, Kinds)
	}
	return nil
}

func (s Sample) validateLetter() error {
	if err := validateOptions(s.Prompt.Options); err != nil {
		return fmt.Errorf("sample %s: field options %w", s.ID, err)
	}
	if s.Answer == "" {
		return fmt.Errorf("sample %s: field answer is empty", s.ID)
	}
	if !slices.Contains(s.Prompt.Letters(), s.Answer) {
		return fmt.Errorf("sample %s: field answer is %q, which is none of its %d options",
			s.ID, s.Answer, len(s.Prompt.Options))
	}
	return nil
}

// maxOptions is how many options have a letter.
const maxOptions = 26

func validateOptions(options []string) error {
	if n := len(options); n < 2 || n > maxOptions {
		return fmt.Errorf("has %d, want 2 to %d", n, maxOptions)
	}
	for i, o := range options {
		if strings.TrimSpace(o) == "" {
			return fmt.Errorf("%s is empty", Letter(i))
		}
		if first := slices.Index(options, o); first < i {
			return fmt.Errorf("%s and %s are both %q", Letter(first), Letter(i), o)
		}
	}
	return nil
}

// A Manifest says what a data set is made of, so that two runs can be told to
// have used the same data.
type Manifest struct {
	Name      string         `json:"name"`
	Source    string         `json:"source"`
	Generator string         `json:"generator,omitempty"` // hash of the generator, for synthetic data
	Seed      uint64         `json:"seed,omitempty"`
	Counts    map[string]int `json:"counts"`
	SHA256    string         `json:"sha256"` // of the samples file
	Licence   string         `json:"licence,omitempty"`
}
