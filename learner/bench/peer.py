"""The other side of `make bench-peer`: a training step in PyTorch and generation in transformers.

    python learner/bench/peer.py THREADS

It reads requests from standard input, one JSON object a line, and answers each by one on standard output.

    {"do": "load", "dir": DIR}   DIR is an export with inputs.json, {ids [B, T], image pads expanded, grids [B, 3]},
                                 and pixels.safetensors, pixels [patches, row]; answers {}
    {"do": "eager"}              one step of forward, backward and AdamW; answers {seconds, cpu, loss}
    {"do": "compile"}            the same with torch.compile, on a copy of its own; {error} where it cannot compile
    {"do": "generate", "new": N} N greedy ids for each row; answers {seconds, cpu, ids [B, N]}

The loss is the mean of -log p over all ids that are neither a row's first nor image pads.
"""

import copy
import json
import pathlib
import sys
import time

import torch
from safetensors.torch import load_file
from transformers import Qwen3VLForConditionalGeneration


def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    return made, dict(seconds=time.perf_counter() - wall, cpu=time.process_time() - cpu)


class Peer:
    def load(self, dir):
        dir = pathlib.Path(dir)
        model = Qwen3VLForConditionalGeneration.from_pretrained(dir, attn_implementation="sdpa", dtype=torch.float32)
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self.first, self.trained = model.eval(), {}
        inputs = json.loads((dir / "inputs.json").read_text())
        ids = torch.tensor(inputs["ids"])
        pads = ids == model.config.image_token_id
        self.inputs = dict(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=pads.int(),
            pixel_values=load_file(dir / "pixels.safetensors")["pixels"], image_grid_thw=torch.tensor(inputs["grids"]))
        self.labels = ids.masked_fill(pads, -100)

    def begin(self, kind):
        model = copy.deepcopy(self.first).train()
        if kind == "compile":  # layers are alike, so the second and later ones cost nothing to compile
            torch.compiler.reset()
            for layer in model.model.language_model.layers:
                layer.compile()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01, fused=True)
        return model, optimizer

    def step(self, kind):
        if kind not in self.trained:
            self.trained[kind] = self.begin(kind)
        model, optimizer = self.trained[kind]

        def work():
            loss = model(**self.inputs, labels=self.labels, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        loss, time = timed(work)
        return dict(loss=loss, **time)

    def generate(self, new):
        never = [self.first.config.image_token_id, self.first.config.video_token_id]  # as the engine never samples them
        how = dict(max_new_tokens=new, min_new_tokens=new, do_sample=False, suppress_tokens=never)
        with torch.inference_mode():
            made, time = timed(lambda: self.first.generate(**self.inputs, **how))
        return dict(ids=made[:, -new:].tolist(), **time)

    def answer(self, request):
        match request["do"]:
            case "load":
                self.load(request["dir"])
                return {}
            case "generate":
                return self.generate(request["new"])
            case "eager":
                return self.step("eager")
            case "compile":
                try:
                    return self.step("compile")
                except Exception as e:  # no C++ compiler, say
                    return dict(error=f"{type(e).__name__}: {e}".splitlines()[0])


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    peer = Peer()
    for line in sys.stdin:
        print(json.dumps(peer.answer(json.loads(line))), file=answers, flush=True)
