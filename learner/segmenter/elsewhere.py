"""Lungs against the masks of hannover, drawn by another convention."""

import csv
import json
import pathlib

import numpy as np
from PIL import Image

from .figures import bootstrap
from .films import middle, read_masks


def hannover(args):
    """Lungs of films of another hospital, whose masks go through the heart and behind the diaphragm: so much of what is
    found must lie inside, and overlap on each side. Beside it the overlap with the heart's part of each side added, which
    is what was drawn. --measured names the lines of xragent measure --json about these films: which of the others it shows."""
    with open(args.data / "meta/hannover_metadata.csv") as f:
        meta = {r["image_id"]: r for r in csv.DictReader(f)}
    rows = []
    for path in sorted((args.data / "masks/hannover").glob("*_lungs.png")):
        name = path.stem.removesuffix("_lungs")
        drawn, found = np.array(Image.open(path)) > 127, read_masks(args.out / args.mode / "hannover", name)
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


def halves(mask, at=None):
    """A mask of both lungs cut in two."""
    cut = middle(mask) if at is None else at
    right, left = mask.copy(), mask.copy()
    right[:, cut:] = False
    left[:, :cut] = False
    return right, left
