"""The tables of docs/segmentation.md."""

import csv
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

from .films import SIDE, THROUGH_HEART, read_grey, read_masks
from .prediction import segment, thin_parts
from .training import FOLDS, folds_of
from .weights import load


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
