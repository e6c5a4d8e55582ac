"""Holds the losses against verl's and TRL's own functions.

    python learner/parity/fixtures.py            compares with the committed files and with learner/losses.py
    python learner/parity/fixtures.py --write    writes the files anew

The inputs are ours; every expected value is what a peer's function returned for them, in float64. The Go tests of
trainer/loss and trainer/advantage read the same files. "preset" says that the settings are that preset's, and Go
checks it.
"""

import argparse
import copy
import itertools
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import losses  # noqa: E402
import peers  # noqa: E402
import torch  # noqa: E402

TRAINER = HERE.parents[1] / "trainer"
PLAIN = dict(preset="verl", advantage="verl", old="learner", ratio="token", surrogate="clip", clip_low=0.2, clip_high=0.2,
             dual_clip=0, delta=0, log_clamp=0, aggregate="token-mean", length=0, count_eps=0,
             kl=dict(coef=0, estimator="k3"), correction=dict(level="none", mode="truncate", low=0, high=0, log_clamp=0))


def near(got, want):
    """Absolute 1e-9; behind float64's own precision where a value is above 1e5."""
    return abs(got - want) <= max(1e-9, 1e-14 * abs(want))


# ---- inputs --------------------------------------------------------------------------------------------


def grid(steps):
    """A row for each sign of the advantage, a token for each distance from the old policy."""
    return [dict(logprobs=[-1.5 + d for d in steps], old=[-1.5] * len(steps), behaviour=[-1.4] * len(steps),
                 reference=[-1.7] * len(steps), advantage=a) for a in (-1, 0, 1)]


def drawn(seed, lengths, spread=0.4):
    r = random.Random(seed)

    def around(x, by):
        return [round(v + r.gauss(0, by), 6) for v in x]

    rows = []
    for n in lengths:
        old = [round(-r.expovariate(0.7) - 0.01, 6) for _ in range(n)]
        rows.append(dict(logprobs=around(old, spread), old=old, behaviour=around(old, spread / 2), reference=around(old, 2 * spread),
                         advantage=round(r.gauss(0, 1), 6)))
    return rows


GRID = grid([-25, -1, -0.25, 0, 0.15, 0.25, 1, 1.13, 25])
NEAR = grid([-1, -0.25, 0, 0.15, 0.25, 1])
MIXED = drawn(1, [5, 1, 3, 8, 2, 4])
CLOSE = drawn(2, [5, 1, 3, 8, 2, 4], 0.0005)  # around GSPO's bounds
APART = drawn(3, [4, 1, 3, 2, 6, 5], 0.8)  # for weights beyond their bounds
UNEVEN = drawn(4, [1, 3, 0, 2])
BEYOND = [r for d in (-12, 12) for r in grid([d, d + 0.5])]  # GSPO's clamp
FAR = [dict(r, reference=[lp + d for lp, d in zip(r["logprobs"], itertools.cycle((-30, -21, -3, 0, 0.5, 2, 2.4, 2.62, 3, 22)))]) for r in MIXED]


# ---- losses --------------------------------------------------------------------------------------------


def settings(**changes):
    loss = copy.deepcopy(PLAIN)
    for key, value in changes.items():
        section, _, field = key.rpartition("__")
        (loss[section] if section else loss)[field] = value
    return loss


def loss_cases():
    """Yields (name, rows, peer's function, its arguments, our settings, whether they are a preset's)."""
    verl, trl = peers.verl_loss, peers.trl_loss
    w = dict(correction__level="token", correction__log_clamp=20)

    def case(name, rows, peer, args, named=False, **ours):
        return name, rows, peer, args, settings(**ours), named

    # presets, each against the code that it is named after; nemo-loo has none on the package registry
    verl_preset = dict(preset="verl", dual_clip=3, log_clamp=20, kl__estimator="k3-clamped")
    trl_preset = dict(preset="trl", advantage="trl", correction__level="sequence", correction__mode="mask", correction__high=3)
    gspo = dict(preset="gspo", old="behaviour", ratio="sequence", clip_low=3e-4, clip_high=4e-4, log_clamp=10, aggregate="seq-mean-token-mean", count_eps=1e-8)
    dr = dict(preset="drgrpo", old="behaviour", advantage="drgrpo", aggregate="seq-mean-token-sum-norm", length=320)
    cispo = dict(preset="cispo", old="behaviour", surrogate="cispo", clip_low=1, clip_high=4)
    for data, rows in dict(grid=GRID, mixed=MIXED).items():
        yield case(f"verl {data}", rows, verl, dict(dual=3.0), True, **verl_preset)
    for data, rows in dict(grid=GRID, mixed=MIXED, apart=APART).items():
        yield case(f"trl {data}", rows, trl, dict(weights="sequence_mask"), True, **trl_preset)
    for data, rows in dict(grid=NEAR, mixed=MIXED).items():
        yield case(f"xragent {data}", rows, verl, dict(high=0.28), True, preset="xragent", old="behaviour", clip_high=0.28)
        yield case(f"dapo {data}, verl", rows, verl, dict(high=0.28), True, preset="dapo", old="behaviour", clip_high=0.28)
        yield case(f"drgrpo {data}, verl", rows, verl, dict(mode="seq-mean-token-sum-norm", length=320), True, **dr)
        yield case(f"cispo {data}", rows, trl, dict(loss_type="cispo", high=5.0), True, **cispo)
    for data, rows in dict(grid=GRID, mixed=MIXED).items():
        yield case(f"dapo {data}, TRL", rows, trl, dict(high=0.28), True, preset="dapo", old="behaviour", clip_high=0.28)
        yield case(f"drgrpo {data}, TRL", rows, trl, dict(loss_type="dr_grpo", length=320), True, **dr)
    for data, rows in dict(grid=GRID, mixed=MIXED, close=CLOSE, beyond=BEYOND).items():
        yield case(f"gspo {data}, verl", rows, verl, dict(name="gspo", mode="seq-mean-token-mean", low=3e-4, high=4e-4), True, **gspo)
        yield case(f"gspo {data}, TRL", rows, trl, dict(loss_type="grpo", level="sequence", low=3e-4, high=4e-4),
                        **dict(gspo, log_clamp=0, count_eps=0))
    for data, rows in dict(near=NEAR, mixed=MIXED, far=FAR).items():
        yield case(f"nemo-loo {data}: its clip and KL", rows, verl, dict(kl=0.01, estimator="k3"),
                        preset="nemo-loo", advantage="nemo-loo", log_clamp=20, kl__coef=0.01, kl__estimator="k3-clamped")

    # ratio and clip
    for high, dual in itertools.product((0.2, 0.28), (peers.NO_CLIP, 3.0)):
        yield case(f"clip 0.2 {high} dual {dual == 3.0}", GRID, verl, dict(high=high, dual=dual),
                        clip_high=high, dual_clip=3 if dual == 3.0 else 0, log_clamp=20)
    for delta in (None, 1.5, 4.0):
        yield case(f"TRL delta {delta}", GRID, trl, dict(loss_type="dapo", delta=delta), delta=delta or 0)
        yield case(f"TRL sequence ratio, delta {delta}", APART, trl, dict(loss_type="dapo", level="sequence", delta=delta),
                        ratio="sequence", delta=delta or 0)
    for data, rows in dict(grid=GRID, mixed=MIXED).items():
        yield case(f"verl cispo {data}", rows, verl, dict(name="cispo"), surrogate="cispo", log_clamp=20)
        yield case(f"TRL cispo sequence {data}", rows, trl, dict(loss_type="cispo", level="sequence", high=1.3),
                        surrogate="cispo", ratio="sequence", clip_low=1, clip_high=1.3 - 1)

    # denominators
    for mode, eps, length in (("token-mean", 0, None), ("token-sum", 0, None), ("seq-mean-token-sum", 0, None),
                              ("seq-mean-token-sum-norm", 0, 64), ("seq-mean-token-mean", 1e-8, None)):
        yield case(f"verl {mode}", UNEVEN, verl, dict(mode=mode, length=length, kl=0.1),
                        aggregate=mode, length=length or 0, count_eps=eps, log_clamp=20, kl__coef=0.1, kl__estimator="k3-clamped")
    for kind, mode, length in TRL_KINDS:
        yield case(f"TRL {kind}", UNEVEN, trl, dict(loss_type=kind, length=length, beta=0.1),
                        aggregate=mode, length=length or 0, kl__coef=0.1)

    # KL estimators
    for name, ours in dict(k1="k1", k2="k2", low_var_kl="k3-clamped", **{"k1+": "k1+", "k3+": "k3-clamped+"}).items():
        yield case(f"verl KL {name}", FAR, verl, dict(kl=0.5, estimator=name), log_clamp=20, kl__coef=0.5, kl__estimator=ours)
    for data, rows in dict(mixed=MIXED, far=FAR).items():
        yield case(f"TRL KL {data}", rows, trl, dict(beta=0.5), kl__coef=0.5)
    yield case("verl k3+ where nothing is clamped", MIXED, verl, dict(kl=0.5, estimator="k3+"), log_clamp=20, kl__coef=0.5, kl__estimator="k3+")

    # correction of the sampler's probabilities
    for level, threshold in itertools.product(("token", "sequence"), (2.0, 5.0, "0.5_5.0")):
        low, high = (0.5, 5.0) if threshold == "0.5_5.0" else (0, threshold)
        ours = dict(w, correction__level=level, correction__mode="mask" if low else "truncate", correction__low=low, correction__high=high)
        yield case(f"verl weights {level} {threshold}", APART, verl, dict(level=level, threshold=threshold), log_clamp=20, **ours)
        yield case(f"verl weights {level} {threshold} with KL", APART, verl, dict(level=level, threshold=threshold, kl=0.2),
                        log_clamp=20, kl__coef=0.2, kl__estimator="k3-clamped", **ours)
        yield case(f"verl gspo, weights {level} {threshold}", APART, verl,
                        dict(name="gspo", mode="seq-mean-token-mean", level=level, threshold=threshold),
                        ratio="sequence", log_clamp=10, aggregate="seq-mean-token-mean", count_eps=1e-8, **ours)
        yield case(f"verl cispo, weights {level} {threshold}", APART, verl, dict(name="cispo", level=level, threshold=threshold),
                        surrogate="cispo", log_clamp=20, **ours)
    for level, mode, low in itertools.product(("token", "sequence"), ("truncate", "mask"), (None, 0.6)):
        yield case(f"TRL weights {level}_{mode} {low}", APART, trl, dict(weights=f"{level}_{mode}", weights_min=low, weights_max=1.8),
                        correction__level=level, correction__mode=mode, correction__low=low or 0, correction__high=1.8)
    for level in ("token", "sequence"):
        yield case(f"TRL masked {level} weights, KL kept", APART, trl, dict(weights=f"{level}_mask", weights_max=1.8, beta=0.2),
                        correction__level=level, correction__mode="mask", correction__high=1.8, kl__coef=0.2)


TRL_KINDS = (("grpo", "seq-mean-token-mean", None), ("bnpo", "token-mean", None), ("dr_grpo", "seq-mean-token-sum-norm", 64),
             ("dapo", "token-mean", None), ("luspo", "seq-mean-token-sum", None))


def losses_of_peers():
    out = []
    for name, rows, peer, args, ours, named in loss_cases():
        loss, gradient = peer(rows, **args)
        out.append(dict(name=name, peer=peer.__name__.partition("_")[0], preset=named, settings=ours, rows=rows, loss=loss, gradient=gradient))
    return out


# ---- splits over ranks and micro-batches -----------------------------------------------------------------


def splits():
    """One row a micro-batch, two micro-batches a rank, two ranks, against the whole: what the ranks' mean gradient is the gradient of."""
    tokens = sum(len(r["logprobs"]) for r in UNEVEN)
    out = []
    for mode, eps, length in (("token-mean", 0, None), ("token-sum", 0, None), ("seq-mean-token-sum", 0, None),
                              ("seq-mean-token-sum-norm", 0, 64), ("seq-mean-token-mean", 1e-8, None)):
        parts = [peers.verl_loss([r], mode=mode, length=length, batch=(tokens, len(UNEVEN)), ranks=2)[0] for r in UNEVEN]
        out.append(dict(name=f"verl {mode}", invariant=True, split=sum(parts) / 2, rows=UNEVEN,
                        settings=settings(aggregate=mode, length=length or 0, count_eps=eps, log_clamp=20)))
    for kind, mode, length in TRL_KINDS:
        parts = [peers.trl_loss([r], loss_type=kind, length=length, batch_tokens=tokens, accumulation=2, ranks=2)[0] for r in UNEVEN]
        out.append(dict(name=f"TRL {kind}", invariant=kind != "bnpo", split=sum(parts) / 2, rows=UNEVEN,
                        settings=settings(aggregate=mode, length=length or 0)))
    return out


# ---- advantages ----------------------------------------------------------------------------------------


def advantages():
    out = []
    for size in (1, 2, 4, 8):
        mixed = [float(i % 3 == 0) for i in range(size)]
        shaped = [round(0.05 * (i * 7 % 11), 2) for i in range(size)]
        for rewards in ([0.0] * size, [1.0] * size, [0.7] * size, mixed, shaped, [*mixed[:-1], float("nan")]):
            group = [0] * size
            one = dict(verl=peers.verl_advantage(rewards, group), trl=peers.trl_advantage(rewards, size),
                       drgrpo=peers.verl_advantage(rewards, group, norm_adv_by_std_in_grpo=False))
            if size == 2:  # two rewards: leave-one-out without a deviation to divide by is RLOO
                one["nemo-loo"] = peers.verl_advantage(rewards, group, "rloo")
            for preset, values in one.items():
                out.append(dict(preset=preset, rewards=[number(x) for x in rewards], want=[number(x) for x in values],
                                deviation=deviation(rewards)))
            drgrpo = peers.trl_advantage(rewards, size, "none")
            out.append(dict(preset="drgrpo", rewards=[number(x) for x in rewards], want=[number(x) for x in drgrpo], deviation=deviation(rewards)))
    return out


def number(x):
    return None if x != x else x


def deviation(rewards):
    """Where we declare that ours is another value than the peers'."""
    if any(x != x for x in rewards):
        return "NaN is refused"
    if len(rewards) == 1:
        return "a group of one is 0"
    return "equal rewards are exactly 0" if min(rewards) == max(rewards) else ""


# ---- comparing -----------------------------------------------------------------------------------------


def own(case):
    """Loss and gradient by learner/losses.py."""
    rows, loss = case["rows"], case["settings"]
    count, total, gradients = sum(len(r["logprobs"]) for r in rows), 0.0, []
    for r in rows:
        v = {k: torch.tensor(r[k], dtype=torch.float64) for k in ("logprobs", "old", "behaviour", "reference")}
        logp = v["logprobs"].requires_grad_()
        if not len(logp):
            gradients.append([])
            continue
        terms, _ = losses.tokens(loss, logp, v["old"], v["behaviour"], v["reference"], r["advantage"])
        part = terms.sum() / losses.divisor(loss, len(logp), count, len(rows))
        part.backward()
        total += part.item()
        gradients.append(logp.grad.tolist())
    return total, gradients


def differences(case, loss, gradient):
    pairs = [("loss", loss, case["loss"])]
    for i, (got, want) in enumerate(zip(gradient, case["gradient"], strict=True)):
        pairs += [(f"gradient of token {t} in row {i}", g, w) for t, (g, w) in enumerate(zip(got, want, strict=True))]
    return [f"{case['name']}: {what} is {got!r}, want {want!r}" for what, got, want in pairs if not near(got, want)]


def same(path, a, b):
    """Yields where two JSON values differ by more than numbers may."""
    if isinstance(a, float) and isinstance(b, (int, float)) and not isinstance(b, bool):
        if not near(a, b):
            yield f"{path}: {a!r} now, {b!r} in the file"
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for k in a:
            yield from same(f"{path}.{k}", a[k], b[k])
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)):
            yield from same(f"{path}[{i}]", x, y)
    elif a != b:
        yield f"{path}: {a!r} now, {b!r} in the file"


def text(fixtures):
    """JSON with one case a line."""
    lists = {k: v for k, v in fixtures.items() if isinstance(v, list)}
    head = json.dumps({k: v for k, v in fixtures.items() if k not in lists})[:-1]
    body = ['"%s": [\n%s\n]' % (k, ",\n".join(json.dumps(c) for c in v)) for k, v in lists.items()]
    return head + ",\n" + ",\n".join(body) + "}\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--write", action="store_true", help="write the file anew")
    write = p.parse_args().write
    made = dict(loss=dict(versions=peers.VERSIONS, losses=losses_of_peers(), splits=splits()),
                advantage=dict(versions=peers.VERSIONS, groups=advantages()))
    bad = [f"{c['name']}: {f}" for c in made["loss"]["losses"] if (f := losses.fault(c["settings"]))]
    bad += [d for c in made["loss"]["losses"] for d in differences(c, *own(c))]
    for package, fixtures in made.items():
        file = TRAINER / package / "testdata" / "peers.json"
        if write:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text(fixtures))
        bad += same(f"{package}/testdata/peers.json", json.loads(text(fixtures)), json.loads(file.read_text()))
    print(*bad[:40], sep="\n", end="\n" if bad else "")
    print(f"losses: {len(made['loss']['losses'])} cases of loss and gradient, {len(made['loss']['splits'])} splits, "
          f"{len(made['advantage']['groups'])} groups; {peers.VERSIONS}; {len(bad)} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
