package toolserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/semaphore"
)

// The bounds of MCP over HTTP.
const (
	maxMCPCalls   = 16               // at a time; more are answered 503
	maxMCPBodies  = 2                // of the largest size, in all calls together: each is held several times over
	headerTimeout = 10 * time.Second // for a request's header to arrive, and for more of its body
	bodyTimeout   = 2 * time.Minute  // for all of it
	answerTimeout = time.Minute      // for a client to take what was written
	drainTimeout  = 10 * time.Second // for answers on their way when the server ends
)

// MCPHandler serves m over streamable HTTP. Where token is not empty, every
// request must bear it. Requests stand alone: any server answers any client, and
// a client that leaves is owed nothing.
func MCPHandler(s *Server, m *mcp.Server, token string) http.Handler {
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return m }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, PropagateRequestCancellation: true,
		MaxRequestBodyBytes: s.maxMessage(),
	})
	h = arrived(semaphore.NewWeighted(maxMCPBodies*s.maxMessage()), s.maxMessage(), atMost(maxMCPCalls, h))
	if token != "" {
		h = auth.RequireBearerToken(bears(token), &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h)
	}
	return http.NewCrossOriginProtection().Handler(h)
}

// maxMessage is room for one image of the largest size in base64, or for
// several smaller ones.
func (s *Server) maxMessage() int64 { return int64(s.cfg.ImageBytes)*4/3 + 1<<20 }

func bears(token string) auth.TokenVerifier {
	want := sha256.Sum256([]byte(token)) // of equal length, for a comparison that tells nothing by its time
	return func(_ context.Context, got string, _ *http.Request) (*auth.TokenInfo, error) {
		have := sha256.Sum256([]byte(got))
		if subtle.ConstantTimeCompare(want[:], have[:]) != 1 {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: "bearer"}, nil
	}
}

// arrived passes requests on when all of their body is there, so that a slow client
// keeps no place from others. Bodies take their room as they arrive; what finds
// none, and what is a batch, is refused: one request could ask for any number of
// answers.
func arrived(room *semaphore.Weighted, longest int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := &arriving{from: r.Body, room: room, longest: longest, wait: http.NewResponseController(w), until: time.Now().Add(bodyTimeout)}
		defer body.release()
		_ = body.wait.SetWriteDeadline(time.Time{}) // an earlier answer's on this connection
		data, err := io.ReadAll(body)
		switch {
		case errors.Is(err, errNoRoom):
			busy(w, err.Error())
			return
		case errors.Is(err, errTooLong):
			http.Error(w, fmt.Sprintf("a body of more than %d bytes", longest), http.StatusRequestEntityTooLarge)
			return
		case err != nil:
			http.Error(w, "the body did not arrive", http.StatusRequestTimeout)
			return
		case bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("[")):
			http.Error(w, "a batch: send one request at a time", http.StatusBadRequest)
			return
		}
		_ = body.wait.SetReadDeadline(time.Time{}) // what comes now is the client leaving, at any time
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
		next.ServeHTTP(&leaving{w, body.wait}, r)
	})
}

var (
	errNoRoom  = errors.New("other requests fill the memory: name files below --root, or send fewer at a time")
	errTooLong = errors.New("body too long")
)

// arriving is a body of which more must come in time, and for which there must
// be room.
type arriving struct {
	from          io.Reader
	room          *semaphore.Weighted
	longest, held int64
	wait          *http.ResponseController
	until         time.Time
}

func (a *arriving) Read(p []byte) (int, error) {
	soon := time.Now().Add(headerTimeout)
	if soon.After(a.until) {
		soon = a.until
	}
	_ = a.wait.SetReadDeadline(soon) // a writer in a test has none
	n, err := a.from.Read(p)
	switch {
	case a.held+int64(n) > a.longest:
		return 0, errTooLong
	case !a.room.TryAcquire(int64(n)):
		return 0, errNoRoom
	}
	a.held += int64(n)
	return n, err
}

func (a *arriving) release() { a.room.Release(a.held) }

// leaving gives a client time to take each part of an answer.
type leaving struct {
	http.ResponseWriter
	wait *http.ResponseController
}

func (l *leaving) WriteHeader(status int) {
	_ = l.wait.SetWriteDeadline(time.Now().Add(answerTimeout))
	l.ResponseWriter.WriteHeader(status)
}

func (l *leaving) Write(p []byte) (int, error) {
	_ = l.wait.SetWriteDeadline(time.Now().Add(answerTimeout))
	return l.ResponseWriter.Write(p)
}

// Unwrap is for [http.ResponseController].
func (l *leaving) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *leaving) Flush() { _ = l.wait.Flush() }

// atMost passes on n requests at a time and refuses the rest at once.
func atMost(n int64, next http.Handler) http.Handler {
	slots := semaphore.NewWeighted(n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slots.TryAcquire(1) {
			busy(w, fmt.Sprintf("%d requests pending", n))
			return
		}
		defer slots.Release(1)
		next.ServeHTTP(w, r)
	})
}

func busy(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusServiceUnavailable)
}

// ListenMCP opens an address for [ServeMCP]. One that others can reach needs a
// token.
func ListenMCP(address, token string) (net.Listener, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("MCP: listen address %q: %w; want host:port", address, err)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("MCP: the token holds spaces or other characters that no request can bear: use letters and digits")
	}
	if !addr.IP.IsLoopback() && token == "" {
		return nil, fmt.Errorf("MCP: listen address %q is not loopback and there is no token; set one, or listen on 127.0.0.1", address)
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("MCP: cannot listen on %s: %w; choose another port, or 0 for a free one", address, err)
	}
	return l, nil
}

// ServeMCP answers on l until ctx ends; answers on their way are waited for.
func ServeMCP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: bodyTimeout}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		ended <- srv.Shutdown(late)
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("MCP: %w", err)
	}
	if err := <-ended; err != nil {
		return errors.Join(fmt.Errorf("MCP: answers were cut off after %v: %w", drainTimeout, err), srv.Close())
	}
	return nil
}
