package toolserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image/png"
	"maps"
	"math"
	"slices"
	"strings"

	"xragent/rollout"
	"xragent/toolserver/backend"
	"xragent/toolserver/measure"
)

// The tools beyond the recipe, named and shaped after MedRAX's (Fallahpour et
// al. 2025), so that its prompts work here. What a call returns differs where
// MedRAX's is misleading: areas in cm² stand only where the spacing is known,
// and nothing of a patient is sent to a server.
const (
	lookupName   = "evidence_lookup"
	classifyName = "chest_xray_classifier"
	segmentName  = "chest_xray_segmentation"
	groundName   = "xray_phrase_grounding"
	reportName   = "chest_xray_report_generator"
	questionName = "chest_xray_expert"
	generateName = "chest_xray_generator"
	dicomName    = "dicom_processor"
	pictureName  = "image_visualizer"
)

var extendedNames = []string{classifyName, segmentName, groundName, reportName, questionName, generateName, dicomName, pictureName}

func addExtended(s *Server, m map[string]*model) error {
	return errors.Join(
		addTool(s, classifyTool(m[classifyName]), nil),
		addTool(s, segmentTool(), nil),
		addTool(s, groundTool(m[groundName]), nil),
		addTool(s, reportTool(m[reportName]), nil),
		addTool(s, questionTool(m[questionName]), nil),
		addTool(s, generateTool(m[generateName]), nil),
		addTool(s, dicomTool(s.cfg), nil),
		addTool(s, pictureTool(), nil),
	)
}

// ImageArgs are the arguments of tools that look at one image.
type ImageArgs struct {
	Image int `json:"image,omitempty" jsonschema:"which image, from 1; default 1"`
}

// GroundArgs are the arguments of xray_phrase_grounding.
type GroundArgs struct {
	Phrase string `json:"phrase" jsonschema:"the finding to locate"`
	Image  int    `json:"image,omitempty" jsonschema:"which image, from 1; default 1"`
}

// QuestionArgs are the arguments of chest_xray_expert.
type QuestionArgs struct {
	Prompt string `json:"prompt" jsonschema:"a question about the images"`
	Image  int    `json:"image,omitempty" jsonschema:"which image, from 1; default all"`
}

// GenerateArgs are the arguments of chest_xray_generator.
type GenerateArgs struct {
	Prompt   string  `json:"prompt" jsonschema:"what the synthetic film is to show"`
	Height   int     `json:"height,omitempty" jsonschema:"pixels, 64 to 1024; default 512"`
	Width    int     `json:"width,omitempty" jsonschema:"pixels, 64 to 1024; default 512"`
	Steps    int     `json:"num_inference_steps,omitempty" jsonschema:"1 to 200; default 75"`
	Guidance float64 `json:"guidance_scale,omitempty" jsonschema:"0 to 20; default 4"`
	Seed     int     `json:"seed,omitempty" jsonschema:"the same seed gives the same film"`
}

func classifyTool(m *model) Tool[ImageArgs, map[string]float64] {
	return Tool[ImageArgs, map[string]float64]{
		Name: classifyName, Description: "probabilities of findings", Version: m.version(), Images: true, Model: m,
		Run: func(ctx context.Context, s *Study, in ImageArgs) (map[string]float64, error) {
			in.Image = cmp.Or(in.Image, 1)
			images, err := s.imagesFor(in.Image)
			if err != nil {
				return nil, err
			}
			out, err := m.ask(ctx, in, images, "", "")
			if err == nil && len(out.Labels) == 0 {
				err = m.lacks("labels")
			}
			return out.Labels, err
		},
		Show: func(p map[string]float64) rollout.Observation { return rollout.Observation{Text: labelsText(p)} },
	}
}

// labelsText lists labels, the most probable first.
func labelsText(p map[string]float64) string {
	names := slices.Sorted(maps.Keys(p))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(p[b], p[a]) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %.2f", name, p[name])
	}
	return strings.Join(names, "\n")
}

// A grounding is a phrase's boxes with a picture of them.
type grounding struct {
	boxes []backend.Box
	png   []byte
}

func groundTool(m *model) Tool[GroundArgs, grounding] {
	return Tool[GroundArgs, grounding]{
		Name: groundName, Description: "locate a phrase", Version: m.version(), Images: true, Model: m,
		Run: func(ctx context.Context, s *Study, in GroundArgs) (grounding, error) {
			if err := checkText("phrase", in.Phrase); err != nil {
				return grounding{}, err
			}
			in.Image = cmp.Or(in.Image, 1)
			images, err := s.imagesFor(in.Image)
			if err != nil {
				return grounding{}, err
			}
			out, err := m.ask(ctx, in, images, "", "")
			if err != nil || len(out.Boxes) == 0 {
				return grounding{}, err
			}
			picture, err := s.boxesPicture(in.Image, out.Boxes)
			return grounding{out.Boxes, picture}, err
		},
		Show: func(g grounding) rollout.Observation {
			return rollout.Observation{Text: boxesText(g.boxes), PNG: g.png}
		},
	}
}

func boxesText(boxes []backend.Box) string {
	if len(boxes) == 0 {
		return "not found"
	}
	lines := make([]string, len(boxes))
	for i, b := range boxes {
		lines[i] = strings.TrimSpace(fmt.Sprintf("%s %.3f %.3f %.3f %.3f", b.Phrase, b.Box[0], b.Box[1], b.Box[2], b.Box[3]))
		if b.Score > 0 {
			lines[i] += fmt.Sprintf(" score %.2f", b.Score)
		}
	}
	return "left top right bottom as shares:\n" + strings.Join(lines, "\n")
}

// boxesPicture draws boxes on an image.
func (st *Study) boxesPicture(n int, boxes []backend.Box) ([]byte, error) {
	v, err := st.view(n)
	if err != nil {
		return nil, err
	}
	gray := scaled(v.gray, modelSide)
	out := Overlay(gray, measure.Structures{}, nil, nil)
	w, h := float64(gray.Rect.Dx()), float64(gray.Rect.Dy())
	for _, b := range boxes {
		at := func(x, y float64) measure.Point { return measure.Point{X: x * w, Y: y * h} }
		l, t, r, bottom := b.Box[0], b.Box[1], b.Box[2], b.Box[3]
		for _, side := range [4][2]measure.Point{{at(l, t), at(r, t)}, {at(r, t), at(r, bottom)}, {at(r, bottom), at(l, bottom)}, {at(l, bottom), at(l, t)}} {
			stroke(out, side[0], side[1])
		}
	}
	var file bytes.Buffer
	err = png.Encode(&file, out)
	return file.Bytes(), err
}

func reportTool(m *model) Tool[struct{}, string] {
	return Tool[struct{}, string]{
		Name: reportName, Description: "write findings and impression", Version: m.version(), Images: true, Model: m,
		Run: func(ctx context.Context, s *Study, in struct{}) (string, error) {
			return m.text(ctx, s, in, 0, "", "Write the report of this chest X-ray study: FINDINGS, then IMPRESSION. Say nothing of a patient.")
		},
		Show: showText,
	}
}

func questionTool(m *model) Tool[QuestionArgs, string] {
	return Tool[QuestionArgs, string]{
		Name: questionName, Description: "ask a model about the images", Version: m.version(), Images: true, Model: m,
		Run: func(ctx context.Context, s *Study, in QuestionArgs) (string, error) {
			if err := checkText("prompt", in.Prompt); err != nil {
				return "", err
			}
			return m.text(ctx, s, in, in.Image, "You read chest X-rays. Answer briefly.", in.Prompt)
		},
		Show: showText,
	}
}

// text asks for text about image n, 0 for all.
func (m *model) text(ctx context.Context, s *Study, args any, n int, system, prompt string) (string, error) {
	images, err := s.imagesFor(n)
	if err != nil {
		return "", err
	}
	out, err := m.ask(ctx, args, images, system, prompt)
	if err == nil && out.Text == "" {
		err = m.lacks("text")
	}
	return out.Text, err
}

func showText(text string) rollout.Observation { return rollout.Observation{Text: text} }

func generateTool(m *model) Tool[GenerateArgs, []byte] {
	return Tool[GenerateArgs, []byte]{
		Name: generateName, Description: "make a synthetic film", Version: m.version(), Model: m,
		Run: func(ctx context.Context, _ *Study, in GenerateArgs) ([]byte, error) {
			in = in.withDefaults()
			if err := in.check(); err != nil {
				return nil, err
			}
			out, err := m.ask(ctx, in, nil, "", "")
			if err == nil && len(out.PNG) == 0 {
				err = m.lacks("a picture")
			}
			return out.PNG, err
		},
		Show: func(file []byte) rollout.Observation {
			return rollout.Observation{Text: "a synthetic film: it shows no patient", PNG: file}
		},
	}
}

func (in GenerateArgs) withDefaults() GenerateArgs {
	in.Height, in.Width = cmp.Or(in.Height, 512), cmp.Or(in.Width, 512)
	in.Steps, in.Guidance = cmp.Or(in.Steps, 75), cmp.Or(in.Guidance, 4)
	return in
}

func (in GenerateArgs) check() error {
	within := func(v, low, high float64) bool { return v >= low && v <= high && !math.IsNaN(v) }
	switch {
	case !within(float64(in.Height), 64, 1024) || !within(float64(in.Width), 64, 1024):
		return argumentErrorf("%d x %d pixels; want 64 to 1024 each", in.Width, in.Height)
	case !within(float64(in.Steps), 1, 200) || !within(in.Guidance, 0, 20):
		return argumentErrorf("num_inference_steps %d and guidance_scale %g; want 1 to 200 and 0 to 20", in.Steps, in.Guidance)
	}
	return checkText("prompt", in.Prompt)
}

// maxPrompt bounds a text for a server, in bytes.
const maxPrompt = 2000

func checkText(name, text string) error {
	if strings.TrimSpace(text) == "" || len(text) > maxPrompt {
		return argumentErrorf("%s has %d bytes; want 1 to %d", name, len(text), maxPrompt)
	}
	return nil
}
