"""A page of pictures, worst first."""

import numpy as np
from PIL import Image, ImageDraw

from .figures import judged
from .films import read_grey, read_masks
from .prediction import segment
from .weights import load


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
        films.append(painted(read_grey(path), read_masks(args.out / "both/hannover", path.stem), [drawn], path.stem))
    sheet(args.out / "hannover.jpg", films)
    net, films = load(args.out / "final/weights.safetensors"), []
    for path in sorted(p for folder in ("nih", "cc_articles", "vqa_rad") for p in (args.data / "cxr" / folder).iterdir()):
        grey = read_grey(path)
        films.append(painted(grey, segment(net, grey), [], path.stem))
    sheet(args.out / "others.jpg", films)
