package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// claim makes dir the directory of a stage with this identity, or finds that
// it is already. A stage is continued only with the settings and the data that
// it began with; what may differ is not part of the identity.
func claim(dir, stage string, resume bool, identity map[string]string) error {
	if err := os.MkdirAll(filepath.Join(dir, checkpointsDir), 0o755); err != nil {
		return fmt.Errorf("%s: %w", stage, err)
	}
	path := filepath.Join(dir, "identity.json")
	var began map[string]string
	err := readJSON(path, &began)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return replaceJSON(path, identity)
	case err != nil:
		return fmt.Errorf("%s: %w", stage, err)
	case !resume:
		return refused("%s: %s holds a run already: continue it with --resume, or choose another name", stage, dir)
	}
	return compare(stage, path, began, identity)
}

func compare(stage, path string, began, now map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if was, ok := began[key]; !ok || was != now[key] {
			return refused("%s: %s is %s, but the run began with %s (%s): restore it, or start a new run",
				stage, key, show(now[key], true), show(was, ok), path)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(began)) {
		if _, ok := now[key]; !ok {
			return refused("%s: %s is not set, but the run began with %s (%s): restore it, or start a new run",
				stage, key, began[key], path)
		}
	}
	return nil
}

func show(value string, set bool) string {
	if !set {
		return "no such setting"
	}
	return value
}

// identify flattens a configuration to key and value, and adds the digests of
// what else decides the result.
func identify(stage string, config any, digests map[string]string) (map[string]string, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stage, err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", stage, err)
	}
	identity := maps.Clone(digests)
	if identity == nil {
		identity = map[string]string{}
	}
	for key, value := range fields {
		identity[stage+"."+key] = string(value)
	}
	return identity, nil
}
