package web

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"xragent/trainer"
)

// Metrics is the registry of one run. All methods are safe for concurrent use.
type Metrics struct {
	registry   *prometheus.Registry
	gauges     map[*family]*prometheus.GaugeVec
	counters   map[*family]*prometheus.CounterVec
	histograms map[*family]*prometheus.HistogramVec
}

// NewMetrics returns the registry of the named run; every series carries it as
// the label run.
func NewMetrics(run string) *Metrics {
	m := &Metrics{prometheus.NewRegistry(), map[*family]*prometheus.GaugeVec{}, map[*family]*prometheus.CounterVec{}, map[*family]*prometheus.HistogramVec{}}
	labels := prometheus.Labels{"run": run}
	for _, f := range families {
		m.register(f, labels)
	}
	return m
}

func (m *Metrics) register(f *family, labels prometheus.Labels) {
	switch f.kind {
	case gauge:
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.name, Help: f.help, ConstLabels: labels}, f.labels)
		m.registry.MustRegister(v)
		m.gauges[f] = v
	case counter:
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.name, Help: f.help, ConstLabels: labels}, f.labels)
		m.registry.MustRegister(v)
		m.counters[f] = v
		for _, values := range f.zero {
			v.WithLabelValues(values...)
		}
		if len(f.labels) == 0 {
			v.WithLabelValues()
		}
	case histogram:
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.name, Help: f.help, Buckets: f.buckets, ConstLabels: labels}, f.labels)
		m.registry.MustRegister(v)
		m.histograms[f] = v
	}
}

// Handler serves the registry in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *Metrics) set(f *family, v float64, labels ...string) {
	m.gauges[f].WithLabelValues(labels...).Set(v)
}

func (m *Metrics) add(f *family, n int, labels ...string) {
	m.counters[f].WithLabelValues(labels...).Add(float64(n))
}

// Step records one optimizer step.
func (m *Metrics) Step(r trainer.StepRecord, t trainer.StepTimes) {
	m.optimizer(r, t)
	m.times(t)
	if r.Trajectories > 0 {
		m.trajectoriesOf(r)
	}
}

func (m *Metrics) optimizer(r trainer.StepRecord, t trainer.StepTimes) {
	m.set(step, float64(r.Step), r.Stage)
	m.set(stepTotal, float64(r.Total), r.Stage)
	m.set(loss, r.Stats.Loss, r.Stage)
	m.set(learningRate, r.LR, r.Stage)
	m.set(gradNorm, r.Stats.GradNorm, r.Stage)
	m.set(entropy, r.Stats.Entropy, r.Stage)
	m.set(tokenRate, t.TokensPerSec, r.Stage)
	m.add(trained, r.Stats.Tokens, r.Stage)
	if r.Validation != nil {
		m.set(validation, *r.Validation, r.Stage)
	}
}

func (m *Metrics) times(t trainer.StepTimes) {
	for name, seconds := range t.Seconds {
		m.histograms[phase].WithLabelValues(t.Stage, name).Observe(seconds)
	}
	m.add(generated, t.Generated)
	m.add(redelivered, t.Redelivered)
	m.add(duplicates, t.Duplicates)
	for _, c := range t.Rejected {
		m.add(rejected, c.N, c.Name)
	}
	m.set(queue, float64(t.QueueDepth))
}

func (m *Metrics) trajectoriesOf(r trainer.StepRecord) {
	m.add(trajectories, r.Trajectories)
	m.set(reward, r.Reward)
	m.set(rewardStd, r.RewardStd)
	m.set(term, r.Format, "format")
	m.set(term, r.Accuracy, "accuracy")
	m.set(term, r.CXR, "cxr")
	m.set(term, r.ToolCalls, "tool")
	m.set(clipRatio, r.Stats.ClipLow, "low")
	m.set(clipRatio, r.Stats.ClipHigh, "high")
	m.set(approxKL, r.Stats.ApproxKL)
	m.set(logpDiff, r.Stats.LogpDiff)
	m.set(truncated, r.Truncated)
	m.set(length, r.Lengths.Prompt, "prompt")
	m.set(length, r.Lengths.Triage, "triage")
	m.set(length, r.Lengths.Observation, "observation")
	m.set(length, r.Lengths.Integration, "integration")
	m.add(fabricated, r.Fabricated)
	for _, name := range trainer.AlarmNames {
		up := 0.0
		if slices.Contains(r.Alarms, name) {
			up = 1
		}
		m.set(alarm, up, name)
	}
	m.groupsOf(r.Groups)
	for _, c := range r.Calls {
		m.add(toolCalls, c.N, c.Tool, c.Status)
	}
	for _, c := range r.Gate {
		m.add(gateDecisions, c.N, c.Name)
	}
}

func (m *Metrics) groupsOf(g trainer.GroupCounts) {
	total := float64(max(1, g.Mixed+g.AllRight+g.AllWrong))
	for _, c := range []struct {
		outcome string
		n       int
	}{{"mixed", g.Mixed}, {"all_right", g.AllRight}, {"all_wrong", g.AllWrong}} {
		m.add(groups, c.n, c.outcome)
		m.set(groupNow, float64(c.n)/total, c.outcome)
	}
	m.add(groups, g.Tied, "tied")
}

// Tool records the latency of one tool call.
func (m *Metrics) Tool(tool string, seconds float64) {
	m.histograms[toolSeconds].WithLabelValues(tool).Observe(seconds)
}
