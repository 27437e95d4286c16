"""One place where a compressor's name becomes what trains a model on all ranks.

The baselines are PyTorch's own: plain DDP in float32, its fp16 hook, and its PowerSGD hook. All
others are compressa configurations, which may name a strategy, and beside which a plan may name an
optimizer. The rest of the lab sees an :class:`Attachment` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import get_world_size
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import compressa
from compressa import Config, Stats, Strategy, load_config, optim
from compressa.testbed import Pacer
from lab.records import BASELINES, DDP_FLOAT32, TORCH_FP16, TORCH_POWERSGD, CompressorSpec

ONE_BUCKET_MB = 4096.0
TORCH_POWERSGD_APPROX_RANK = 2


@dataclass(frozen=True)
class Attachment:
    """A model that is trained on all ranks.

    Attributes:
        model: What is called.
        step: Called after each backward pass.
        optimizer: Whose learning rate a schedule sets.
        strategy: What of compressa's keeps totals; None for a baseline.
        bytes_per_step: What is known beforehand of a baseline, else None.
    """

    model: nn.Module
    step: Callable[[], object]
    optimizer: Optimizer
    strategy: Strategy | optim.CompressedOptimizer | None = None
    bytes_per_step: float | None = None

    def stats(self) -> Stats | None:
        """Running totals on this rank; None where none are kept."""
        return None if self.strategy is None else self.strategy.stats()

    def sync(self) -> None:
        """Have all ranks hold the same parameters."""
        if self.strategy is not None:
            self.strategy.sync()

    def close(self) -> None:
        """Takes down what attaching built up."""
        if self.strategy is not None:
            self.strategy.close()


def ring_bytes(elems: int, bytes_per_elem: int, world: int) -> float:
    """Bytes that one rank sends in a ring all-reduce: 2 (P - 1) / P of the data."""
    return 2.0 * (world - 1) / world * elems * bytes_per_elem


def configuration(spec: CompressorSpec, *, steady: bool) -> Config:
    """The configuration behind a name.

    Args:
        spec: A compressor that is no baseline.
        steady: Leave the warm-up out, so that a few steps show what the later ones cost.

    Raises:
        KeyError: If the name has no configuration.
        compressa.ConfigError: If the configuration is wrong.
    """
    if spec.config is None:
        raise KeyError(f"{spec.name!r} is no baseline and has no compressa configuration")
    config = load_config(spec.config)
    if not steady:
        return config
    return config.model_copy(update={"warmup": config.warmup.model_copy(update={"steps": 0})})


def paced(config: Config) -> Config:
    """On a testbed that shapes no links, have the senders hold themselves back."""
    rate = Pacer.from_environment().rate_bits_per_s
    return config.model_copy(
        update={"schedule": config.schedule.model_copy(update={"pace_bits_per_s": rate})}
    )


def dense_warmup_steps(spec: CompressorSpec) -> int:
    """How many steps a compressor begins with in another, denser way."""
    if spec.first is not None:
        return spec.first.steps
    if spec.optimizer is not None:
        return int(spec.optimizer.get("warmup_steps", 0))
    return 0 if spec.name in BASELINES else configuration(spec, steady=False).warmup.steps


def stretches(spec: CompressorSpec, steps: int) -> list[tuple[range, CompressorSpec]]:
    """Steps of a training, and what trains the model in them.

    They go on with one optimizer, unless the first ones have their own.

    Raises:
        ValueError: If the first ones are all.
    """
    if spec.first is None:
        return [(range(steps), spec)]
    if spec.first.steps >= steps:
        raise ValueError(f"{spec.name}: the first {spec.first.steps} of {steps} steps are all")
    own, later = spec.first.optimizer, spec.optimizer
    begins, goes_on = (later, None) if own is None else (own, later)
    first = spec.model_copy(
        update={"config": spec.first.config, "optimizer": begins, "first": None}
    )
    rest = spec.model_copy(update={"optimizer": goes_on, "first": None})
    return [(range(spec.first.steps), first), (range(spec.first.steps, steps), rest)]


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    spec: CompressorSpec,
    *,
    steady: bool,
    bucket_cap_mb: float,
) -> Attachment:
    """Has ``model`` trained as the name says; collective over all ranks.

    Args:
        model: Not trained yet.
        optimizer: Of its parameters.
        spec: Which compressor.
        steady: See :func:`configuration`.
        bucket_cap_mb: Of DDP's buckets where there are any, in MiB, as torch has it.

    Raises:
        KeyError: If the name is no baseline and has no configuration.
        compressa.CompressaError: What ``compressa.attach`` raises.
    """
    if spec.name in _HOOKS:
        ddp = _wrapped(model, bucket_cap_mb)
        known = _HOOKS[spec.name](ddp)
        return Attachment(ddp, optimizer.step, optimizer, bytes_per_step=known)
    own = spec.optimizer is not None  # has a warm-up of its own, then
    config = paced(configuration(spec, steady=steady and not own))
    if spec.optimizer is not None:
        optimizer = _named_optimizer(model, spec.optimizer, config, steady=steady)
    if isinstance(optimizer, optim.CompressedOptimizer):
        return Attachment(model, optimizer.step, optimizer, optimizer)
    by_hook = config.strategy is None or config.strategy.name == "hook"
    trained = _wrapped(model, bucket_cap_mb) if by_hook else model
    strategy = compressa.attach(trained, optimizer, config)
    return Attachment(strategy.model, strategy.step, optimizer, strategy)


def _named_optimizer(
    model: nn.Module, settings: dict[str, Any], config: Config, *, steady: bool
) -> Optimizer:
    """Make what a plan names in place of a task's optimizer."""
    own = {key: value for key, value in settings.items() if key != "name"}
    kind = getattr(optim, settings["name"], None)
    if kind is None:
        made: Optimizer = getattr(torch.optim, settings["name"])(model.parameters(), **own)
        return made
    if steady and "warmup_steps" in own:
        own["warmup_steps"] = 1
    made = kind(model.named_parameters(), config=config, **own)
    return made


def _wrapped(model: nn.Module, bucket_cap_mb: float) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)


def trained_elems(model: nn.Module) -> int:
    """Number of parameters' elements that have gradients."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _ddp_float32(model: DistributedDataParallel) -> float:
    return ring_bytes(trained_elems(model), 4, get_world_size())


def _torch_fp16(model: DistributedDataParallel) -> float:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return ring_bytes(trained_elems(model), 2, get_world_size())


def _torch_powersgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=TORCH_POWERSGD_APPROX_RANK,
        start_powerSGD_iter=2,  # the smallest that it allows together with error feedback
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


_HOOKS: dict[str, Callable[[DistributedDataParallel], float | None]] = {
    DDP_FLOAT32: _ddp_float32,
    TORCH_FP16: _torch_fp16,
    TORCH_POWERSGD: _torch_powersgd,
}
"""Puts a baseline's hook on a model; returns what a rank sends in a step, if that is known."""


def bucket_caps_mb(name: str, candidates: list[float]) -> list[float]:
    """The bucket sizes to try for a compressor; the fastest is what it gets.

    The bits that compressa computes do not depend on DDP's buckets, but smaller ones hand it
    gradients earlier. PyTorch's PowerSGD hook fails on Gloo with more than one bucket (its second
    all-reduce is launched in a different order on every rank), so it has one.
    """
    return [ONE_BUCKET_MB] if name == TORCH_POWERSGD else candidates
