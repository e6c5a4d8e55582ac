"""What Hugging Face tokenizers makes of texts and ids.

    python learner/check_tokenizer.py tokenizer.json < QUESTIONS > ANSWERS

A question is a line of JSON: a string, answered by its ids; a list of ids, answered by their text, special tokens
included; or {"split": string}, answered by where the words of the normalised string end. The first answer is the
version of tokenizers.
"""

import json
import sys

import tokenizers


def main():
    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
    print(json.dumps(tokenizers.__version__))
    for line in sys.stdin:
        question = json.loads(line)
        if isinstance(question, str):
            print(json.dumps(tokenizer.encode(question, add_special_tokens=False).ids))
        elif isinstance(question, dict):
            text = tokenizer.normalizer.normalize_str(question["split"])
            print(json.dumps([end for _, (_, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]))
        else:
            print(json.dumps(tokenizer.decode(question, skip_special_tokens=False)))


if __name__ == "__main__":
    main()
