"""The GPU learner: trains a Qwen3-VL by SFT and GRPO for xragent, over HTTP.

    python learner/learner.py --model DIR [--listen 127.0.0.1:8300] [--lora-rank 64] [--precision bfloat16]

DIR is a Hugging Face folder (config.json, model.safetensors, preprocessor_config.json, tokenizer.json). The Go side is
policy/remote; what travels is described there and in dataset/columnar. The server has no authentication:
keep it on loopback or behind a tunnel.

The loss is the embedded learner's: the sum of the tokens' terms over denominators of the whole batch, a term
being -log p (sft) or one of losses.py (grpo). How a batch is cut into micro-batches changes nothing but the
order of sums. A batch that is refused,
or whose loss or gradient is not finite, leaves the weights as they were.

One process on one device. Not here yet: several devices (FSDP2 under torchrun), sequence packing.
"""

import argparse
import collections
import contextlib
import hashlib
import io
import json
import math
import os
import pathlib
import shutil
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import torch
import losses
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoTokenizer, Qwen3VLForConditionalGeneration

FORMAT = "xragent.learner/1"
BATCH_FORMAT = "xragent.batch/1"
PROCESSOR_VERSION = "qwen2vl/2"  # chat.processorVersion
LORA_TARGETS = r"model\.language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"


class Refused(Exception):
    """A request that cannot be served; its text goes to the client, and nothing was changed."""


# ---- batches -------------------------------------------------------------------------------------------


def read_batch(data):
    """Returns (rows, tokens) of an Arrow IPC file: rows are dicts of the columns, ids as lists."""
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except pa.ArrowInvalid as e:
        raise Refused(f"batch is not an Arrow IPC file: {e}") from e
    meta = table.schema.metadata or {}
    if meta.get(b"format", b"").decode() != BATCH_FORMAT:
        raise Refused(f"batch has format {meta.get(b'format')}, want {BATCH_FORMAT}")
    return table.to_pylist(), int(meta[b"tokens"])


def check_row(row, kind, vocab, image_pad, merge, processor):
    name, ids, mask = row["id"], row["ids"], row["loss_mask"]
    if len(mask) != len(ids) or not ids:
        raise Refused(f"row {name}: {len(ids)} ids but {len(mask)} loss mask entries")
    for i, id in enumerate(ids):
        if not 0 <= id < vocab:
            raise Refused(f"row {name}: id {id} at {i} is outside [0, {vocab})")
    if mask[0]:
        raise Refused(f"row {name}: the first id is scored, but nothing stands before it")
    if kind == "grpo":
        if len(row["logprobs"]) != len(ids):
            raise Refused(f"row {name}: {len(row['logprobs'])} behaviour log-probs for {len(ids)} ids")
        if not math.isfinite(row["advantage"]) or not all(map(math.isfinite, row["logprobs"])):
            raise Refused(f"row {name}: advantage or a behaviour log-prob is not finite")
    grids = grids_of(row)
    if len(grids) != len(row["image_sha256"]):
        raise Refused(f"row {name}: {len(row['image_sha256'])} images but {len(grids)} grids")
    want, have = sum(t * h * w // merge ** 2 for t, h, w in grids), sum(id == image_pad for id in ids)
    if want != have:
        raise Refused(f"row {name}: {have} image-pad ids, its images need {want}")
    for other in row["image_processor"]:
        if other and other != processor:
            raise Refused(f"row {name}: the policy saw an image through processor {other}, the learner has {processor}")


def grids_of(row):
    flat = row["image_grid"]
    return [tuple(flat[i:i + 3]) for i in range(0, len(flat) // 3 * 3, 3)]


def micro_batches(rows, tokens):
    """Cuts rows, longest first, into groups whose padded size is at most tokens."""
    group = []
    for row in sorted(rows, key=lambda r: (-len(r["ids"]), r["id"])):
        if group and len(group[0]["ids"]) * (len(group) + 1) > tokens:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


# ---- images --------------------------------------------------------------------------------------------


def opened(encoded):
    """An image as chat.Processor sees it: of 16-bit grey, which Pillow would clip at 255, the high byte."""
    image = Image.open(io.BytesIO(encoded))
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I") else image


class Images:
    """Encoded images by content, and the processor that makes patches of them. Of images that the batch at hand
    does not need, at most limit bytes are kept, those used last; the client sends what is missing."""

    def __init__(self, folder, limit):
        self.processor = AutoImageProcessor.from_pretrained(folder)
        self.limit, self.bytes = limit, 0
        self.encoded, self.wanted = collections.OrderedDict(), set()

    def missing(self, wanted):
        """Which of the images of the batch that comes next have to be sent."""
        self.wanted = set(wanted)
        for sha in self.wanted & self.encoded.keys():
            self.encoded.move_to_end(sha)
        return sorted(self.wanted - self.encoded.keys())

    def add(self, sha, encoded):
        self.bytes += len(encoded) - len(self.encoded.pop(sha, b""))
        self.encoded[sha] = encoded
        while self.bytes > self.limit and (oldest := next(iter(self.encoded))) not in self.wanted:
            self.bytes -= len(self.encoded.pop(oldest))

    def hash(self):
        """Equals chat.Processor.Hash of the same configuration."""
        p = self.processor
        low, high = (p.size["shortest_edge"], p.size["longest_edge"])
        config = dict(patch_size=p.patch_size, merge_size=p.merge_size, temporal_patch_size=p.temporal_patch_size,
                      min_pixels=low, max_pixels=high)
        text = PROCESSOR_VERSION + json.dumps(config, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def patches(self, row):
        """The patches of a row's images, [N, 3*T*P*P], held against the grids that the policy saw."""
        out = []
        for sha, grid in zip(row["image_sha256"], grids_of(row)):
            if sha not in self.encoded:
                raise Refused(f"row {row['id']}: image {sha[:12]} was not sent")
            made = self.processor(opened(self.encoded[sha]), return_tensors="pt")
            if tuple(made["image_grid_thw"][0].tolist()) != grid:
                raise Refused(f"row {row['id']}: image {sha[:12]} has grid {made['image_grid_thw'][0].tolist()} here, the policy saw {grid}")
            out.append(made["pixel_values"])
        return out


# ---- the learner ---------------------------------------------------------------------------------------


class Learner:
    def __init__(self, args):
        self.args = args
        self.device = torch.device(args.device)
        self.model = self.base()
        self.model.to(self.device).eval()  # no dropout, as in sampling
        self.config = self.model.config
        if args.checkpointing:
            self.model.gradient_checkpointing_enable()
        self.images, self.folders, self.tokenizer = Images(args.model, args.image_bytes), [], None
        self.peft = None
        if args.lora_rank:
            from peft import LoraConfig, get_peft_model
            self.peft = get_peft_model(self.model, LoraConfig(r=args.lora_rank, lora_alpha=2 * args.lora_rank, target_modules=LORA_TARGETS))
        self.parameters = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        self.adapter = {n: t.clone() for n, t in self.trained().items()} if self.peft else None
        self.reset()

    def reset(self, folder=""):
        """Begins anew behind the weights as they are, those of folder: no steps taken, an optimizer without memory."""
        self.began, self.beginning = folder, None
        # Vectors, that is norms and biases, do not decay.
        self.optimizer = torch.optim.AdamW([dict(params=[p for _, p in self.parameters if p.dim() > 1]),
                                            dict(params=[p for _, p in self.parameters if p.dim() <= 1])], lr=0.0)
        self.steps, self.last, self.stats = 0, None, None

    def info(self):
        return dict(format=FORMAT, model=str(self.args.model), vocab=self.config.text_config.vocab_size, processor=self.images.hash(),
                    device=str(self.device), precision=self.args.precision, lora_rank=self.args.lora_rank, steps=self.steps)

    def encode(self, conversations):
        """What the model's own tokenizer makes of conversations, rendered by the template that comes with each."""
        if self.tokenizer is None:
            if not (self.args.model / "tokenizer.json").exists():
                raise Refused(f"{self.args.model} has no tokenizer.json: put the model's own there, so that prompts can be compared")
            self.tokenizer = AutoTokenizer.from_pretrained(self.args.model)
        ids = [self.tokenizer.apply_chat_template(c["messages"], tools=c["tools"] or None, chat_template=c["template"],
                                                  add_generation_prompt=True, tokenize=True, return_dict=False) for c in conversations]
        c = self.config
        return dict(ids=ids, image_pad=c.image_token_id, vision_start=c.vision_start_token_id, vision_end=c.vision_end_token_id)

    # -- forward

    def logprobs(self, rows, temperature=1.0):
        """Yields (row, log p of its loss tokens, their entropies) of the logits over temperature, through one padded forward pass."""
        width = max(len(r["ids"]) for r in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        seen = torch.zeros_like(ids)
        for i, r in enumerate(rows):
            ids[i, :len(r["ids"])] = torch.tensor(r["ids"])
            seen[i, :len(r["ids"])] = 1
        inputs = dict(input_ids=ids, attention_mask=seen, mm_token_type_ids=(ids == self.config.image_token_id).int())
        patches = [p for r in rows for p in self.images.patches(r)]
        if patches:
            inputs["pixel_values"] = torch.cat(patches)
            inputs["image_grid_thw"] = torch.tensor([g for r in rows for g in grids_of(r)])
        inputs = {k: v.to(self.device) for k, v in inputs.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.precision == "bfloat16"):
            hidden = self.model.model(**inputs, use_cache=False).last_hidden_state
            for i, r in enumerate(rows):
                where = torch.tensor(r["loss_mask"], device=self.device).nonzero()[:, 0]
                logits = self.model.lm_head(hidden[i, where - 1]).float() / temperature
                logp = logits.log_softmax(-1)
                entropy = -(logp.exp() * logp).sum(-1).detach()
                yield r, logp.gather(1, inputs["input_ids"][i, where, None])[:, 0], entropy, where

    @torch.no_grad()
    def reference(self, rows, temperature):
        """Log p of each row's loss tokens under the weights that the stage began with, by row id."""
        if self.beginning is None:
            self.beginning = {n: t.to(self.device) for n, t in self.start_of(self.began).items()}
        now = [p.data for _, p in self.parameters]
        with contextlib.ExitStack() as back:
            for (name, p), data in zip(self.parameters, now):
                back.callback(setattr, p, "data", data)
                p.data = self.beginning[name]
            return {r["id"]: logp for r, logp, _, _ in self.logprobs(rows, temperature)}

    def accumulate(self, rows, count, objective, train):
        """Sums terms (and, where train, gradients) over rows of a batch of count (tokens, rows); returns the sums for the statistics."""
        sums = dict.fromkeys(("loss", "entropy", "low", "high", "kl", "diff", "reference", "weight"), 0.0)
        rl, temperature = objective["kind"] == "grpo", objective.get("temperature", 1.0)
        for group in micro_batches(rows, self.args.micro_tokens):
            loss = 0.0
            reference = self.reference(group, temperature) if rl and objective["loss"]["kl"]["coef"] else {}
            for r, logp, entropy, where in self.logprobs(group, temperature):
                term = self.terms(r, logp, where, objective["loss"], reference.get(r["id"]), sums) if rl else -logp
                loss = loss + term.sum() / (losses.divisor(objective["loss"], len(where), *count) if rl else count[0])
                sums["entropy"] += entropy.double().sum().item()
            value = float(loss)
            if not math.isfinite(value):
                raise Refused(f"loss is {value} in rows {', '.join(r['id'] for r in group)}; nothing was changed")
            sums["loss"] += value
            if train:
                loss.backward()
        return sums

    def terms(self, row, logp, where, loss, reference, sums):
        behaviour = torch.tensor(row["logprobs"], device=self.device)[where]
        old = logp.detach() if loss["old"] == "learner" else behaviour  # this step is the first with these weights
        terms, seen = losses.tokens(loss, logp, old, behaviour, reference, row["advantage"])
        (low, high), a = losses.bounds(loss), row["advantage"]
        with torch.no_grad():
            log = logp - behaviour
            sums["kl"] += (log.exp() - 1 - log).double().sum().item()
            sums["diff"] += log.abs().double().sum().item()
            sums["low"] += ((seen["ratio"] < low).sum().item() if a < 0 else 0)
            sums["high"] += ((seen["ratio"] > high).sum().item() if a > 0 else 0)
            sums["reference"] += seen["kl"].double().sum().item()
            sums["weight"] += seen["weight"].double().sum().item()
        return terms

    def check(self, rows, tokens, kind):
        merge = self.config.vision_config.spatial_merge_size
        for r in rows:
            check_row(r, kind, self.config.text_config.vocab_size, self.config.image_token_id, merge, self.images.hash())
        have = sum(sum(r["loss_mask"]) for r in rows)
        if have == 0 or have != tokens:
            raise Refused(f"batch says {tokens} loss tokens, its rows have {have}")
        return [r for r in rows if any(r["loss_mask"])]

    # -- requests

    def step(self, data, objective, steps):
        """Takes one step, or returns the last one's statistics when its answer got lost."""
        key = hashlib.sha256(json.dumps(objective, sort_keys=True).encode() + data).hexdigest()
        if steps == self.steps - 1 and key == self.last:
            return self.stats
        if steps != self.steps:
            raise Refused(f"asked for a step behind {steps}, the learner has taken {self.steps}; load a checkpoint")
        if objective.get("kind") not in ("sft", "grpo"):
            raise Refused(f"objective kind is {objective.get('kind')!r}, want sft or grpo")
        if objective["kind"] == "grpo" and (fault := losses.fault(objective.get("loss", {}))):
            raise Refused(f"objective: loss.{fault}")
        if not objective.get("temperature", 1.0) > 0:
            raise Refused(f"objective: temperature is {objective['temperature']}, want more than 0")
        rows, tokens = read_batch(data)
        teaching = self.check(rows, tokens, objective["kind"])
        self.optimizer.zero_grad(set_to_none=False)
        for _, p in self.parameters:  # a parameter without a part in this batch has gradient 0, as the others
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        sums = self.accumulate(teaching, (tokens, len(rows)), objective, train=True)
        params = [p for _, p in self.parameters]
        norm = torch.nn.utils.clip_grad_norm_(params, objective["max_norm"] or math.inf).item()
        if not math.isfinite(norm):
            raise Refused(f"gradient norm is {norm}; the step was not taken")
        for group, decay in zip(self.optimizer.param_groups, (objective["decay"], 0.0)):
            group.update(lr=objective["lr"], betas=(objective["beta1"], objective["beta2"]), eps=objective["eps"], weight_decay=decay)
        self.optimizer.step()
        self.steps, self.last = self.steps + 1, key
        self.stats = dict(
            loss=sums["loss"], grad_norm=norm, entropy=sums["entropy"] / tokens, clip_low=sums["low"] / tokens, clip_high=sums["high"] / tokens,
            approx_kl=max(0.0, sums["kl"] / tokens), logp_diff=sums["diff"] / tokens, tokens=tokens, all_tokens=sum(len(r["ids"]) for r in rows))
        if objective["kind"] == "grpo" and objective["loss"]["kl"]["coef"]:
            self.stats["kl"] = sums["reference"] / tokens
        if objective["kind"] == "grpo" and objective["loss"]["correction"]["level"] != "none":
            self.stats["weight"] = sums["weight"] / tokens
        return self.stats

    @torch.no_grad()
    def evaluate(self, data):
        rows, tokens = read_batch(data)
        rows = self.check(rows, tokens, "sft")
        return dict(loss=self.accumulate(rows, (tokens, len(rows)), dict(kind="sft"), train=False)["loss"])

    def trained(self):
        return {name: p.detach().contiguous().cpu() for name, p in self.parameters}

    def save(self, folder):
        folder = pathlib.Path(folder)
        save_file(self.trained(), folder / "trained.safetensors")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        (folder / "state.json").write_text(json.dumps(dict(format=FORMAT, steps=self.steps, names=[n for n, _ in self.parameters])) + "\n")
        return dict(steps=self.steps)

    def load(self, folder):
        state, tensors, moments = self.read(pathlib.Path(folder))
        self.take(tensors)
        self.optimizer.load_state_dict(moments)
        self.steps, self.last, self.stats = state["steps"], None, None
        return dict(steps=self.steps)

    def start(self, folder):
        """Takes the weights of a folder that save wrote, or the first ones for "", and nothing else of it."""
        self.take(self.start_of(folder))
        self.reset(folder)
        return dict(steps=self.steps)

    def start_of(self, folder):
        return self.read(pathlib.Path(folder))[1] if folder else self.first()

    def read(self, folder):
        try:
            state = json.loads((folder / "state.json").read_text())
            tensors = load_file(folder / "trained.safetensors")
            moments = torch.load(folder / "optimizer.pt", weights_only=True, map_location=self.device)
        except OSError as e:
            raise Refused(f"{folder}: {e.strerror}: {e.filename}") from e
        if state["names"] != [n for n, _ in self.parameters] or any(tensors[n].shape != p.shape for n, p in self.parameters):
            raise Refused(f"{folder}: saved from another model or LoRA rank")
        return state, tensors, moments

    @torch.no_grad()
    def take(self, tensors):
        for name, p in self.parameters:
            p.copy_(tensors[name])

    def base(self):
        return Qwen3VLForConditionalGeneration.from_pretrained(self.args.model, dtype=torch.float32, attn_implementation=self.args.attention)

    def first(self):
        return self.adapter or dict(self.base().named_parameters())

    def export(self, folder):
        """Writes a Hugging Face folder (an adapter is merged) and reads it back: log-probs of the canary under
        the trained weights, the folder's, and the first ones."""
        folder = pathlib.Path(folder)
        if self.peft:
            from peft import PeftModel
            adapter = pathlib.Path(self.args.state) / "export"
            self.peft.save_pretrained(adapter)
            PeftModel.from_pretrained(self.base(), adapter).merge_and_unload().save_pretrained(folder)
        else:
            self.model.save_pretrained(folder)
        canary = self.canary()
        back = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation=self.args.attention)
        loaded = self.under(back)
        del back
        return dict(trained=canary["logprobs"], loaded=loaded, first=self.under(self.base()), tolerance=canary["tolerance"])

    def under(self, model):
        """The canary's log-probs under another model."""
        trained, self.model = self.model, model.to(self.device).eval()
        try:
            return self.canary()["logprobs"]
        finally:
            self.model = trained

    def publish(self, version):
        """Writes the weights (the adapter, with LoRA) into a folder of the version and describes them."""
        folder = pathlib.Path(self.args.state) / f"v{version}"
        shutil.rmtree(folder, ignore_errors=True)
        (self.peft or self.model).save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        if folder not in self.folders:
            self.folders.append(folder)
        for old in self.folders[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        self.folders = self.folders[-2:]
        files = [dict(name=f.name, sha256=digest(f), size=f.stat().st_size) for f in sorted(folder.iterdir())]
        return dict(version=version, files=files, canary=self.canary())

    @torch.no_grad()
    def canary(self):
        """32 text ids spread over the vocabulary, with their log-probs."""
        vocab, special = self.config.text_config.vocab_size, self.special_ids()
        ids, i = [], 1
        while len(ids) < 32:
            id = i * 2654435761 % 2 ** 32 % vocab
            i += 1
            if id not in special:
                ids.append(id)
        row = dict(id="canary", ids=ids, loss_mask=[0] + [1] * 31, image_sha256=[], image_grid=[], image_processor=[])
        (_, logp, _, _), = self.logprobs([row])
        return dict(ids=ids, logprobs=logp.tolist(), tolerance=1e-3 if self.args.precision == "float32" else 0.1)

    def special_ids(self):
        c = self.config
        return {c.image_token_id, c.video_token_id, c.vision_start_token_id, c.vision_end_token_id}

    def file(self, sha):
        for folder in reversed(self.folders):
            for f in folder.iterdir():
                if digest(f) == sha:
                    return f
        raise Refused(f"no published file {sha[:12]}; only the last two versions are kept")


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# ---- HTTP ----------------------------------------------------------------------------------------------


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    learner = None
    lock = threading.Lock()  # one request at a time touches the model

    def serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            with self.lock:
                answer = self.answer(urllib.parse.urlsplit(self.path), body)
            status = 200
        except Refused as e:
            status, answer = 422, dict(error=str(e))
        except Exception as e:  # a fault of ours must reach the client, and the process must live on
            self.log_error("%s: %r", self.path, e)
            status, answer = 500, dict(error=f"{type(e).__name__}: {e}")
        self.reply(status, answer)

    do_GET = do_POST = do_PUT = serve

    def answer(self, url, body):
        l, path = self.learner, url.path
        if path == "/v1/info":
            return l.info()
        if path.startswith("/v1/files/"):
            return l.file(path.rpartition("/")[2])
        if path.startswith("/v1/images/"):
            sha = hashlib.sha256(body).hexdigest()
            if sha != path.rpartition("/")[2]:
                raise Refused(f"image {path.rpartition('/')[2][:12]} has digest {sha[:12]}")
            l.images.add(sha, body)
            return {}
        if path == "/v1/step":
            steps = int(urllib.parse.parse_qs(url.query)["steps"][0])
            return l.step(body, json.loads(self.headers["X-Objective"]), steps)
        if path == "/v1/evaluate":
            return l.evaluate(body)
        ask = json.loads(body or b"{}")
        if path == "/v1/encode":
            return l.encode(ask["conversations"])
        if path == "/v1/missing":
            return dict(missing=l.images.missing(ask["images"]))
        if path == "/v1/save":
            return l.save(ask["dir"])
        if path == "/v1/load":
            return l.load(ask["dir"])
        if path == "/v1/start":
            return l.start(ask["dir"])
        if path == "/v1/export":
            return l.export(ask["dir"])
        if path == "/v1/publish":
            return l.publish(int(ask["version"]))
        raise Refused(f"no such request: {path}")

    def reply(self, status, answer):
        if isinstance(answer, pathlib.Path):
            self.head(status, "application/octet-stream", answer.stat().st_size)
            with open(answer, "rb") as f:
                shutil.copyfileobj(f, self.wfile, 1 << 20)
            return
        data = json.dumps(answer).encode()
        self.head(status, "application/json", len(data))
        self.wfile.write(data)

    def head(self, status, kind, size):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_request(self, *_):
        pass


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True, type=pathlib.Path, help="Hugging Face folder")
    p.add_argument("--listen", default="127.0.0.1:8300")
    p.add_argument("--state", default="learner-state", help="folder for published weights")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the forward pass; weights stay float32")
    p.add_argument("--attention", default="sdpa")
    p.add_argument("--micro-tokens", type=int, default=8192, help="padded tokens of one forward pass")
    p.add_argument("--image-bytes", type=int, default=2 << 30, help="encoded images that are kept between batches")
    p.add_argument("--lora-rank", type=int, default=0, help="0 trains all weights")
    p.add_argument("--checkpointing", action="store_true", help="recompute activations in the backward pass")
    args = p.parse_args()
    Requests.learner = Learner(args)
    host, _, port = args.listen.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Requests)
    print(f"learner of {args.model} listens on {server.server_address[0]}:{server.server_address[1]}, pid {os.getpid()}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
