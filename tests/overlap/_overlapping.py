"""Training with OverlappedDataParallel, in all ways that its arguments allow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _training import digest, lasting_threads, state_digest
from test_overlap import OPTIMIZERS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa import OverlappedDataParallel
from compressa.overlap.reducer import Reducer


def optimizer_of(name: str, net: nn.Module) -> torch.optim.Optimizer:
    """Two groups, of which one has a learning rate of its own."""
    parameters = list(net.parameters())
    optimizer = OPTIMIZERS[name](parameters[::2])
    optimizer.add_param_group({"params": parameters[1::2]})
    optimizer.param_groups[1]["lr"] = optimizer.param_groups[1]["lr"] * 0.5
    return optimizer


@contextlib.contextmanager
def overlapped(
    net: nn.Module, optimizer: torch.optim.Optimizer, config: Any, **options: Any
) -> Iterator[OverlappedDataParallel]:
    """Wrap a module; each step is deferred, even if all gradients have come but were not read."""

    def late(reducer: Reducer) -> bool:
        return any(not gradient.over for gradient in reducer.current.values())

    with mock.patch.object(Reducer, "late", property(late)):
        model = OverlappedDataParallel(net, optimizer, config, **options)
        try:
            yield model
        finally:
            model.close()
    assert not lasting_threads()


def _train(
    model: Any,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *,
    accumulate: int = 1,
    apart: bool = True,
    max_norm: float | None = None,
    scaler: Any = None,
    spoil: Mapping[int, int] | None = None,
    slow: int | None = None,
) -> None:
    """The loop of a user's script.

    With `apart`, all but the last of the gradients that add up are not combined before. `spoil`
    names the rank whose loss is infinite, by step, and `slow` the one that does something
    else before each optimizer step.
    """
    rank = dist.get_rank()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in steps:
        optimizer.zero_grad()
        for micro in range(accumulate):
            synced = not apart or micro == accumulate - 1
            with contextlib.nullcontext() if synced else model.no_sync():
                loss = loss_of(model, rank, step * accumulate + micro, torch.float32) / accumulate
                if spoil and spoil.get(step) == rank:
                    loss = loss * float("inf")
                (loss if scaler is None else scaler.scale(loss)).backward()
        if slow == rank:
            time.sleep(0.1)
        if scaler is not None:
            scaler.unscale_(optimizer)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()


def around_ddp(*, config: Any) -> None:
    """Hand over a model that averages gradients already."""
    net = build("mlp", dist.get_rank())
    OverlappedDataParallel(DistributedDataParallel(net), optimizer_of("sgd", net), config)


def _scaler(wanted: bool) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=1024.0) if wanted else None


def train_in_all_ways(
    *,
    config: Any,
    optimizer: str = "sgd",
    model: str = "mlp",
    steps: int = 4,
    scaled: bool = False,
    ddp: bool = True,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Train with DDP, with overlap, and without; return digests of what comes out."""
    options = dict(options or {})
    ends: dict[str, Any] = {}
    if "spoil" in how:
        how["spoil"] = {int(step): rank for step, rank in how["spoil"].items()}
    for way in (["ddp"] if ddp else []) + ["off", "on"]:
        net = build(model, dist.get_rank())
        chosen = optimizer_of(optimizer, net)
        scaler = _scaler(scaled)
        if way == "ddp":
            unused = options.get("find_unused_parameters", False)
            wrapped = DistributedDataParallel(net, find_unused_parameters=unused)
            _train(wrapped, chosen, range(steps), scaler=scaler, **how)
            ends["ddp"] = digest(net)
            continue
        with overlapped(
            net, chosen, config, overlap=way == "on", scaler=scaler, **options
        ) as overlap:
            _train(overlap, chosen, range(steps), scaler=scaler, **how)
            if way == "on":
                ends["late"] = len(overlap._updates.due)
                ends["ended"] = overlap.overlap_ended
            ends[f"{way} state"] = state_digest(overlap.handle)
            ends[way] = digest(net)
            ends["finite"] = all(bool(p.isfinite().all()) for p in net.parameters())
    return ends
