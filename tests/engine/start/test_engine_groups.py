"""Groups of compressa's own stand in nobody's way, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_models import build
from _ranks import Group
from _training import lasting_threads
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.config import Config
from compressa.engine.start import process_groups

pytestmark = pytest.mark.ranks


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


def held_after(
    cycles: list[int], once: Callable[[], None], patience_s: float = 5.0
) -> list[tuple[int, int]]:
    """Count this process's threads and open files after so many cycles each."""
    held = []
    for number in cycles:
        for _ in range(number):
            once()
        lasting_threads(patience_s)
        held.append((held_least("task"), held_least("fd")))
    return held


def held_least(kind: str) -> int:
    """The least of some counts: a thread that has been joined leaves its process a moment later."""
    counts = []
    for _ in range(10):
        counts.append(len(os.listdir(f"/proc/self/{kind}")))
        time.sleep(0.02)
    return min(counts)


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

    held = held_after(cycles, once, 0.5)  # those of the handle last
    handle.close()
    return held


def reform_with(*, each: list[list[int]]) -> None:
    """Try to go on with some ranks, and with others."""
    for ranks in each:
        with pytest.raises(
            compressa.ConfigError, match="give different ranks of the default group"
        ):
            process_groups.new_group_of(Config(), ranks, "handle.reform")


def assert_no_more(many: list[int], few: list[int]) -> None:
    """Threads and files after many cycles, and after few; some of torch's own may have ended."""
    assert all(later <= sooner for later, sooner in zip(many, few, strict=True)), (few, many)


@pytest.mark.parametrize("first", [True, False], ids=["among them", "before them"])
def test_a_part_registers_and_all_make_groups(first: bool, fresh: Callable[[int], Group]) -> None:
    results = fresh(4).run(use_beside, part=[1, 2], first=first)
    assert results == [[4.0] * (2 + first)] * 4


@pytest.mark.parametrize("fails", [False, True], ids=["", "failing"])
def test_a_registration_on_a_part_of_the_ranks_leaves_nothing(
    fails: bool, fresh: Callable[[int], Group]
) -> None:
    first, second, absent = fresh(3).run(open_and_close, part=[0, 1], cycles=[2, 6], fails=fails)
    assert absent is None
    for few, many in (first, second):
        assert_no_more(many, few)


def test_a_reform_leaves_nothing_of_the_one_before(fresh: Callable[[int], Group]) -> None:
    for few, many in fresh(2).run(reform_often, cycles=[2, 3]):
        assert_no_more(many, few)


def test_ranks_that_can_not_go_on_are_refused(two: Group) -> None:
    two.run(reform_with, ranks=[0], each=[[], [1], [0, 0], [0, 2]])
