// Package chat turns conversations into token ids and radiographs into patches.
//
// It holds the three things that must be the same wherever a model is trained,
// sampled, evaluated or exported: the [Tokenizer] (byte-level BPE, read from a
// Qwen-style tokenizer.json), the two-turn chat template ([Codec]) and the
// image [Processor] (the arithmetic of transformers' Qwen2-VL processor). The
// same files, written by [Codec.Files], make transformers and vLLM do the same;
// [Codec.CheckTemplate] and [Codec.CheckProbe] hold another's template and
// another's reading of conversations against it.
//
// It is pure: it opens no file, and its own tokenizer is compiled in. It never
// tokenises what a policy wrote for training; ids stay as the engine saw them.
package chat
