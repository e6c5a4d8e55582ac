"""Augmented films: turned, bent, cut, exposed, mirrored."""

import math

import torch
import torch.nn.functional as F

from .films import ALLOWED, MIRRORED, SIDE, normalise


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
    """The films' rows, each as it might have looked elsewhere: grey levels [n, 1, H, W] and labels [n, H, W], in bytes."""
    c = Chance(seed, len(rows))
    both = torch.cat([films.images[rows], films.labels[rows], films.lungs()[rows][:, None], torch.ones(len(rows), 1, films.STORED, films.STORED)], 1)
    both = F.grid_sample(both, grids(films.boxes[rows], c), mode="bilinear", padding_mode="zeros", align_corners=False)
    flip = c.happens(0.15)
    n = len(ALLOWED)
    swapped = both[:, [0, *(1 + m for m in MIRRORED), n + 1, n + 2]].flip(3)
    both = swapped * flip + both * (1 - flip)
    x, labels, lungs, known = both.split([1, n, 1, 1], 1)
    x = expose(x, lungs, c)
    border = c.uniform(0, 1, 1, 1, 1) * c.happens(0.3)
    x = x * known + border * (1 - known)
    x = clutter(x, c)
    labels[:, :1] += 1 - known
    return (x.clamp(0, 1) * 255).round().byte(), labels.argmax(1).byte()


class Pool:
    """Many forms of each film, made once for all trainings."""

    def __init__(self, films, each, seed, log):
        self.each = each
        self.images = torch.empty(len(films.names) * each, 1, SIDE, SIDE, dtype=torch.uint8)
        self.labels = torch.empty(len(films.names) * each, SIDE, SIDE, dtype=torch.uint8)
        for i in range(len(films.names)):
            for at in range(0, each, 8):
                n = min(8, each - at)
                here = slice(i * each + at, i * each + at + n)
                self.images[here], self.labels[here] = augmented(films, [i] * n, (seed * 10_000 + i) * 10_000 + at)
            if (i + 1) % 12 == 0:
                log(f"augmented {i + 1} of {len(films.names)} films")

    def rows(self, films):
        """Where the forms of these films are."""
        return [i * self.each + k for i in films for k in range(self.each)]

    def batch(self, rows):
        """Input, and labels as shares of the network's coarser pixels."""
        labels = F.one_hot(self.labels[rows].long(), len(ALLOWED)).permute(0, 3, 1, 2).float()
        return normalise(self.images[rows].float()), F.avg_pool2d(labels, 2)


class Pools:
    """Several pools one behind another."""

    def __init__(self, *pools):
        self.pools = pools

    def rows(self, *films):
        """Where the forms of each pool's films are: the pool and the row in it."""
        return [(k, row) for k, (pool, some) in enumerate(zip(self.pools, films)) for row in pool.rows(some)]

    def batch(self, rows):
        parts = [pool.batch([r for k, r in rows if k == i]) for i, pool in enumerate(self.pools) if any(k == i for k, _ in rows)]
        return tuple(torch.cat(part) for part in zip(*parts))


def pool_of(path, films, each, seed, log):
    if path.exists():
        return torch.load(path, weights_only=False, mmap=True)
    pool = Pool(films, each, seed, log)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(pool, path)
    return pool
