"""Weights, record and golden files for the repository."""

import hashlib
import json

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from .films import normalise, squeeze
from .prediction import rounded
from .weights import exported, load, unfolded


def digest(paths, root):
    """SHA-256 over names and contents."""
    h = hashlib.sha256()
    for p in sorted(paths):
        h.update(f"{p.relative_to(root)} {hashlib.sha256(p.read_bytes()).hexdigest()}\n".encode())
    return h.hexdigest()


def synthetic():
    """A picture with the plainest of chests in it, 300 x 240, for the golden files."""
    y, x = np.mgrid[0:300, 0:240].astype(float)
    y, x = (y + 0.5) / 300, (x + 0.5) / 240
    grey = 150 + 60 * y + 20 * np.sin(9 * x)

    def ellipse(cx, cy, rx, ry):
        return 1 / (1 + np.exp(12 * (np.hypot((x - cx) / rx, (y - cy) / ry) - 1)))

    grey -= 110 * np.maximum(ellipse(0.29, 0.42, 0.17, 0.3), ellipse(0.73, 0.42, 0.16, 0.3))
    grey += 70 * ellipse(0.55, 0.56, 0.2, 0.16) + 10 * np.cos(60 * y)
    return grey.clip(0, 255).astype(np.uint8)


def export(args):
    tensors = exported(load(args.out / "final/weights.safetensors"), args.to / "model.safetensors")
    root = args.data
    films = {name: list((root / "cxr" / name).iterdir()) for name in ("wingspan", "hannover")}
    record = {
        "weights_sha256": hashlib.sha256((args.to / "model.safetensors").read_bytes()).hexdigest(),
        "parameters": sum(t.numel() for t in tensors.values()),
        "torch": torch.__version__,
        "commands": COMMAND_LINES,
        "settings": {k: json.loads((args.out / k / "settings.json").read_text()) for k in ("phantoms", "final")},
        "data": {
            **{
                name: {"films": len(here), "sha256_of_names_and_hashes": digest([*here, *(root / "masks" / name).iterdir()], root)}
                for name, here in films.items()
            },
            "phantoms": {"films": len(list(args.phantoms.glob("*_heart.png"))), "sha256_of_names_and_hashes": digest(args.phantoms.glob("*.png"), args.phantoms)},
        },
        "licence": LICENCE,
    }
    (args.to / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    golden(args.to.parent / "testdata", tensors)


LICENCE = (
    "Apache-2.0 as this project. Trained on the project's own phantoms; on 48 films of the wingspan set, whose authors "
    "publish images, masks and ratios under the MIT licence, Copyright (c) 2020 Nanqing Dong "
    "(github.com/eveningdong/cardiothoracic_ratio_estimation_dataset; Dong et al., MICCAI 2018); and on 54 films of the COVID-19 "
    "image repository of Hannover Medical School (CC BY 3.0, doi 10.6084/m9.figshare.12275009) with lung masks by V7 Labs "
    "(covid-19-xray-dataset, CC BY 4.0). No film and no mask is part of the weights' distribution. Not for clinical use."
)
COMMAND_LINES = [
    "go run ./scripts/phantommasks -seed 4711 -films 600 PHANTOMS",
    "python learner/segment.py pretrain --phantoms PHANTOMS --out RUN --steps 300 --each 4",
    "python learner/segment.py final --data DATA --out RUN --steps 1600",
    "python learner/segment.py export --data DATA --phantoms PHANTOMS --out RUN --to toolserver/segment/network",
]


def golden(folder, tensors):
    """A picture, and what the exported weights make of it, for the Go test: every 8th of the logits, the classes' areas."""
    folder.mkdir(parents=True, exist_ok=True)
    grey = synthetic()
    Image.fromarray(grey).save(folder / "network.png")
    net = unfolded(tensors)
    grey = torch.from_numpy(grey).float()
    x = normalise(squeeze(grey))
    with torch.no_grad():
        logits = net(x[None, None])[0]
        full = F.interpolate(rounded(logits)[None], size=tuple(grey.shape), mode="bilinear", align_corners=False)[0]
    expected = {
        "input": [round(v, 6) for v in x[4::16, 4::16].flatten().tolist()],
        "probabilities": [round(v, 7) for v in logits.softmax(0)[:, 3::8, 3::8].permute(1, 2, 0).flatten().tolist()],
        "areas": [int((full.argmax(0) == c).sum()) for c in range(4)],
    }
    (folder / "network.json").write_text(json.dumps(expected) + "\n")
