"""Loads an export with transformers, model and processor, and saves both again.

    python learner/check_folder.py DIR OUT

Exit status 1 when a key is missing or unexpected.
"""

import sys

from transformers import AutoModelForImageTextToText, AutoProcessor


def main(folder, out):
    model, info = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    wrong = {k: list(v) for k, v in info.items() if v}
    if wrong:
        sys.exit(f"{folder} does not load as it is: {wrong}")
    model.save_pretrained(out)
    AutoProcessor.from_pretrained(folder).save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
