package segment

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"image"
	"math"
	"sync"
)

// Network segments frontal radiographs with a small convolutional network: a
// U-Net (Ronneberger et al. 2015) with sums in place of concatenations, made by
// learner/segment.py. It sees a film of any size and any aspect squeezed to
// 256 × 256 pixels.
//
// It calls the lung on the image's left the right one, on mirrored films too,
// and outlines something on most images. Whether that is a chest, whole and the
// right way round, is for the gate to say. Landmarks it does not find.
type Network struct {
	name string
	net  *net
}

// networkVersion is raised when the same weights give other masks.
const networkVersion = "v1"

//go:embed network/model.safetensors
var weightsFile []byte

// Embedded returns the network whose weights are part of the program. What they
// were trained on, with licences, stands in network/record.json.
var Embedded = sync.OnceValue(func() *Network {
	n, err := NewNetwork(weightsFile)
	if err != nil {
		panic("segment: embedded weights: " + err.Error()) // a test loads them
	}
	return n
})

// NewNetwork reads weights as learner/segment.py exports them.
func NewNetwork(weights []byte) (*Network, error) {
	n, err := newNet(weights)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	return &Network{fmt.Sprintf("network/%s/%.6x", networkVersion, sha256.Sum256(weights)), n}, nil
}

// Name identifies the network by its weights.
func (n *Network) Name() string { return n.name }

// Domain is the images that the network is made for.
func (*Network) Domain() string { return "radiograph" }

// leastSide is the least width and height of an image, in pixels.
const leastSide = 64

// Segment finds the lungs and the heart. It returns [ErrNoLungs] where it finds
// nothing of either lung; a heart that it does not find is an empty mask.
func (n *Network) Segment(img *image.Gray) (Masks, error) { return n.segment(img, inputSide, 1) }

// The second look's frame: the film smaller, in a black border, its dark tones
// spread. Both lie within what the network was trained on.
const (
	againSide  = inputSide * 7 / 8
	againGamma = 0.6
)

// SegmentAgain segments the film in another frame. Masks that differ much from
// those of [Network.Segment] are not to be trusted.
func (n *Network) SegmentAgain(img *image.Gray) (Masks, error) {
	return n.segment(img, againSide, againGamma)
}

// segment shows the network the film at side × side, its grey levels raised to a
// power.
func (n *Network) segment(img *image.Gray, side int, gamma float64) (Masks, error) {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	if w < leastSide || h < leastSide {
		return Masks{}, fmt.Errorf("image of %d x %d pixels, want at least %d x %d", w, h, leastSide, leastSide)
	}
	x := squeezed(img, side)
	raise(x.data, gamma)
	if !normalise(x.data) {
		return Masks{}, fmt.Errorf("image of one grey level: %w", ErrNoLungs)
	}
	logits := n.net.forward(x)
	roundHeart(logits)
	labels := enlarged(logits, side, w, h)
	m := Landmarkless()
	m.RightLung, m.LeftLung, m.Heart = structure(labels, rightLung), structure(labels, leftLung), structure(labels, heart)
	if Bounds(m.RightLung).Empty() || Bounds(m.LeftLung).Empty() {
		return Masks{}, ErrNoLungs
	}
	m.Contrast = Contrast(img, m)
	return m, nil
}

// Landmarkless is masks without any number that only a phantom's segmenter finds.
func Landmarkless() Masks {
	nan := math.NaN()
	return Masks{Spine: nan, Trachea: nan, Airway: nan, Clavicle: nan, Level: nan, Scale: 1}
}

// leastContrast keeps what is sought in a film by its contrast above noise.
const leastContrast = 10

// Contrast returns how much brighter the heart is than the lungs, in grey
// levels, at least 10.
func Contrast(img *image.Gray, m Masks) float64 {
	heart, n := sumOf(img, m.Heart)
	right, a := sumOf(img, m.RightLung)
	left, b := sumOf(img, m.LeftLung)
	return max(heart/max(n, 1)-(right+left)/max(a+b, 1), leastContrast)
}

// sumOf adds up the grey levels inside a mask.
func sumOf(img *image.Gray, m *image.Alpha) (sum, n float64) {
	for y := range m.Rect.Dy() {
		line := img.Pix[y*img.Stride:]
		for x, in := range m.Pix[y*m.Stride : y*m.Stride+m.Rect.Dx()] {
			if in != 0 {
				sum, n = sum+float64(line[x]), n+1
			}
		}
	}
	return sum, n
}
