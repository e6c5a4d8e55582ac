"""Training: on phantoms, by folds of wingspan, and on all of it."""

import hashlib
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

from .augment import Pool, Pools, pool_of
from .films import ALLOWED, hannover, patients, phantoms, wingspan
from .network import Net, parameters
from .weights import load, save

FOLDS = 5


def loss_of(logits, labels):
    """Cross-entropy, of the allowed classes together where several are, plus 1 - Dice of the three structures on the films
    that have all of them drawn."""
    logp = logits.log_softmax(1)
    entropy = 0
    for label, classes in enumerate(ALLOWED[:-1]):
        entropy = entropy - (labels[:, label] * logp[:, list(classes)].logsumexp(1)).sum()
    entropy = entropy / labels[:, 0].numel()
    whole = labels[:, 4:].sum((1, 2, 3)) == 0
    p, classes = logits[whole].softmax(1), labels[whole, :4]
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


def hannover_folds(data):
    """The fold of each film of hannover: all of a patient in one."""
    of = patients(data)
    folds = folds_of(sorted(set(of.values())))
    return {name: folds[patient] for name, patient in of.items()}


def real_films(args, log):
    """Films of both hospitals: their names and forms. Of hannover's, whose masks say less, there are fewer forms."""
    drawn, partly = wingspan(args.data), hannover(args.data)
    log(f"{len(drawn.names)} films of wingspan, {len(partly.names)} of hannover")
    pools = Pools(
        pool_of(args.out / "wingspan.pt", drawn, args.each, args.seed, log),
        pool_of(args.out / "hannover.pt", partly, args.each // 3, args.seed + 1, log),
    )
    return drawn.names, partly.names, pools


def crossval(args):
    out = args.out / args.mode
    log = logger(out / "log.txt")
    log(f"{note(args, out)}")
    drawn, partly, pools = real_films(args, log)
    fold, by_patient = folds_of(drawn), hannover_folds(args.data)
    for k in range(FOLDS):
        if (out / f"fold{k}.safetensors").exists():
            continue
        rows = pools.rows([i for i, n in enumerate(drawn) if fold[n] != k], [i for i, n in enumerate(partly) if by_patient[n] != k])
        net = train(fresh(args, args.seed + k, k), pools, rows, args, args.seed + k, log)
        save(net, out / f"fold{k}.safetensors")
        log(f"fold {k} done")


def final(args):
    log = logger(args.out / "final/log.txt")
    log(f"{note(args, args.out / 'final')}")
    drawn, partly, pools = real_films(args, log)
    net = train(fresh(args, args.seed), pools, pools.rows(range(len(drawn)), range(len(partly))), args, args.seed, log)
    save(net, args.out / "final/weights.safetensors")
