"""Holds a LoRA adapter, as learner.py trains and saves it, in a vLLM server against PEFT.

    python learner/engine/adapter.py EXPORT WORK URL

The server at URL holds EXPORT under the name policy and takes adapters at run time; it reads the folder WORK, into which
a random adapter is written. Prints the greatest differences of the log-probs of a text; exit status 1 above 1e-3.
"""

import json
import pathlib
import sys
import urllib.request

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3VLForConditionalGeneration

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from learner import LORA_TARGETS  # noqa: E402

IDS = [(7 * i * i + 3 * i) % 1900 for i in range(32)]


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def served(url, model):
    asked = dict(max_tokens=1, temperature=0, top_p=1, prompt_logprobs=1, skip_special_tokens=False)
    rows = json.loads(post(url + "/inference/v1/generate", dict(model=model, token_ids=IDS, sampling_params=asked)))["prompt_logprobs"]
    return torch.tensor([row[str(i)]["logprob"] for row, i in zip(rows[1:], IDS[1:])])


def own(model):
    with torch.inference_mode():
        logprobs = model(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1)
    return logprobs[:-1].gather(1, torch.tensor(IDS[1:])[:, None])[:, 0]


def main(export, work, url):
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration.from_pretrained(export, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=LORA_TARGETS)).eval()
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data.normal_(0, 0.05)
    model.save_pretrained(work)
    with model.disable_adapter():
        base = own(model)
    post(url + "/v1/load_lora_adapter", dict(lora_name="policy-v1", lora_path=work, load_inplace=True))
    changed = own(model)
    apart = [(served(url, "policy-v1") - changed).abs().max().item(), (served(url, "policy") - base).abs().max().item()]
    print(f"adapter: log-probs {apart[0]:.2g} apart, of the base beside it {apart[1]:.2g}; it changes them by {(changed - base).abs().max():.2g}")
    return max(apart) > 1e-3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
