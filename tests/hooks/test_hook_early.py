"""Gradients leave DDP's bucket before it is full, and only where DDP would send it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _ranks import Group, same, settings
from _training import _optimizer, digest, registered, train
from torch.nn.parallel import DistributedDataParallel

from compressa.engine.device_stream import Ticket
from compressa.hooks.ddp import DDPHook
from compressa.hooks.handle import Handle

pytestmark = pytest.mark.ranks

VIEW = {"gradient_as_bucket_view": True}
FULL = "a bucket is full"


@contextlib.contextmanager
def noted() -> Iterator[list[Any]]:
    """What is submitted, by name, and when a bucket is full."""
    events: list[Any] = []
    submit, full = Handle.submit, DDPHook.submit

    def noting_submit(self: Handle, tensors: Mapping[str, torch.Tensor], **how: Any) -> Ticket:
        events.append(sorted(tensors))
        return submit(self, tensors, **how)

    def noting_full(self: DDPHook, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        events.append(FULL)
        return full(self, bucket)

    Handle.submit, DDPHook.submit = noting_submit, noting_full  # type: ignore[method-assign]
    try:
        yield events
    finally:
        Handle.submit, DDPHook.submit = submit, full  # type: ignore[method-assign]


def events_of_steps(
    *, config: Any, ddp: Mapping[str, Any], model: str = "mlp", steps: int = 4
) -> list[list[Any]]:
    """Return what happened in each step."""
    rank, happened = dist.get_rank(), []
    with noted() as events, registered(model, config, ddp=ddp) as (wrapped, _):
        optimizer = _optimizer(wrapped)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(wrapped, rank, step, torch.float32).backward()
            optimizer.step()
            happened.append(events[:])
            events.clear()
    return happened


def backward_without_hook(*, config: Any) -> dict[str, Any]:
    """Run backward passes for which DDP calls no hook, between steps in which it does."""
    happened: dict[str, Any] = {}
    with noted() as events, registered("mlp", config, ddp=VIEW) as (wrapped, _):
        optimizer = _optimizer(wrapped)

        def note(what: str) -> None:
            happened[what] = events[:]
            events.clear()

        for step in range(3):
            optimizer.zero_grad()
            _loss(wrapped, step).backward()
        note("steps")
        for what in ("no_sync", "evaluated meanwhile", "failed meanwhile"):
            _backward_of_no_sync(wrapped, what)
            note(what)
        optimizer.zero_grad()
        kept = _loss(wrapped, 6)
        kept.backward(retain_graph=True)
        note("as usual")
        kept.backward()
        note("twice")
        before = digest(wrapped)
        optimizer.zero_grad()
        _loss(wrapped, 7).backward()
        optimizer.step()
        note("at last")
        happened["moved"] = before != digest(wrapped)
        happened["parameters"] = digest(wrapped)
    return happened


def _backward_of_no_sync(wrapped: DistributedDataParallel, what: str) -> None:
    """Run a pass whose gradients stay local, with something between forward and backward."""
    with wrapped.no_sync():
        kept = _loss(wrapped, 3)
    if what == "evaluated meanwhile":
        with torch.no_grad():
            _loss(wrapped, 4)
    if what == "failed meanwhile":
        with pytest.raises(RuntimeError, match="shapes"):
            wrapped(torch.zeros(16, 3))
    kept.backward()


def _loss(wrapped: DistributedDataParallel, step: int) -> torch.Tensor:
    return loss_of(wrapped, dist.get_rank(), step, torch.float32)


def reach_a_part(*, config: Any) -> tuple[float, str]:
    """Leave parameters out that should be there; return when that was told, and how."""
    rank = dist.get_rank()
    net = build("branches", rank)
    with registered(net, config, ddp=VIEW | {"find_unused_parameters": False}) as (wrapped, _):
        for step in range(3):
            loss = loss_of(wrapped, rank, step, torch.float32)
            for p in net.parameters():
                loss = loss + 0 * p.sum()
            loss.backward()
        loss_of(wrapped, rank, 3, torch.float32).backward()
        began_s = time.monotonic()
        with pytest.raises(RuntimeError) as told:
            loss_of(wrapped, rank, 4, torch.float32)
        return time.monotonic() - began_s, str(told.value)


@pytest.mark.parametrize("compressor", ["none", "int8", "topk", "powersgd"])
def test_units_leave_before_their_bucket_is_full(compressor: str, two: Group) -> None:
    happened = same(two.run(events_of_steps, config=settings(compressor), ddp=VIEW))
    for first in happened[:2]:  # where buckets lie is not known yet
        assert first[0] == FULL
        assert len(first) == 2
    for later in happened[2:]:
        assert later.count(FULL) == 1
        before = later[: later.index(FULL)]
        assert len(before) > 2
        submitted = [name for each in later if each != FULL for name in each]
        assert sorted(submitted) == sorted(happened[0][1])


@pytest.mark.parametrize(
    "ddp", [{}, {**VIEW, "static_graph": True}], ids=["elsewhere", "static graph"]
)
def test_buckets_that_tell_nothing_leave_when_they_are_full(
    ddp: dict[str, Any], two: Group
) -> None:
    for each in same(two.run(events_of_steps, config=settings("int8"), ddp=ddp)):
        assert each[0] == FULL
        assert len(each) == 2


@pytest.mark.parametrize("compressor", ["none", "int8", "topk", "powersgd", "ef21"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": "wide", "ddp": {"bucket_cap_mb": 1}},
        {"model": "branches", "ddp": {"find_unused_parameters": True}},
        {"model": "transformer"},
        {"model": "channels_last_cnn"},
        {"model": "complex64"},
        {"accumulate": 3},
    ],
    ids=["plain", "buckets", "unused", "tied", "strided", "complex", "accumulated"],
)
def test_no_bit_depends_on_when_gradients_leave(
    more: dict[str, Any], compressor: str, two: Group
) -> None:
    name = {"name": "topk", "density": 0.1} if compressor == "ef21" else compressor
    sections = {"feedback": {"kind": "ef21"}} if compressor == "ef21" else {}
    ends = set()
    for view in (False, True):
        ddp = {**more.get("ddp", {}), "gradient_as_bucket_view": view}
        how = {**more, "ddp": ddp, "config": settings(name, **sections), "steps": 5}
        for result in two.run(train, **how):
            assert result["finite"]
            ends.add(result["parameters"])
    assert len(ends) == 1


def test_backward_passes_that_ddp_leaves_alone_submit_nothing(two: Group) -> None:
    happened = same(two.run(backward_without_hook, config=settings("int8")))
    for quiet in ("no_sync", "evaluated meanwhile", "failed meanwhile", "twice"):
        assert happened[quiet] == [], quiet
    for step in ("as usual", "at last"):
        assert happened[step][0] != FULL
        assert FULL in happened[step]
    assert happened["moved"]


def test_what_backward_does_not_reach_is_told_by_ddp_and_at_once(two: Group) -> None:
    for seconds, told in two.run(reach_a_part, config=settings("int8")):
        assert "Expected to have finished reduction in the prior iteration" in told
        assert seconds < 10
