"""Blocking calls of lowered sums on real ranks: what ends them, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from _ranks import Group, settings

from compressa.config import load_config
from compressa.engine.opening import open_session
from compressa.engine.session import Session
from compressa.errors import CompressaError
from compressa.link.operations import summed
from compressa.transports.lowered import AVAILABLE

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not AVAILABLE, reason="compiled sums are for 64-bit Linux"),
]

CONFIG = settings("none", exchange={"transport": "tcp", "deadline_s": 5.0})


def opened() -> Session:
    world = dist.group.WORLD
    assert world is not None
    return open_session(load_config(CONFIG), world, 1000)


def sum_in_unlike_paces(*, pause_s: float) -> list[float]:
    """Sum some times; in some of them rank 1 comes so late that the call is handed over."""
    rank, sums = dist.get_rank(), []
    with opened() as session:
        for late in (False, True, False):
            if late and rank == 1:
                time.sleep(pause_s)
            operation = summed("auto", 400, session)
            operation.call()
            operation.verify()
            sums.append(float(session.size))
    return sums


def wait_for_a_rank_that_dies(*, how: str) -> dict[str, Any]:
    """Rank 0 sums while rank 1 dies, leaves, or stays away; return what it raises, and when."""
    session = opened()
    operation = summed("auto", 400, session)
    operation.call()
    if dist.get_rank() == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "leave":
            session.close(1.0)
            return {}
        time.sleep(20.0)
    began_s, error = time.monotonic(), None
    try:
        operation.call()
    except CompressaError as raised:
        error = raised
    seconds = time.monotonic() - began_s
    with contextlib.suppress(CompressaError):
        session.close(1.0)
    return {"error": type(error).__name__, "message": str(error), "seconds": seconds}


def interrupt_a_call() -> dict[str, Any]:
    """Have a signal's handler raise in the middle of a call that waits for the other rank."""
    if dist.get_rank() == 1:
        session = opened()
        time.sleep(1.5)
        with contextlib.suppress(CompressaError):
            session.close(1.0)
        return {}
    session = opened()
    operation = summed("auto", 400, session)

    def raises(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raises)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began_s, interrupted = time.monotonic(), False
    try:
        operation.call()
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.monotonic() - began_s
    signal.signal(signal.SIGALRM, before)
    with contextlib.suppress(CompressaError):
        session.close(1.0)
    time.sleep(0.5)
    ours = [t.name for t in threading.enumerate() if t.name.startswith("compressa")]
    return {"interrupted": interrupted, "seconds": seconds, "threads": ours}


def test_a_call_goes_on_when_it_was_handed_over(two: Group) -> None:
    assert two.run(sum_in_unlike_paces, pause_s=0.2) == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    ("how", "error"), [("kill", "PeerLost"), ("leave", "PeerLost"), ("away", "Timeout")]
)
def test_a_call_ends_within_the_deadline(
    how: str, error: str, fresh: Callable[[int], Group]
) -> None:
    outcomes = fresh(2).outcomes(wait_for_a_rank_that_dies, how=how)
    found = outcomes[0].value
    assert found["error"] == error, found
    assert "rank 1" in found["message"]
    assert found["seconds"] < 8.0


def test_a_call_can_be_interrupted(fresh: Callable[[int], Group]) -> None:
    found = fresh(2).run(interrupt_a_call)[0]
    assert found["interrupted"]
    assert found["seconds"] < 1.2
    assert not found["threads"]
