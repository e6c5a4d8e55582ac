package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"xragent/chat"
	"xragent/policy/embedded"
)

func importCommand() *cobra.Command {
	return &cobra.Command{
		Use: "import DIR OUT", Short: "Read a Hugging Face folder of a Qwen3-VL and write it as xragent's",
		Long: "Read a Hugging Face folder of a dense Qwen3-VL (float32 or bfloat16, in one file or in shards), with its tokenizer and image\n" +
			"processor where it has them, and write what export writes: float32 weights in one file. OUT must not exist.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{errors.New("import: want the folder to read and the folder to write, e.g. xragent import Qwen3-VL-2B base")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := readFolder(args[0])
			if err != nil {
				return usageError{fmt.Errorf("import: %w", err)}
			}
			if err := m.write(args[1]); err != nil {
				return fmt.Errorf("import: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "imported %s to %s: %s\n", args[0], args[1], m)
			for _, n := range m.notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", n)
			}
			return nil
		},
	}
}

// A folder is what a Hugging Face folder of a Qwen3-VL holds.
type folder struct {
	weights *embedded.Weights
	codec   *chat.Codec // nil: weights only
	images  chat.Processor
	notes   []string // for the user
}

// readFolder reads a whole folder, or nothing.
func readFolder(dir string) (folder, error) {
	w, err := embedded.ImportHF(dir)
	if err != nil {
		return folder{}, err
	}
	m := folder{weights: w}
	text, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if errors.Is(err, fs.ErrNotExist) {
		m.notes = append(m.notes, "no tokenizer.json is there: only weights came over")
		return m, nil
	}
	if err == nil {
		m.codec, err = chat.New(text)
	}
	if err == nil {
		err = checkIDs(w.Config(), m.codec)
	}
	if err == nil {
		m.images, err = readProcessor(dir, w.Config().Vision)
	}
	if err != nil {
		return folder{}, fmt.Errorf("%s: %w", dir, err)
	}
	m.noteTemplate(dir)
	return m, nil
}

// checkIDs holds that a model and a tokenizer mean the same ids.
func checkIDs(cfg embedded.Config, c *chat.Codec) error {
	start, end := c.VisionMarks()
	for _, x := range []struct {
		field       string
		model, ours int32
	}{
		{"image_token_id", cfg.ImageTokenID, c.ImagePad()},
		{"vision_start_token_id", cfg.VisionStartID, start},
		{"vision_end_token_id", cfg.VisionEndID, end},
	} {
		if x.model != x.ours {
			return fmt.Errorf("config.json: %s is %d, but tokenizer.json has %d: the two are not of one model", x.field, x.model, x.ours)
		}
	}
	if n := cfg.Text.VocabSize; c.Vocab() > n {
		return fmt.Errorf("tokenizer.json has %d ids, config.json has vocab_size %d: the two are not of one model", c.Vocab(), n)
	}
	return nil
}

// readProcessor reads the image processor's file, of which transformers 4 and 5
// have one each, and holds that its patches fit the vision tower.
func readProcessor(dir string, v embedded.VisionConfig) (chat.Processor, error) {
	const name, newer = "preprocessor_config.json", "processor_config.json"
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = os.ReadFile(filepath.Join(dir, newer))
	}
	if err != nil {
		return chat.Processor{}, fmt.Errorf("tokenizer.json stands without %s or %s: %w", name, newer, err)
	}
	p, err := chat.ParseProcessor(text)
	if err == nil && (p.Patch != v.PatchSize || p.Merge != v.SpatialMergeSize || p.Temporal != v.TemporalPatchSize) {
		err = fmt.Errorf("image processor: patch, merge and temporal size %d, %d, %d, but config.json has %d, %d, %d",
			p.Patch, p.Merge, p.Temporal, v.PatchSize, v.SpatialMergeSize, v.TemporalPatchSize)
	}
	return p, err
}

// noteTemplate says so where the model was taught another chat template.
func (m *folder) noteTemplate(dir string) {
	theirs := readTemplate(dir)
	if theirs == "" {
		m.notes = append(m.notes, "no chat template is there: xragent's own is written")
	} else if err := m.codec.CheckTemplate(theirs); err != nil {
		m.notes = append(m.notes, "its chat template renders other prompts than xragent's, which is written in its place")
	}
}

// readTemplate returns a folder's chat template, "" without one.
func readTemplate(dir string) string {
	if text, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja")); err == nil {
		return string(text)
	}
	for _, name := range []string{"chat_template.json", "tokenizer_config.json"} {
		var f struct {
			Template string `json:"chat_template"`
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && json.Unmarshal(text, &f) == nil && f.Template != "" {
			return f.Template
		}
	}
	return ""
}

// write writes the folder to out, whole or not at all, and reads it back.
func (m folder) write(out string) error {
	if exists(out) {
		return usageError{fmt.Errorf("%s exists: remove it or choose another folder", out)}
	}
	aside := out + ".partial"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	var stop []int32
	if m.codec != nil {
		stop = []int32{m.codec.EndOfTurn()}
	}
	if err := embedded.ExportHF(aside, m.weights.Config(), m.weights, stop); err != nil {
		return err
	}
	if m.codec != nil {
		if err := writeFiles(aside, m.codec.Files(m.images)); err != nil {
			return err
		}
	}
	back, err := embedded.ImportHF(aside)
	if err != nil {
		return err
	}
	if got, want := back.Digest(), m.weights.Digest(); got != want {
		return fmt.Errorf("%s reads back as tensors %.12s, %.12s were written: nothing was published", aside, got, want)
	}
	return os.Rename(aside, out)
}

func writeFiles(dir string, files []chat.File) error {
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (m folder) String() string {
	c := m.weights.Config()
	return fmt.Sprintf("%d parameters, %d + %d layers, vocabulary %d, sha256 of the tensors %.16s",
		m.weights.Len(), c.Vision.Depth, c.Text.NumHiddenLayers, c.Text.VocabSize, m.weights.Digest())
}
