"""Trains and examines the small network that finds lungs and heart in frontal radiographs (toolserver/segment).

    segment.py pretrain  --phantoms DIR --out RUN            # on synthetic films
    segment.py crossval  --data DIR --mode both --out RUN    # five folds of wingspan: real, or both (from pretrain's weights)
    segment.py final     --data DIR --out RUN                # on all of wingspan
    segment.py predict   --data DIR --out RUN                # the masks that the following look at
    segment.py discs     --data DIR --out RUN                # what rounding a heart does to its ratio
    segment.py report    --data DIR --out RUN                # every table of docs/segmentation.md, from what the above wrote
    segment.py hannover  --data DIR --out RUN                # lungs against masks of another convention
    segment.py overlays  --data DIR --out RUN                # a page of pictures, worst first
    segment.py export    --data DIR --out RUN --to FOLDER    # weights and record for the repository, and the golden files

DIR of --data has cxr/, masks/ and meta/ as its SOURCES.md says. The network sees a film squeezed to 256 x 256, so that
the pixels' aspect, which wingspan does not keep, is nothing that it can rely on; augmentation varies it. Lungs are named by
their place: the right one lies on the image's left. A share of the films is shown mirrored under the same rule, so that
the heart of a mirrored film is found where it is, for the gate to see; nothing is ever flipped when films are measured.

A step is bound to its seed, not to the time; the same command on the same machine gives the same weights. One thread
is the default because a sum's order depends on their number.
"""

import argparse
import csv
import hashlib
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import nn

SIDE = 256  # of the network's input
PARTS = ["right_lung", "left_lung", "heart"]  # classes 1 to 3; 0 is the rest
THROUGH_HEART = {"wingspan_011", "wingspan_021"}  # left lung drawn through the heart
FOLDS = 5
DISC = 4  # radius, in the logits' pixels, of the disc that a heart is rounded with
WHOLE = 0.90  # a piece with this share of its class is the structure; what falls apart more is left as it is


# ---- network -------------------------------------------------------------------------------------------


class Block(nn.Sequential):
    """A 3 x 3 convolution without bias, batch normalisation, ReLU."""

    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Net(nn.Module):
    """A U-Net (Ronneberger 2015) with sums in place of concatenations: logits of 4 classes at half the input's side."""

    WIDTHS = [16, 32, 64, 96, 128]

    def __init__(self):
        super().__init__()
        w = self.WIDTHS
        self.down = nn.ModuleList()
        for i, (cin, cout) in enumerate(zip([1] + w, w)):
            extra = [Block(cout, cout) for _ in range(2 if i >= 2 else 1)]
            self.down.append(nn.Sequential(Block(cin, cout, 2), *extra))
        self.side = nn.ModuleList(nn.Conv2d(w[i + 1], w[i], 1) for i in range(len(w) - 1))
        self.up = nn.ModuleList(Block(w[i], w[i]) for i in range(len(w) - 1))
        self.head = nn.Conv2d(w[0], 4, 1)

    def forward(self, x):
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        for i in reversed(range(len(self.side))):
            x = F.interpolate(self.side[i](x), scale_factor=2, mode="nearest") + skips[i]
            x = self.up[i](x)
        return self.head(x)


def parameters(net):
    return sum(p.numel() for p in net.parameters())


# ---- films ---------------------------------------------------------------------------------------------


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


# ---- augmentation --------------------------------------------------------------------------------------


class Chance:
    """Draws for a batch of n, from one generator."""

    def __init__(self, seed, n):
        self.g, self.n = torch.Generator().manual_seed(seed), n

    def uniform(self, low, high, *shape):
        return low + (high - low) * torch.rand(self.n, *shape, generator=self.g)

    def normal(self, *shape):
        return torch.randn(self.n, *shape, generator=self.g)

    def happens(self, p):
        """1 for a share p of the batch, else 0; [n, 1, 1, 1]."""
        return (torch.rand(self.n, 1, 1, 1, generator=self.g) < p).float()

    def field(self, cells, side=SIDE, channels=1):
        """Smooth noise of about -2 to 2 with this many cells a side."""
        return F.interpolate(self.normal(channels, cells, cells), size=(side, side), mode="bicubic", align_corners=False)


def windows(boxes, c):
    """The part of each film to look at, as shares: about its lungs, from cut close to wide, or all of the film. Its
    aspect relative to the film's stays within 0.75 to 1.35."""
    size = boxes[:, 2:] - boxes[:, :2]
    near = c.uniform(0, 1, 4) * torch.tensor([0.40, 0.35, 0.40, 0.75]) - 0.03
    near = torch.where(torch.rand(c.n, 4, generator=c.g) < 0.06, c.uniform(-0.35, 0, 4), near)  # a lung is cut off
    low, high = boxes[:, :2] - near[:, :2] * size, boxes[:, 2:] + near[:, 2:] * size
    extent = high - low
    aspect = extent[:, 0] / extent[:, 1]
    wanted = aspect.clamp(0.75, 1.35)
    extent = torch.stack([extent[:, 0] * (wanted / aspect).clamp(min=1), extent[:, 1] * (aspect / wanted).clamp(min=1)], 1)
    close = torch.cat([(low + high) / 2, extent], 1)
    scale = c.uniform(0.85, 1.2, 1)
    stretch = torch.exp(c.uniform(math.log(0.75), math.log(1.35), 1) / 2)
    wide = torch.cat([0.5 + c.uniform(-0.08, 0.08, 2), scale * stretch, scale / stretch], 1)
    return torch.where(c.happens(0.6)[:, :, 0, 0] > 0, close, wide)


def grids(boxes, c):
    """Where each pixel of the output comes from, in grid_sample's coordinates."""
    window = windows(boxes, c)
    centre, extent = window[:, :2], window[:, 2:]
    turn = c.uniform(-10, 10, 1, 1) * math.pi / 180 * c.happens(0.7)[:, 0]
    lean = c.uniform(-0.08, 0.08, 1, 1) * c.happens(0.5)[:, 0]
    at = (torch.arange(SIDE) + 0.5) / SIDE - 0.5
    y, x = torch.meshgrid(at, at, indexing="ij")
    x, y = x.expand(c.n, -1, -1), y.expand(c.n, -1, -1)
    x, y = x * torch.cos(turn) - y * torch.sin(turn) + lean * y, x * torch.sin(turn) + y * torch.cos(turn)
    bend = (c.field(5, channels=2) * 0.012 + c.field(9, channels=2) * 0.004) * c.happens(0.7)
    xy = torch.stack([x + bend[:, 0], y + bend[:, 1]], -1)
    return (centre[:, None, None] + xy * extent[:, None, None]) * 2 - 1


def blur(x, sigma):
    """Gaussian blur of [n, 1, H, W], sigma [n, 1, 1, 1] in pixels up to 2."""
    at = torch.arange(-4, 5).float()
    k = torch.exp(-(at**2) / (2 * sigma.flatten()[:, None] ** 2 + 1e-3))
    k = k / k.sum(1, keepdim=True)
    n = len(x)
    x = F.conv2d(F.pad(x.transpose(0, 1), (4, 4, 0, 0), mode="replicate"), k[:, None, None, :], groups=n)
    return F.conv2d(F.pad(x, (0, 0, 4, 4), mode="replicate"), k[:, None, :, None], groups=n).transpose(0, 1)


def smooth(x, cells):
    """x with details of less than a cell left out."""
    return F.interpolate(F.adaptive_avg_pool2d(x, cells), size=x.shape[-2:], mode="bilinear", align_corners=False)


def expose(x, lungs, c):
    """What differs from one apparatus, hospital and patient to the next, in grey levels of 0 to 1."""
    x = x + lungs * torch.sigmoid(3 * c.field(5) - 1) * c.uniform(0, 0.5, 1, 1, 1) * c.happens(0.4)  # opacities
    x = x + c.field(3) * c.uniform(0, 0.12, 1, 1, 1) * c.happens(0.5)  # uneven exposure
    x = x - smooth(x, 12) * c.uniform(0, 0.8, 1, 1, 1) * c.happens(0.4)  # local contrast raised by the apparatus
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    x = (x - low) / (high - low + 1e-3)
    x = x ** torch.exp(c.uniform(-0.8, 0.8, 1, 1, 1))
    clip = c.happens(0.4)
    x = (x - clip * c.uniform(0, 0.2, 1, 1, 1)) / (1 - clip * c.uniform(0, 0.45, 1, 1, 1))
    x = x.clamp(0, 1)
    x = x + (blur(x, c.uniform(0.3, 1.8, 1, 1, 1)) - x) * c.uniform(-0.7, 1, 1, 1, 1) * c.happens(0.5)  # soft or sharpened
    return x + c.normal(1, SIDE, SIDE) * c.uniform(0, 0.05, 1, 1, 1) * c.happens(0.5)


def clutter(x, c):
    """Markers, wires and collimation over the films."""
    at = (torch.arange(SIDE) + 0.5) / SIDE
    y, ramp = at[:, None], at[None, :]
    for i in range(c.n):
        draw = torch.rand(24, generator=c.g)
        for k in range(3):
            if draw[k] < 0.35:  # a marker
                px, py, w, h = (draw[4 * k + 3 : 4 * k + 7]).tolist()
                inside = ((ramp - px).abs() < 0.01 + 0.03 * w) & ((y - py * 0.5).abs() < 0.01 + 0.03 * h)
                x[i, 0][inside] = 0.6 + 0.4 * draw[20 + k]
        for k in range(2):
            if draw[15 + k] < 0.25:  # a wire
                a, b, amp, f = torch.rand(4, generator=c.g).tolist()
                line = a + (b - a) * ramp + 0.15 * amp * torch.sin(2 * math.pi * (f * 2 * ramp + amp))
                x[i, 0] += 0.35 * ((y - line).abs() < 0.006)
        if draw[17] < 0.25:  # collimation
            edges = torch.rand(4, generator=c.g) * 0.06
            outside = (ramp < edges[0]) | (ramp > 1 - edges[1]) | (y < edges[2]) | (y > 1 - edges[3])
            x[i, 0][outside] = 0.0 if draw[18] < 0.8 else 1.0
    return x


def augmented(films, rows, seed):
    """The films' rows, each as it might have looked elsewhere: grey levels [n, 1, H, W] and classes [n, H, W], in bytes."""
    c = Chance(seed, len(rows))
    both = torch.cat([films.images[rows], films.classes[rows], torch.ones(len(rows), 1, films.STORED, films.STORED)], 1)
    both = F.grid_sample(both, grids(films.boxes[rows], c), mode="bilinear", padding_mode="zeros", align_corners=False)
    flip = c.happens(0.15)
    swapped = both[:, [0, 1, 3, 2, 4, 5]].flip(3)
    both = swapped * flip + both * (1 - flip)
    x, classes, known = both[:, :1], both[:, 1:5], both[:, 5:]
    x = expose(x, classes[:, 1:3].sum(1, keepdim=True), c)
    border = c.uniform(0, 1, 1, 1, 1) * c.happens(0.3)
    x = x * known + border * (1 - known)
    x = clutter(x, c)
    classes[:, :1] += 1 - known
    return (x.clamp(0, 1) * 255).round().byte(), classes.argmax(1).byte()


class Pool:
    """Many forms of each film, made once for all trainings."""

    def __init__(self, films, each, seed, log):
        self.each = each
        self.images = torch.empty(len(films.names) * each, 1, SIDE, SIDE, dtype=torch.uint8)
        self.classes = torch.empty(len(films.names) * each, SIDE, SIDE, dtype=torch.uint8)
        for i in range(len(films.names)):
            for at in range(0, each, 8):
                n = min(8, each - at)
                here = slice(i * each + at, i * each + at + n)
                self.images[here], self.classes[here] = augmented(films, [i] * n, (seed * 10_000 + i) * 10_000 + at)
            if (i + 1) % 12 == 0:
                log(f"augmented {i + 1} of {len(films.names)} films")

    def rows(self, films):
        """Where the forms of these films are."""
        return [i * self.each + k for i in films for k in range(self.each)]

    def batch(self, rows):
        """Input, and classes as shares of the network's coarser pixels."""
        classes = F.one_hot(self.classes[rows].long(), 4).permute(0, 3, 1, 2).float()
        return normalise(self.images[rows].float()), F.avg_pool2d(classes, 2)


def pool_of(args, films, log):
    path = args.out / "pool.pt"
    if path.exists():
        pool = torch.load(path, weights_only=False, mmap=True)
    else:
        pool = Pool(films, args.each, args.seed, log)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(pool, path)
    return pool


# ---- training ------------------------------------------------------------------------------------------


def loss_of(logits, classes):
    """Cross-entropy plus 1 - Dice of the three structures."""
    entropy = F.cross_entropy(logits, classes)
    p = logits.softmax(1)
    both, sums = (p * classes).sum((0, 2, 3))[1:], (p + classes).sum((0, 2, 3))[1:]
    return entropy + (1 - (2 * both + 1) / (sums + 1)).mean()


def train(net, pool, rows, args, seed, log):
    """Trains in place; the learning rate rises over a tenth of the steps, then falls as a cosine."""
    net.train().to(memory_format=torch.channels_last)
    opt = torch.optim.AdamW(net.parameters(), lr=args.rate, weight_decay=0.02)
    order = torch.Generator().manual_seed(seed)
    queue, began, total = [], time.time(), 0.0
    for step in range(args.steps):
        ramp = min((step + 1) / (0.1 * args.steps), 1) * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        for group in opt.param_groups:
            group["lr"] = args.rate * ramp
        while len(queue) < args.batch:
            queue += torch.randperm(len(rows), generator=order).tolist()
        take, queue = [rows[i] for i in queue[: args.batch]], queue[args.batch :]
        x, classes = pool.batch(take)
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(x.to(memory_format=torch.channels_last))
        loss = loss_of(logits.float(), classes)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        total += loss.item()
        if (step + 1) % 50 == 0:
            log(f"step {step + 1}/{args.steps} loss {total / 50:.4f} {time.time() - began:.0f} s")
            total = 0.0
    return net.eval()


def logger(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")

    def log(text):
        print(text, flush=True)
        print(text, file=file, flush=True)

    return log


def save(net, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in net.state_dict().items() if "num_batches" not in k}, path)


def load(path):
    net = Net()
    net.load_state_dict(load_file(path), strict=False)
    return net.eval().to(memory_format=torch.channels_last)


def note(args, folder):
    """Keeps what the weights depend on beside them."""
    settings = {k: getattr(args, k) for k in ("steps", "batch", "each", "rate", "seed", "threads")}
    (folder / "settings.json").write_text(json.dumps(settings) + "\n")
    return settings


def fresh(args, seed, fold=None):
    """The network to begin with: a fold's of another run where one is named, else pretrain's weights, or random ones where
    real films alone are wanted."""
    torch.manual_seed(seed)
    if args.begin and fold is not None:
        return load(args.begin / args.mode / f"fold{fold}.safetensors")
    return load(args.out / "phantoms/weights.safetensors") if args.mode == "both" else Net()


def pretrain(args):
    torch.manual_seed(args.seed)
    log = logger(args.out / "phantoms/log.txt")
    films = phantoms(args.phantoms)
    log(f"{len(films.names)} phantoms; {parameters(Net())} parameters; {note(args, args.out / 'phantoms')}")
    pool = Pool(films, args.each, args.seed, log)
    net = train(Net(), pool, pool.rows(range(len(films.names))), args, args.seed, log)
    save(net, args.out / "phantoms/weights.safetensors")


def folds_of(names):
    """The fold of each film: dealt out in an order that depends on the names alone."""
    order = sorted(names, key=lambda n: hashlib.sha256(n.encode()).hexdigest())
    return {n: i % FOLDS for i, n in enumerate(order)}


def crossval(args):
    films = wingspan(args.data)
    fold = folds_of(films.names)
    out = args.out / args.mode
    log = logger(out / "log.txt")
    log(f"{len(films.names)} films; {note(args, out)}")
    pool = pool_of(args, films, log)
    for k in range(FOLDS):
        if (out / f"fold{k}.safetensors").exists():
            continue
        rows = [i for i, n in enumerate(films.names) if fold[n] != k]
        net = train(fresh(args, args.seed + k, k), pool, pool.rows(rows), args, args.seed + k, log)
        save(net, out / f"fold{k}.safetensors")
        log(f"fold {k} done")


def final(args):
    films = wingspan(args.data)
    log = logger(args.out / "final/log.txt")
    log(f"{len(films.names)} films; {note(args, args.out / 'final')}")
    pool = pool_of(args, films, log)
    net = train(fresh(args, args.seed), pool, pool.rows(range(len(films.names))), args, args.seed, log)
    save(net, args.out / "final/weights.safetensors")


# ---- prediction ----------------------------------------------------------------------------------------


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


def discs(args):
    """By the disc's radius: what it does to the ratio of drawn hearts, and the error of the folds' ratios."""
    names = sorted(p.stem for p in (args.data / "cxr/wingspan").iterdir())
    fold, truth = folds_of(names), published(args.data)
    nets = [load(args.out / f"both/fold{k}.safetensors") for k in range(FOLDS)]
    for radius in range(7):
        moved, errors = [], []
        for name in names:
            grey, drawn = read_grey(args.data / f"cxr/wingspan/{name}.png"), read_masks(args.data / "masks/wingspan", name)
            heart = F.avg_pool2d(torch.from_numpy(drawn[2])[None, None].float(), grey.shape[0] * 2 // SIDE)[0, 0] > 0.5
            kept = heart & ~thin_parts(heart, radius)
            columns = [np.flatnonzero(h.any(0).numpy()) for h in (kept, heart)]
            moved.append(ctr(drawn) * ((columns[0][-1] - columns[0][0] + 1) / (columns[1][-1] - columns[1][0] + 1) - 1))
            errors.append(ctr(segment(nets[fold[name]], grey, radius)) - truth[name])
        moved, errors = np.array(moved), np.array(errors)
        print(f"radius {radius}: drawn ratios moved by {moved.mean():+.4f}, at most {np.abs(moved).max():.4f}; "
              f"found ones wrong by {np.abs(errors).mean():.4f}, bias {errors.mean():+.4f}")


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


def write_masks(folder, name, masks):
    """As xragent measure --masks-from reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, m in zip(PARTS, masks):
        Image.fromarray((m * 255).astype(np.uint8)).save(folder / f"{name}_{part}.png")


def read_masks(folder, name):
    return np.stack([np.array(Image.open(folder / f"{name}_{p}.png")) > 127 for p in PARTS])


def predict(args):
    """Writes the masks of wingspan by networks that were not trained on the film, and of hannover by the final one."""
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
    for k in range(FOLDS):
        paths = [str((args.data / f"cxr/wingspan/{n}.png").resolve()) for n, fold in sorted(folds_of(names).items()) if fold == k]
        (args.out / f"both/fold{k}.txt").write_text("\n".join(paths) + "\n")
    weights = args.out / "final/weights.safetensors"
    if weights.exists():
        net = load(weights)
        for path in sorted((args.data / "cxr/hannover").iterdir()):
            write_masks(args.out / "final/hannover", path.stem, segment(net, read_grey(path)))


# ---- figures -------------------------------------------------------------------------------------------


def dice(a, b):
    return 2 * (a & b).sum() / max(a.sum() + b.sum(), 1)


def ctr(masks):
    """The column-extent variant: the heart's widest extent over the lungs'; NaN where a mask is empty."""
    right, left, heart = (np.flatnonzero(m.any(0)) for m in masks)
    if not (len(right) and len(left) and len(heart)) or left[-1] <= right[0]:
        return math.nan
    return (heart[-1] + 1 - heart[0]) / (left[-1] + 1 - right[0])


def published(data):
    with open(data / "meta/wingspan_ctr.csv") as f:
        return {r["image_id"]: float(r["ctr_published"]) for r in csv.DictReader(f)}


def judged(data, folder, names):
    """One row a film: Dice coefficients and the ratio against the published one."""
    truth, rows = published(data), []
    for name in names:
        if not (folder / f"{name}_heart.png").exists():
            continue
        found, drawn = read_masks(folder, name), read_masks(data / "masks/wingspan", name)
        row = {"name": name, "right": dice(found[0], drawn[0]), "left": dice(found[1], drawn[1]), "heart": dice(found[2], drawn[2])}
        row["lungs"] = dice(found[0] | found[1], drawn[0] | drawn[1])
        row["ctr"], row["published"] = ctr(found), truth[name]
        row["error"] = row["ctr"] - row["published"]
        row["ln"] = asymmetry(found) - asymmetry(drawn)
        rows.append(row)
    return rows


def asymmetry(masks):
    """ln of the right lung's area over the left's; NaN where one is empty."""
    right, left = masks[0].sum(), masks[1].sum()
    return math.log(right / left) if right and left else math.nan


def bootstrap(values, statistic, seed=1, rounds=10_000):
    """A statistic with its 95 % percentile interval over films."""
    values = np.asarray(values)
    draws = np.random.default_rng(seed).integers(0, len(values), (rounds, len(values)))
    spread = np.array([statistic(values[d]) for d in draws])
    return statistic(values), *np.quantile(spread, [0.025, 0.975])


def category(v):
    return "normal" if v < 0.48 else "enlarged" if v > 0.52 else "borderline"


def figures(rows):
    """(what, value, low, high) of a table's rows."""
    out = []

    def add(what, values, statistic):
        out.append((what, *bootstrap(values, statistic)))

    sound = [r for r in rows if r["name"] not in THROUGH_HEART]
    add(f"lungs Dice, mean of all {len(rows)}", [r["lungs"] for r in rows], np.mean)
    add("lungs Dice, 5th percentile of all", [r["lungs"] for r in rows], lambda v: np.quantile(v, 0.05))
    for part in ("lungs", "right", "left", "heart"):
        use = rows if part in ("right", "heart") else sound
        add(f"{part} Dice, mean of {len(use)}", [r[part] for r in use], np.mean)
        add(f"{part} Dice, 5th percentile", [r[part] for r in use], lambda v: np.quantile(v, 0.05))
    error = [r["error"] for r in rows if not math.isnan(r["error"])]
    add(f"CTR, mean absolute error, of {len(error)}", error, lambda v: np.abs(v).mean())
    add("CTR, bias", error, np.mean)
    add("CTR, 95th percentile of the error", error, lambda v: np.quantile(np.abs(v), 0.95))
    add("CTR, share with an error of 0.10 at most, of all", [abs(r["error"]) <= 0.10 for r in rows], np.mean)
    add("CTR, greatest error", error, lambda v: np.abs(v).max())
    add(f"ln(A_R/A_L) less that of the drawn lungs, mean of {len(sound)}", [r["ln"] for r in sound], np.mean)
    add("ln(A_R/A_L), mean absolute difference", [abs(r["ln"]) for r in sound], np.mean)
    clear = [category(r["ctr"]) == category(r["published"]) for r in rows if not 0.475 <= r["published"] <= 0.525]
    add(f"category, agreement on {len(clear)} outside 0.475 to 0.525", np.array(clear, float), np.mean)
    split = [(r["ctr"] > 0.5) == (r["published"] > 0.5) for r in rows if not 0.475 <= r["published"] <= 0.525]
    add("above 0.5 or not, agreement on the same", np.array(split, float), np.mean)
    return out


def baseline(data, names):
    """Rows for the mean shape of the other folds' masks, whatever the film."""
    fold, truth = folds_of(names), published(data)
    drawn = {n: read_masks(data / "masks/wingspan", n) for n in names}
    rows = []
    for name in names:
        others = [drawn[n] for n in names if fold[n] != fold[name]]
        found = np.mean(others, 0) >= 0.5
        right, left, heart = (dice(found[i], drawn[name][i]) for i in range(3))
        lungs = dice(found[0] | found[1], drawn[name][0] | drawn[name][1])
        rows.append({"name": name, "right": right, "left": left, "heart": heart, "lungs": lungs, "ctr": ctr(found),
                     "published": truth[name], "error": ctr(found) - truth[name], "ln": asymmetry(found) - asymmetry(drawn[name])})
    return rows


def report(args):
    names = sorted(p.stem for p in (args.data / "cxr/wingspan").iterdir())
    tables = {mode: judged(args.data, args.out / mode / "masks", names) for mode in ("both", "real", "phantoms")}
    done = {r["name"] for r in tables["real"]}
    if 0 < len(done) < len(tables["both"]):  # folds are missing: both on the same films
        tables["both, on the films of real"] = [r for r in tables["both"] if r["name"] in done]
    tables["mean shape"] = baseline(args.data, names)
    for mode, rows in tables.items():
        if not rows:
            continue
        print(f"\n{mode}, {len(rows)} films")
        for what, value, low, high in figures(rows):
            print(f"  {what:52} {value:7.4f} [{low:.4f}, {high:.4f}]")
    if args.measured:
        report_measured(args.measured, {r["name"]: r for r in tables["both"]})
    print("\nworst first (both)")
    for r in sorted(tables["both"], key=lambda r: min(r["right"], r["left"], r["heart"]))[:8]:
        print("  {name} right {right:.3f} left {left:.3f} heart {heart:.3f} CTR {ctr:.3f} published {published:.3f}".format(**r))


def report_measured(path, rows):
    """What xragent measure --json said of the same films: how many ratios it shows, how wrong they are, and how far its
    ratio is from this script's."""
    found = {pathlib.Path(r["file"]).stem: r for r in map(json.loads, path.read_text().splitlines())}
    shown = [n for n in found if "ctr" in found[n]["shown"]]
    error = np.array([found[n]["ctr"] - rows[n]["published"] for n in shown])
    apart = max(abs(found[n]["ctr"] - rows[n]["ctr"]) for n in found if found[n]["ctr"] is not None)
    print(f"\nxragent measure: a ratio of {len(shown)} of {len(found)} films; error at most 0.10 on {(np.abs(error) <= 0.10).sum()} of them, "
          f"mean {np.abs(error).mean():.4f}, greatest {np.abs(error).max():.3f}; from this script's at most {apart:.4f}")


def hannover(args):
    """Lungs of films of another hospital, whose masks go through the heart and behind the diaphragm: so much of what is
    found must lie inside, and overlap on each side. Beside it the overlap with the heart's part of each side added, which
    is what was drawn. --measured names the lines of xragent measure --json about these films: which of the others it shows."""
    with open(args.data / "meta/hannover_metadata.csv") as f:
        meta = {r["image_id"]: r for r in csv.DictReader(f)}
    rows = []
    for path in sorted((args.data / "masks/hannover").glob("*_lungs.png")):
        name = path.stem.removesuffix("_lungs")
        drawn, found = np.array(Image.open(path)) > 127, read_masks(args.out / "final/hannover", name)
        lungs, iou, with_heart = found[0] | found[1], [], []
        for lung, side, half in zip(found[:2], halves(drawn), halves(np.ones_like(drawn), at=middle(drawn))):
            iou.append((lung & side).sum() / max((lung | side).sum(), 1))
            lung = lung | found[2] & half & drawn
            with_heart.append((lung & side).sum() / max((lung | side).sum(), 1))
        rows.append({"name": name, "patient": meta[name]["patient_id"], "view": meta[name]["view"], "iou": iou, "with": with_heart,
                     "inside": (lungs & drawn).sum() / max(lungs.sum(), 1)})
    rows.sort(key=lambda r: min(r["inside"], min(r["iou"])))
    shown = admitted(args.measured)
    for r in rows:
        r["good"] = bool(r["inside"] >= 0.95 and min(r["iou"]) >= 0.6)
        print("  {name} {view:10} inside {inside:.3f} IoU right {0:.3f} left {1:.3f} with the heart {2:.3f} {3:.3f}".format(*r["iou"], *r["with"], **r), shown.get(r["name"], ""))
    patients = sorted({r["patient"] for r in rows})

    def print_share(what, holds):
        by_patient = [np.mean([holds(r) for r in rows if r["patient"] == p]) for p in patients]
        print("  {:48} {:3} of {}; mean of patients {:.3f} [{:.3f}, {:.3f}]".format(what, sum(map(holds, rows)), len(rows), *bootstrap(by_patient, np.mean)))

    print(f"{len(rows)} films of {len(patients)} patients")
    print_share("at least 95 % inside", lambda r: r["inside"] >= 0.95)
    print_share("IoU of both sides at least 0.6", lambda r: min(r["iou"]) >= 0.6)
    print_share("both", lambda r: r["good"])
    print_share("at least 90 % inside", lambda r: r["inside"] >= 0.90)
    print_share("IoU with the heart's part at least 0.8", lambda r: min(r["with"]) >= 0.8)
    if shown:
        print_share("shown although not both", lambda r: not r["good"] and shown[r["name"]] != "")


def admitted(path):
    """Which films something is shown of, by name, from the lines of xragent measure --json."""
    if path is None:
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {pathlib.Path(r["file"]).stem: " ".join(r.get("shown") or []) for r in rows}


def middle(mask):
    """The column in the middle where a mask of both lungs is narrowest."""
    columns = mask.sum(0).astype(float)
    at = np.flatnonzero(columns)
    low, high = at[0] + (at[-1] - at[0]) * 2 // 5, at[0] + (at[-1] - at[0]) * 3 // 5
    return low + int(np.argmin(columns[low:high]))


def halves(mask, at=None):
    """A mask of both lungs cut in two."""
    cut = middle(mask) if at is None else at
    right, left = mask.copy(), mask.copy()
    right[:, cut:] = False
    left[:, :cut] = False
    return right, left


def painted(grey, masks, drawn, text, side=300):
    """A film with what was found in colour and what was drawn as white borders."""
    picture = np.repeat(grey.numpy()[..., None], 3, 2)
    for m, colour in zip(masks, [(76, 201, 240), (128, 237, 153), (255, 183, 3)]):
        picture[m] = 0.7 * picture[m] + 0.3 * np.array(colour)
    for d in drawn:
        inner = d[1:-1, 1:-1] & d[:-2, 1:-1] & d[2:, 1:-1] & d[1:-1, :-2] & d[1:-1, 2:]
        border = d.copy()
        border[1:-1, 1:-1] &= ~inner
        picture[border] = 255
    out = Image.fromarray(picture.clip(0, 255).astype(np.uint8)).resize((side, side))
    ImageDraw.Draw(out).text((4, 4), text, fill=(255, 255, 0))
    return np.array(out)


def sheet(path, pictures, columns=8):
    if not pictures:
        return
    blank = np.zeros_like(pictures[0])
    pictures = pictures + [blank] * (-len(pictures) % columns)
    rows = [np.hstack(pictures[i : i + columns]) for i in range(0, len(pictures), columns)]
    Image.fromarray(np.vstack(rows)).save(path, quality=88)
    print(path)


def overlays(args):
    """Sheets of films with found and drawn masks, worst first. They show films that are not ours to publish."""
    names = sorted(p.stem for p in (args.data / "cxr/wingspan").iterdir())
    rows = sorted(judged(args.data, args.out / "both/masks", names), key=lambda r: min(r["right"], r["left"], r["heart"]))
    films = [painted(read_grey(args.data / f"cxr/wingspan/{r['name']}.png"), read_masks(args.out / "both/masks", r["name"]),
                     read_masks(args.data / "masks/wingspan", r["name"]),
                     "{name} {right:.3f} {left:.3f} {heart:.3f} {error:+.3f}".format(**r)) for r in rows]
    sheet(args.out / "wingspan.jpg", films)
    films = []
    for path in sorted((args.data / "cxr/hannover").iterdir()):
        drawn = np.array(Image.open(args.data / f"masks/hannover/{path.stem}_lungs.png")) > 127
        films.append(painted(read_grey(path), read_masks(args.out / "final/hannover", path.stem), [drawn], path.stem))
    sheet(args.out / "hannover.jpg", films)
    net, films = load(args.out / "final/weights.safetensors"), []
    for path in sorted(p for folder in ("nih", "cc_articles", "vqa_rad") for p in (args.data / "cxr" / folder).iterdir()):
        grey = read_grey(path)
        films.append(painted(grey, segment(net, grey), [], path.stem))
    sheet(args.out / "others.jpg", films)


# ---- export --------------------------------------------------------------------------------------------


def folded(net):
    """The network's convolutions with batch normalisation in them: name, weight, bias."""

    def block(name, b):
        conv, norm = b[0], b[1]
        by = norm.weight / (norm.running_var + norm.eps).sqrt()
        return name, conv.weight * by[:, None, None, None], norm.bias - norm.running_mean * by

    out = [block(f"down.{i}.{j}", b) for i, stage in enumerate(net.down) for j, b in enumerate(stage)]
    out += [block(f"up.{i}", b) for i, b in enumerate(net.up)]
    out += [(f"side.{i}", c.weight, c.bias) for i, c in enumerate(net.side)]
    return out + [("head", net.head.weight, net.head.bias)]


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


def exported(net, path):
    """Writes the weights in 16 bits, as toolserver/segment reads them, and returns them."""
    tensors = {}
    with torch.no_grad():
        for name, weight, bias in folded(net):
            tensors[f"{name}.weight"], tensors[f"{name}.bias"] = weight.half().contiguous(), bias.half().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    path.chmod(0o644)
    return tensors


def load_exported(path):
    """The network of a file that exported wrote: normalisations that change nothing stand behind the convolutions."""
    tensors, net = {k: v.float() for k, v in load_file(path).items()}, Net()
    with torch.no_grad():
        for name, weight, bias in folded(net):
            if tensors.get(f"{name}.weight", weight[:0]).shape != weight.shape or tensors.get(f"{name}.bias", bias[:0]).shape != bias.shape:
                raise SystemExit(f"weights {path}: no {name} of shape {tuple(weight.shape)}: not a file that segment.py export wrote")
        for name, module in net.named_modules():
            if isinstance(module, Block):
                conv, norm = module[0], module[1]
                conv.weight.copy_(tensors[f"{name}.weight"])
                norm.bias.copy_(tensors[f"{name}.bias"])
                norm.running_var.fill_(1 - norm.eps)
            elif isinstance(module, nn.Conv2d) and module.bias is not None:
                module.weight.copy_(tensors[f"{name}.weight"])
                module.bias.copy_(tensors[f"{name}.bias"])
    return net.eval().to(memory_format=torch.channels_last)


def export(args):
    tensors = exported(load(args.out / "final/weights.safetensors"), args.to / "model.safetensors")
    root = args.data
    films = [*(root / "cxr/wingspan").iterdir(), *(root / "masks/wingspan").iterdir()]
    record = {
        "weights_sha256": hashlib.sha256((args.to / "model.safetensors").read_bytes()).hexdigest(),
        "parameters": sum(t.numel() for t in tensors.values()),
        "torch": torch.__version__,
        "commands": COMMAND_LINES,
        "settings": {k: json.loads((args.out / k / "settings.json").read_text()) for k in ("phantoms", "final")},
        "data": {
            "wingspan": {"films": len(films) // 4, "sha256_of_names_and_hashes": digest(films, root)},
            "phantoms": {"films": len(list(args.phantoms.glob("*_heart.png"))), "sha256_of_names_and_hashes": digest(args.phantoms.glob("*.png"), args.phantoms)},
        },
        "licence": LICENCE,
    }
    (args.to / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    golden(args.to.parent / "testdata", tensors)


LICENCE = (
    "Apache-2.0 as this project. Trained on the project's own phantoms and on 48 films of the wingspan set, whose authors "
    "publish images, masks and ratios under the MIT licence, Copyright (c) 2020 Nanqing Dong "
    "(github.com/eveningdong/cardiothoracic_ratio_estimation_dataset; Dong et al., MICCAI 2018). No film and no mask is part "
    "of the weights' distribution. Not for clinical use."
)
COMMAND_LINES = [
    "go run ./scripts/phantommasks -seed 4711 -films 600 PHANTOMS",
    "python learner/segment.py pretrain --phantoms PHANTOMS --out RUN --steps 300 --each 4",
    "python learner/segment.py final --data DATA --out RUN --steps 1200",
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


def unfolded(tensors):
    """The network with folded weights: batch normalisation does nothing."""
    net = Net().eval()
    convolutions = {f"down.{i}.{j}": b for i, stage in enumerate(net.down) for j, b in enumerate(stage)}
    convolutions |= {f"up.{i}": b for i, b in enumerate(net.up)} | {f"side.{i}": c for i, c in enumerate(net.side)} | {"head": net.head}
    for name, b in convolutions.items():
        weight, bias = tensors[f"{name}.weight"].float(), tensors[f"{name}.bias"].float()
        if isinstance(b, Block):
            b[0].weight.data, b[1].bias.data = weight, bias
            b[1].running_var.data.fill_(1 - b[1].eps)
        else:
            b.weight.data, b.bias.data = weight, bias
    return net


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=[f.__name__ for f in COMMANDS])
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("../shared/data"))
    parser.add_argument("--phantoms", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--to", type=pathlib.Path)
    parser.add_argument("--measured", type=pathlib.Path)
    parser.add_argument("--mode", choices=["real", "both"], default="both")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--each", type=int, default=96, help="augmented forms of each film")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--begin", type=pathlib.Path, help="crossval: a run whose folds are trained further")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    {f.__name__: f for f in COMMANDS}[args.command](args)


COMMANDS = [pretrain, crossval, final, predict, discs, report, hannover, overlays, export]

if __name__ == "__main__":
    main()
