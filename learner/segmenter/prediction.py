"""From logits to the masks of whole films."""

import numpy as np
import torch
import torch.nn.functional as F

from .films import normalise, read_grey, squeeze, write_masks
from .training import FOLDS, folds_of, hannover_folds
from .weights import exported, load

DISC = 4  # radius, in the logits' pixels, of the disc that a heart is rounded with
WHOLE = 0.90  # a piece with this share of its class is the structure; what falls apart more is left as it is


def rounded(logits, radius=None):
    """Logits [4, h, w] with the heart's thin parts given to the class beneath: what a disc inside the heart cannot reach.
    Drawn hearts have none, and the ratio goes by the heart's outermost columns."""
    thin = thin_parts(logits.argmax(0) == 3, DISC if radius is None else radius)
    best = logits[:3].amax(0)
    return torch.cat([logits[:3], torch.where(thin, 2 * best - logits[3], logits[3])[None]])


def thin_parts(heart, radius):
    """What a disc inside the heart cannot reach; [h, w] of true and false."""
    y, x = torch.meshgrid(*[torch.arange(-radius, radius + 1)] * 2, indexing="ij")
    disc = (x * x + y * y <= radius * radius).float()[None, None]
    heart = heart.float()[None, None]
    core = (F.conv2d(heart, disc, padding=radius) > disc.sum() - 0.5).float()
    return ((heart > 0) & (F.conv2d(core, disc, padding=radius) < 0.5))[0, 0]


def segment(net, grey, radius=None):
    """The masks [3, H, W] of a film [H, W] of 0 to 255, as toolserver/segment finds them."""
    with torch.no_grad():
        logits = rounded(net(normalise(squeeze(grey))[None, None].to(memory_format=torch.channels_last))[0], radius)[None]
    size = tuple(grey.shape)
    labels = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)[0].argmax(0).numpy()
    return np.stack([structure(labels == c) for c in (1, 2, 3)])


def structure(mask):
    """A mask with its specks left out, where its largest piece is nearly all of it."""
    runs, parent = [], []

    def root(i):
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    above = []
    for y, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
        row = []
        for first, end in edges.reshape(-1, 2).tolist():
            i = len(runs)
            runs.append((y, first, end))
            parent.append(i)
            row.append(i)
            for j in above:
                if runs[j][1] < end and first < runs[j][2]:
                    a, b = root(i), root(j)
                    parent[max(a, b)] = min(a, b)
        above = row
    area = {}
    for i, (_, first, end) in enumerate(runs):
        area[root(i)] = area.get(root(i), 0) + end - first
    if not runs:
        return mask
    best = max(sorted(area), key=area.get)
    if area[best] < WHOLE * sum(area.values()):
        return mask
    out = np.zeros_like(mask)
    for i, (y, first, end) in enumerate(runs):
        if root(i) == best:
            out[y, first:end] = True
    return out


def predict(args):
    """Writes the masks of both hospitals' films by networks that were not trained on the film, or on its patient."""
    for mode in ("phantoms", "real", "both"):
        folder = args.out / mode
        nets = {k: load(folder / f"fold{k}.safetensors") for k in range(FOLDS) if (folder / f"fold{k}.safetensors").exists()}
        if mode == "phantoms" and (folder / "weights.safetensors").exists():
            nets = dict.fromkeys(range(FOLDS), load(folder / "weights.safetensors"))
        names = sorted(p.stem for p in (args.data / "cxr/wingspan").iterdir())
        for name, k in folds_of(names).items():
            if k in nets:
                if mode == "both" and not (folder / f"export/fold{k}.safetensors").exists():
                    exported(nets[k], folder / f"export/fold{k}.safetensors")
                grey = read_grey(args.data / f"cxr/wingspan/{name}.png")
                write_masks(folder / "masks", name, segment(nets[k], grey))
        for path, k in elsewhere(args.data):
            if k in nets:
                write_masks(folder / "hannover", path.stem, segment(nets[k], read_grey(path)))
    for k in range(FOLDS):
        here = [args.data / f"cxr/wingspan/{n}.png" for n, fold in sorted(folds_of(names).items()) if fold == k]
        for name, paths in [("fold", here), ("hannover", [p for p, fold in elsewhere(args.data) if fold == k])]:
            (args.out / f"both/{name}{k}.txt").write_text("".join(f"{p.resolve()}\n" for p in paths))


def elsewhere(data):
    """The films of hannover, with their folds."""
    folds = hannover_folds(data)
    return [(path, folds[path.stem]) for path in sorted((data / "cxr/hannover").iterdir())]
