package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"xragent/dataset/phantom"
	"xragent/policy/embedded"
	"xragent/reward"
	"xragent/trainer"
)

// exportTolerance bounds how far a loaded export's log-probs may lie from the
// trained weights': the file holds the same float32 numbers, so by rounding only.
const exportTolerance = 1e-5

// exportStage writes the trained policy as a Hugging Face folder. The folder
// appears only after it was loaded back and compared.
func (s *session) exportStage(ctx context.Context) error {
	out := s.cfg.Export.Dir
	if out == "" {
		out = s.path("export")
	}
	if exists(out) {
		if s.resume && exists(filepath.Join(out, "model.safetensors")) {
			s.notice("export: %s is there already", out)
			return nil
		}
		return usageError{fmt.Errorf("export: %s exists: remove it or choose another with --set export.dir=…", out)}
	}
	stage, c, err := s.trained()
	if err != nil {
		return err
	}
	aside := out + ".partial"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if s.remote() {
		err = s.exportRemote(ctx, aside, stage, c)
	} else {
		err = s.exportEmbedded(ctx, aside, stage, c)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(aside, out); err != nil {
		return err
	}
	s.notice("export: %s (weights of %s step %d, loaded back and compared)", out, stage, c.Step)
	return nil
}

func (s *session) exportEmbedded(ctx context.Context, dir, stage string, c trainer.Checkpoint) error {
	w, err := s.weights(c.LearnerDir())
	if err != nil {
		return err
	}
	if err := embedded.ExportHF(dir, s.model(), w, []int32{s.codec.EndOfTurn()}); err != nil {
		return err
	}
	about := card{what: "A small Qwen3-VL", stage: stage, step: c.Step,
		weights: fmt.Sprintf("sha256 of the tensors %.16s; %d parameters", w.Digest(), w.Len())}
	if err := s.accompany(dir, about); err != nil {
		return err
	}
	return notPublished(dir, s.proveExport(ctx, dir, w))
}

func notPublished(dir string, err error) error {
	if err != nil {
		err = fmt.Errorf("export: %s: %w: nothing was published", dir, err)
	}
	return err
}

// trained returns the last training stage's checkpoint: GRPO's newest, else SFT's best.
func (s *session) trained() (stage string, c trainer.Checkpoint, err error) {
	if exists(s.path("grpo")) {
		c, notices, err := trainer.LatestCheckpoint(s.path("grpo"))
		for _, n := range notices {
			s.notice("%s", n)
		}
		return "grpo", c, err
	}
	c, err = trainer.BestCheckpoint(s.path("sft"))
	if err != nil {
		return "", c, usageError{fmt.Errorf("nothing is trained yet in run %s: %w", s.cfg.Run.Name, err)}
	}
	return "sft", c, nil
}

// accompany writes what stands beside the weights: tokenizer, template, image
// processor and model card.
func (s *session) accompany(dir string, about card) error {
	if err := writeFiles(dir, s.codec.Files(s.images)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "README.md"), []byte(s.modelCard(about)), 0o644)
}

// proveExport loads the folder back: its chat template must give the prompts of
// training, and its log-probs must be the trained weights', not the untrained's.
func (s *session) proveExport(ctx context.Context, dir string, w *embedded.Weights) error {
	back, err := embedded.ImportHF(dir)
	if err != nil {
		return err
	}
	if err := s.codec.CheckTemplate(readTemplate(dir)); err != nil {
		return err
	}
	ids := s.codec.Encode("<assess>pa view. heart large.</assess>")
	read, err := s.logprobs(ctx, back, ids)
	if err != nil {
		return err
	}
	want, err := s.logprobs(ctx, w, ids)
	if err != nil {
		return err
	}
	base, err := s.logprobs(ctx, s.untrained(), ids)
	if err != nil {
		return err
	}
	return compareExport(read, want, base, exportTolerance)
}

// compareExport holds log-probs under the loaded export against those under the
// trained weights, which they must equal, and the untrained, which they must not.
func compareExport(read, trained, untrained []float32, tolerance float64) error {
	if d := distance(read, trained); !(d <= tolerance) {
		return fmt.Errorf("its log-probs differ from the trained weights' by %.2g, at most %.0e is rounding", d, tolerance)
	}
	if d := distance(read, untrained); d < exportTolerance {
		return fmt.Errorf("its log-probs equal the untrained policy's")
	}
	return nil
}

func (s *session) logprobs(ctx context.Context, w *embedded.Weights, ids []int32) ([]float32, error) {
	e, err := embedded.NewEngine(w.Config(), embedded.EngineOptions{})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	if err := e.Load(w, 0); err != nil {
		return nil, err
	}
	return e.Score(ctx, ids)
}

func distance(a, b []float32) float64 {
	worst := 0.0
	for i := range a {
		worst = max(worst, math.Abs(float64(a[i])-float64(b[i])))
	}
	return worst
}

// A card is what a model card says of the weights.
type card struct {
	what    string // a noun phrase
	stage   string // that trained them last
	step    int
	weights string // their identity
}

func (s *session) modelCard(c card) string {
	var licence string
	switch s.cfg.Data.Source {
	case "phantom":
		licence = "Trained on synthetic phantoms only (generator " + phantom.Version + ", " + phantom.Hash()[:12] + ")."
	default:
		licence = "Trained on " + s.cfg.Data.Source + " data; its licence applies to what is derived from it."
	}
	return fmt.Sprintf(`---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
tags: [chest-x-ray, tool-use, grpo]
---
# %[1]s

%[6]s, trained by xragent: %[2]s. Research software; no clinical claim of any kind, not for diagnosis.

| | |
|---|---|
| run | %[1]s |
| weights | %[3]s step %[4]d, %[5]s |
| data | %[7]s |
| reward | definitions %[8]s |
| measurements | shown only where their validity checks passed |

Load with AutoModelForImageTextToText and AutoProcessor. The prompt protocol stands in the chat template; tool results
come back between <tool_response> tags.
`, s.cfg.Run.Name, strings.Join(slices.DeleteFunc(slices.Clone(s.cfg.Stages), func(n string) bool { return n != "sft" && n != "grpo" }), ", then "),
		c.stage, c.step, c.weights, c.what, licence, reward.Version)
}
