package backend

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	_ "image/png" // registers the decoder
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Request is one call on the json wire. Prompt and System are for the openai
// wire, which has no other place for arguments.
type Request struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Images    []Image         `json:"images,omitempty"`
	Prompt    string          `json:"-"`
	System    string          `json:"-"`
}

// An Image is an image of a request: pixels, and the view where it is known.
// Nothing else of a file is sent.
type Image struct {
	PNG  []byte `json:"png"` // base64 on the wire
	View string `json:"view,omitempty"`
}

// A Response is what a server says on the json wire. Which fields count
// depends on the tool; Error says that the model could not, and why.
type Response struct {
	Text   string             `json:"text,omitempty"`
	Labels map[string]float64 `json:"labels,omitempty"` // probabilities, 0 to 1
	Boxes  []Box              `json:"boxes,omitempty"`
	PNG    []byte             `json:"png,omitempty"`   // base64 on the wire
	Masks  map[string][]byte  `json:"masks,omitempty"` // PNG files of the image's size by the structure's name
	Error  string             `json:"error,omitempty"`
}

// A Box is a phrase found in the image; coordinates are shares, 0 to 1, of its
// width and height: left, top, right, bottom.
type Box struct {
	Phrase string     `json:"phrase,omitempty"`
	Box    [4]float64 `json:"box"`
	Score  float64    `json:"score,omitempty"` // 0 to 1; 0: the model gives none
}

// The bounds of a reply.
const (
	maxReply  = 32 << 20 // bytes
	maxText   = 16 << 10 // bytes
	maxLabels = 64
	maxBoxes  = 64
	maxMasks  = 256
	maxName   = 100     // bytes of a label, a structure or a phrase
	maxPixels = 4 << 20 // of a returned picture
)

func nonsense(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNonsense, fmt.Sprintf(format, args...))
}

// Decode reads and checks a reply on the json wire. Its error is [ErrNonsense].
func Decode(data []byte) (Response, error) {
	var r Response
	if err := json.Unmarshal(data, &r); err != nil {
		return Response{}, nonsense("a reply of %d bytes that is not JSON of the documented form", len(data))
	}
	if err := r.check(); err != nil {
		return Response{}, err
	}
	return r, nil
}

func (r Response) check() error {
	switch {
	case len(r.Text) > maxText || len(r.Error) > maxText:
		return nonsense("a text of %d bytes, limit %d", max(len(r.Text), len(r.Error)), maxText)
	case !utf8.ValidString(r.Text) || !utf8.ValidString(r.Error):
		return nonsense("a text that is not UTF-8")
	case len(r.Labels) > maxLabels || len(r.Boxes) > maxBoxes || len(r.Masks) > maxMasks:
		return nonsense("%d labels, %d boxes and %d masks, limits %d, %d and %d", len(r.Labels), len(r.Boxes), len(r.Masks), maxLabels, maxBoxes, maxMasks)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		if p := r.Labels[name]; !share(p) || !short(name) {
			return nonsense("a label with the value %g, want a name of 1 to %d bytes and 0 to 1", p, maxName)
		}
	}
	for i, b := range r.Boxes {
		if err := b.check(); err != nil {
			return nonsense("box %d: %v", i+1, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Masks)) {
		if !short(name) {
			return nonsense("a mask with a name of %d bytes, want 1 to %d", len(name), maxName)
		}
		if err := checkSize(r.Masks[name]); err != nil {
			return err
		}
	}
	return checkPicture(r.PNG)
}

func (b Box) check() error {
	for _, v := range b.Box {
		if !share(v) {
			return fmt.Errorf("coordinate %g, want a share from 0 to 1", v)
		}
	}
	switch {
	case b.Box[0] >= b.Box[2] || b.Box[1] >= b.Box[3]:
		return fmt.Errorf("%v is empty, want left < right and top < bottom", b.Box)
	case !share(b.Score) || (b.Phrase != "" && !short(b.Phrase)):
		return fmt.Errorf("score %g and a phrase of %d bytes, want 0 to 1 and at most %d", b.Score, len(b.Phrase), maxName)
	}
	return nil
}

func checkPicture(file []byte) error {
	if len(file) == 0 {
		return nil
	}
	if err := checkSize(file); err != nil {
		return err
	}
	if _, _, err := image.Decode(bytes.NewReader(file)); err != nil {
		return nonsense("a picture of %d bytes that is damaged", len(file))
	}
	return nil
}

// checkSize reads a picture's head alone. Masks are decoded by who wants them,
// who also knows their size.
func checkSize(file []byte) error {
	head, format, err := image.DecodeConfig(bytes.NewReader(file))
	switch {
	case err != nil || format != "png":
		return nonsense("a picture of %d bytes that is no PNG file", len(file))
	case head.Width < 1 || head.Height < 1 || head.Width > maxPixels/head.Height:
		return nonsense("a picture of %d x %d pixels, limit %d in all", head.Width, head.Height, maxPixels)
	}
	return nil
}

func share(v float64) bool { return v >= 0 && v <= 1 }

func short(name string) bool {
	return name != "" && len(name) <= maxName && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' })
}

// The parts of an OpenAI chat completion that are used.
type chatRequest struct {
	Model       string        `json:"model"`
	Messages    []chatMessage `json:"messages"`
	Temperature float64       `json:"temperature"` // 0: the same again
	Seed        int           `json:"seed"`
	MaxTokens   int           `json:"max_tokens"`
}

type chatMessage struct {
	Role    string     `json:"role"`
	Content []chatPart `json:"content"`
}

type chatPart struct {
	Type     string     `json:"type"`
	Text     string     `json:"text,omitempty"`
	ImageURL *chatImage `json:"image_url,omitempty"`
}

type chatImage struct {
	URL string `json:"url"`
}

const maxTokens = 512

func (r Request) chat(model string) chatRequest {
	parts := []chatPart{{Type: "text", Text: r.Prompt}}
	for _, m := range r.Images {
		parts = append(parts, chatPart{Type: "image_url", ImageURL: &chatImage{"data:image/png;base64," + base64.StdEncoding.EncodeToString(m.PNG)}})
	}
	c := chatRequest{Model: model, Seed: 1, MaxTokens: maxTokens}
	if r.System != "" {
		c.Messages = append(c.Messages, chatMessage{"system", []chatPart{{Type: "text", Text: r.System}}})
	}
	c.Messages = append(c.Messages, chatMessage{"user", parts})
	return c
}

func decodeChat(data []byte) (Response, error) {
	var reply struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return Response{}, nonsense("a reply of %d bytes that is no chat completion", len(data))
	}
	if len(reply.Choices) == 0 || strings.TrimSpace(reply.Choices[0].Message.Content) == "" {
		return Response{}, nonsense("a chat completion without text")
	}
	r := Response{Text: strings.TrimSpace(reply.Choices[0].Message.Content)}
	return r, r.check()
}
