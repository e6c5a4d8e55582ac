package toolserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// RunMCP serves m over a pair of streams, as a client that starts this process
// does, until the client closes its end or ctx ends.
func RunMCP(ctx context.Context, s *Server, m *mcp.Server, in io.ReadCloser, out io.WriteCloser) error {
	answers := &oneAtATime{WriteCloser: out}
	messages := &messages{from: bufio.NewReader(in), close: in, longest: int(s.maxMessage()), answers: answers}
	err := m.Run(ctx, &mcp.IOTransport{Reader: messages, Writer: answers, MaxLineLength: int(s.maxMessage())})
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("MCP: %w", err)
	}
	return nil
}

// oneAtATime keeps the lines of several writers whole.
type oneAtATime struct {
	mu sync.Mutex
	io.WriteCloser
}

func (o *oneAtATime) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.WriteCloser.Write(p)
}

// messages passes on the lines that are messages. What is none is answered here
// and dropped: for the transport behind it a bad line is the end.
type messages struct {
	from    *bufio.Reader
	close   io.Closer
	longest int
	answers io.Writer
	line    []byte // what is still to be passed on
}

func (m *messages) Close() error { return m.close.Close() }

func (m *messages) Read(p []byte) (int, error) {
	for len(m.line) == 0 {
		line, tooLong, err := m.next()
		switch {
		case tooLong:
			m.refuse(jsonrpc.CodeInvalidRequest, fmt.Sprintf("a line of more than %d bytes", m.longest))
		case len(bytes.TrimSpace(line)) == 0:
		default:
			if _, bad := jsonrpc.DecodeMessage(line); bad != nil {
				m.refuse(jsonrpc.CodeParseError, fmt.Sprintf("no message of JSON-RPC 2.0 (one a line, no batches): %v", bad))
			} else {
				m.line = append(bytes.TrimRight(line, "\r\n"), '\n')
			}
		}
		if err != nil && len(m.line) == 0 {
			return 0, err
		}
	}
	n := copy(p, m.line)
	m.line = m.line[n:]
	return n, nil
}

// next reads a line; of one that is too long nothing is kept.
func (m *messages) next() (line []byte, tooLong bool, err error) {
	for {
		part, err := m.from.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > m.longest; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, tooLong, err
		}
	}
}

func (m *messages) refuse(code int64, why string) {
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": why}})
	if err != nil {
		panic(err) // text and numbers
	}
	_, _ = m.answers.Write(append(answer, '\n')) // a client that is gone is noticed by its end of the input
}
