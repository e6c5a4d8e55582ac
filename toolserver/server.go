package toolserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"xragent/dataset"
	"xragent/rollout"
	"xragent/toolserver/measure"
	"xragent/toolserver/segment"
)

// The recipe's tools in the order of their schemas, and the name of the measurements.
var toolNames = []string{"region_parse", "roi_crop", "evidence_lookup"}

const measureName = "measure"

// A Server executes tools in process. It is safe for concurrent use.
type Server struct {
	cfg        Config
	names      []string // of the tools, in the order of their schemas
	tools      map[string]*binding
	segmenters []segment.Segmenter // at most one a domain
	calls      *cache[rollout.Observation]
	slots      chan struct{}
	masks      MaskSource // nil: none
	disk       *disk      // nil: none
	bundles    *flight[rollout.Bundle]
	views      *flight[*view] // has no slots of its own: it runs inside a call
	tally      tally
}

// New builds the tools.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base, err := readKnowledge(knowledgeFile)
	if err != nil {
		return nil, err
	}
	slots := make(chan struct{}, cfg.Concurrency)
	bytes := cfg.Cache << 20
	s := &Server{
		cfg:     cfg,
		tools:   map[string]*binding{},
		slots:   slots,
		calls:   newCache[rollout.Observation](bytes),
		bundles: newFlight(newCache[rollout.Bundle](bytes), slots),
		views:   newFlight(newCache[*view](bytes), nil),
	}
	if cfg.MasksFrom != "" {
		if s.masks, err = OpenMasks(cfg.MasksFrom); err != nil {
			return nil, fmt.Errorf("tools: field masks_from: %w", err)
		}
	}
	if s.disk, err = openDisk(cfg.CacheDir, cfg.CacheDisk<<20); err != nil {
		return nil, err
	}
	if s.segmenters, err = openSegmenters(cfg); err != nil {
		return nil, err
	}
	return s, s.addTools(base)
}

func (s *Server) addTools(base *knowledge) error {
	servers, err := newModels(s.cfg.Backends)
	if err != nil {
		return err
	}
	regions := map[string][]string{"region": Regions}
	err = errors.Join(
		addTool(s, parseTool(s.cfg), regions),
		addTool(s, cropTool(s.cfg), regions),
		addTool(s, lookupTool(base, s.cfg.Protocols, servers[lookupName]), nil),
	)
	if s.cfg.Extended {
		err = errors.Join(err, addExtended(s, servers))
	}
	return err
}

// addTool binds a tool to this server; of two with one name the later stands.
func addTool[In, Out any](s *Server, t Tool[In, Out], enums map[string][]string) error {
	b, err := bind(t, enums)
	if err != nil {
		return err
	}
	b.calls = newFlight(s.calls, s.slots)
	if b.model != nil { // which waits for a server, and holds up nothing that computes here
		b.calls = newFlight(s.calls, b.model.slots())
	}
	if s.tools[t.Name] == nil {
		s.names = append(s.names, t.Name)
	}
	s.tools[t.Name] = b
	return nil
}

// Schemas returns the tools' schemas in a fixed order, for the system prompt.
func (s *Server) Schemas() []json.RawMessage {
	schemas := make([]json.RawMessage, len(s.names))
	for i, name := range s.names {
		schemas[i] = s.tools[name].terse()
		if s.cfg.Schemas == "full" {
			full, err := s.tools[name].full()
			if err != nil {
				panic(fmt.Sprintf("toolserver: schema of %s: %v", name, err)) // it was made from a Go type
			}
			schemas[i] = full
		}
	}
	return schemas
}

// Call executes one auxiliary tool on a study's images.
func (s *Server) Call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, meta []dataset.Image) (rollout.Observation, error) {
	start := time.Now()
	obs, stack, err := s.call(ctx, tool, args, images, meta)
	if !s.known(tool) {
		tool = "unknown" // what the policy wrote is content, and has no place in a metric
	}
	s.observe(Record{Tool: tool, Status: statusOf(obs, err), CacheHit: obs.CacheHit, Latency: time.Since(start), Stack: stack})
	if err != nil {
		return obs, fmt.Errorf("tool %s: %w", tool, err)
	}
	return obs, nil
}

func (s *Server) call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, meta []dataset.Image) (obs rollout.Observation, stack string, err error) {
	b, ok := s.tools[tool]
	if !ok {
		return unknownTool(s.names), "", nil
	}
	canonical, err := b.canonical(args)
	if err != nil {
		obs, err = ownError(err)
		return obs, "", err
	}
	study := &Study{server: s}
	parts := [][]byte{[]byte(b.name), []byte(b.version), canonical}
	if b.images {
		if study, err = s.study(images, meta); err != nil {
			return obs, "", err
		}
		parts = append(parts, s.segmenterKey(meta), study.key[:])
	}
	k := keyOf(parts...)
	obs, hit, err := b.calls.do(ctx, k, s.deadline(b), func(ctx context.Context) (rollout.Observation, int, error) {
		if obs, ok := s.disk.get(k); ok {
			return obs, sizeOf(obs), nil
		}
		obs, err := b.run(ctx, study, canonical)
		if err != nil {
			obs, err = ownError(err)
		}
		if err != nil || obs.Error != "" || study.passing.Load() { // which may be over the next time
			return obs, notCached, err
		}
		s.disk.put(k, obs)
		return obs, sizeOf(obs), nil
	})
	if p, ok := errors.AsType[*panicError](err); ok {
		return rollout.Observation{Error: "tool failed"}, string(p.stack), nil
	}
	obs.CacheHit = hit || obs.CacheHit
	return obs, "", err
}

func sizeOf(obs rollout.Observation) int { return len(obs.Text) + len(obs.Error) + len(obs.PNG) }

// deadline returns how long a call may take: a server has its own time.
func (s *Server) deadline(b *binding) time.Duration {
	if _, set := s.cfg.Deadlines[b.name]; !set && b.model != nil {
		return b.model.deadline()
	}
	return s.cfg.deadline(b.name)
}

func (s *Server) known(tool string) bool { return s.tools[tool] != nil }

func unknownTool(names []string) rollout.Observation {
	return invalid("unknown tool; use " + strings.Join(names, ", "))
}

func invalid(text string) rollout.Observation {
	return rollout.Observation{Text: text, Invalid: true}
}

// ownError sorts a tool's error: the policy's mistake and the tool's own
// failure are observations; an unreadable image and a deadline stay errors.
func ownError(err error) (rollout.Observation, error) {
	if text, ok := isArgument(err); ok {
		return invalid(text), nil
	}
	if _, ok := errors.AsType[*ImageError](err); ok || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return rollout.Observation{}, err
	}
	return rollout.Observation{Error: err.Error()}, nil
}

// Measure computes the measurement bundle. The first image whose bundle is
// admitted is the one reported; where none is, Image is -1 and the
// measurements and reasons are those of the first image that has any.
func (s *Server) Measure(ctx context.Context, images [][]byte, meta []dataset.Image) (rollout.Bundle, error) {
	start := time.Now()
	bundle, hit, err := s.measure(ctx, images, meta)
	s.observe(Record{Tool: measureName, Status: statusOf(rollout.Observation{}, err), CacheHit: hit, Latency: time.Since(start)})
	if err != nil {
		return rollout.Bundle{}, fmt.Errorf("measurements: %w", err)
	}
	return copyBundle(bundle), nil
}

func (s *Server) measure(ctx context.Context, images [][]byte, meta []dataset.Image) (rollout.Bundle, bool, error) {
	study, err := s.study(images, meta)
	if err != nil {
		return rollout.Bundle{}, false, err
	}
	k := keyOf([]byte(measureName), []byte(measure.Version), []byte(s.cfg.Gate), s.segmenterKey(meta), study.key[:])
	return s.bundles.do(ctx, k, s.cfg.deadline(measureName), func(context.Context) (rollout.Bundle, int, error) {
		bundle, err := study.measure(s.cfg.Gate)
		if study.passing.Load() {
			return bundle, notCached, err
		}
		return bundle, 4096, err
	})
}

// copyBundle keeps the cached bundle out of the caller's reach: the loop fills
// in Shown.
func copyBundle(b rollout.Bundle) rollout.Bundle {
	b.Measurements = append([]rollout.Measurement(nil), b.Measurements...)
	b.Reasons = append([]string(nil), b.Reasons...)
	return b
}

// A Study is what a tool may look at: a study's images with their metadata.
type Study struct {
	server *Server
	images [][]byte
	meta   []dataset.Image
	keys   []key // by image
	key    key   // of all images with their metadata

	passing atomic.Bool // a server failed: what is made of these images is not kept
}

func (s *Server) study(images [][]byte, meta []dataset.Image) (*Study, error) {
	if len(images) != len(meta) {
		return nil, fmt.Errorf("%d images with %d rows of metadata", len(images), len(meta))
	}
	st := &Study{server: s, images: images, meta: meta, keys: make([]key, len(images))}
	parts := make([][]byte, 0, 2*len(images))
	for i, file := range images {
		st.keys[i] = key(sha256.Sum256(file))
		m := meta[i]
		m.Path, m.SHA256 = s.maskPath(m), "" // where and what it is; only stored masks go by it
		row, err := json.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("metadata of image %d: %w", i+1, err)
		}
		parts = append(parts, st.keys[i][:], row)
	}
	st.key = keyOf(parts...)
	return st, nil
}

// A view is one decoded image with its masks; both are shared and must not be
// changed.
type view struct {
	gray   *image.Gray
	about  dataset.Image  // what the file itself says
	masks  *segment.Masks // nil: not this segmenter's domain, or it found nothing
	second *segment.Masks // what a second look found; nil where there is none
	boxes  lungBoxes
	domain string
	stored bool // the masks were given, not found
	hash   key  // of the encoded file
	failed string
	// passing says that a server failed: the next look may find more.
	passing bool

	once  sync.Once
	patch *patch // made on first use
}

// regions returns the view at the size at which regions are measured.
func (v *view) regions() *patch {
	v.once.Do(func() { v.patch = newPatch(v) })
	return v.patch
}

// region finds a named region in the image.
func (v *view) region(name string) (box, string, error) {
	b, canonical, ok := v.boxes.find(name)
	if !ok {
		return box{}, "", argumentErrorf("unknown region; use right or left with %s, or %s",
			strings.Join(sidedRegions, ", "), strings.Join(midRegions, ", "))
	}
	return b, canonical, nil
}

// view returns image n, counted from 1 as the policy does; 0 is the first.
func (st *Study) view(n int) (*view, error) {
	if n == 0 {
		n = 1
	}
	if n < 1 || n > len(st.images) {
		return nil, argumentErrorf("image %d of %d; count from 1", n, len(st.images))
	}
	i, s := n-1, st.server
	domain := st.meta[i].Domain
	k := keyOf([]byte("view"), []byte(domain), s.segmenterKey(st.meta[i:i+1]), st.keys[i][:], []byte(s.maskPath(st.meta[i])))
	v, _, err := s.views.do(context.Background(), k, s.cfg.Deadline, func(context.Context) (*view, int, error) {
		v, err := s.look(st.images[i], st.meta[i], st.keys[i])
		if err != nil {
			return nil, 0, &ImageError{Index: i, SHA256: fmt.Sprintf("%x", st.keys[i][:]), Reason: err.Error()}
		}
		if v.passing {
			return v, notCached, nil
		}
		return v, v.size(), nil
	})
	if err == nil && v.passing {
		st.passing.Store(true)
	}
	return v, err
}

func (s *Server) look(file []byte, meta dataset.Image, hash key) (*view, error) {
	film, err := ReadFilm(file, s.cfg.ImageBytes, s.cfg.ImagePixels)
	if err != nil {
		return nil, err
	}
	gray, domain := film.Gray, meta.Domain
	v := &view{gray: gray, about: film.About, domain: domain, hash: hash}
	if s.storedMasks(v, meta) {
		v.stored = true
	} else if g := s.segmenter(domain); g != nil {
		v.segmentBy(g)
	}
	v.boxes = boxesOf(v.masks, gray.Rect)
	return v, nil
}

func (v *view) size() int {
	n := len(v.gray.Pix) + 2*parseSize*parseSize // with its patch
	for _, m := range []*segment.Masks{v.masks, v.second} {
		if m != nil {
			n += (3 + len(m.More)) * len(v.gray.Pix)
		}
	}
	return n
}

func (st *Study) measure(preset measure.Preset) (rollout.Bundle, error) {
	var kept rollout.Bundle
	for i := range st.images {
		v, err := st.view(i + 1)
		if err != nil {
			return rollout.Bundle{}, err
		}
		in := measure.Input{Image: v.gray, Meta: st.meta[i].Completed(v.about), Failed: v.failed, InDomain: v.stored || st.server.segmenter(v.domain) != nil}
		switch m := v.masks; {
		case m != nil && v.domain == "phantom":
			in.Masks = measure.Masks(*m)
		case m != nil:
			in.Structures, in.Second = StructuresOf(m), StructuresOf(v.second)
		}
		b := measure.Assess(in, preset)
		if anyAdmitted(b) {
			b.Image = i
			return b, nil
		}
		if i == 0 || (!anyComputed(kept) && anyComputed(b)) {
			kept = b
		}
	}
	kept.Image = -1
	return kept, nil
}

func anyAdmitted(b rollout.Bundle) bool {
	for _, m := range b.Measurements {
		if m.Admitted {
			return true
		}
	}
	return false
}

func anyComputed(b rollout.Bundle) bool {
	for _, m := range b.Measurements {
		if m.Computed {
			return true
		}
	}
	return false
}
