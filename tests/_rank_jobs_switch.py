"""Jobs that change the compressor in mid-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import digest, registered
from _rank_jobs_mass import Scales, gradients, residuals
from _rank_models import Linear

import compressa


def switching(
    *,
    config: Any,
    switches: Sequence[Sequence[Any]],
    steps: int,
    folder: str,
) -> dict[str, Any]:
    """Run steps; before some, call for a switch: (before step, new configuration, first step).

    Saves at the end, and loads into a fresh registration of the last configuration.
    """
    rank = dist.get_rank()
    net, scales = Linear(), Scales()
    errors, kept, began = [], [], []
    with registered(net, config) as (wrapped, handle):
        for step in range(steps):
            for before, wanted, first in switches:
                if before == step:
                    began.append(handle.switch(wanted, first))
            vectors = gradients(rank, step)
            net.zero_grad()
            wrapped(*vectors).backward()
            scales.give(vectors)
            scales.get(net)
            errors.append(max(scales.errors(handle)))
            kept.append(float(sum(v.float().abs().sum() for v in residuals(handle).values())))
        handle.save(folder)
        keys = sorted(handle.state_dict())
        used = sorted(handle.stats().compressors)
    with registered(Linear(), {**config, **switches[-1][1]}) as (_, fresh):
        fresh.load(folder)
        step = fresh.next_step
    return {
        "errors": errors,
        "kept": kept,
        "began": began,
        "keys": keys,
        "compressors": used,
        "loaded_step": step,
        "digest": digest(net),
    }


def refused(*, config: Any, calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Call for switches that can not be; return the messages, and go on training after each."""
    rank, net = dist.get_rank(), Linear()
    messages = []
    with registered(net, config) as (wrapped, handle):
        for number, call in enumerate(calls):
            own = {**call, **call.get(f"rank{rank}", {})}
            try:
                handle.switch(own["to"], own.get("at_step"))
                messages.append("")
            except compressa.CompressaError as error:
                messages.append(f"{type(error).__name__}: {error}")
            net.zero_grad()
            wrapped(*gradients(rank, number)).backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        assert grads
        assert all(bool(torch.isfinite(grad).all()) for grad in grads)
        assert sorted(handle.stats().compressors) == ["none", "topk"]
    return messages
