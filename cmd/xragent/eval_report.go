package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"xragent/configs"
	"xragent/eval"
	"xragent/eval/page"
	"xragent/trainer"
)

// A report is what an evaluation leaves in eval/report.json.
type report = eval.Report

// writeReport writes a report as JSON, as a page, and as text, which it also
// prints.
func (s *session) writeReport(rep report) error {
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(s.path("eval", "report.json"), append(text, '\n')); err != nil {
		return err
	}
	curves, err := s.curves()
	if err != nil {
		return err
	}
	var html bytes.Buffer
	if err := page.Write(&html, rep, curves); err != nil {
		return err
	}
	if err := writeFile(s.path("eval", "report.html"), html.Bytes()); err != nil {
		return err
	}
	var table strings.Builder
	_ = rep.WriteText(&table) // a strings.Builder does not fail
	fmt.Fprint(s.out, table.String())
	s.notice("report: %s", s.path("eval", "report.html"))
	return writeFile(s.path("eval", "table.txt"), []byte(table.String()))
}

// curves are the run's step logs as the page shows them.
func (s *session) curves() ([]page.Panel, error) {
	var panels []page.Panel
	for _, stage := range []string{configs.StageSFT, configs.StageGRPO} {
		steps, err := trainer.ReadSteps(s.path(stage))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if stage == configs.StageSFT {
			panels = append(panels, sftPanels(steps)...)
		} else {
			panels = append(panels, grpoPanels(steps)...)
		}
	}
	return panels, nil
}

// sftPanels show the loss, and the validation loss by itself: beside the loss of
// the first steps nobody sees whether it is at its plateau.
func sftPanels(steps []trainer.StepRecord) []page.Panel {
	loss := series("loss", steps, func(r trainer.StepRecord) float64 { return r.Stats.Loss })
	validation := page.Line{Name: "validation"}
	for _, r := range steps {
		if r.Validation != nil {
			validation.X, validation.Y = append(validation.X, float64(r.Step)), append(validation.Y, *r.Validation)
		}
	}
	panels := []page.Panel{{Title: "SFT", XLabel: "step", YLabel: "nats a loss token", Lines: []page.Line{loss, validation}}}
	if len(validation.X) > 1 {
		panels = append(panels, page.Panel{Title: "SFT, validation loss", XLabel: "step", YLabel: "nats a loss token", Lines: []page.Line{validation}})
	}
	return panels
}

// grpoSmooth is over how many steps GRPO's curves are averaged.
const grpoSmooth = 5

func grpoPanels(steps []trainer.StepRecord) []page.Panel {
	line := func(name string, value func(trainer.StepRecord) float64) page.Line {
		l := series(name, steps, value)
		l.Y = page.Smooth(l.Y, grpoSmooth)
		return l
	}
	label := fmt.Sprintf("step (mean of %d)", grpoSmooth)
	type rec = trainer.StepRecord
	return []page.Panel{
		{Title: "GRPO: reward", XLabel: label, YLabel: "mean a trajectory", Lines: []page.Line{
			line("reward", func(r rec) float64 { return r.Reward }), line("spread", func(r rec) float64 { return r.RewardStd })}},
		{Title: "GRPO: reward terms", XLabel: label, YLabel: "mean a trajectory", Lines: []page.Line{
			line("accuracy", func(r rec) float64 { return r.Accuracy }), line("format", func(r rec) float64 { return r.Format }),
			line("CXR", func(r rec) float64 { return r.CXR }), line("calls", func(r rec) float64 { return r.ToolCalls })}},
		{Title: "GRPO: signal", XLabel: label, YLabel: "share", Lines: []page.Line{
			line("mixed groups", func(r rec) float64 { return r.MixedRecent }), line("truncated", func(r rec) float64 { return r.Truncated })}},
		{Title: "GRPO: policy", XLabel: label, YLabel: "nats; norm", Lines: []page.Line{
			line("entropy", func(r rec) float64 { return r.Stats.Entropy }), line("gradient", func(r rec) float64 { return r.Stats.GradNorm })}},
	}
}

func series(name string, steps []trainer.StepRecord, value func(trainer.StepRecord) float64) page.Line {
	l := page.Line{Name: name}
	for _, r := range steps {
		l.X, l.Y = append(l.X, float64(r.Step)), append(l.Y, value(r))
	}
	return l
}
