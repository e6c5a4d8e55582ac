"""verl's and TRL's own loss and advantage functions, called on plain float64 vectors.

Nothing here computes a loss: it arranges the peers' arguments. What of their imports the losses do not need
(Ray and the like) is replaced by stand-ins, so that the functions run without a cluster's software.
"""

import ast
import collections
import importlib.abc
import importlib.machinery
import inspect
import sys
import textwrap
import types
from unittest import mock

ABSENT = {"ray", "codetiming", "torchdata", "wandb", "orjson"}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, StandIns())

import numpy as np  # noqa: E402
import torch  # noqa: E402
import trl  # noqa: E402
import verl  # noqa: E402
from trl.trainer import grpo_trainer  # noqa: E402
from verl.trainer.ppo import core_algos, rollout_corr_helper  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402

torch.set_default_dtype(torch.float64)  # a quotient of counts would be a float32 otherwise
VERSIONS = dict(verl=verl.__version__, trl=trl.__version__, torch=torch.__version__.partition("+")[0])
NO_CLIP = 1e300  # dual clip cannot be switched off in verl


def pad(rows, key, width):
    out = torch.zeros(len(rows), width, dtype=torch.float64)
    for i, r in enumerate(rows):
        out[i, :len(r[key])] = torch.tensor(r[key], dtype=torch.float64)
    return out


class Padded:
    """Rows as matrices [rows, width], padded with zeros."""

    def __init__(self, rows):
        width = max(len(r["logprobs"]) for r in rows)
        self.logp = pad(rows, "logprobs", width).requires_grad_()
        self.old, self.behaviour, self.reference = (pad(rows, k, width) for k in ("old", "behaviour", "reference"))
        self.advantage = torch.tensor([[r["advantage"]] for r in rows], dtype=torch.float64)
        self.lengths = [len(r["logprobs"]) for r in rows]
        self.mask = pad([dict(m=[1] * n) for n in self.lengths], "m", width)

    def gradient(self, loss):
        loss.backward()
        return [self.logp.grad[i, :n].tolist() for i, n in enumerate(self.lengths)]


# ---- verl ----------------------------------------------------------------------------------------------


def verl_loss(rows, name="vanilla", mode="token-mean", length=None, low=0.2, high=0.2, dual=NO_CLIP,
              kl=0.0, estimator="k3", level=None, threshold=2.0, batch=None, ranks=1):
    """The loss of rows as verl's worker computes it, and its gradient. batch: (tokens, rows) of the whole
    mini-batch where rows are a part of it."""
    p = Padded(rows)
    count = batch or (sum(p.lengths), len(rows))
    info = dict(dp_size=ranks, batch_num_tokens=count[0], global_batch_size=count[1], loss_scale_factor=length)
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=low, clip_ratio_high=high,
                         clip_ratio_c=dual, global_batch_info=info)
    weights = None
    if level:
        weights, _ = rollout_corr_helper.compute_rollout_correction_weights(p.old - p.behaviour, p.mask, level, threshold)
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=p.old, log_prob=p.logp, advantages=p.advantage.expand_as(p.mask), response_mask=p.mask,
        loss_agg_mode=mode, config=config, rollout_is_weights=weights)
    if kl:
        kld = core_algos.kl_penalty(p.logp, p.reference, estimator)
        loss = loss + kl * core_algos.agg_loss(kld, p.mask, mode, **info)
    return loss.item(), p.gradient(loss)


def verl_advantage(rewards, groups, estimator="grpo", **kwargs):
    scores = torch.tensor(rewards, dtype=torch.float64)[:, None]
    a, _ = core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=scores.clone(), response_mask=torch.ones_like(scores), index=np.array(groups), **kwargs)
    return a[:, 0].tolist()


# ---- TRL -----------------------------------------------------------------------------------------------


def statements(method, wanted):
    """The statements of a method for which wanted(node) holds, compiled; outermost first."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and wanted(n)]
    return [compile(ast.Module([n], []), "trl", "exec") for n in found]


def has(node, kind, text):
    return isinstance(node, kind) and text in ast.unparse(node)


GENERATE = grpo_trainer.GRPOTrainer._generate_and_score_completions
TRL_WEIGHTS, = statements(GENERATE, lambda n: isinstance(n, ast.If) and any(has(b, ast.Assign, "per_token_logps_diff = torch.nan_to_num") for b in n.body))
TRL_ADVANTAGE = [statements(GENERATE, lambda n: isinstance(n, ast.If) and "self.multi_objective_aggregation == 'sum_then_normalize'" in ast.unparse(n.test))[0],
                 *statements(GENERATE, lambda n: has(n, ast.Assign, "advantages = torch.nan_to_num(advantages"))]


def run_statements(codes, **local):
    scope = dict(vars(grpo_trainer), **local)
    for code in codes:
        exec(code, scope)
    return scope


def trl_loss(rows, loss_type="dapo", level="token", low=0.2, high=0.2, delta=None, beta=0.0, length=None,
             weights=None, weights_min=None, weights_max=3.0, batch_tokens=None, accumulation=1, ranks=1):
    """GRPOTrainer._compute_loss over rows in training, and its gradient."""
    p = Padded(rows)
    accelerator = types.SimpleNamespace(num_processes=ranks, gather=lambda x: x, reduce=lambda x, reduction: x)
    trainer = types.SimpleNamespace(
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, _entropy_bonus_enabled=False,
        importance_sampling_level=level, beta=beta, loss_type=loss_type, epsilon_low=low, epsilon_high=high,
        use_vllm=weights is not None, vllm_importance_sampling_correction=True, vllm_importance_sampling_mode=weights,
        vllm_importance_sampling_clip_min=weights_min, vllm_importance_sampling_clip_max=weights_max,
        max_completion_length=length, model=types.SimpleNamespace(training=True), accelerator=accelerator,
        current_gradient_accumulation_steps=accumulation, _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        args=types.SimpleNamespace(use_bias_correction_kl=False, delta=delta, steps_per_generation=accumulation),
        _get_per_token_logps_and_entropies=lambda *_, **__: (p.logp, torch.zeros_like(p.mask), None))
    blank = torch.zeros(len(rows), 1)
    inputs = dict(prompt_ids=blank, prompt_mask=blank, completion_ids=p.mask, completion_mask=p.mask, advantages=p.advantage[:, 0],
                  old_per_token_logps=p.old, ref_per_token_logps=p.reference,
                  num_items_in_batch=torch.tensor(float(batch_tokens or sum(p.lengths)), dtype=torch.float64))
    if weights:
        inputs["importance_sampling_ratio"] = run_statements(
            [TRL_WEIGHTS], self=trainer, completion_mask=p.mask, tool_mask=None,
            old_per_token_logps=p.old, sampling_per_token_logps=p.behaviour)["vllm_importance_sampling_ratio"]
    loss = grpo_trainer.GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss.item(), p.gradient(loss)


def trl_advantage(rewards, size, scale="group"):
    """The advantages of groups of size, which TRL tells apart by position."""
    per_func = torch.tensor(rewards, dtype=torch.float64)[:, None]
    trainer = types.SimpleNamespace(multi_objective_aggregation="sum_then_normalize", scale_rewards=scale,
                                    reward_weights=torch.ones(1, dtype=torch.float64))
    scope = run_statements(TRL_ADVANTAGE, self=trainer, rewards_per_func=per_func, device="cpu", num_generations=size,
                           unscorable_mask=torch.isnan(per_func).all(dim=1))
    return scope["advantages"].tolist()
