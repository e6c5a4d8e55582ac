package batch

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"xragent/rollout"
)

func twoTurns() rollout.Trajectory {
	return rollout.Trajectory{
		Task: rollout.TaskID{Run: "r", Step: 1, Group: 2, Index: 3},
		Turns: []rollout.Turn{
			{PromptIDs: []int32{10, 90, 90, 11}, OutputIDs: []int32{1, 2, 3}, Logprobs: []float32{-.1, -.2, -.3}, Images: 1},
			{PromptIDs: []int32{10, 90, 90, 11, 1, 2, 3, 12, 90, 13}, OutputIDs: []int32{4, 5}, Logprobs: []float32{-.4, -.5}, Images: 2},
		},
		Images: []rollout.ImageUse{{SHA256: "a"}, {SHA256: "b"}},
	}
}

func TestFromTrajectory(t *testing.T) {
	row := FromTrajectory(twoTurns(), 0.5)
	if want := []int32{10, 90, 90, 11, 1, 2, 3, 12, 90, 13, 4, 5}; !slices.Equal(row.IDs, want) {
		t.Errorf("ids %v, want %v", row.IDs, want)
	}
	if want := []uint8{0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1}; !slices.Equal(row.LossMask, want) {
		t.Errorf("mask %v, want %v", row.LossMask, want)
	}
	if want := []float32{0, 0, 0, 0, -.1, -.2, -.3, 0, 0, 0, -.4, -.5}; !slices.Equal(row.Logprobs, want) {
		t.Errorf("logprobs %v, want %v", row.Logprobs, want)
	}
	if row.ID != "r/1/2/3/0" || row.Advantage != 0.5 || len(row.Images) != 2 {
		t.Errorf("row %q advantage %v images %d", row.ID, row.Advantage, len(row.Images))
	}
	if _, err := New([]Row{row}); err != nil {
		t.Error(err)
	}
}

func TestFromTrajectoryOneTurn(t *testing.T) {
	traj := twoTurns()
	traj.Turns = traj.Turns[:1]
	row := FromTrajectory(traj, -1)
	if len(row.IDs) != 7 || row.LossTokens() != 3 || len(row.Images) != 1 {
		t.Errorf("%d ids, %d loss tokens, %d images; want 7, 3, 1", len(row.IDs), row.LossTokens(), len(row.Images))
	}
}

func TestFromTrajectoryPanicsOnBrokenInvariants(t *testing.T) {
	for name, breakIt := range map[string]func(*rollout.Trajectory) float64{
		"prefix":    func(t *rollout.Trajectory) float64 { t.Turns[1].PromptIDs[5] = 99; return 0 },
		"logprobs":  func(t *rollout.Trajectory) float64 { t.Turns[0].Logprobs = nil; return 0 },
		"advantage": func(*rollout.Trajectory) float64 { return math.NaN() },
		"no turns":  func(t *rollout.Trajectory) float64 { t.Turns = nil; return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			traj := twoTurns()
			FromTrajectory(traj, breakIt(&traj))
		})
	}
}

func TestFromSegments(t *testing.T) {
	row := FromSegments("s", []Segment{{IDs: []int32{1, 2}}, {IDs: []int32{3}, Loss: true}, {IDs: []int32{4}}}, nil)
	if !slices.Equal(row.IDs, []int32{1, 2, 3, 4}) || !slices.Equal(row.LossMask, []uint8{0, 0, 1, 0}) || row.Logprobs != nil {
		t.Errorf("row %+v", row)
	}
}

func TestNewRefuses(t *testing.T) {
	good := FromTrajectory(twoTurns(), 1)
	sft := FromSegments("s", []Segment{{IDs: []int32{1}}, {IDs: []int32{2}, Loss: true}}, nil)
	edit := func(f func(*Row)) Row {
		r := FromTrajectory(twoTurns(), 1)
		f(&r)
		return r
	}
	for want, rows := range map[string][]Row{
		"without a loss token": nil,
		"no ids":               {{ID: "x"}},
		"a mask of 11":         {edit(func(r *Row) { r.LossMask = r.LossMask[1:] })},
		"11 logprobs":          {edit(func(r *Row) { r.Logprobs = r.Logprobs[1:] })},
		"advantage is NaN":     {edit(func(r *Row) { r.Advantage = math.NaN() })},
		"nothing predicts it":  {edit(func(r *Row) { r.LossMask[0] = 1 })},
		"mask 4 is 2":          {edit(func(r *Row) { r.LossMask[4] = 2 })},
		"logprob 1 is -1":      {edit(func(r *Row) { r.Logprobs[1] = -1 })},
		"mixed":                {good, sft},
	} {
		if _, err := New(rows); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

// Pack loses nothing, keeps the order, and keeps every run within the budget;
// the token counts of the runs sum to the whole batch's denominator.
func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.IntRange(2, 30), 1, 40).Draw(t, "lengths")
		budget := rapid.IntRange(30, 90).Draw(t, "budget")
		var rows []Row
		for i, n := range lengths {
			rows = append(rows, FromSegments(string(rune('a'+i)), []Segment{{IDs: make([]int32, 1)}, {IDs: make([]int32, n-1), Loss: true}}, nil))
		}
		whole, err := New(rows)
		if err != nil {
			t.Fatal(err)
		}
		packs, err := Pack(rows, budget)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		tokens := 0
		for _, p := range packs {
			used := 0
			for _, r := range p {
				ids = append(ids, r.ID)
				used += len(r.IDs)
			}
			if used > budget {
				t.Fatalf("a run of %d ids, budget %d", used, budget)
			}
			part, err := New(p)
			if err != nil {
				t.Fatal(err)
			}
			tokens += part.Tokens
		}
		for i, r := range rows {
			if i >= len(ids) || ids[i] != r.ID {
				t.Fatalf("order %v", ids)
			}
		}
		if len(ids) != len(rows) || tokens != whole.Tokens {
			t.Fatalf("%d rows of %d, %d tokens of %d", len(ids), len(rows), tokens, whole.Tokens)
		}
	})
	if _, err := Pack([]Row{{ID: "long", IDs: make([]int32, 31)}}, 30); err == nil || !strings.Contains(err.Error(), "31 ids, the token budget is 30") {
		t.Errorf("a row over the budget: %v", err)
	}
}
