package radcot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"xragent/dataset"
	"xragent/dataset/phantom"
	"xragent/rollout"
)

// fakeTools answer plainly; a film whose bytes end in 0 to 2 has its bundle withheld.
type fakeTools struct {
	down  bool
	calls atomic.Int64
}

func (f *fakeTools) Call(_ context.Context, tool string, args json.RawMessage, images [][]byte, _ []dataset.Image) (rollout.Observation, error) {
	f.calls.Add(1)
	if f.down {
		return rollout.Observation{}, errors.New("connection refused")
	}
	var a struct{ Region, Query string }
	if err := json.Unmarshal(args, &a); err != nil {
		return rollout.Observation{}, err
	}
	switch tool {
	case cropTool:
		return rollout.Observation{Text: a.Region + " 2.9x", PNG: []byte("png " + a.Region + string(images[0]))}, nil
	case lookupTool:
		text, ok := phantom.Protocol(a.Query)
		if !ok {
			return rollout.Observation{Text: "nothing found"}, nil
		}
		return rollout.Observation{Text: text}, nil
	}
	return rollout.Observation{Text: "opacity 34 other side 31 pattern weak spots 2", CacheHit: f.calls.Load()%2 == 0}, nil
}

func (f *fakeTools) Measure(_ context.Context, images [][]byte, _ []dataset.Image) (rollout.Bundle, error) {
	b := rollout.Bundle{Variant: "fake"}
	admitted := images[0][len(images[0])-1] > '2'
	for i, name := range rollout.Measurements {
		b.Measurements = append(b.Measurements, rollout.Measurement{Name: name, Value: 0.5126 - 0.3*float64(i), Category: "borderline", Computed: true, Admitted: admitted})
	}
	return b, nil
}

type fakeImages struct{}

func (fakeImages) Get(_ context.Context, sha string) ([]byte, error) {
	if sha == "" {
		return nil, errors.New("no such image")
	}
	return []byte("film " + sha), nil
}

const studies = 150

var described = sync.OnceValue(func() []phantom.Study {
	var out []phantom.Study
	for i := range studies { // describing one takes milliseconds
		out = append(out, phantom.Describe(phantom.Config{Seed: 5, Train: studies}, i))
	}
	return out
})

// phantoms returns the train samples of the first n studies, without images.
func phantoms(n int) Sources {
	truth := map[string]phantom.Truth{}
	var samples []dataset.Sample
	for i, s := range described()[:n] {
		truth[s.ID] = s.Truth
		for _, sample := range s.Samples {
			sample.Prompt.Images = slices.Clone(sample.Prompt.Images)
			sample.Prompt.Images[0].SHA256 = fmt.Sprintf("%064d", i)
			samples = append(samples, sample)
		}
	}
	return Sources{Samples: samples, Images: fakeImages{}, Tools: &fakeTools{},
		Truth: func(study string) (phantom.Truth, bool) { t, ok := truth[study]; return t, ok }}
}

func words(text string) int {
	return len(strings.Fields(strings.NewReplacer("<", " <", ">", "> ").Replace(text)))
}
