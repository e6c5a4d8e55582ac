"""Serves a segmentation model over HTTP, for `tools.backends.segmenter` and `xragent measure --server`.

    model_server.py --model pspnet  --weights pspnet_chestxray_best_model_4.pth   # TorchXRayVision, trained on ChestX-Det
    model_server.py --model cxas    --weights UNet_ResNet50_default.pth           # CXAS, 159 structures
    model_server.py --model xragent --weights toolserver/segment/network/model.safetensors

The first two come from their packages (model_server.in), by whose own code weights are loaded. Nothing is downloaded: a file
that is not there is an error that says where its authors offer it. --random-weights serves the same model untrained, loaded
through the same code: for tests of everything but the masks' worth.

    GET  /   {"model": …, "weights": SHA-256 or "random …", "structures": […]}
    POST /   {"tool": "segmenter", "arguments": {"structures": ["heart", …]}, "images": [{"png": BASE64}]}
             {"masks": {"heart": BASE64 of a PNG of the image's size, 0 and 255}}, or {"error": …}

Sides are the patient's, as both packages name them. A structure that was not found has an empty mask. A film is shown whole:
pspnet sees it in a black square, cxas and xragent squeezed into one, as they were trained. 400 and 413 are mistakes of the
request, 422 is a film that the model cannot take, 503 a queue that is full. It is meant for one machine or a tunnel: an
address that others can reach needs --token-env. It keeps and logs nothing of a film.
"""

import argparse
import base64
import binascii
import hashlib
import hmac
import io
import json
import os
import pathlib
import re
import tempfile
import threading
import traceback
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

MAX_BODY = 64 << 20  # bytes of a request
MAX_PIXELS = 16 << 20  # of a film
MIN_SIDE = 16
MAX_WAITING = 16  # requests, the one that computes included
THRESHOLD = 0.5  # of a structure's probability, both packages' own


class Refused(Exception):
    """A request that cannot be answered: an HTTP status and what is wrong."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


# ---- models --------------------------------------------------------------------------------------------


def named(structure):
    """Left Lung, lung left and left lung are all left_lung."""
    words = re.findall(r"[a-z0-9]+", structure.lower())
    side = [w for w in words if w in ("left", "right")][:1]
    return "_".join(side + [w for w in words if w not in side])


def at(weights, folder, name, source):
    """Puts a file where a package looks for its weights, under its name."""
    if weights is None or not weights.is_file():
        raise SystemExit(f"weights {weights}: no such file. Its authors offer it: {source}; or give --random-weights")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(weights.resolve())


def drawn(net, path, wrap):
    """Writes an untrained model's weights as its package stores trained ones."""
    torch.save(wrap(net.state_dict()), path)
    return path


class PSPNet:
    """TorchXRayVision's PSPNet: logits of 14 structures at 512 x 512."""

    SIDE = 512
    FILE = "pspnet_chestxray_best_model_4.pth"
    SOURCE = "https://github.com/mlmed/torchxrayvision/releases (v1)"

    def __init__(self, weights, scratch):
        from torchxrayvision.baseline_models import chestx_det

        at(weights, scratch / "xrv", self.FILE, self.SOURCE)
        self.net = chestx_det.PSPNet(cache_dir=str(scratch / "xrv"))  # reads the file that lies there
        self.structures = [self.NAMES.get(t, named(t)) for t in self.net.targets]

    # The windpipe is called Weasand there; the lungs' lower borders, Facies Diaphragmatica.
    NAMES = {"Weasand": "trachea"}

    @staticmethod
    def random(path):
        from torchxrayvision.baseline_models.chestx_det import PSPNet as net
        from torchxrayvision.baseline_models.chestx_det.ptsemseg.pspnet import pspnet

        return drawn(pspnet(len(net.targets)), path, lambda d: {f"module.{k}": v for k, v in d.items()})

    def __call__(self, grey):
        h, w = grey.shape
        side = max(h, w)
        top, left = (side - h) // 2, (side - w) // 2
        square = F.pad(grey, (left, side - w - left, top, side - h - top))
        x = F.interpolate(square[None, None], size=(self.SIDE, self.SIDE), mode="bilinear", antialias=True)
        logits = self.net(x / 255 * 2048 - 1024)
        return F.interpolate(logits, size=(side, side), mode="bilinear")[0, :, top : top + h, left : left + w]


class CXAS:
    """CXAS' UNet on a ResNet-50: logits of 159 structures at 512 x 512."""

    SIDE = 512
    NET = "UNet_ResNet50_default"
    SOURCE = "https://github.com/ConstantinSeibold/ChestXRayAnatomySegmentation"

    def __init__(self, weights, scratch):
        os.environ["CXAS_NO_WELCOME"] = "1"
        from cxas.label_mapper import id2label_dict
        from cxas.models import get_model

        at(weights, scratch / ".cxas/weights", self.NET + ".pth", self.SOURCE)
        os.environ["CXAS_PATH"] = str(scratch)
        self.net = get_model(self.NET, "cpu").eval()  # reads the file that lies there
        self.check(weights)
        self.structures = [named(id2label_dict[str(i)]) for i in range(len(id2label_dict))]

    def check(self, weights):
        """The package passes over tensors that a file lacks; here that is an error."""
        given = {k.removeprefix("module.") for k in torch.load(weights, map_location="cpu", weights_only=False)["model"]}
        lacking = sorted(set(self.net.state_dict()) - given)
        if lacking:
            raise SystemExit(f"weights {weights}: no {lacking[0]}, {len(lacking)} tensors lacking: not the weights of {self.NET}")

    @staticmethod
    def random(path):
        from cxas.models import get_unet

        return drawn(get_unet(CXAS.NET), path, lambda d: {"model": d})

    def __call__(self, grey):
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # ImageNet's
        x = (grey[None] / 255 - mean[:, None, None]) / deviation[:, None, None]
        logits = self.net({"data": F.interpolate(x[None], self.SIDE)})["logits"]  # nearest, as the package reads files
        return F.interpolate(logits, size=tuple(grey.shape), mode="bilinear")[0]


class Xragent:
    """The network that the Go program carries, as segment.py exports it."""

    SOURCE = "toolserver/segment/network/model.safetensors of this repository"

    def __init__(self, weights, scratch):
        from segmenter.films import PARTS
        from segmenter.prediction import segment
        from segmenter.weights import load_exported

        at(weights, scratch, "weights", self.SOURCE)
        self.find, self.net, self.structures = segment, load_exported(weights), PARTS

    @staticmethod
    def random(path):
        from segmenter.network import Net
        from segmenter.weights import exported

        exported(Net().eval(), path)
        return path

    def __call__(self, grey):
        return torch.from_numpy(self.find(self.net, grey)).float() * 2 - 1


MODELS = {"pspnet": PSPNet, "cxas": CXAS, "xragent": Xragent}


class Segmenter:
    """One model, asked by one thread at a time."""

    def __init__(self, model, weights, random_weights):
        self.name, self.lock, self.waiting = model, threading.Lock(), threading.BoundedSemaphore(MAX_WAITING)
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            if random_weights is not None:
                torch.manual_seed(random_weights)
                weights = MODELS[model].random(scratch / "random")
            self.model = MODELS[model](weights, scratch)
            self.weights = f"random, seed {random_weights}" if random_weights is not None else digest(weights)
        self.structures = sorted(self.model.structures)

    def about(self):
        return {"model": self.name, "weights": self.weights, "structures": self.structures}

    def answer(self, request):
        wanted, film = self.read(request)
        if not self.waiting.acquire(blocking=False):
            raise Refused(503, f"{MAX_WAITING} requests wait already")
        try:
            with self.lock, torch.inference_mode():
                logits = self.model(film)
        finally:
            self.waiting.release()
        index = {name: i for i, name in enumerate(self.model.structures)}
        edge = float(np.log(THRESHOLD / (1 - THRESHOLD)))
        return {"masks": {name: encoded(logits[index[name]] > edge) for name in wanted}}

    def read(self, request):
        """The structures that are wanted, and the film."""
        if not isinstance(request, dict) or not isinstance(request.get("arguments", {}), dict):
            raise Refused(400, "want a JSON object with arguments and images")
        wanted = request.get("arguments", {}).get("structures", self.structures)
        images = request.get("images")
        if not isinstance(wanted, list) or not all(isinstance(s, str) for s in wanted):
            raise Refused(400, "arguments.structures: want a list of names")
        if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
            raise Refused(400, "images: want one")
        # What this model has no name for is left out: the caller sees what came.
        return [s for s in self.structures if s in wanted], decoded(images[0].get("png"))


def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def decoded(text):
    """A film as grey levels 0 to 255, [H, W]."""
    try:
        file = io.BytesIO(base64.b64decode(text, validate=True))
        img = Image.open(file, formats=["PNG"])
        if img.width * img.height > MAX_PIXELS or min(img.size) < MIN_SIDE:
            raise Refused(422, f"a film of {img.width} x {img.height} pixels, want sides of at least {MIN_SIDE} and at most {MAX_PIXELS} pixels in all")
        return torch.from_numpy(np.array(img.convert("L"))).float()
    except (TypeError, binascii.Error, OSError, SyntaxError, ValueError) as e:
        raise Refused(422, f"images[0].png: no PNG file in base64 ({type(e).__name__})") from None


def encoded(mask):
    file = io.BytesIO()
    Image.fromarray(mask.numpy().astype(np.uint8) * 255).save(file, "PNG", compress_level=1)
    return base64.b64encode(file.getvalue()).decode()


# ---- HTTP ----------------------------------------------------------------------------------------------


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a byte
    segmenter = None
    token = ""

    def do_GET(self):
        self.serve(self.segmenter.about)

    def do_POST(self):
        self.serve(lambda: self.segmenter.answer(self.body()))

    def serve(self, of):
        try:
            self.authorise()
            status, answer = 200, of()
        except Refused as e:
            status, answer, self.close_connection = e.status, {"error": str(e)}, True  # what was not read would be taken for a request
        except Exception as e:  # the model's own failure takes no other request down
            traceback.print_exc()
            status, answer, self.close_connection = 500, {"error": f"the model failed: {type(e).__name__}"}, True
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def authorise(self):
        if self.token and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), f"Bearer {self.token}".encode()):
            raise Refused(401, "want Authorization: Bearer, with the token")

    def body(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise Refused(413, f"want a Content-Length of at most {MAX_BODY}")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None

    def log_message(self, *_):
        pass  # nothing of a request is kept


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True, choices=sorted(MODELS))
    p.add_argument("--weights", type=pathlib.Path)
    p.add_argument("--random-weights", type=int, metavar="SEED", help="an untrained model, for tests")
    p.add_argument("--listen", default="127.0.0.1:8400")
    p.add_argument("--token-env", help="environment variable that holds the bearer token")
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    if (args.weights is None) == (args.random_weights is None):
        p.error("want one of --weights and --random-weights")
    host, _, port = args.listen.rpartition(":")
    Requests.token = os.environ.get(args.token_env, "") if args.token_env else ""
    if not Requests.token and (args.token_env or host not in ("127.0.0.1", "localhost")):
        p.error(f"--listen {args.listen} can be reached by others, or --token-env names an empty variable: set one that holds a token")
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    Requests.segmenter = Segmenter(args.model, args.weights, args.random_weights)
    server = ThreadingHTTPServer((host, int(port)), Requests)
    print(f"{args.model} listens on {server.server_address[0]}:{server.server_address[1]}, pid {os.getpid()}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
