package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"xragent/chat"
	"xragent/dataset"
	"xragent/eval"
	"xragent/eval/control"
	"xragent/internal/blobs"
	"xragent/reward"
	"xragent/toolserver"
	"xragent/toolserver/measure"
)

// An exam is one evaluation under way.
type exam struct {
	s       *session
	cfg     eval.Config
	stand   stand
	bench   *control.Bench
	splits  map[dataset.Split][]dataset.Sample
	facts   eval.Facts
	results eval.Results
}

// examine opens an evaluation of the data's test questions.
func (s *session) examine(ctx context.Context, d *samples) (*exam, error) {
	x := &exam{s: s, cfg: s.cfg.Eval, splits: map[dataset.Split][]dataset.Sample{}}
	x.cfg.Seed = s.seed("eval", x.cfg.Seed)
	for _, split := range []dataset.Split{dataset.Test, dataset.OOD} {
		x.splits[split] = eval.Select(d.split(split), x.cfg.Questions)
	}
	test := x.splits[dataset.Test]
	if len(test) == 0 {
		return nil, usageError{fmt.Errorf("the data has no test questions: give the split test some")}
	}
	x.facts = eval.Facts{
		Truth: d.truth != nil, OOD: len(x.splits[dataset.OOD]) > 0,
		Needs: !slices.ContainsFunc(test, func(q dataset.Sample) bool { return q.Need == "" }),
	}
	if err := os.MkdirAll(s.path("eval"), 0o755); err != nil {
		return nil, err
	}
	exact, err := newExactTools(s)
	if err != nil {
		return nil, err
	}
	blank, _ := eval.BlankImage()
	if _, err := s.blobs.Put(ctx, blank); err != nil {
		return nil, err
	}
	if x.stand, err = s.stand(ctx); err != nil {
		return nil, err
	}
	x.bench = &control.Bench{
		Loop: s.cfg.Loop, Sampler: x.stand, Tools: s.tools, Exact: exact, Codec: s.codec, Blobs: s.blobs,
		Truth: d.truth, Whole: s.cfg.Tools.Gate == measure.AllOrNothing, Seed: x.cfg.Seed, Parallel: s.cfg.Tools.Concurrency,
	}
	return x, nil
}

// newExactTools returns the run's tools without the errors built into them.
func newExactTools(s *session) (*toolserver.Server, error) {
	cfg := s.cfg
	cfg.Tools.Noise = toolserver.Noise{}
	return newTools(cfg, nil)
}

// contender runs the conditions of one policy, its plain one first. It takes
// the policy up only where a result is not there yet.
func (x *exam) contender(ctx context.Context, c contender, jobs []eval.Job) error {
	digest, err := x.stand.take(ctx, c)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		asked := x.splits[j.Split]
		if j.Condition != eval.Plain {
			asked = asked[:x.cfg.ControlQuestions(len(asked))]
		}
		res, err := x.condition(ctx, j, digest, asked)
		if err != nil {
			return err
		}
		x.results = append(x.results, res)
	}
	return nil
}

// A kept result stands in eval/ with the key of all that it depends on.
type kept struct {
	Key string `json:"key"`
	eval.Result
}

// condition returns a result that is there already, or runs it.
func (x *exam) condition(ctx context.Context, j eval.Job, digest string, asked []dataset.Sample) (eval.Result, error) {
	key, err := x.key(j, digest, asked)
	if err != nil {
		return eval.Result{}, err
	}
	path := x.s.path("eval", resultName(j))
	old, err := readKept(path)
	if err == nil && old.Key == key {
		x.s.notice("%s: there already", label(j))
		old.Result.Name = j.Policy
		return old.Result, nil
	}
	res, err := x.run(ctx, j, asked)
	if err != nil {
		return res, err
	}
	if slices.ContainsFunc(res.Rows, func(r eval.Row) bool { return r.Error != "" }) {
		key = "" // what the world lost is asked again next time
	}
	text, err := json.Marshal(kept{key, res})
	if err != nil {
		return res, err
	}
	return res, writeFile(path, append(text, '\n'))
}

func (x *exam) run(ctx context.Context, j eval.Job, asked []dataset.Sample) (eval.Result, error) {
	plain, _ := x.results.Find(j.Policy, eval.Plain, j.Split)
	plain.Rows = plain.Rows[:min(len(plain.Rows), len(asked))]
	roll, err := x.bench.Rollout(ctx, j.Condition, asked, plain)
	if err != nil {
		return eval.Result{}, err
	}
	cfg := x.cfg
	cfg.Questions = 0 // they are chosen
	if j.Condition == eval.Plain {
		roll = x.s.asTrained(roll)
	}
	return eval.Run(ctx, cfg, j.Policy, j.Condition, asked, 0, roll, x.s.cfg.Reward, newProgress(x.s.log, label(j)).at)
}

func label(j eval.Job) string {
	text := fmt.Sprintf("eval %s %s", j.Policy, strings.ReplaceAll(string(j.Condition), "_", " "))
	if j.Split != dataset.Test {
		text += " " + string(j.Split)
	}
	return text
}

func resultName(j eval.Job) string {
	name := fmt.Sprintf("%s-%s", j.Policy, j.Condition)
	if j.Split != dataset.Test {
		name += "-" + string(j.Split)
	}
	return name + ".json"
}

// key identifies a result by what it depends on: the weights, the condition, the
// questions, and how they are asked, measured and scored. Threads and deadlines
// decide nothing.
func (x *exam) key(j eval.Job, digest string, asked []dataset.Sample) (string, error) {
	t, l := x.s.cfg.Tools, x.s.cfg.Loop
	parts := []any{
		eval.Version, digest, j.Condition, eval.QuestionsDigest(asked),
		x.cfg.Temperature, x.cfg.MaxTokens, x.cfg.Retries, x.cfg.Seed,
		reward.Version, x.s.cfg.Reward, x.s.cfg.GRPO.Tools, x.s.cfg.GRPO.Gate,
		x.s.tools.Schemas(), measure.Version, t.Segmenter, t.Gate, t.Crop, t.Noise,
		l.KMax, l.MaxContext, l.MaxImages, l.ImageTokens,
		chat.SystemPrompt, blobs.Digest(x.s.codec.JSON()), x.s.images.Hash(),
	}
	if c, ok := eval.Find(j.Condition); ok && c.Revision > 0 {
		parts = append(parts, c.Revision)
	}
	text, err := json.Marshal(parts)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// readKept reads a result; one that is torn is as good as none.
func readKept(path string) (kept, error) {
	var k kept
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	return k, err
}
