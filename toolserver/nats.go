package toolserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"xragent/dataset"
	"xragent/rollout"
	"xragent/toolserver/measure"
)

// Subjects are SubjectPrefix plus a tool's name, "measure" or "schemas".
const SubjectPrefix = "tool."

const schemasName = "schemas"

// The error codes of the service, after HTTP's.
const (
	codeBadRequest   = "400"
	codeBadImage     = "422" // data: an [ImageError]
	codeImagesNeeded = "428" // ask again with the files in the request
	codeFailed       = "500"
	codeBusy         = "503"
	codeDeadline     = "504"
)

// maxPending bounds the requests that one server holds, running or waiting for
// a slot. More are refused at once, so that the caller can try another server.
const maxPending = 256

// leastFiles is the MiB of images that are kept also where no results are:
// asking for one again costs a message and its answer.
const leastFiles = 16

// A request is one call on the wire. An image without its file is one that
// the server should have, or can fetch, by its hash.
type request struct {
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Images    []wireImage     `json:"images,omitempty"`
}

type wireImage struct {
	SHA256 string        `json:"sha256"` // of the file
	File   []byte        `json:"file,omitempty"`
	Meta   dataset.Image `json:"meta"`
}

// wireObservation is a rollout.Observation with its wire names.
type wireObservation struct {
	Text     string `json:"text,omitempty"`
	PNG      []byte `json:"png,omitempty"`
	Error    string `json:"error,omitempty"`
	Invalid  bool   `json:"invalid,omitempty"`
	CacheHit bool   `json:"cache_hit,omitempty"`
}

// Serve answers tool requests on nc until ctx ends, then drains: requests
// taken are answered. Several servers on one NATS share the work.
func Serve(ctx context.Context, nc *nats.Conn, s *Server) error {
	d, err := Listen(nc, s)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return d.Stop()
}

// A Door is a server's presence on NATS.
type Door struct {
	conn    *nats.Conn
	server  *Server
	service micro.Service
	files   *cache[[]byte] // images by their hash
	pending chan struct{}
	running sync.WaitGroup
}

// serviceName is the tools' among NATS services.
const serviceName = "xragent-tools"

// Listen registers the endpoints and returns when the NATS server knows them.
// It refuses to stand beside a server whose results are others: callers could
// not tell which of the two they had.
func Listen(nc *nats.Conn, s *Server) (*Door, error) {
	if err := s.checkPeers(nc); err != nil {
		return nil, fmt.Errorf("tools on NATS: %w", err)
	}
	d := &Door{conn: nc, server: s, files: newCache[[]byte](max(s.cfg.Cache, leastFiles) << 20), pending: make(chan struct{}, maxPending)}
	service, err := micro.AddService(nc, micro.Config{
		Name: serviceName, Version: "1.0.0", Description: "chest X-ray tools and gated measurements",
		Metadata: map[string]string{resultsName: s.results()},
		// Requests are answered from goroutines, so micro's own times would
		// only show how long it takes to start one.
		StatsHandler: func(e *micro.Endpoint) any { return s.Stats(e.Name) },
	})
	if err != nil {
		return nil, fmt.Errorf("tools on NATS: %w", err)
	}
	d.service = service
	if err := d.register(); err != nil {
		return nil, errors.Join(fmt.Errorf("tools on NATS: %w", err), service.Stop())
	}
	if err := nc.Flush(); err != nil {
		return nil, errors.Join(fmt.Errorf("tools on NATS: flush subscriptions: %w", err), service.Stop())
	}
	return d, nil
}

// resultsName is where a service says what decides its results.
const resultsName = "results"

// results is a digest of what decides the results: the same for servers that
// may share the work.
func (s *Server) results() string {
	parts := [][]byte{[]byte(measure.Version), []byte(s.cfg.Gate), []byte(s.cfg.Schemas), s.everySegmenter()}
	for _, name := range s.names {
		parts = append(parts, []byte(name), []byte(s.tools[name].version))
	}
	return fmt.Sprintf("%.16x", keyOf(parts...))
}

// peerTimeout is how long a server that is there may take to describe itself.
const peerTimeout = 5 * time.Second

// checkPeers compares with a tool server that is there already.
func (s *Server) checkPeers(nc *nats.Conn) error {
	msg, err := nc.Request(micro.APIPrefix+".INFO."+serviceName, nil, peerTimeout)
	if err != nil { // none, or one that is going
		return nil //nolint:nilerr // and a connection that fails will say so by itself
	}
	var info micro.Info
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		return fmt.Errorf("service %s: its description: %w", serviceName, err)
	}
	if got, want := info.Metadata[resultsName], s.results(); got != want {
		return fmt.Errorf("server %s there gives other results (%s) than this one (%s): configure both alike, stop that one, or use another NATS server", info.ID, got, want)
	}
	return nil
}

func (d *Door) register() error {
	group := d.service.AddGroup(SubjectPrefix[:len(SubjectPrefix)-1])
	for _, name := range d.server.names {
		schema, err := d.server.tools[name].full()
		if err != nil {
			return err
		}
		err = group.AddEndpoint(name, d.handle(func(r request, images [][]byte, meta []dataset.Image) (any, error) {
			obs, err := d.server.Call(context.Background(), name, r.Arguments, images, meta)
			return wireObservation(obs), err
		}), micro.WithEndpointMetadata(map[string]string{"schema": string(schema)}))
		if err != nil {
			return err
		}
	}
	return errors.Join(
		group.AddEndpoint(measureName, d.handle(func(_ request, images [][]byte, meta []dataset.Image) (any, error) {
			return d.server.Measure(context.Background(), images, meta)
		})),
		group.AddEndpoint(schemasName, d.handle(func(request, [][]byte, []dataset.Image) (any, error) {
			return d.server.Schemas(), nil
		})))
}

// Stop takes no more requests and waits for those that were taken.
func (d *Door) Stop() error {
	err := d.service.Stop()
	d.running.Wait()
	if err != nil {
		return fmt.Errorf("tools on NATS: stop: %w", err)
	}
	return nil
}

type answer func(r request, images [][]byte, meta []dataset.Image) (any, error)

// handle runs each request in a goroutine of its own: micro itself would call
// one at a time.
func (d *Door) handle(f answer) micro.Handler {
	return micro.HandlerFunc(func(req micro.Request) {
		select {
		case d.pending <- struct{}{}:
		default:
			d.refuse(req, &codedError{codeBusy, fmt.Sprintf("%d requests pending", maxPending)})
			return
		}
		d.running.Go(func() {
			defer func() { <-d.pending }()
			value, err := d.answer(req.Data(), f)
			if err != nil {
				d.refuse(req, err)
				return
			}
			d.reply(req, nil, value)
		})
	})
}

func (d *Door) answer(data []byte, f answer) (any, error) {
	var r request
	if len(data) > 0 {
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, &codedError{codeBadRequest, "request is not JSON of the expected form"}
		}
	}
	images, meta, err := d.images(r.Images)
	if err != nil {
		return nil, err
	}
	return f(r, images, meta)
}

// maxStudy bounds the images of one request.
const maxStudy = 64

func (d *Door) images(list []wireImage) (files [][]byte, meta []dataset.Image, err error) {
	if len(list) > maxStudy {
		return nil, nil, &codedError{codeBadRequest, fmt.Sprintf("%d images, at most %d", len(list), maxStudy)}
	}
	for i, w := range list {
		if !slices.Contains([]string{"", "PA", "AP", "LATERAL", "OTHER"}, w.Meta.View) {
			return nil, nil, &codedError{codeBadRequest, fmt.Sprintf("images[%d]: field view is none of PA, AP, LATERAL, OTHER", i)}
		}
		file, err := d.image(w)
		if err != nil {
			return nil, nil, err
		}
		files, meta = append(files, file), append(meta, w.Meta)
	}
	return files, meta, nil
}

// image returns an image's file: from the request, from memory, or fetched.
func (d *Door) image(w wireImage) ([]byte, error) {
	digest, err := hex.DecodeString(w.SHA256)
	if err != nil || len(digest) != sha256.Size {
		return nil, &codedError{codeBadRequest, "field sha256 is not a SHA-256 digest"}
	}
	k := key(digest)
	if w.File == nil {
		if file, ok := d.files.get(k); ok {
			return file, nil
		}
		if w.File, err = d.fetch(w.SHA256); err != nil {
			return nil, err
		}
	}
	if sha256.Sum256(w.File) != k {
		return nil, &codedError{codeBadRequest, fmt.Sprintf("image %.12s: its bytes have another hash", w.SHA256)}
	}
	d.files.put(k, w.File, len(w.File))
	return w.File, nil
}

func (d *Door) fetch(digest string) ([]byte, error) {
	needed := &codedError{codeImagesNeeded, fmt.Sprintf("image %.12s is not here: send it in the request", digest)}
	if d.server.cfg.Images == nil {
		return nil, needed
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.server.cfg.Deadline)
	defer cancel()
	file, err := d.server.cfg.Images(ctx, digest)
	if err != nil {
		return nil, needed
	}
	return file, nil
}

// refuse answers with an error that the client can sort by its code.
func (d *Door) refuse(req micro.Request, err error) {
	code, text := codeFailed, err.Error()
	var detail any
	if e, ok := errors.AsType[*codedError](err); ok {
		code, text = e.code, e.text
	} else if e, ok := errors.AsType[*ImageError](err); ok {
		code = codeBadImage
		detail = e
	} else if errors.Is(err, context.DeadlineExceeded) {
		code = codeDeadline
	}
	d.reply(req, nats.Header{micro.ErrorHeader: {text}, micro.ErrorCodeHeader: {code}}, detail)
}

// reply answers as micro would. A micro.Request may not be answered behind its
// handler: micro reads there whether it failed. A lost reply is the caller's
// deadline.
func (d *Door) reply(req micro.Request, header nats.Header, value any) {
	m := &nats.Msg{Subject: req.Reply(), Header: header}
	if value != nil {
		data, err := json.Marshal(value)
		if err != nil {
			m.Header = nats.Header{micro.ErrorHeader: {err.Error()}, micro.ErrorCodeHeader: {codeFailed}}
		}
		m.Data = data
	}
	_ = d.conn.PublishMsg(m)
}

// A codedError is an error as it travels.
type codedError struct{ code, text string }

func (e *codedError) Error() string { return e.text }

// A Client reaches tool servers over NATS and behaves as a [Server] does. It
// is safe for concurrent use.
type Client struct {
	nc      *nats.Conn
	timeout time.Duration
	schemas []json.RawMessage
	names   []string
	sent    *cache[struct{}] // images that a server has had from this client
}

// NewClient asks for the schemas, and so finds out whether a server is there.
// timeout bounds each call whose context has no earlier deadline.
func NewClient(ctx context.Context, nc *nats.Conn, timeout time.Duration) (*Client, error) {
	c := &Client{nc: nc, timeout: timeout, sent: newCache[struct{}](1 << 20)}
	data, err := c.ask(ctx, schemasName, nil)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &c.schemas); err != nil {
		return nil, fmt.Errorf("tool schemas from %s: %w", SubjectPrefix+schemasName, err)
	}
	for i, schema := range c.schemas {
		var tool struct{ Name string }
		if err := json.Unmarshal(schema, &tool); err != nil || tool.Name == "" {
			return nil, fmt.Errorf("tool schemas from %s: schema %d names no tool", SubjectPrefix+schemasName, i+1)
		}
		c.names = append(c.names, tool.Name)
	}
	return c, nil
}

// Schemas returns the servers' tool schemas.
func (c *Client) Schemas() []json.RawMessage { return c.schemas }

// Call executes one auxiliary tool.
func (c *Client) Call(ctx context.Context, tool string, args json.RawMessage, images [][]byte, meta []dataset.Image) (rollout.Observation, error) {
	if !slices.Contains(c.names, tool) {
		return unknownTool(c.names), nil // no subject has that name
	}
	if !json.Valid(args) {
		args = json.RawMessage("null") // which the server refuses in the same words
	}
	var obs wireObservation
	err := c.call(ctx, tool, args, images, meta, &obs)
	return rollout.Observation(obs), err
}

// Measure computes the measurement bundle.
func (c *Client) Measure(ctx context.Context, images [][]byte, meta []dataset.Image) (rollout.Bundle, error) {
	var b rollout.Bundle
	err := c.call(ctx, measureName, nil, images, meta, &b)
	return b, err
}

func (c *Client) call(ctx context.Context, name string, args json.RawMessage, images [][]byte, meta []dataset.Image, out any) error {
	if len(images) != len(meta) {
		return fmt.Errorf("tool %s: %d images with %d rows of metadata", name, len(images), len(meta))
	}
	digests := make([]key, len(images))
	fresh := false
	for i, file := range images {
		digests[i] = sha256.Sum256(file)
		_, had := c.sent.get(digests[i])
		fresh = fresh || !had
	}
	data, err := c.send(ctx, name, newRequest(args, images, meta, digests, fresh))
	if e, ok := errors.AsType[*codedError](err); ok && e.code == codeImagesNeeded {
		data, err = c.send(ctx, name, newRequest(args, images, meta, digests, true))
	}
	if err != nil {
		return err
	}
	for _, k := range digests {
		c.sent.put(k, struct{}{}, 0)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("tool %s: reply on %s: %w", name, SubjectPrefix+name, err)
	}
	return nil
}

func newRequest(args json.RawMessage, images [][]byte, meta []dataset.Image, digests []key, inline bool) request {
	r := request{Arguments: args}
	for i := range images {
		w := wireImage{SHA256: hex.EncodeToString(digests[i][:]), Meta: meta[i]}
		if inline {
			w.File = images[i]
		}
		r.Images = append(r.Images, w)
	}
	return r
}

func (c *Client) send(ctx context.Context, name string, r request) ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("tool %s: encode request: %w", name, err)
	}
	if limit := c.nc.MaxPayload(); limit > 0 && int64(len(data)) > limit {
		if len(r.Images) > 0 && r.Images[0].File != nil {
			return c.send(ctx, name, r.withoutFiles()) // the server may be able to fetch them
		}
		return nil, fmt.Errorf("tool %s: request has %d bytes, the NATS server takes %d", name, len(data), limit)
	}
	return c.askTwice(ctx, name, data)
}

func (r request) withoutFiles() request {
	images := make([]wireImage, len(r.Images))
	for i, w := range r.Images {
		w.File = nil
		images[i] = w
	}
	r.Images = images
	return r
}

// pause is what a tool server that is gone or full is given before the second try.
const pause = time.Second

// askTwice asks again where a server was killed with the call in hand, was
// full, or is just being started. The first try has half of the time, because
// nothing tells of a killed server but its silence. Asking again is safe: a call
// changes nothing, and one that still computes is joined.
func (c *Client) askTwice(ctx context.Context, name string, data []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	end, _ := ctx.Deadline()
	first, stop := context.WithTimeout(ctx, time.Until(end)/2)
	out, err := c.ask(first, name, data)
	stop()
	if err == nil || !lost(err) || ctx.Err() != nil {
		return out, err
	}
	if !errors.Is(err, errNoReply) { // which has taken its time
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
	return c.ask(ctx, name, data)
}

// lost reports whether a call may have been lost with its server, or was not
// taken.
func lost(err error) bool {
	if e, ok := errors.AsType[*codedError](err); ok {
		return e.code == codeBusy
	}
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, errNoReply)
}

var errNoReply = errors.New("no reply")

func (c *Client) ask(ctx context.Context, name string, data []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	subject := SubjectPrefix + name
	msg, err := c.nc.RequestWithContext(ctx, subject, data)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("tool %s: no server answers on subject %s; start one with `xragent tools`: %w", name, subject, err)
	case err != nil:
		return nil, fmt.Errorf("tool %s: %w on subject %s: %w", name, errNoReply, subject, err)
	}
	if code := msg.Header.Get(micro.ErrorCodeHeader); code != "" {
		return nil, fmt.Errorf("tool %s: server on %s: %w", name, subject, remoteError(code, msg))
	}
	return msg.Data, nil
}

// remoteError rebuilds the error that the server had.
func remoteError(code string, msg *nats.Msg) error {
	text := msg.Header.Get(micro.ErrorHeader)
	switch code {
	case codeBadImage:
		e := new(ImageError)
		if json.Unmarshal(msg.Data, e) == nil {
			return e
		}
	case codeDeadline:
		return fmt.Errorf("%s: %w", text, context.DeadlineExceeded)
	case codeImagesNeeded:
		text += ", or give the server a blob store to fetch from (it did not fit in one message)"
	}
	return &codedError{code, text}
}
