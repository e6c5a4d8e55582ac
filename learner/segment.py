"""Trains and examines the small network that finds lungs and heart in frontal radiographs (toolserver/segment).

    segment.py pretrain  --phantoms DIR --out RUN            # on synthetic films
    segment.py crossval  --data DIR --mode both --out RUN    # five folds of real films: real, or both (from pretrain's weights)
    segment.py final     --data DIR --out RUN                # on all of them
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

wingspan has all three structures drawn. hannover's masks have both lungs in one, through the heart and behind the
diaphragm: they say where no lung is, and where a lung or the heart is, and train for that alone. A patient's films are in
one fold.

A step is bound to its seed, not to the time; the same command on the same machine gives the same weights. One thread
is the default because a sum's order depends on their number.
"""

import argparse
import pathlib

import torch

from segmenter.elsewhere import hannover
from segmenter.export import export
from segmenter.figures import discs, report
from segmenter.overlays import overlays
from segmenter.prediction import predict
from segmenter.training import crossval, final, pretrain


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
