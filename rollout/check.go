package rollout

import (
	"fmt"
	"math"
	"slices"
)

// A RejectError says why a trajectory may not be trained on. Reason is a short
// fixed word for counters; the text names the place.
type RejectError struct {
	Task   TaskID
	Reason string
	Detail string
}

func (e *RejectError) Error() string {
	return fmt.Sprintf("trajectory %v rejected: %s: %s", e.Task, e.Reason, e.Detail)
}

// Check holds t against the token and image contracts. It returns nil or a
// *RejectError.
func (t Trajectory) Check(l Limits) error {
	reject := func(reason, format string, args ...any) error {
		return &RejectError{t.Task, reason, fmt.Sprintf(format, args...)}
	}
	if t.Stop.Infrastructure() {
		return reject("infrastructure", "stopped by %s", t.Stop)
	}
	if len(t.Turns) == 0 || len(t.Turns) > 2 {
		return reject("turns", "%d turns, want 1 or 2", len(t.Turns))
	}
	for i, turn := range t.Turns {
		if reason, detail := turn.check(l); reason != "" {
			return reject(reason, "turn %d: %s", i+1, detail)
		}
		if turn.Images < 0 || turn.Images > len(t.Images) {
			return reject("images", "turn %d has %d images of %d", i+1, turn.Images, len(t.Images))
		}
		pads := 0
		for _, u := range t.Images[:turn.Images] {
			pads += u.PadTokens(l.Merge)
		}
		if n := count(turn.PromptIDs, l.ImagePad); n != pads {
			return reject("image_tokens", "turn %d has %d image-pad ids, its images need %d", i+1, n, pads)
		}
		if slices.Contains(turn.OutputIDs, l.ImagePad) {
			return reject("image_tokens", "turn %d: the policy sampled an image-pad id", i+1)
		}
	}
	if len(t.Turns) == 2 && !extends(t.Turns[1].PromptIDs, t.Turns[0]) {
		return reject("prefix", "turn 2's prompt does not start with turn 1's prompt and output")
	}
	return nil
}

func (t Turn) check(l Limits) (reason, detail string) {
	switch {
	case len(t.PromptIDs) == 0:
		return "lengths", "empty prompt"
	case len(t.OutputIDs) == 0:
		return "lengths", "empty output"
	case len(t.OutputIDs) != len(t.Logprobs):
		return "lengths", fmt.Sprintf("%d ids but %d logprobs", len(t.OutputIDs), len(t.Logprobs))
	case l.MaxIDs > 0 && len(t.PromptIDs)+len(t.OutputIDs) > l.MaxIDs:
		return "lengths", fmt.Sprintf("%d ids, limit %d", len(t.PromptIDs)+len(t.OutputIDs), l.MaxIDs)
	}
	for _, ids := range [][]int32{t.PromptIDs, t.OutputIDs} {
		for _, id := range ids {
			if id < 0 || int(id) >= l.Vocab {
				return "vocabulary", fmt.Sprintf("id %d outside [0, %d)", id, l.Vocab)
			}
		}
	}
	for i, lp := range t.Logprobs {
		if v := float64(lp); math.IsNaN(v) || math.IsInf(v, 0) || v > 1e-4 {
			return "logprobs", fmt.Sprintf("logprob %d is %v", i, lp)
		}
	}
	return "", ""
}

func extends(prompt []int32, first Turn) bool {
	n := len(first.PromptIDs)
	return len(prompt) >= n+len(first.OutputIDs) &&
		slices.Equal(prompt[:n], first.PromptIDs) &&
		slices.Equal(prompt[n:n+len(first.OutputIDs)], first.OutputIDs)
}

func count(ids []int32, id int32) int {
	n := 0
	for _, x := range ids {
		if x == id {
			n++
		}
	}
	return n
}
