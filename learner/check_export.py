"""Checks that transformers reads an export's tokenizer, template and processor as the Go code does.

    python learner/check_export.py DIR

DIR holds the files of chat.Codec.Files and cases.json, which the test of package chat writes:
{"texts": [{text, ids, decoded}], "talks": [{messages, tools, ids}]}, ids of talks with image pads expanded
and every image 512 x 512. Prints what differs; exit status 1 when anything does.
"""

import json
import pathlib
import sys

from PIL import Image
from transformers import AutoProcessor, AutoTokenizer


def differences(folder):
    cases = json.loads((folder / "cases.json").read_text())
    tokenizer, processor = AutoTokenizer.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    for c in cases["texts"]:
        ids = tokenizer.encode(c["text"], add_special_tokens=False)
        if ids != c["ids"]:
            yield f"encode {c['text']!r}: {ids}, want {c['ids']}"
        if (text := tokenizer.decode(c["ids"])) != c["decoded"]:
            yield f"decode {c['ids']}: {text!r}, want {c['decoded']!r}"
    for c in cases["talks"]:
        for message in c["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else []:
                if part["type"] == "image":
                    part["image"] = Image.new("L", (512, 512))
        made = processor.apply_chat_template(c["messages"], tools=c["tools"] or None, add_generation_prompt=True, tokenize=True,
                                             return_dict=True, return_tensors="pt")
        if made["input_ids"][0].tolist() != c["ids"]:
            yield f"talk: {tokenizer.decode(made['input_ids'][0])!r}, want {tokenizer.decode(c['ids'])!r}"
    if len(tokenizer) != cases["vocab"] or tokenizer.eos_token_id != cases["end_of_turn"]:
        yield f"{len(tokenizer)} ids, end of turn {tokenizer.eos_token_id}; want {cases['vocab']}, {cases['end_of_turn']}"


if __name__ == "__main__":
    found = list(differences(pathlib.Path(sys.argv[1])))
    print("\n".join(found[:20]) or "no difference")
    sys.exit(bool(found))
