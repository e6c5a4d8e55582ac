// Package engine samples turns from an inference server on GPUs, as a
// [loop.Sampler].
//
// It speaks vLLM's tokens-in, tokens-out endpoint: compact prompt ids and
// encoded images go in; the expanded prompt ids, the sampled ids and their
// log-probs come back. It refuses, by name, a server that keeps any of them to
// itself, one that expands an image to another number of ids than our own
// processor, and one that has not proved by its log-probs on the canary prompt
// which weights it holds. It never re-tokenises text. learner/engine/run.sh holds
// it against a real server: vLLM 0.32.0, started with --enable-scale-out.
//
// Log-probs must be those at temperature 1, which vLLM calls raw_logprobs and
// returns by default.
package engine
