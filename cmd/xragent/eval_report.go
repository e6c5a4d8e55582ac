package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"xragent/eval"
)

// A report is what an evaluation leaves in eval/report.json.
type report = eval.Report

// writeReport writes a report as JSON and as text, which it also prints.
func (s *session) writeReport(rep report) error {
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(s.path("eval", "report.json"), append(text, '\n')); err != nil {
		return err
	}
	var table strings.Builder
	_ = rep.WriteText(&table) // a strings.Builder does not fail
	fmt.Fprint(s.out, table.String())
	return writeFile(s.path("eval", "table.txt"), []byte(table.String()))
}
