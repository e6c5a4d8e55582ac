package batch

import (
	"fmt"
	"math"

	"xragent/rollout"
)

// FromTrajectory makes the row of an accepted trajectory: the last turn's
// prompt and output, which hold turn 1 whole. The mask is 1 on the sampled ids
// of both turns and nowhere else; log-probs stand beside them.
//
// t must have passed [rollout.Trajectory.Check]; a trajectory that breaks the
// prefix rule or whose lengths differ panics here, as does a non-finite
// advantage: either means that a check was left out.
func FromTrajectory(t rollout.Trajectory, advantage float64) Row {
	if len(t.Turns) == 0 || math.IsNaN(advantage) || math.IsInf(advantage, 0) {
		panic(fmt.Sprintf("batch: trajectory %v has %d turns and advantage %v", t.Task, len(t.Turns), advantage))
	}
	last := t.Turns[len(t.Turns)-1]
	n := len(last.PromptIDs) + len(last.OutputIDs)
	row := Row{
		ID:        t.Task.String(),
		IDs:       append(append(make([]int32, 0, n), last.PromptIDs...), last.OutputIDs...),
		LossMask:  make([]uint8, n),
		Logprobs:  make([]float32, n),
		Advantage: advantage,
		Images:    t.Images[:last.Images],
	}
	for i, turn := range t.Turns {
		row.place(turn, i+1)
	}
	return row
}

// place marks where turn's output lies in the row.
func (r *Row) place(turn rollout.Turn, number int) {
	start := len(turn.PromptIDs)
	if len(turn.OutputIDs) != len(turn.Logprobs) {
		panic(fmt.Sprintf("batch: trajectory %s: turn %d has %d ids but %d logprobs",
			r.ID, number, len(turn.OutputIDs), len(turn.Logprobs)))
	}
	for i, id := range turn.OutputIDs {
		if start+i >= len(r.IDs) || r.IDs[start+i] != id {
			panic(fmt.Sprintf("batch: trajectory %s: turn %d's output is not in the row", r.ID, number))
		}
		r.LossMask[start+i] = 1
		r.Logprobs[start+i] = turn.Logprobs[i]
	}
}

// A Segment is a run of ids that is wholly in the loss or wholly out of it.
type Segment struct {
	IDs  []int32
	Loss bool
}

// FromSegments makes a supervised row, image pads expanded already.
func FromSegments(id string, segments []Segment, images []rollout.ImageUse) Row {
	row := Row{ID: id, Images: images}
	for _, s := range segments {
		row.IDs = append(row.IDs, s.IDs...)
		var mask uint8
		if s.Loss {
			mask = 1
		}
		for range s.IDs {
			row.LossMask = append(row.LossMask, mask)
		}
	}
	return row
}

// FromMarks makes a row that is trained on what stands at some of its ids, not
// on what follows them: at ids[t] the model is to predict marks[t], where that
// is not negative. No policy samples so; it teaches a vision tower, each of
// whose tokens is told what it shows.
func FromMarks(id string, ids, marks []int32, images []rollout.ImageUse) Row {
	row := Row{ID: id, IDs: ids, LossMask: make([]uint8, len(ids)), Targets: make([]int32, len(ids)), Images: images}
	for t, mark := range marks {
		if mark >= 0 && t+1 < len(ids) { // the id at t+1 is predicted at t
			row.LossMask[t+1], row.Targets[t+1] = 1, mark
		}
	}
	return row
}

// Target returns the id that loss token t is held against.
func (r Row) Target(t int) int32 {
	if r.Targets != nil {
		return r.Targets[t]
	}
	return r.IDs[t]
}

// LossTokens counts the ids of r that are in the loss.
func (r Row) LossTokens() int {
	n := 0
	for _, m := range r.LossMask {
		n += int(m)
	}
	return n
}

// check reports the first thing that makes r unfit to train on.
func (r Row) check() error {
	switch {
	case len(r.IDs) == 0:
		return fmt.Errorf("no ids")
	case len(r.LossMask) != len(r.IDs):
		return fmt.Errorf("%d ids but a mask of %d", len(r.IDs), len(r.LossMask))
	case r.Logprobs != nil && len(r.Logprobs) != len(r.IDs):
		return fmt.Errorf("%d ids but %d logprobs", len(r.IDs), len(r.Logprobs))
	case math.IsNaN(r.Advantage) || math.IsInf(r.Advantage, 0):
		return fmt.Errorf("advantage is %v", r.Advantage)
	case r.LossMask[0] != 0:
		return fmt.Errorf("the first id is in the loss, but nothing predicts it")
	}
	return r.checkTokens()
}

func (r Row) checkTokens() error {
	for i, m := range r.LossMask {
		if m > 1 {
			return fmt.Errorf("mask %d is %d, want 0 or 1", i, m)
		}
		if r.Logprobs == nil {
			continue
		}
		lp := float64(r.Logprobs[i])
		if math.IsNaN(lp) || math.IsInf(lp, 0) || (m == 0 && lp != 0) {
			return fmt.Errorf("logprob %d is %v where the mask is %d", i, lp, m)
		}
	}
	return nil
}

// New checks the rows and counts the denominator over all of them, so that the
// loss is the same however a learner splits the batch.
func New(rows []Row) (Batch, error) {
	b := Batch{Rows: rows}
	for i, r := range rows {
		if err := r.check(); err != nil {
			return Batch{}, fmt.Errorf("batch: row %d (%s): %w", i, r.ID, err)
		}
		if (r.Logprobs == nil) != (rows[0].Logprobs == nil) {
			return Batch{}, fmt.Errorf("batch: row %d (%s): supervised and rollout rows mixed", i, r.ID)
		}
		b.Tokens += r.LossTokens()
	}
	if b.Tokens == 0 {
		return Batch{}, fmt.Errorf("batch: %d rows without a loss token", len(rows))
	}
	return b, nil
}

// Pack cuts rows, in their order, into runs of at most budget ids each. A row
// longer than the budget is an error: it would never fit.
func Pack(rows []Row, budget int) ([][]Row, error) {
	var packs [][]Row
	start, used := 0, 0
	for i, r := range rows {
		if len(r.IDs) > budget {
			return nil, fmt.Errorf("batch: row %d (%s) has %d ids, the token budget is %d: raise it or shorten the row",
				i, r.ID, len(r.IDs), budget)
		}
		if used+len(r.IDs) > budget {
			packs = append(packs, rows[start:i:i])
			start, used = i, 0
		}
		used += len(r.IDs)
	}
	if start < len(rows) {
		packs = append(packs, rows[start:])
	}
	return packs, nil
}
