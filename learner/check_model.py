"""What transformers computes for the models that the Go test wrote.

    python learner/check_model.py DIR

Each folder in DIR is an export with cases.json, [{name, ids, mask, grids}], image pads expanded, and
cases.safetensors, NAME/pixels [patches, row]. Into it go answers.json, {loading, cases: {NAME: {loss, greedy}}},
answers.safetensors with, in float32,

    NAME/logits           [T, V]
    NAME/grad/PARAMETER   of the mean over mask of -log p(ids[t] | before), for every parameter

and resaved/ and bfloat16/, the model as save_pretrained writes it, in about three shards.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

GREEDY = 64


def load(folder):
    model, info = Qwen3VLForConditionalGeneration.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
    model.generation_config.eos_token_id = None
    return model.eval(), {k: sorted(map(str, v)) for k, v in info.items() if v and k != "error_msgs"}


def inputs(config, case, pixels):
    ids = torch.tensor([case["ids"]])
    kw = dict(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == config.image_token_id).int())
    if case["grids"]:
        kw.update(pixel_values=pixels, image_grid_thw=torch.tensor(case["grids"]))
    return kw


def run(model, case, pixels, tensors):
    kw = inputs(model.config, case, pixels)
    target, mask = kw["input_ids"][0], torch.tensor(case["mask"], dtype=torch.bool)
    model.zero_grad()
    logits = model(**kw).logits[0]
    logp = logits.log_softmax(-1)[:-1].gather(1, target[1:, None])[:, 0]
    loss = -(logp * mask[1:]).sum() / mask.sum()
    loss.backward()
    tensors[case["name"] + "/logits"] = logits.detach().contiguous()
    for name, p in model.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        tensors[f"{case['name']}/grad/{name}"] = grad.clone().contiguous()
    never = [model.config.image_token_id, model.config.video_token_id]  # as the engine never samples them
    made = model.generate(**kw, max_new_tokens=GREEDY, do_sample=False, suppress_tokens=never)[0, len(target):]
    return dict(loss=loss.item(), greedy=made.tolist())


def answer(folder):
    model, loading = load(folder)
    pixels, tensors, answers = load_file(folder / "cases.safetensors"), {}, {}
    for case in json.loads((folder / "cases.json").read_text()):
        answers[case["name"]] = run(model, case, pixels.get(case["name"] + "/pixels"), tensors)
    save_file(tensors, folder / "answers.safetensors")
    (folder / "answers.json").write_text(json.dumps(dict(loading=loading, cases=answers)))
    size = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder / "resaved", max_shard_size=size // 3 + 1)
    model.to(torch.bfloat16).save_pretrained(folder / "bfloat16", max_shard_size=size // 6 + 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        answer(folder)
