package phantom

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"xragent/dataset"
	"xragent/rollout"
)

// truth states what the plan has made.
func (p *plan) truth(id string) Truth {
	t := Truth{
		ID: id, Split: p.split, View: p.view, Fault: p.fault, FaultDegree: p.degree,
		Findings: p.scene.findings, scene: p.scene, key: p.key,
	}
	if p.fault != NoFault && p.fault != PoorInspiration {
		t.FaultSide = sideNames[p.side]
	}
	if p.view != Lateral {
		t.Anatomical, t.Apparent = p.body.measures(), p.scene.film.measures()
		t.Anatomical.CTR = p.ratio // no effusion hides the chest's width
		t.Misled = p.misled(t)
	}
	t.Coarse = p.coarse(t)
	return t
}

// misled reports whether the number on the film suggests a wrong answer.
func (p *plan) misled(t Truth) bool {
	if p.need != NeedMisleading {
		return false
	}
	switch p.relevant()[0] {
	case rollout.CTR:
		return heartCategory(t.Apparent.CTR) != heartCategory(p.ratio)
	case rollout.Asymmetry:
		healthy := p.body
		for side, f := range p.loss {
			healthy.half[side] /= 1 - f
			healthy.dome[side] += risen * f
		}
		return toward(p.lost())*(t.Apparent.Asymmetry-healthy.measures().Asymmetry) < 0
	default:
		return toward(p.answer)*t.Apparent.Shift < 0
	}
}

// heartCategory returns 0 for a normal, 1 for a borderline and 2 for an
// enlarged heart on a PA film.
func heartCategory(ctr float64) int {
	switch {
	case ctr < 0.48:
		return 0
	case ctr <= 0.52:
		return 1
	}
	return 2
}

// coarse states what a view of 128 × 128 pixels shows.
func (p *plan) coarse(t Truth) []string {
	out := []string{strings.ToLower(string(t.View)) + " view"}
	if t.View == Lateral {
		return out
	}
	switch t.Fault {
	case Rotated:
		out = append(out, "rotated")
	case Cropped:
		out = append(out, "cropped")
	case PoorInspiration:
		out = append(out, "low volumes")
	case MaskFailure:
		out = append(out, "dense object")
	}
	out = append(out, heartStatement(t.Apparent.CTR))
	before := len(out)
	for _, f := range t.Findings {
		if s := f.coarse(); s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if len(out) == before {
		out = append(out, "no large finding")
	}
	return out
}

func heartStatement(ctr float64) string {
	switch {
	case ctr > 0.58:
		return "heart large"
	case ctr < 0.43:
		return "heart small"
	}
	return "heart size unclear"
}

// coarse returns what the coarse view shows of f, or "".
func (f Finding) coarse() string {
	switch f.Name {
	case Nodule:
		if f.SizeMM >= 15 {
			return fmt.Sprintf("nodule %s %s zone", f.Side, f.Zone)
		}
	case Consolidation:
		return fmt.Sprintf("%s %s zone opaque", f.Side, f.Zone)
	case Effusion:
		if f.SizeMM >= 50 {
			return f.Side + " base opaque"
		}
	case Pneumothorax:
		if f.SizeMM >= 30 {
			return f.Side + " lung edge free"
		}
	case VolumeLoss:
		if f.SizeMM >= 25 {
			return f.Side + " lung small"
		}
	case mediastinalShift:
		if f.SizeMM >= 20 {
			return "shifted " + f.Side
		}
	case tube, TubeMalposition:
		switch {
		case f.TipMM < -highTipMM:
			return "tube ends high"
		case f.TipMM > highTipMM:
			return "tube ends low"
		}
		return "tube"
	}
	return ""
}

// highTipMM is how far from the carina the end of a tube is seen at once.
const highTipMM = 24

// report returns the report-style question of the study.
func (p *plan) report(id string, t Truth) dataset.Sample {
	s := p.base(id, t)
	s.Prompt.Kind, s.Prompt.Question = dataset.Report, "List the findings."
	s.Capability, s.Template, s.Need = diagnosis, reportName, string(p.reportNeed(t))
	s.Reference = reference(t)
	s.Positive, s.Masked = p.labels(t)
	for _, name := range s.Positive {
		if name == Pneumothorax || name == TubeMalposition {
			s.Critical = append(s.Critical, name)
		}
	}
	return s
}

// reportNeed returns [NeedCrop] where a positive finding is not in the coarse view.
func (p *plan) reportNeed(t Truth) Need {
	for _, f := range t.Findings {
		if slices.Contains(Findings, f.Name) && (f.coarse() == "" || f.coarse() == "tube") {
			return NeedCrop
		}
	}
	return NeedCoarse
}

// labels returns the positive findings in the order of [Findings], and those
// that are too slight to score.
func (p *plan) labels(t Truth) (positive, masked []string) {
	slight := map[string]bool{Cardiomegaly: heartCategory(p.ratio) == 1}
	there := map[string]bool{Cardiomegaly: heartCategory(p.ratio) == 2}
	for _, f := range t.Findings {
		there[f.Name] = true
		switch {
		case f.Name == Edema && f.Opacity < 10, f.Name == VolumeLoss && f.SizeMM < 10:
			slight[f.Name] = true
		}
	}
	for _, name := range Findings {
		switch {
		case slight[name]:
			masked = append(masked, name)
		case there[name]:
			positive = append(positive, name)
		}
	}
	return positive, masked
}

// reference writes the findings as a report would.
func reference(t Truth) string {
	if t.View == Lateral {
		return "Lateral chest film. No frontal findings can be stated."
	}
	out := []string{fmt.Sprintf("%s chest film.", t.View)}
	for _, f := range t.Findings {
		out = append(out, f.sentence())
	}
	out = append(out, [3]string{
		"The heart is of normal size.", "The heart is of borderline size.", "The heart is enlarged.",
	}[heartCategory(t.Anatomical.CTR)])
	return strings.Join(out, " ")
}

func (f Finding) sentence() string {
	switch f.Name {
	case Nodule:
		return fmt.Sprintf("A %s nodule of %.0f mm lies in the %s %s zone.", f.Margin, math.Round(f.SizeMM), f.Side, f.Zone)
	case Consolidation:
		return fmt.Sprintf("There is consolidation in the %s %s zone.", f.Side, f.Zone)
	case Edema:
		return fmt.Sprintf("Edema-like texture in the %s %s zone.", f.Side, f.Zone)
	case Scar:
		return fmt.Sprintf("The %s costophrenic angle is scarred.", f.Side)
	case Pneumothorax:
		return fmt.Sprintf("There is a pneumothorax on the %s with a gap of %.0f mm.", f.Side, f.SizeMM)
	case Effusion:
		return fmt.Sprintf("There is a pleural effusion on the %s.", f.Side)
	case VolumeLoss:
		return fmt.Sprintf("The %s lung has lost volume.", f.Side)
	case mediastinalShift:
		return fmt.Sprintf("The mediastinum is shifted to the %s.", f.Side)
	case tube:
		return "The tube ends above the carina."
	}
	return "The tube ends too low."
}
