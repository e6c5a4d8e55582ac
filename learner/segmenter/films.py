"""Films and drawn masks, as the network sees them."""

import csv
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

SIDE = 256  # of the network's input
PARTS = ["right_lung", "left_lung", "heart"]  # classes 1 to 3; 0 is the rest
# Labels of a pixel: a class; or, where lungs were drawn through the heart, the classes that it may have.
ALLOWED = [(0,), (1,), (2,), (3,), (1, 3), (2, 3), (0, 3), (0, 1, 2, 3)]
RIGHT_OR_HEART, LEFT_OR_HEART, NO_LUNG, ANY = 4, 5, 6, 7
MIRRORED = [0, 2, 1, 3, 5, 4, 6, 7]  # what a label becomes in the mirror
BEHIND = 0.25  # of a lung's height: what a mask that goes behind the diaphragm may have too much
THROUGH_HEART = {"wingspan_011", "wingspan_021"}  # left lung drawn through the heart


def read_grey(path):
    return torch.from_numpy(np.array(Image.open(path).convert("L"))).float()


def squeeze(grey, side=SIDE):
    """A film at side x side: a triangle filter as wide as the step, grey levels 0 to 255."""
    return F.interpolate(grey[None, None], size=(side, side), mode="bilinear", antialias=True, align_corners=False)[0, 0]


def normalise(x):
    """Mean 0 and deviation 1 over each film of [..., H, W]."""
    mean = x.mean((-2, -1), keepdim=True)
    return (x - mean) / (x.var((-2, -1), unbiased=False, keepdim=True) + 1e-6).sqrt()


def one_hot(masks):
    """[3, H, W] of 0 and 1 as [4, H, W]: the heart goes before the lungs, so that one drawn through it ends at it."""
    right, left, heart = (m > 0.5 for m in masks)
    left = left & ~heart
    right = right & ~heart & ~left
    return torch.stack([~(right | left | heart), right, left, heart] + [torch.zeros_like(heart)] * 4).float()


def partly(masks):
    """The labels of lungs drawn through the heart and behind the diaphragm, [1, H, W]: outside is no lung; inside is a
    lung or the heart, but for the lowest part, which may be anything."""
    drawn = masks[0] > 0.5
    labels = torch.full(drawn.shape, NO_LUNG)
    cut = middle(drawn.numpy())
    for columns, label in [(slice(None, cut), RIGHT_OR_HEART), (slice(cut, None), LEFT_OR_HEART)]:
        side = torch.zeros_like(drawn)
        side[:, columns] = drawn[:, columns]
        labels[side] = label
        if side.any():
            _, top, _, bottom = (box(side) * len(side)).round().int().tolist()
            low = torch.arange(len(side))[:, None] >= bottom - round(BEHIND * (bottom - top))
            labels[side & low] = ANY
    return F.one_hot(labels, len(ALLOWED)).permute(2, 0, 1).float()


def middle(mask):
    """The column in the middle where a mask of both lungs is narrowest."""
    columns = mask.sum(0).astype(float)
    at = np.flatnonzero(columns)
    low, high = at[0] + (at[-1] - at[0]) * 2 // 5, at[0] + (at[-1] - at[0]) * 3 // 5
    return low + int(np.argmin(columns[low:high]))


class Films:
    """Films at STORED x STORED with their labels."""

    STORED = 320

    def __init__(self, images, names, masks_of, labels_of=one_hot):
        self.names, images_, labels = names, [], []
        for path, name in zip(images, names):
            images_.append(squeeze(read_grey(path), self.STORED) / 255)
            masks = [squeeze((read_grey(p) > 127).float(), self.STORED) for p in masks_of(name)]
            labels.append(labels_of(torch.stack(masks)))
        self.images, self.labels = torch.stack(images_)[:, None], torch.stack(labels)
        self.boxes = torch.stack([box(m) for m in self.lungs() > 0.5])

    def lungs(self):
        """Where lungs are, or lungs and the part of the heart that they were drawn through."""
        return self.labels[:, [1, 2, RIGHT_OR_HEART, LEFT_OR_HEART]].sum(1)


def box(mask):
    """left, top, right, bottom of a mask as shares of its sides."""
    h, w = mask.shape
    ys, xs = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    return torch.tensor([xs[0] / w, ys[0] / h, (xs[-1] + 1) / w, (ys[-1] + 1) / h])


def wingspan(data, names=None):
    root = pathlib.Path(data)
    names = names or sorted(p.stem for p in (root / "cxr/wingspan").iterdir())
    masks = root / "masks/wingspan"
    return Films([root / f"cxr/wingspan/{n}.png" for n in names], names, lambda n: [masks / f"{n}_{p}.png" for p in PARTS])


def hannover(data):
    """Films of another hospital, whose masks say less: both lungs in one, through the heart and behind the diaphragm."""
    root = pathlib.Path(data)
    images = {p.stem: p for p in (root / "cxr/hannover").iterdir()}
    names = sorted(p.stem.removesuffix("_lungs") for p in (root / "masks/hannover").glob("*_lungs.png"))
    return Films([images[n] for n in names], names, lambda n: [root / f"masks/hannover/{n}_lungs.png"], partly)


def patients(data):
    """The patient of each film of hannover."""
    with open(pathlib.Path(data) / "meta/hannover_metadata.csv") as f:
        return {r["image_id"]: r["patient_id"] for r in csv.DictReader(f)}


def phantoms(folder):
    root = pathlib.Path(folder)
    names = sorted(p.stem.removesuffix("_heart") for p in root.glob("*_heart.png"))
    return Films([root / f"{n}.png" for n in names], names, lambda n: [root / f"{n}_{p}.png" for p in PARTS])


def write_masks(folder, name, masks):
    """As xragent measure --masks-from reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, m in zip(PARTS, masks):
        Image.fromarray((m * 255).astype(np.uint8)).save(folder / f"{name}_{part}.png")


def read_masks(folder, name):
    return np.stack([np.array(Image.open(folder / f"{name}_{p}.png")) > 127 for p in PARTS])
