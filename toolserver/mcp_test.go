package toolserver

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/semaphore"

	"xragent/rollout"
)

func extended(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	return serverFor(t, func(c *Config) {
		c.Extended = true
		if change != nil {
			change(c)
		}
	})
}

// overPipe connects the SDK's client as to a process, overHTTP as to an address.
func overPipe(t *testing.T, s *Server, o MCPOptions) *mcp.ClientSession {
	t.Helper()
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- RunMCP(context.Background(), s, NewMCP(s, o), fromClient, toClient) }()
	session := connect(t, &mcp.IOTransport{Reader: fromServer, Writer: toServer})
	t.Cleanup(func() {
		_ = session.Close()
		if err := <-ended; err != nil {
			t.Errorf("after the client left: %v", err)
		}
	})
	return session
}

const token = "token-of-a-test"

func overHTTP(t *testing.T, s *Server, o MCPOptions) *mcp.ClientSession {
	t.Helper()
	h := httptest.NewServer(MCPHandler(s, NewMCP(s, o), token))
	t.Cleanup(h.Close)
	session := connect(t, &mcp.StreamableClientTransport{Endpoint: h.URL, HTTPClient: &http.Client{Transport: bearer(token)}})
	t.Cleanup(func() { _ = session.Close() })
	return session
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func connect(t *testing.T, tr mcp.Transport) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(), tr, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func dataOf(file []byte) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file)
}

func callMCP(t *testing.T, c *mcp.ClientSession, name string, args any) *mcp.CallToolResult {
	t.Helper()
	res, err := c.CallTool(context.Background(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return res
}

// observed turns a result back into what the tool said.
func observed(res *mcp.CallToolResult) (text string, picture []byte) {
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			text = c.Text
		case *mcp.ImageContent:
			picture = c.Data
		}
	}
	return text, picture
}

// TestMCPIsTheServer holds that MCP gives what every other door gives, over
// both transports.
func TestMCPIsTheServer(t *testing.T) {
	s := extended(t, nil)
	_, images, meta := film(t, 0)
	for name, open := range map[string]func(*testing.T, *Server, MCPOptions) *mcp.ClientSession{"stdio": overPipe, "http": overHTTP} {
		t.Run(name, func(t *testing.T) {
			c := open(t, s, MCPOptions{Images: images, Meta: meta})
			list, err := c.ListTools(context.Background(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := len(list.Tools), len(s.names)+1; got != want {
				t.Errorf("%d tools, want %d", got, want)
			}
			for _, tt := range []struct{ tool, args string }{
				{"region_parse", `{"region":"left lung"}`}, {"roi_crop", `{"box":[0,0,0.4,0.4]}`}, {"evidence_lookup", `{"query":"P-0007"}`},
				{"roi_crop", `{"region":"moon"}`}, {"roi_crop", `{"box":"all"}`}, {"chest_xray_segmentation", `{}`}, {"image_visualizer", `{"masks":true}`},
				{"chest_xray_classifier", `{}`},
			} {
				want := call(t, s, tt.tool, tt.args, images, meta)
				res := callMCP(t, c, tt.tool, json.RawMessage(tt.args))
				text, picture := observed(res)
				if text != want.Text+want.Error || string(picture) != string(want.PNG) || res.IsError != (want.Invalid || want.Error != "") {
					t.Errorf("%s %s: %q (error %v), want %+v", tt.tool, tt.args, text, res.IsError, want)
				}
			}
			text, _ := observed(callMCP(t, c, "measure", map[string]any{}))
			var got rollout.Bundle
			want, _ := s.Measure(context.Background(), images, meta)
			if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Measurements) != len(want.Measurements) || got.Image != want.Image {
				t.Errorf("bundle %s (%v), want %+v", text, err, want)
			}
		})
	}
}

// TestMCPSchemaIsTheTools holds that a tool's schema is the same at each door,
// but for the images.
func TestMCPSchemaIsTheTools(t *testing.T) {
	s := extended(t, nil)
	for _, tool := range s.Tools() {
		b := s.tools[tool.Name]
		m := mcpSchema(b.schema, b.images)
		if (m.Properties[imagesName] != nil) != b.images {
			t.Errorf("%s: images in the schema: %v", tool.Name, !b.images)
		}
		delete(m.Properties, imagesName)
		if len(m.Properties) == 0 {
			m.Properties = nil // as in the schema of a tool without arguments
		}
		m.PropertyOrder = slices.DeleteFunc(slices.Clone(m.PropertyOrder), func(p string) bool { return p == imagesName })
		got, err := json.Marshal(m)
		if err != nil || b.images && string(got) != string(tool.Parameters) {
			t.Errorf("%s: %s over MCP (%v), %s elsewhere", tool.Name, got, err, tool.Parameters)
		}
	}
}

func TestMCPImages(t *testing.T) {
	s := extended(t, nil)
	_, images, _ := film(t, 0)
	c := overPipe(t, s, MCPOptions{Open: func(name string) ([]byte, error) {
		if name != "film.png" {
			return nil, errors.New("no such file")
		}
		return images[0], nil
	}})
	for name, want := range map[string]string{
		"film.png": "", dataOf(images[0]): "", "moon.png": "images: number 1: no such file",
		"data:image/png,xx": "without ;base64,", "data:;base64,x": "no base64", dataOf([]byte("text")): "not a readable PNG",
		"data:;base64," + strings.Repeat("A", 100<<10): "limit 65536",
	} {
		s.cfg.ImageBytes = 64 << 20
		if strings.HasPrefix(want, "limit") {
			s.cfg.ImageBytes = 64 << 10
		}
		res := callMCP(t, c, "roi_crop", map[string]any{"region": "heart", "images": []string{name}})
		if text, _ := observed(res); res.IsError != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%.40s: %q, want %q", name, text, want)
		}
	}
	for _, args := range []map[string]any{{"images": 7}, {"images": make([]string, 9)}} {
		if res := callMCP(t, c, "measure", args); !res.IsError {
			t.Errorf("%v was taken", args)
		}
	}
	if res := callMCP(t, c, "measure", map[string]any{"region": "heart"}); !res.IsError {
		t.Error("an argument of measure was taken")
	}
}

func TestMCPToken(t *testing.T) {
	s := extended(t, nil)
	h := httptest.NewServer(MCPHandler(s, NewMCP(s, MCPOptions{}), token))
	defer h.Close()
	for given, want := range map[string]int{"": http.StatusUnauthorized, "Bearer other": http.StatusUnauthorized, "Bearer " + token: http.StatusOK} {
		req, _ := http.NewRequest(http.MethodPost, h.URL, strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if given != "" {
			req.Header.Set("Authorization", given)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: status %d, want %d", given, res.StatusCode, want)
		}
	}
	if _, err := ListenMCP("127.0.0.1:0", "two words"); err == nil {
		t.Error("a token that no request can bear was taken")
	}
	if _, err := ListenMCP("0.0.0.0:0", ""); err == nil || !strings.Contains(err.Error(), "no token") {
		t.Errorf("an open door to everybody: error %v", err)
	}
}

// TestMCPNonsense holds that what is no request of the protocol is refused, and
// that the server goes on.
func TestMCPNonsense(t *testing.T) {
	s := extended(t, nil)
	h := httptest.NewServer(MCPHandler(s, NewMCP(s, MCPOptions{}), ""))
	defer h.Close()
	for _, body := range []string{"", "{", "[]", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}`, strings.Repeat("[", 1<<16)} {
		res, err := http.Post(h.URL, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode < 400 {
			t.Errorf("%.20q: status %d", body, res.StatusCode)
		}
	}
	c := connect(t, &mcp.StreamableClientTransport{Endpoint: h.URL})
	defer c.Close()
	if _, err := c.CallTool(context.Background(), &mcp.CallToolParams{Name: "no_such_tool"}); err == nil {
		t.Error("an unknown tool was called")
	}
	if text, _ := observed(callMCP(t, c, "evidence_lookup", map[string]any{"query": "ctr"})); text == "" {
		t.Error("after the nonsense: no answer")
	}
}

// TestMCPClientLeaves holds that a client that goes leaves the server to others.
func TestMCPClientLeaves(t *testing.T) {
	taken, never := make(chan struct{}), make(chan struct{})
	defer close(never)
	s := withTool(t, nil, func(context.Context) (string, error) {
		taken <- struct{}{}
		<-never
		return "", nil
	})
	h := httptest.NewServer(MCPHandler(s, NewMCP(s, MCPOptions{}), ""))
	t.Cleanup(h.Close) // when the tool hangs no more
	c := connect(t, &mcp.StreamableClientTransport{Endpoint: h.URL})
	ctx, leave := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "evidence_lookup", Arguments: map[string]any{"query": "x"}})
		gone <- err
	}()
	<-taken
	leave()
	if err := <-gone; err == nil {
		t.Error("a call that was given up had an answer")
	}
	_, images, _ := film(t, 0)
	d := connect(t, &mcp.StreamableClientTransport{Endpoint: h.URL})
	if text, _ := observed(callMCP(t, d, "region_parse", map[string]any{"region": "heart", "images": []string{dataOf(images[0])}})); text == "" {
		t.Error("the next client has no answer")
	}
	_, _ = c.Close(), d.Close()
}

func TestServeMCPDrains(t *testing.T) {
	s := extended(t, nil)
	l, err := ListenMCP("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- ServeMCP(ctx, l, MCPHandler(s, NewMCP(s, MCPOptions{}), "")) }()
	c := connect(t, &mcp.StreamableClientTransport{Endpoint: fmt.Sprintf("http://%s/mcp", l.Addr())})
	callMCP(t, c, "evidence_lookup", map[string]any{"query": "ctr"})
	_ = c.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPythonClient has the official Python client list and call the tools, where
// the variable names a Python that has it.
func TestPythonClient(t *testing.T) {
	python := os.Getenv("XRAGENT_MCP_PYTHON")
	if python == "" {
		t.Skip("XRAGENT_MCP_PYTHON is not set to a Python with the package mcp: its client was not tried")
	}
	s := extended(t, nil)
	h := httptest.NewServer(MCPHandler(s, NewMCP(s, MCPOptions{}), token))
	defer h.Close()
	_, images, _ := film(t, 0)
	cmd := exec.Command(python, "testdata/mcp_client.py", h.URL, token)
	cmd.Stdin = strings.NewReader(dataOf(images[0]))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "opacity") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestBodiesAreBounded holds that the bodies of requests at work take so many
// bytes in all, and only as they arrive.
func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	h := arrived(semaphore.NewWeighted(10), 8, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	}))
	send := func(body string) int {
		r := httptest.NewRequest(http.MethodPost, "/mcp", io.NopCloser(strings.NewReader(body)))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	done := make(chan int)
	go func() { done <- send("8 bytes!") }()
	<-entered
	for body, want := range map[string]int{"3 b": http.StatusServiceUnavailable, "nine byte": http.StatusRequestEntityTooLarge, " [": http.StatusBadRequest} {
		if code := send(body); code != want {
			t.Errorf("beside 8 of 10 bytes, %q: status %d, want %d", body, code, want)
		}
	}
	go func() { done <- send("2b") }()
	<-entered
	for range 2 {
		leave <- struct{}{}
		if code := <-done; code != http.StatusOK {
			t.Errorf("status %d for what fits", code)
		}
	}
}

// TestSlowClientsKeepNoPlace holds that clients whose requests do not arrive
// take nothing from those whose do.
func TestSlowClientsKeepNoPlace(t *testing.T) {
	t.Parallel()
	s := serverFor(t, nil)
	web := httptest.NewServer(MCPHandler(s, NewMCP(s, MCPOptions{}), ""))
	t.Cleanup(web.Close)
	for range 2 * maxMCPCalls {
		c, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 90000000\r\n\r\n{", web.Listener.Addr()); err != nil {
			t.Fatal(err)
		}
	}
	session := connect(t, &mcp.StreamableClientTransport{Endpoint: web.URL, DisableStandaloneSSE: true})
	defer session.Close()
	if list, err := session.ListTools(t.Context(), nil); err != nil || len(list.Tools) == 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestBadLinesAreAnswered holds that a client's bad line over stdio is answered,
// and that the server goes on.
func TestBadLinesAreAnswered(t *testing.T) {
	t.Parallel()
	s := serverFor(t, nil)
	in, client := io.Pipe()
	answers, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- RunMCP(t.Context(), s, NewMCP(s, MCPOptions{}), in, out) }()
	lines := bufio.NewReader(answers)
	say := func(line string) string {
		t.Helper()
		go func() { _, _ = io.WriteString(client, line+"\n") }()
		answer, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	for _, bad := range []string{"no JSON", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"roi_crop","arguments":{"box":[NaN,0,1,1]}}}`,
		strings.Repeat("[", 20000), `{"jsonrpc":"1.0","id":1,"method":"ping"}`, "null", "[" + ping + "]"} {
		if answer := say(bad); !strings.Contains(answer, `"code":-32700`) {
			t.Errorf("%.40s: %s", bad, answer)
		}
	}
	if answer := say(strings.Repeat("x", int(s.maxMessage())+9)); !strings.Contains(answer, `"code":-32600`) {
		t.Errorf("a long line: %s", answer)
	}
	if answer := say("\n" + ping); !strings.Contains(answer, `"id":7,"result"`) {
		t.Errorf("and then: %s", answer)
	}
	if err := errors.Join(client.Close(), <-served); err != nil {
		t.Error(err)
	}
}
