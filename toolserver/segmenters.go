package toolserver

import (
	"fmt"
	"image"
	"os"
	"strings"

	"xragent/dataset"
	"xragent/toolserver/measure"
	"xragent/toolserver/segment"
)

// noSegmenter is the value of the fields segmenter and network that switches
// them off.
const noSegmenter = "none"

// openSegmenters returns the segmenters that a configuration asks for.
func openSegmenters(cfg Config) ([]segment.Segmenter, error) {
	if cfg.Segmenter == noSegmenter {
		return nil, nil
	}
	list := []segment.Segmenter{segment.Phantom{}}
	server := cfg.Backends[segmenterName]
	if server.Timeout == 0 {
		server.Timeout = cfg.Deadline / 2 // so that its failure is known before the call's own time is over
	}
	films, err := OpenRadiograph(cfg.Network, server)
	if err != nil {
		return nil, fmt.Errorf("tools: field network: %w", err)
	}
	if films != nil {
		list = append(list, films)
	}
	return list, nil
}

// maxWeights bounds a file of weights.
const maxWeights = 64 << 20

// OpenNetwork returns the network that segments radiographs: the embedded one
// for "", none for "none", else that of a file which learner/segment.py wrote.
func OpenNetwork(path string) (*segment.Network, error) {
	switch path {
	case "":
		return segment.Embedded(), nil
	case noSegmenter:
		return nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxWeights {
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", path, info.Size(), maxWeights)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	n, err := segment.NewNetwork(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// segmenter returns the one that is made for a domain's images, nil where there
// is none.
func (s *Server) segmenter(domain string) segment.Segmenter {
	for _, g := range s.segmenters {
		if g.Domain() == domain {
			return g
		}
	}
	return nil
}

// A doubter is a segmenter that can look twice.
type doubter interface {
	SegmentAgain(img *image.Gray) (segment.Masks, error)
}

// segmentBy fills in the image's masks.
func (v *view) segmentBy(g segment.Segmenter) {
	m, second, err := SegmentTwice(g, v.gray)
	if err != nil {
		v.failed, v.passing = err.Error(), ServerFailed(err)
		return
	}
	v.masks, v.second = &m, second
}

// SegmentTwice segments an image and, by a segmenter that can, once more in
// another frame or by another model, so that the two can be compared; nil: it
// cannot. Where the second look finds no lungs, its masks are empty and agree with
// nothing; where its server fails, so does all.
func SegmentTwice(g segment.Segmenter, img *image.Gray) (first segment.Masks, second *segment.Masks, err error) {
	if first, err = g.Segment(img); err != nil {
		return first, nil, err
	}
	if d, ok := g.(doubter); ok {
		again, err := d.SegmentAgain(img)
		switch {
		case ServerFailed(err):
			return segment.Masks{}, nil, err
		case err != nil:
			again = segment.Masks{}
		}
		second = &again
	}
	return first, second, nil
}

// StructuresOf is what measurements need of masks; nil for none.
func StructuresOf(m *segment.Masks) *measure.Structures {
	if m == nil {
		return nil
	}
	return &measure.Structures{RightLung: m.RightLung, LeftLung: m.LeftLung, Heart: m.Heart,
		Trachea: m.More["trachea"], Mediastinum: m.More["upper_mediastinum"], Spine: m.More["spine"],
		RightClavicle: m.More["right_clavicle"], LeftClavicle: m.More["left_clavicle"]}
}

// segmenterKey names what masks of these images come from.
func (s *Server) segmenterKey(images []dataset.Image) []byte {
	var names []string
	for _, g := range s.segmenters {
		for _, m := range images {
			if m.Domain == g.Domain() {
				names = append(names, g.Name())
				break
			}
		}
	}
	if s.masks != nil {
		names = append(names, s.masks.Name())
	}
	return []byte(strings.Join(names, " "))
}

// everySegmenter names all that masks can come from.
func (s *Server) everySegmenter() []byte {
	domains := make([]dataset.Image, len(s.segmenters))
	for i, g := range s.segmenters {
		domains[i].Domain = g.Domain()
	}
	return s.segmenterKey(domains)
}
