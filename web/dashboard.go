package web

import (
	"encoding/json"
	"fmt"
	"strings"
)

// A panel is one chart of the dashboard.
type panel struct {
	title, unit string
	queries     []query
}

type query struct {
	expr, legend string
}

// last asks for a gauge.
func last(f *family, legend string) query { return query{f.name + selector, legend} }

// rate asks for a counter's increase per second, by its labels.
func rate(f *family, legend string) query {
	expr := fmt.Sprintf("rate(%s%s[$__rate_interval])", f.name, selector)
	if len(f.labels) > 0 {
		expr = fmt.Sprintf("sum by (%s) (%s)", strings.Join(f.labels, ", "), expr)
	}
	return query{expr, legend}
}

// total asks for a counter itself.
func total(f *family, legend string) query { return query{f.name + selector, legend} }

// mean asks for a histogram's mean over its whole life, by its labels.
func mean(f *family, legend string) query {
	by := strings.Join(f.labels, ", ")
	return query{fmt.Sprintf("sum by (%s) (%s_sum%s) / sum by (%s) (%s_count%s)", by, f.name, selector, by, f.name, selector), legend}
}

const selector = `{run=~"$run"}`

// panels are the dashboard, left to right, two a row.
func panels() []panel {
	return []panel{
		{"Accuracy and format", "percentunit", []query{{term.name + `{run=~"$run",term=~"accuracy|format"}`, "{{term}}"}}},
		{"Reward", "none", []query{last(reward, "mean"), last(rewardStd, "std")}},
		{"Reward terms", "none", []query{last(term, "{{term}}")}},
		{"Groups of the last step", "percentunit", []query{last(groupNow, "{{outcome}}")}},
		{"Groups", "none", []query{total(groups, "{{outcome}}")}},
		{"Tool calls", "none", []query{total(toolCalls, "{{tool}} {{result}}")}},
		{"Gate decisions", "none", []query{total(gateDecisions, "{{reason}}")}},
		{"Fabricated measurements", "none", []query{total(fabricated, "fabricated")}},
		{"Loss", "none", []query{last(loss, "{{stage}}"), last(validation, "{{stage}} validation")}},
		{"Clip ratio", "percentunit", []query{last(clipRatio, "{{side}}")}},
		{"Entropy", "none", []query{last(entropy, "{{stage}}")}},
		{"Policy distance", "none", []query{last(approxKL, "k3"), last(logpDiff, "|learner - behaviour|")}},
		{"Gradient norm", "none", []query{last(gradNorm, "{{stage}}")}},
		{"Learning rate", "none", []query{last(learningRate, "{{stage}}")}},
		{"Alarms of reward hacking", "none", []query{last(alarm, "{{alarm}}")}},
		{"Lengths", "none", []query{last(length, "{{part}}")}},
		{"Truncated", "percentunit", []query{last(truncated, "share")}},
		{"Seconds a step by phase", "s", []query{mean(phase, "{{stage}} {{phase}}")}},
		{"Tool latency", "s", []query{mean(toolSeconds, "{{tool}}")}},
		{"Queue depth", "none", []query{last(queue, "tasks")}},
		{"Redeliveries, duplicates, rejections", "none", []query{total(redelivered, "redelivered"), total(duplicates, "duplicates"), total(rejected, "rejected {{reason}}")}},
		{"Tokens a second", "none", []query{last(tokenRate, "{{stage}}"), rate(generated, "sampled")}},
		{"Steps", "none", []query{last(step, "{{stage}}"), last(stepTotal, "{{stage}} target")}},
		{"Trained tokens", "none", []query{total(trained, "{{stage}}")}},
		{"Trajectories", "none", []query{total(trajectories, "accepted")}},
	}
}

// Expressions returns every PromQL expression of the dashboard, with run's
// variable left as $run.
func Expressions() []string {
	var out []string
	for _, p := range panels() {
		for _, q := range p.queries {
			out = append(out, q.expr)
		}
	}
	return out
}

type object = map[string]any

// Dashboard returns the Grafana dashboard as JSON.
func Dashboard() []byte {
	var list []object
	for i, p := range panels() {
		list = append(list, p.grafana(i))
	}
	return marshal(object{
		"title": "xragent", "uid": "xragent", "schemaVersion": 39, "editable": true, "refresh": "5s",
		"time":       object{"from": "now-30m", "to": "now"},
		"tags":       []string{"xragent"},
		"templating": object{"list": []object{runVariable()}},
		"panels":     list,
	})
}

var datasource = object{"type": "prometheus", "uid": "prometheus"}

func runVariable() object {
	return object{"name": "run", "label": "run", "type": "query", "datasource": datasource,
		"query": "label_values(" + step.name + ", run)", "refresh": 2, "includeAll": true, "allValue": ".*",
		"multi": true, "current": object{"text": "All", "value": "$__all"}}
}

func (p panel) grafana(i int) object {
	var targets []object
	for j, q := range p.queries {
		targets = append(targets, object{"refId": string(rune('A' + j)), "expr": q.expr, "legendFormat": q.legend, "datasource": datasource})
	}
	return object{
		"id": i + 1, "title": p.title, "type": "timeseries", "datasource": datasource,
		"gridPos":     object{"x": 12 * (i % 2), "y": 8 * (i / 2), "w": 12, "h": 8},
		"fieldConfig": object{"defaults": object{"unit": p.unit}, "overrides": []object{}},
		"targets":     targets,
	}
}

func marshal(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic("web: dashboard does not marshal: " + err.Error())
	}
	return append(data, '\n')
}

// Alerts returns the Prometheus alert rules as YAML.
func Alerts() []byte {
	return fmt.Appendf(nil, `groups:
  - name: xragent
    rules:
      - alert: XragentNoProgress
        expr: changes(%[1]s[10m]) == 0 and %[1]s < %[2]s
        for: 5m
        annotations: {summary: "no optimizer step in run {{ $labels.run }}, stage {{ $labels.stage }}, for 10 minutes"}
      - alert: XragentFewMixedGroups
        expr: %[3]s{outcome="mixed"} < 0.2
        for: 10m
        annotations: {summary: "fewer than 20 %% of groups carry a signal in run {{ $labels.run }}"}
      - alert: XragentRewardHacking
        expr: %[5]s > 0
        for: 1m
        annotations: {summary: "{{ $labels.alarm }} in run {{ $labels.run }}: look at its trajectories"}
      - alert: XragentRejectedTrajectories
        expr: rate(%[4]s[5m]) > 0.1
        annotations: {summary: "trajectories are being rejected ({{ $labels.reason }}) in run {{ $labels.run }}"}
`, step.name, stepTotal.name, groupNow.name, rejected.name, alarm.name)
}
