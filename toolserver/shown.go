package toolserver

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"math"
	"slices"
	"strings"

	"xragent/rollout"
	"xragent/toolserver/dicom"
	"xragent/toolserver/measure"
	"xragent/toolserver/segment"
)

// organs are the structures that chest_xray_segmentation knows.
var organs = []string{"right lung", "left lung", "heart"}

// SegmentArgs are the arguments of chest_xray_segmentation.
type SegmentArgs struct {
	Organs []string `json:"organs,omitempty" jsonschema:"right lung, left lung, heart; default all"`
	Image  int      `json:"image,omitempty" jsonschema:"which image, from 1; default 1"`
}

// A Segmentation is an image's masks in numbers and as a picture.
type Segmentation struct {
	Organs []Organ
	PNG    []byte
}

// An Organ is one mask in numbers. Shares are of the image's width and height,
// or of its area.
type Organ struct {
	Name      string
	Area      int     // pixels
	AreaCM2   float64 // 0 where the spacing is not known
	Share     float64
	Centre    [2]float64
	Box       [4]float64 // left, top, right, bottom
	Mean, Std float64    // grey levels, 0 to 255
	Parts     int        // connected pieces of at least 1 % of the mask
}

func segmentTool() Tool[SegmentArgs, Segmentation] {
	return Tool[SegmentArgs, Segmentation]{
		Name: segmentName, Description: "outline organs, with metrics", Version: "v1", Images: true,
		Run: func(ctx context.Context, s *Study, in SegmentArgs) (Segmentation, error) { return segmentation(s, in) },
		Show: func(g Segmentation) rollout.Observation {
			lines := make([]string, len(g.Organs))
			for i, o := range g.Organs {
				lines[i] = o.String()
			}
			return rollout.Observation{Text: strings.Join(lines, "\n"), PNG: g.PNG}
		},
	}
}

// String writes an organ on one line.
func (o Organ) String() string {
	if o.Area == 0 {
		return o.Name + ": not found"
	}
	text := fmt.Sprintf("%s: area %.1f %%", o.Name, 100*o.Share)
	if o.AreaCM2 > 0 {
		text += fmt.Sprintf(" %.0f cm2", o.AreaCM2)
	}
	return text + fmt.Sprintf(" centre %.3f %.3f box %.3f %.3f %.3f %.3f grey %.0f sd %.0f parts %d",
		o.Centre[0], o.Centre[1], o.Box[0], o.Box[1], o.Box[2], o.Box[3], o.Mean, o.Std, o.Parts)
}

func segmentation(s *Study, in SegmentArgs) (Segmentation, error) {
	wanted, err := in.organs()
	if err != nil {
		return Segmentation{}, err
	}
	v, err := s.view(in.Image)
	if err != nil {
		return Segmentation{}, err
	}
	if v.masks == nil {
		return Segmentation{}, fmt.Errorf("no masks: %s", v.noMasks())
	}
	spacing := s.meta[max(in.Image, 1)-1].Completed(v.about).SpacingMM
	var drawn measure.Structures
	var out Segmentation
	for _, name := range wanted {
		m, at := v.masks.RightLung, &drawn.RightLung
		switch name {
		case "left lung":
			m, at = v.masks.LeftLung, &drawn.LeftLung
		case "heart":
			m, at = v.masks.Heart, &drawn.Heart
		}
		*at = m
		out.Organs = append(out.Organs, organOf(name, m, v.gray, spacing))
	}
	out.PNG, err = shownPNG(Overlay(v.gray, drawn, nil, nil))
	return out, err
}

// noMasks says why an image has no masks.
func (v *view) noMasks() string {
	if v.failed != "" {
		return v.failed
	}
	return fmt.Sprintf("no segmenter for images of domain %q is configured, and none are stored", v.domain)
}

func (in SegmentArgs) organs() ([]string, error) {
	if len(in.Organs) == 0 {
		return organs, nil
	}
	var out []string
	for _, name := range in.Organs {
		canonical := strings.Join(strings.Fields(regionSpelling.Replace(strings.ToLower(name))), " ")
		if !slices.Contains(organs, canonical) {
			return nil, argumentErrorf("unknown organ; use %s", strings.Join(organs, ", "))
		}
		if !slices.Contains(out, canonical) {
			out = append(out, canonical)
		}
	}
	return out, nil
}

func organOf(name string, m *image.Alpha, gray *image.Gray, spacingMM float64) Organ {
	o := Organ{Name: name}
	if m == nil || segment.Area(m) == 0 {
		return o
	}
	w, h := float64(gray.Rect.Dx()), float64(gray.Rect.Dy())
	var n, x, y, sum, squares float64
	for j := range m.Rect.Dy() {
		for i, inside := range m.Pix[j*m.Stride : j*m.Stride+m.Rect.Dx()] {
			if inside != 0 {
				g := float64(gray.Pix[j*gray.Stride+i])
				n, x, y, sum, squares = n+1, x+float64(i)+0.5, y+float64(j)+0.5, sum+g, squares+g*g
			}
		}
	}
	b := maskBox(m, gray.Rect)
	o.Area, o.Share, o.AreaCM2 = int(n), n/(w*h), n*spacingMM*spacingMM/100
	o.Centre, o.Box = [2]float64{x / n / w, y / n / h}, [4]float64{b.X0, b.Y0, b.X1, b.Y1}
	o.Mean = sum / n
	o.Std = math.Sqrt(max(0, squares/n-o.Mean*o.Mean))
	o.Parts = parts(m, int(n)/100)
	return o
}

// parts counts the 4-connected pieces of a mask that have more than least pixels.
func parts(m *image.Alpha, least int) int {
	w, h := m.Rect.Dx(), m.Rect.Dy()
	seen := make([]bool, w*h)
	inside := func(x, y int) bool {
		return x >= 0 && y >= 0 && x < w && y < h && m.Pix[y*m.Stride+x] != 0 && !seen[y*w+x]
	}
	count := 0
	var stack []image.Point
	for start := range seen {
		if !inside(start%w, start/w) {
			continue
		}
		seen[start] = true
		size := 0
		for stack = append(stack, image.Pt(start%w, start/w)); len(stack) > 0; size++ {
			p := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, q := range [4]image.Point{{p.X + 1, p.Y}, {p.X - 1, p.Y}, {p.X, p.Y + 1}, {p.X, p.Y - 1}} {
				if inside(q.X, q.Y) {
					seen[q.Y*w+q.X] = true
					stack = append(stack, q)
				}
			}
		}
		if size > least {
			count++
		}
	}
	return count
}

// shownPNG encodes an image, its longer side at most modelSide pixels.
func shownPNG(img *image.RGBA) ([]byte, error) {
	var file bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&file, smaller(img, modelSide)); err != nil {
		return nil, fmt.Errorf("encode picture: %w", err)
	}
	return file.Bytes(), nil
}

// DICOMArgs are the arguments of dicom_processor.
type DICOMArgs struct {
	Center *float64 `json:"window_center,omitempty" jsonschema:"in stored values; with window_width"`
	Width  *float64 `json:"window_width,omitempty" jsonschema:"in stored values, 1 or more"`
	Image  int      `json:"image,omitempty" jsonschema:"which image, from 1; default 1"`
}

// A processed is a DICOM file's picture with what may be known of it.
type processed struct {
	text string
	png  []byte
}

func dicomTool(cfg Config) Tool[DICOMArgs, processed] {
	return Tool[DICOMArgs, processed]{
		Name: dicomName, Description: "read a DICOM file", Version: "v1", Images: true,
		Run:  func(ctx context.Context, s *Study, in DICOMArgs) (processed, error) { return processDICOM(s, in, cfg) },
		Show: func(p processed) rollout.Observation { return rollout.Observation{Text: p.text, PNG: p.png} },
	}
}

func processDICOM(s *Study, in DICOMArgs, cfg Config) (processed, error) {
	switch {
	case (in.Center == nil) != (in.Width == nil):
		return processed{}, argumentErrorf("give window_center and window_width, or neither")
	case in.Width != nil && !(*in.Width >= 1):
		return processed{}, argumentErrorf("window_width is %g; want 1 or more", *in.Width)
	}
	if _, err := s.view(in.Image); err != nil { // an image that is not there, or not readable
		return processed{}, err
	}
	file := s.images[max(in.Image, 1)-1]
	if !dicom.Is(file) {
		return processed{}, argumentErrorf("the image is no DICOM file")
	}
	m, err := dicom.Decode(file, dicom.Limits{Bytes: cfg.ImageBytes, Pixels: cfg.ImagePixels})
	if err != nil {
		return processed{}, err
	}
	gray := m.Gray
	if in.Center != nil {
		gray, m.Shown = windowed(m, *in.Center, *in.Width), "window as asked"
	}
	shown, err := shownPNG(Overlay(scaled(gray, modelSide), measure.Structures{}, nil, nil))
	return processed{factsText(m), shown}, err
}

// windowed shows the stored values between two limits, bone bright.
func windowed(m *dicom.Image, centre, width float64) *image.Gray {
	out := image.NewGray(m.Gray.Rect)
	for i, v := range m.Stored() {
		share := min(max((float64(v)-centre)/width+0.5, 0), 1)
		if m.Photometric == "MONOCHROME1" {
			share = 1 - share
		}
		out.Pix[i] = uint8(math.Round(255 * share))
	}
	return out
}

// factsText lists the facts that package dicom lets out.
func factsText(m *dicom.Image) string {
	unknown := func(s string) string {
		if s == "" {
			return "unknown"
		}
		return s
	}
	about := m.About()
	lines := []string{
		fmt.Sprintf("modality %s, body part %s", unknown(m.Modality), unknown(m.BodyPart)),
		fmt.Sprintf("view %s (from %s)", unknown(about.View), unknown(about.ViewFrom)),
		fmt.Sprintf("%d x %d pixels, %d bits, %s, %s", about.Width, about.Height, m.Bits, m.Photometric, m.Syntax),
		"grey values by " + m.Shown,
	}
	if about.SpacingMM > 0 {
		lines = append(lines, fmt.Sprintf("spacing %.3f mm", about.SpacingMM))
	}
	if m.BurntIn != dicom.BurntInNo {
		lines = append(lines, fmt.Sprintf("text burnt into the pixels: %s", m.BurntIn))
	}
	return strings.Join(append(lines, m.Notes...), "\n")
}

// PictureArgs are the arguments of image_visualizer.
type PictureArgs struct {
	Title  string `json:"title,omitempty" jsonschema:"a line of text in the corner, at most 80 characters"`
	Masks  bool   `json:"masks,omitempty" jsonschema:"outline lungs and heart"`
	Lines  bool   `json:"lines,omitempty" jsonschema:"draw what was measured"`
	Image  int    `json:"image,omitempty" jsonschema:"which image, from 1; default 1"`
	Invert bool   `json:"invert,omitempty" jsonschema:"bone dark"`
}

func pictureTool() Tool[PictureArgs, []byte] {
	return Tool[PictureArgs, []byte]{
		Name: pictureName, Description: "show an image", Version: "v1", Images: true,
		Run:  func(ctx context.Context, s *Study, in PictureArgs) ([]byte, error) { return show(s, in) },
		Show: func(file []byte) rollout.Observation { return rollout.Observation{Text: "shown", PNG: file} },
	}
}

func show(s *Study, in PictureArgs) ([]byte, error) {
	if len(in.Title) > 80 || strings.ContainsFunc(in.Title, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, argumentErrorf("title has %d bytes; want at most 80 printable ASCII characters", len(in.Title))
	}
	v, err := s.view(in.Image)
	if err != nil {
		return nil, err
	}
	if (in.Masks || in.Lines) && v.masks == nil {
		return nil, fmt.Errorf("no masks: %s", v.noMasks())
	}
	var all, drawn measure.Structures
	if v.masks != nil {
		all = measure.Structures{RightLung: v.masks.RightLung, LeftLung: v.masks.LeftLung, Heart: v.masks.Heart}
	}
	if in.Masks {
		drawn = all
	}
	var numbers []measure.Number
	if in.Lines {
		numbers = measure.Numbers(all, measure.ColumnExtent, s.meta[max(in.Image, 1)-1].Completed(v.about))
	}
	gray := v.gray
	if in.Invert {
		gray = inverted(gray)
	}
	var text []string
	if in.Title != "" {
		text = []string{in.Title}
	}
	return shownPNG(Overlay(gray, drawn, numbers, text))
}

func inverted(g *image.Gray) *image.Gray {
	out := image.NewGray(g.Rect)
	for i, v := range g.Pix {
		out.Pix[i] = 255 - v
	}
	return out
}
