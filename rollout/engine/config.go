package engine

import (
	"fmt"
	"net/url"
	"time"
)

// Config says which server to use and how. Durations are written as in Go: 90s.
type Config struct {
	URL     string        `yaml:"url"`     // e.g. http://127.0.0.1:8000
	Model   string        `yaml:"model"`   // the served model's name
	API     string        `yaml:"api"`     // see the API constants
	Weights string        `yaml:"weights"` // see the Weights constants
	Dir     string        `yaml:"dir"`     // folder that the server reads, too; for weights lora and reload
	Timeout time.Duration `yaml:"timeout"` // of one request
}

// The endpoints that turns are sampled from.
const (
	Generate    = "generate"    // vLLM's /inference/v1/generate: ids and images
	Completions = "completions" // /v1/completions with return_token_ids: ids only, no images
)

// The ways in which a new policy version reaches the server.
const (
	WeightsLoRA   = "lora"   // an adapter a version, named after it (/v1/load_lora_adapter)
	WeightsReload = "reload" // all weights from disk (/pause, /collective_rpc reload_weights, /resume)
	WeightsFixed  = "fixed"  // never: the server was started with them
)

// Default returns the configuration of a vLLM server on this machine.
func Default() Config {
	return Config{URL: "http://127.0.0.1:8000", Model: "policy", API: Generate, Weights: WeightsLoRA, Dir: "weights", Timeout: 5 * time.Minute}
}

// Validate reports the first thing that makes c unusable, naming its field.
func (c Config) Validate() error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("engine: field url is %q, want http://host:port", c.URL)
	case c.Model == "":
		return fmt.Errorf("engine: field model is empty, want the served model's name")
	case c.API != Generate && c.API != Completions:
		return fmt.Errorf("engine: field api is %q, want %s or %s", c.API, Generate, Completions)
	case c.Weights != WeightsLoRA && c.Weights != WeightsReload && c.Weights != WeightsFixed:
		return fmt.Errorf("engine: field weights is %q, want %s, %s or %s", c.Weights, WeightsLoRA, WeightsReload, WeightsFixed)
	case c.Weights != WeightsFixed && c.Dir == "":
		return fmt.Errorf("engine: field dir is empty, want a folder that the server reads, too")
	case c.Timeout <= 0:
		return fmt.Errorf("engine: field timeout is %v, want more than 0", c.Timeout)
	}
	return nil
}
