"""What transformers' image processor makes of the images that the Go test wrote.

    python learner/check_processor.py DIR

Each folder in DIR has preprocessor_config.json and images; beside each image NAME goes NAME.safetensors with
pixel_values, float32 [patches, row], and grid [3].
"""

import pathlib
import sys

import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoImageProcessor


def main(folder):
    print(transformers.__version__)
    for config in sorted(folder.glob("*/preprocessor_config.json")):
        processor = AutoImageProcessor.from_pretrained(config.parent)
        for path in sorted(p for p in config.parent.iterdir() if p.suffix in (".png", ".jpg")):
            made = processor(Image.open(path), return_tensors="pt")
            save_file(dict(pixel_values=made["pixel_values"].float().contiguous(), grid=made["image_grid_thw"][0].float()),
                      path.with_name(path.name + ".safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(pathlib.Path(sys.argv[1]))
