package toolserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"maps"
	"slices"

	"xragent/toolserver/backend"
	"xragent/toolserver/masks"
	"xragent/toolserver/segment"
)

// segmenterName is the key, among Config.Backends, of the server that outlines
// radiographs. It is no tool.
const segmenterName = "segmenter"

// remoteNetwork is the value of the field network by which the server's masks
// take the embedded network's place. With any other it is asked for a second
// look, which must agree with the first.
const remoteNetwork = "remote"

// sought are the structures that a server is asked for, by the names of
// learner/model_server.py. The first three must come; of the rest what it knows.
var sought = []string{"right_lung", "left_lung", "heart", "trachea", "upper_mediastinum", "spine", "right_clavicle", "left_clavicle"}

const mustCome = 3 // of sought

// A remote is a segmenter behind HTTP.
type remote struct {
	cfg    backend.Config
	client *backend.Client
	slots  chan struct{}
}

// OpenRadiograph returns what finds lungs and heart on radiographs: the network
// that [OpenNetwork] knows by this name, a server where the name is "remote", or
// both, so that they can be compared. It is nil where there is neither. A server
// without a URL is none.
func OpenRadiograph(network string, server backend.Config) (segment.Segmenter, error) {
	switch {
	case server.URL == "" && network == remoteNetwork:
		return nil, errors.New("network is remote, but no server is configured: set backends.segmenter.url, or --server")
	case server.URL != "" && network == noSegmenter:
		return nil, errors.New("network is none, and a server that segments is configured: set network to remote, so that it is asked")
	case server.URL == "":
		n, err := OpenNetwork(network)
		if n == nil {
			return nil, err
		}
		return n, nil
	}
	r, err := newRemote(server)
	if err != nil {
		return nil, err
	}
	if network == remoteNetwork {
		return r, nil
	}
	n, err := OpenNetwork(network)
	if err != nil {
		return nil, err
	}
	return pair{n, r}, nil
}

func newRemote(cfg backend.Config) (*remote, error) {
	if cfg.Wire != "" && cfg.Wire != backend.JSON {
		return nil, fmt.Errorf("field wire is %q: masks come by %s only", cfg.Wire, backend.JSON)
	}
	client, err := backend.New(cfg)
	if err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	return &remote{cfg, client, make(chan struct{}, cfg.Concurrency)}, nil
}

// Name changes with the server's address and the version that is given for it.
func (r *remote) Name() string { return fmt.Sprintf("remote/v1/%s/%s", r.cfg.URL, r.cfg.Version) }

// Domain is the images that such servers are made for.
func (*remote) Domain() string { return "radiograph" }

// Segment sends the film, its longer side at most 1024 pixels, and returns the
// masks that came at the film's size. As every segmenter's, lungs end at the
// heart and have no specks beside them. What the server does wrong is an error
// of which [ServerFailed] knows.
func (r *remote) Segment(img *image.Gray) (segment.Masks, error) {
	sent := scaled(img, modelSide)
	files, err := r.ask(sent)
	if err != nil {
		return segment.Masks{}, err
	}
	m := segment.Landmarkless()
	if m.More, err = structuresIn(files, sent.Rect.Size(), img.Rect); err != nil {
		return segment.Masks{}, err
	}
	m.RightLung, m.LeftLung, m.Heart = m.More["right_lung"], m.More["left_lung"], m.More["heart"]
	if m.RightLung == nil || m.LeftLung == nil {
		return segment.Masks{}, segment.ErrNoLungs
	}
	m.Heart = segment.Whole(cmp.Or(m.Heart, image.NewAlpha(img.Rect)))
	m.RightLung, m.LeftLung = segment.Whole(without(m.RightLung, m.Heart)), segment.Whole(without(m.LeftLung, m.Heart))
	if segment.Bounds(m.RightLung).Empty() || segment.Bounds(m.LeftLung).Empty() {
		return segment.Masks{}, segment.ErrNoLungs
	}
	m.Contrast = segment.Contrast(img, m)
	return m, nil
}

// ask returns the PNG files of the structures that the server names.
func (r *remote) ask(sent *image.Gray) (map[string][]byte, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), r.cfg.Timeout, fmt.Errorf("no answer within %v: %w", r.cfg.Timeout, context.DeadlineExceeded))
	defer cancel()
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, &modelError{fmt.Sprintf("the segmenter's server: none of %d calls at a time was free within %v", cap(r.slots), r.cfg.Timeout)}
	}
	var file bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&file, sent); err != nil {
		return nil, fmt.Errorf("encode film: %w", err)
	}
	args, err := json.Marshal(map[string]any{"structures": sought})
	if err != nil {
		return nil, fmt.Errorf("encode arguments: %w", err)
	}
	out, err := r.client.Ask(ctx, backend.Request{Tool: segmenterName, Arguments: args, Images: []backend.Image{{PNG: file.Bytes()}}})
	switch {
	case err != nil:
		return nil, &modelError{"segmenter: " + err.Error()}
	case out.Error != "":
		return nil, &modelError{fmt.Sprintf("the segmenter's server: %.200q", out.Error)}
	}
	return out.Masks, nil
}

// structuresIn decodes the masks that came and puts them at the film's size. What
// is empty was not found, and is left out.
func structuresIn(files map[string][]byte, sent image.Point, film image.Rectangle) (map[string]*image.Alpha, error) {
	out := map[string]*image.Alpha{}
	for i, name := range sought {
		file, came := files[name]
		switch {
		case !came && i < mustCome:
			return nil, &modelError{fmt.Sprintf("the segmenter's server answered without %s, with %d other structures: %.100q", name, len(files), slices.Sorted(maps.Keys(files)))}
		case !came:
			continue
		}
		m, err := masks.PNG(file, sent)
		switch {
		case errors.Is(err, masks.ErrEmpty):
			continue
		case err != nil:
			return nil, &modelError{fmt.Sprintf("the segmenter's server: %s: %v", name, err)}
		}
		out[name] = fitted(m, film)
	}
	return out, nil
}

// fitted returns a mask at a film's size, each pixel as the nearest one's.
func fitted(m *image.Alpha, r image.Rectangle) *image.Alpha {
	if m.Rect == r {
		return m
	}
	out := image.NewAlpha(r)
	for y := range r.Dy() {
		line := m.Pix[(2*y+1)*m.Rect.Dy()/(2*r.Dy())*m.Stride:]
		for x := range r.Dx() {
			out.Pix[y*out.Stride+x] = line[(2*x+1)*m.Rect.Dx()/(2*r.Dx())]
		}
	}
	return out
}

// without returns m less the pixels of other, which has its size.
func without(m, other *image.Alpha) *image.Alpha {
	out := image.NewAlpha(m.Rect)
	for i, v := range m.Pix {
		if other.Pix[i] == 0 {
			out.Pix[i] = v
		}
	}
	return out
}

// A pair outlines by the first and looks again by the second.
type pair struct {
	*segment.Network
	again *remote
}

func (p pair) Name() string { return p.Network.Name() + " " + p.again.Name() }

func (p pair) SegmentAgain(img *image.Gray) (segment.Masks, error) {
	m, err := p.again.Segment(img)
	if err != nil {
		err = fmt.Errorf("second look: %w", err)
	}
	return m, err
}

// ServerFailed reports whether an error is a model server's failure: it says
// nothing of the image, and may be over the next time.
func ServerFailed(err error) bool {
	_, ok := errors.AsType[*modelError](err)
	return ok
}
