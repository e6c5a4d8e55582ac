"""The policy-gradient losses of package trainer/loss, in PyTorch: the same settings, names and values.

A loss is a dict as loss.Config marshals it; docs/losses.md has the formulas, and `make parity` holds both
against verl's and TRL's own functions.
"""

import torch

CHOICES = {
    "old": ("behaviour", "learner"),
    "ratio": ("token", "sequence"),
    "surrogate": ("clip", "cispo"),
    "aggregate": ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
    "kl.estimator": ("k1", "k2", "k3", "k3-clamped", "k1+", "k3+", "k3-clamped+"),
    "correction.level": ("none", "token", "sequence"),
    "correction.mode": ("truncate", "mask"),
}
NUMBERS = ("clip_low", "clip_high", "dual_clip", "delta", "log_clamp", "length", "count_eps", "kl.coef",
           "correction.low", "correction.high", "correction.log_clamp")


def fault(loss):
    """Says what makes loss no loss: a field that is missing, unknown or no number; None where it is one."""
    for key in (*CHOICES, *NUMBERS):
        section, _, field = key.rpartition(".")
        value = (loss.get(section, {}) if section else loss).get(field)
        if key in CHOICES and value not in CHOICES[key]:
            return f"{key} is {value!r}, want one of {', '.join(CHOICES[key])}"
        if key in NUMBERS and not isinstance(value, (int, float)):
            return f"{key} is {value!r}, want a number"
    return None


def tokens(loss, logp, old, behaviour, reference, advantage):
    """The terms of one row, one a loss token, with gradients by logp; and the ratio, weight and KL estimate behind each.

    All arguments but loss and advantage are vectors over the row's loss tokens; behaviour is used under a
    correction only, reference under KL only.
    """
    log = logp - old
    if loss["ratio"] == "sequence":  # the value is the row's, the gradient each token's own
        log = logp - logp.detach() + (log.sum() / max(1, len(log))).detach()
        if loss["log_clamp"]:
            log = log.clamp(max=loss["log_clamp"])
    elif loss["log_clamp"]:
        log = log.clamp(-loss["log_clamp"], loss["log_clamp"])
    ratio = log.exp()
    weight = weights(loss["correction"], old, behaviour)
    terms = surrogate(loss, logp, ratio, advantage) * weight
    kl = torch.zeros_like(terms)
    if loss["kl"]["coef"]:
        kl = estimate(loss["kl"]["estimator"], logp, reference)
        terms = terms + loss["kl"]["coef"] * kl
    return terms, dict(ratio=ratio.detach(), weight=weight, kl=kl.detach())


def bounds(loss):
    return 1 - loss["clip_low"], 1 + loss["clip_high"]


def surrogate(loss, logp, ratio, a):
    clipped = ratio.clamp(*bounds(loss))
    if loss["surrogate"] == "cispo":
        return -clipped.detach() * a * logp
    free = ratio.clamp(max=loss["delta"]) if loss["delta"] else ratio
    terms = -torch.minimum(free * a, clipped * a)
    if loss["dual_clip"] and a < 0:
        terms = terms.clamp(max=-a * loss["dual_clip"])
    return terms


def weights(correction, old, behaviour):
    """Importance weights of old over behaviour: truncated into [low, high], or 0 outside it."""
    if correction["level"] == "none":
        return torch.ones_like(old)
    log = (old - behaviour).detach()
    if correction["level"] == "sequence":
        log = log.sum().expand_as(old)
    if correction["log_clamp"]:
        log = log.clamp(-correction["log_clamp"], correction["log_clamp"])
    w = log.exp()
    if correction["mode"] == "truncate":
        return w.clamp(correction["low"], correction["high"])
    return w * ((w >= correction["low"]) & (w <= correction["high"]))


def estimate(name, logp, reference):
    """Estimates KL(policy, reference); with a trailing + the gradient is k2's."""
    d = reference - logp
    k2 = d * d / 2
    if name == "k2":
        return k2
    if name.startswith("k1"):
        kl = -d
    elif name.startswith("k3-clamped"):
        bounded = d.clamp(-20, 20)
        kl = (bounded.exp() - bounded - 1).clamp(-10, 10)
    else:
        kl = d.exp() - d - 1
    return kl.detach() + k2 - k2.detach() if name.endswith("+") else kl


def divisor(loss, own, batch_tokens, batch_rows):
    """What the sum of a row's terms is divided by; own counts its loss tokens."""
    return {
        "token-mean": batch_tokens + loss["count_eps"],
        "token-sum": 1,
        "seq-mean-token-mean": (own + loss["count_eps"]) * batch_rows,
        "seq-mean-token-sum": batch_rows,
        "seq-mean-token-sum-norm": batch_rows * loss["length"],
    }[loss["aggregate"]]
