"""Films and drawn masks, as the network sees them."""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

SIDE = 256  # of the network's input
PARTS = ["right_lung", "left_lung", "heart"]  # classes 1 to 3; 0 is the rest
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
    return torch.stack([~(right | left | heart), right, left, heart]).float()


class Films:
    """Films at STORED x STORED with their classes."""

    STORED = 320

    def __init__(self, images, names, masks_of):
        self.names, images_, classes = names, [], []
        for path, name in zip(images, names):
            images_.append(squeeze(read_grey(path), self.STORED) / 255)
            masks = [squeeze((read_grey(p) > 127).float(), self.STORED) for p in masks_of(name)]
            classes.append(one_hot(torch.stack(masks)))
        self.images, self.classes = torch.stack(images_)[:, None], torch.stack(classes)
        lungs = (self.classes[:, 1] + self.classes[:, 2]) > 0.5
        self.boxes = torch.stack([box(m) for m in lungs])


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
