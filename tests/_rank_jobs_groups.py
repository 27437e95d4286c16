"""Jobs that open and close groups of compressa's own beside the user's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_jobs import lasting_threads
from _rank_models import build
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.config import Config
from compressa.engine.start import process_groups


def use_beside(*, part: list[int], first: bool) -> list[float]:
    """Register on a part of the ranks, and make groups of all; return sums over these.

    Args:
        part: Who registers.
        first: Whether the user makes a group before that, too, and what is made for the part ends
            only after the last.
    """
    world, own = list(range(dist.get_world_size())), dist.new_group(part)
    names = dist.distributed_c10d._world.pg_names
    groups = [dist.new_group(world)] if first else []
    known = dict(names)
    with contextlib.ExitStack() as stack:
        if dist.get_rank() in part:
            net = DistributedDataParallel(build("mlp", 0), process_group=own)
            handle = compressa.register_comm_hook(net, {"compressor": "int8"})
            assert names == known
            stack.callback(handle.close)
            net(torch.ones(2, 16)).sum().backward()
        if not first:
            stack.close()
        groups += [dist.new_group(world) for _ in range(2)]
        ones = [torch.ones(1) for _ in groups]
        for one, group in zip(ones, groups, strict=True):
            dist.all_reduce(one, group=group)
    for group in [*groups, own]:
        dist.destroy_process_group(group)
    return [float(one) for one in ones]


def held_after(cycles: list[int], once: Callable[[], None]) -> list[tuple[int, int]]:
    """Count this process's threads and open files after so many cycles each."""
    held = []
    for number in cycles:
        for _ in range(number):
            once()
        lasting_threads()
        held.append(tuple(len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")))
    return held


def open_and_close(*, part: list[int], cycles: list[int], fails: bool) -> list[Any] | None:
    """Register on a part of the ranks and close, again and again; return what is held then.

    Args:
        part: Who registers.
        cycles: How often, before each count.
        fails: Whether each registration fails, half-way and on all ranks.
    """
    own = dist.new_group(part)
    if dist.get_rank() not in part:
        return None
    net = DistributedDataParallel(build("mlp", 0), process_group=own)

    def once() -> None:
        module = DistributedDataParallel(net.module, process_group=own)
        config = {"compressor": "int8" if dist.get_rank() == part[0] or not fails else "int4"}
        expected = pytest.raises(compressa.ConfigError, match="the ranks differ")
        with expected if fails else contextlib.nullcontext():
            compressa.register_comm_hook(module, config).close()

    return held_after(cycles, once)


def reform_often(*, cycles: list[int]) -> list[Any]:
    """Reform with the same ranks, again and again; return what is held then."""
    net = DistributedDataParallel(build("mlp", 0))
    handle = compressa.register_comm_hook(net, {"compressor": "int8", "engine": {"recover": True}})
    ranks = list(range(dist.get_world_size()))

    def once() -> None:
        net(torch.ones(2, 16)).sum().backward()
        assert handle.reform(ranks) is None

    held = held_after(cycles, once)
    handle.close()
    return held


def reform_with(*, among: list[int]) -> None:
    """Reform with these ranks; rank 0 only."""
    if dist.get_rank() == 0:
        process_groups.new_group_of(Config(), among, "handle.reform")
