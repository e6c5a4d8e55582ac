package trainer

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"xragent/reward"
	"xragent/rollout"
)

const (
	window       = 10  // steps of the running figures
	starvedBelow = 0.2 // share of mixed groups under which a run says so
	starvedFrom  = 5   // steps before it is judged
)

func recent(history []StepRecord) []StepRecord { return history[max(0, len(history)-window):] }

// mixedShare is the share of groups with right and wrong answers.
func mixedShare(history []StepRecord) float64 {
	mixed, all := 0, 0
	for _, r := range history {
		mixed += r.Groups.Mixed
		all += r.Groups.Mixed + r.Groups.AllRight + r.Groups.AllWrong
	}
	return float64(mixed) / float64(max(1, all))
}

// recentAccuracy is what the best checkpoint is chosen by.
func recentAccuracy(history []StepRecord) float64 {
	last := recent(history)
	sum := 0.0
	for _, r := range last {
		sum += r.Accuracy
	}
	return sum / float64(max(1, len(last)))
}

// describe fills in what a step saw: all scored trajectories of its groups,
// those that were left out for want of variance included.
func describe(rec *StepRecord, works []*groupWork) {
	var scores []reward.Score
	var trajectories []rollout.Trajectory
	for _, w := range works {
		if w.dropped || len(w.totals()) == 0 {
			rec.Groups.Dropped++
			continue
		}
		before := len(scores)
		for i, s := range w.scores {
			if s != nil {
				scores, trajectories = append(scores, *s), append(trajectories, *w.trajectories[i])
			}
		}
		rec.Groups.count(w, scores[before:])
	}
	rec.Trajectories = len(scores)
	if rec.Trajectories == 0 {
		return
	}
	describeScores(rec, scores)
	describeTrajectories(rec, trajectories)
}

func (c *GroupCounts) count(w *groupWork, scores []reward.Score) {
	right := 0.0
	for _, s := range scores {
		right += s.Accuracy
	}
	switch right {
	case 0:
		c.AllWrong++
	case float64(len(scores)):
		c.AllRight++
	default:
		c.Mixed++
	}
	totals := w.totals()
	if slices.Max(totals) == slices.Min(totals) {
		c.Tied++
	}
	if len(scores) < len(w.trajectories) {
		c.Short++
	}
	if w.flat {
		c.LeftOut++
	}
}

func describeScores(rec *StepRecord, scores []reward.Score) {
	n := float64(len(scores))
	for _, s := range scores {
		rec.Reward += s.Total / n
		rec.Format += s.Format / n
		rec.Accuracy += s.Accuracy / n
		rec.CXR += s.CXR / n
		rec.ToolCalls += float64(s.Calls) / n
		rec.Fabricated += s.Fabricated
	}
	sum := 0.0
	for _, s := range scores {
		sum += (s.Total - rec.Reward) * (s.Total - rec.Reward)
	}
	rec.RewardStd = math.Sqrt(sum / n)
}

func describeTrajectories(rec *StepRecord, trajectories []rollout.Trajectory) {
	calls, gate := map[CallCount]int{}, map[string]int{}
	cut := 0
	for _, t := range trajectories {
		for _, c := range t.Calls {
			calls[CallCount{Tool: c.Tool, Status: string(c.Status)}]++
		}
		for _, reason := range gateReasons(t.Bundle) {
			gate[reason]++
		}
		if t.Stop == rollout.MaxTokens {
			cut++
		}
		rec.Lengths.add(t, float64(len(trajectories)))
	}
	rec.Truncated = float64(cut) / float64(len(trajectories))
	rec.Calls, rec.Gate = callCounts(calls), namedCounts(gate)
}

// gateReasons says why measurements were withheld, or that none was.
func gateReasons(b rollout.Bundle) []string {
	withheld := slices.ContainsFunc(b.Measurements, func(m rollout.Measurement) bool { return !m.Admitted })
	switch {
	case len(b.Reasons) > 0:
		return slices.Compact(slices.Sorted(slices.Values(b.Reasons)))
	case withheld || len(b.Measurements) == 0:
		return []string{"unstated"}
	}
	return []string{"admitted"}
}

func (l *Lengths) add(t rollout.Trajectory, of float64) {
	first := t.Turns[0]
	l.Prompt += float64(len(first.PromptIDs)) / of
	l.Triage += float64(len(first.OutputIDs)) / of
	if len(t.Turns) == 2 {
		second := t.Turns[1]
		l.Observation += float64(len(second.PromptIDs)-len(first.PromptIDs)-len(first.OutputIDs)) / of
		l.Integration += float64(len(second.OutputIDs)) / of
	}
}

func callCounts(calls map[CallCount]int) []CallCount {
	var counts []CallCount
	for c, n := range calls {
		c.N = n
		counts = append(counts, c)
	}
	slices.SortFunc(counts, func(a, b CallCount) int {
		return cmp.Or(cmp.Compare(a.Tool, b.Tool), cmp.Compare(a.Status, b.Status))
	})
	return counts
}

func namedCounts(counts map[string]int) []NamedCount {
	var named []NamedCount
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		named = append(named, NamedCount{name, counts[name]})
	}
	return named
}

// traffic counts what came by the queue since the last step. It differs
// between equal runs, so it goes into the sidecar.
type traffic struct {
	redelivered, duplicates, generated int
	rejected                           map[string]int
}

func (t *traffic) reject(reason string) {
	if t.rejected == nil {
		t.rejected = map[string]int{}
	}
	t.rejected[reason]++
}

func (t *traffic) flush(times *StepTimes) {
	times.Redelivered, times.Duplicates, times.Generated = t.redelivered, t.duplicates, t.generated
	times.Rejected = namedCounts(t.rejected)
	*t = traffic{}
}
