"""A child that a rank has forked neither hides the rank's death nor ends its connections."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _ranks import Group, settings
from _training import _optimizer, digest, registered
from _transports import ON_HOST

import compressa

pytestmark = pytest.mark.ranks


def train_beside_a_child(*, config: Any, culprit: int, file: str | None = None) -> dict[str, Any]:
    """Train; the culprit forks a child and is killed in a later step.

    Args:
        config: The configuration.
        culprit: Who forks.
        file: The child lives for as long as it is there. If None, the child ends at once, as a
            program does, and all train on.
    """
    rank, net = dist.get_rank(), build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, _):
        optimizer = _optimizer(net)
        for step in range(8):
            if rank == culprit and step == 3:
                _fork(file)
            if rank == culprit and step == 5 and file:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            started_s = time.monotonic()
            try:
                loss_of(wrapped, rank, step, torch.float32).backward()
            except compressa.CompressaError as error:
                seconds = time.monotonic() - started_s
                lost = getattr(error, "rank", None)
                return {"type": type(error).__name__, "lost": lost, "seconds": seconds}
            optimizer.step()
    return {"type": "", "parameters": digest(net)}


def _fork(file: str | None) -> None:
    """Fork a child; the one that ends at once runs what the interpreter runs at its end."""
    child = os.fork()
    if child:
        if not file:
            assert os.waitpid(child, 0)[1] == 0
        return
    if not file:
        atexit._run_exitfuncs()
        gc.collect()
    while file and os.path.exists(file):
        time.sleep(0.05)
    os._exit(0)


@pytest.mark.parametrize(("transport", "culprit"), [("tcp", 0), ("gloo-group", 1)])
def test_a_killed_rank_with_a_child_is_noticed_at_once(
    transport: str, culprit: int, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    config = settings("int8", exchange={"transport": transport})  # 15 s of silence, 30 to the end
    group, file = fresh(3), tmp_path / "the child lives"
    file.touch()
    try:
        started = group.start(train_beside_a_child, config=config, culprit=culprit, file=str(file))
        others = [process for process in started if process.rank != culprit]
        outcomes = group.collect(others, 60.0)
    finally:
        file.unlink()
    for outcome in outcomes:
        assert outcome.ok, outcome.explain()
        assert outcome.value["type"] == "PeerLost"
        assert outcome.value["lost"] == culprit
        assert outcome.value["seconds"] < 5.0


@pytest.mark.parametrize("transport", ON_HOST)
def test_a_child_that_ends_says_no_goodbye(transport: str, two: Group) -> None:
    config = settings("int8", exchange={"transport": transport})
    found = two.run(train_beside_a_child, config=config, culprit=1)
    assert [seen["type"] for seen in found] == ["", ""]
    assert found[0]["parameters"] == found[1]["parameters"]
