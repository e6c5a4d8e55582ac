package configs

import (
	"fmt"
	"slices"
	"strings"
)

// free are the keys that may differ when a run is continued: they decide where
// and how fast it runs, never its result.
var free = []string{"run.dir", "from.run", "web", "queue", "stages", "eval", "export", "policy.embedded.threads", "policy.embedded.max_batch",
	"policy.remote.learner", "policy.remote.samplers", "policy.remote.tokenizer", // the tokenizer is held by its digest
	"sft.checkpoint_every", "pretrain.repeat.checkpoint_every", "pretrain.lookup.checkpoint_every", "pretrain.cells.checkpoint_every", "pretrain.see.checkpoint_every", "grpo.checkpoint_every", "grpo.max_attempts", "grpo.error_budget", "grpo.score_workers",
	"grpo.score_seconds", "grpo.stall_seconds", "grpo.alarms", "corpus.parallel", "corpus.call_timeout", "tools.concurrency", "tools.cache_mib",
	"tools.deadline", "tools.deadlines", "loop.sample_timeout", "loop.call_timeout", "loop.measure_timeout"}

// SameResult compares two resolved configurations. It names the first key that
// decides the result and differs, with both values.
func SameResult(began, now []byte) error {
	k, is, was, err := differs(began, now, func(string) bool { return true })
	if err == nil && k != "" {
		err = fmt.Errorf("%s is %s, but the run began with %s: restore it, or start another run with --set run.name=…", k, is, was)
	}
	return err
}

// SameData compares the configuration of a branch with that of the run whose
// data and corpus it shares.
func SameData(from, branch []byte) error {
	k, is, was, err := differs(from, branch, func(key string) bool {
		section, _, _ := strings.Cut(key, ".")
		return section == "data" || section == "corpus"
	})
	if err == nil && k != "" {
		err = fmt.Errorf("%s is %s, but the run that this one branches from has %s: leave it out, or begin from a run of its own", k, is, was)
	}
	return err
}

// differs returns the first of the keys that decide the result and are asked
// for which differs, with its values now and before; "" when none does.
func differs(began, now []byte, asked func(key string) bool) (key, is, was string, err error) {
	a, err := flatten(began)
	if err != nil {
		return "", "", "", err
	}
	b, err := flatten(now)
	if err != nil {
		return "", "", "", err
	}
	var names []string
	for k := range a {
		names = append(names, k)
	}
	for k := range b {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		isFree := slices.ContainsFunc(free, func(f string) bool { return k == f || strings.HasPrefix(k, f+".") })
		if !isFree && asked(k) && a[k] != b[k] {
			return k, b[k], a[k], nil
		}
	}
	return "", "", "", nil
}

func flatten(text []byte) (map[string]string, error) {
	found, err := leaves(text)
	if err != nil {
		return nil, fmt.Errorf("config:%w", err)
	}
	out := make(map[string]string, len(found))
	for key, v := range found {
		out[key] = fmt.Sprint(v)
	}
	return out, nil
}
