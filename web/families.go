package web

import "slices"

// A family is one metric family. Dashboards and alert rules are built from
// these values, so that no panel can name a metric that does not exist.
type family struct {
	name, help string
	kind       kind
	labels     []string
	buckets    []float64
	zero       [][]string // label values that exist from the start, at 0
}

type kind int

const (
	gauge kind = iota
	counter
	histogram
)

var families []*family

func define(f family) *family {
	f.name = "xragent_" + f.name
	families = append(families, &f)
	return &f
}

var stage = []string{"stage"}

// Of the last step.
var (
	step         = define(family{name: "step", help: "Optimizer steps done in this stage.", labels: stage})
	stepTotal    = define(family{name: "step_target", help: "Optimizer steps asked for in this stage.", labels: stage})
	loss         = define(family{name: "loss", help: "Objective of the last step.", labels: stage})
	validation   = define(family{name: "validation_loss", help: "Mean validation loss, nats per token.", labels: stage})
	learningRate = define(family{name: "learning_rate", help: "Learning rate of the last step.", labels: stage})
	gradNorm     = define(family{name: "grad_norm", help: "Global gradient norm before clipping.", labels: stage})
	entropy      = define(family{name: "entropy_nats", help: "Mean policy entropy over loss tokens.", labels: stage})

	reward    = define(family{name: "reward_mean", help: "Mean total reward of the last step."})
	rewardStd = define(family{name: "reward_std", help: "Standard deviation of total rewards in the last step."})
	term      = define(family{name: "reward_term_mean", help: "Mean of one reward term: format, accuracy, cxr, tool (a call count).", labels: []string{"term"}})
	clipRatio = define(family{name: "clip_ratio", help: "Share of loss tokens whose ratio was clipped.", labels: []string{"side"}})
	approxKL  = define(family{name: "approx_kl_nats", help: "Mean k3 of learner against behaviour log-probs."})
	logpDiff  = define(family{name: "logprob_difference_nats", help: "Mean absolute difference of learner and behaviour log-probs before the update."})
	length    = define(family{name: "length_tokens", help: "Mean tokens a trajectory by part.", labels: []string{"part"}})
	truncated = define(family{name: "truncated_ratio", help: "Share of trajectories with a turn cut by its limit."})
	groupNow  = define(family{name: "step_groups_ratio", help: "Share of the last step's groups by outcome.", labels: []string{"outcome"}})
	alarm     = define(family{name: "alarm", help: "1 while an alarm of reward hacking is up.", labels: []string{"alarm"}})
	queue     = define(family{name: "queue_depth", help: "Tasks that wait for a worker or are being run."})
	tokenRate = define(family{name: "tokens_per_second", help: "Tokens trained and sampled per second in the last step.", labels: stage})
)

// Accumulating.
var (
	trajectories = define(family{name: "trajectories_total", help: "Accepted trajectories.", kind: counter})
	groups       = define(family{name: "groups_total", help: "Groups by outcome.", kind: counter, labels: []string{"outcome"},
		zero: [][]string{{"mixed"}, {"all_right"}, {"all_wrong"}, {"tied"}}})
	toolCalls = define(family{name: "tool_calls_total", help: "Auxiliary tool calls by tool and result.", kind: counter, labels: []string{"tool", "result"},
		zero: [][]string{{"region_parse", "ok"}, {"roi_crop", "ok"}, {"evidence_lookup", "ok"}}})
	gateDecisions = define(family{name: "gate_decisions_total", help: "Gate decisions: admitted, or the reason for withholding.", kind: counter, labels: []string{"reason"},
		zero: [][]string{{"admitted"}}})
	fabricated  = define(family{name: "fabricated_measurements_total", help: "Numbers claimed for withheld measurements.", kind: counter})
	redelivered = define(family{name: "redeliveries_total", help: "Tasks or results that were delivered again.", kind: counter})
	duplicates  = define(family{name: "duplicates_total", help: "Results that came a second time and were ignored.", kind: counter})
	rejected    = define(family{name: "rejected_trajectories_total", help: "Trajectories refused by reason.", kind: counter, labels: []string{"reason"},
		zero: [][]string{{"infrastructure"}}})
	generated = define(family{name: "generated_tokens_total", help: "Sampled tokens.", kind: counter})
	trained   = define(family{name: "trained_tokens_total", help: "Loss tokens trained on.", kind: counter, labels: stage})
	phase     = define(family{name: "step_phase_seconds", help: "Seconds a step spent in a phase.", kind: histogram, labels: []string{"stage", "phase"},
		buckets: []float64{.001, .005, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 120}})
	toolSeconds = define(family{name: "tool_seconds", help: "Latency of tool calls, cache hits included.", kind: histogram, labels: []string{"tool"},
		buckets: []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5}})
)

func find(name string) *family {
	i := slices.IndexFunc(families, func(f *family) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return families[i]
}
