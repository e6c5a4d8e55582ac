// Package embedded is a small Qwen3-VL that trains and samples inside the
// process, on the CPU.
//
// It holds the model's configuration and weights in Hugging Face's own names
// ([Config], [Weights]), the training graph and its optimizer behind [Learner],
// and a batched key-value-cache sampler. Training runs on a Gorgonia graph of
// this package's own fused operations over the kernels of internal/simd; no
// Gorgonia type leaves the package.
//
// It refuses what it does not compute exactly as transformers'
// Qwen3VLForConditionalGeneration does: mixture-of-experts layers, attention
// biases, rope types other than the default interleaved M-RoPE, and video.
package embedded
