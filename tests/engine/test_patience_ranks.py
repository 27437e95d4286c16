"""How long the communication thread waits in compiled code, whatever Python does meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _ranks import Group

import compressa
from compressa.transports.lowered import AVAILABLE

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not AVAILABLE, reason="compiled sums are for 64-bit Linux"),
]

ELEMS = 4_000_000
PACE_BITS_PER_S = 2e8  # of this host: 1.3 s for what both ranks send


def config(deadline_s: float) -> dict[str, Any]:
    return {
        "compressor": {"name": "none"},
        "exchange": {"transport": "tcp", "deadline_s": deadline_s},
        "schedule": {"pace_bits_per_s": PACE_BITS_PER_S},
    }


def sum_while_the_lock_is_kept(*, seconds: float) -> dict[str, float]:
    """Keep the interpreter's lock while a sum is on the wire; return what it takes after that."""
    values = torch.full((ELEMS,), float(dist.get_rank()))
    with compressa.open_engine(config(30.0), {"x": torch.empty(ELEMS)}) as engine:
        ticket = engine.submit({"x": values})
        time.sleep(0.3)  # it is on its way
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))
        began_s = time.perf_counter()
        engine.wait([ticket])
        after_s = time.perf_counter() - began_s
    return {"after_s": after_s, "mean": float(values.mean())}


def test_a_thread_that_keeps_the_interpreters_lock_delays_no_byte(two: Group) -> None:
    for found in two.run(sum_while_the_lock_is_kept, seconds=2.5):
        assert found["mean"] == 0.5
        assert found["after_s"] < 0.5  # of 1.3, of which 0.3 s were over before


def sum_while_stopped(*, stopped_s: float, in_python: bool) -> float:
    """Rank 0 is stopped while it waits for rank 1, for longer than the deadline; the mean.

    Args:
        stopped_s: For how long.
        in_python: Whether its communication thread stops it between two waits, not within one.
    """
    values = torch.full((8,), float(dist.get_rank()))
    with compressa.open_engine(config(2.0), {"x": torch.empty(8)}) as engine:
        if dist.get_rank() == 0:
            ticket, me = engine.submit({"x": values}), os.getpid()
            stop = "" if in_python else f"kill -STOP {me};"
            stopping = subprocess.Popen(
                ["sh", "-c", f"sleep 0.3; {stop} sleep {stopped_s}; kill -CONT {me}"]
            )
            if in_python:
                time.sleep(0.3)
                engine.engine._communication.post(lambda: os.kill(me, signal.SIGSTOP))
            engine.wait([ticket])
            stopping.wait(10.0)
        else:
            time.sleep(stopped_s + 0.8)
            engine.wait([engine.submit({"x": values})])
    return float(values.mean())


@pytest.mark.parametrize("in_python", [False, True])
def test_a_time_in_which_a_rank_did_not_run_is_no_part_of_its_deadline(
    two: Group, in_python: bool
) -> None:
    assert two.run(sum_while_stopped, stopped_s=3.0, in_python=in_python) == [0.5, 0.5]


def wait_in_vain(*, patience_s: float) -> dict[str, Any]:
    """Rank 1 submits nothing; return what rank 0 raises, and when."""
    engine = compressa.open_engine(config(patience_s), {"x": torch.empty(8)})
    error, seconds = "", 0.0
    if dist.get_rank() == 0:
        began_s = time.perf_counter()
        try:
            engine.wait([engine.submit({"x": torch.ones(8)})])
        except compressa.Timeout as raised:
            error = str(raised)
        seconds = time.perf_counter() - began_s
    else:
        time.sleep(patience_s + 1.0)
    with contextlib.suppress(compressa.CompressaError):
        engine.close()
    return {"error": error, "seconds": seconds}


def test_compiled_code_keeps_the_deadline(two: Group) -> None:
    found, _ = two.run(wait_in_vain, patience_s=2.0)
    assert "waited 2 s for ranks 1" in found["error"]
    assert 2.0 < found["seconds"] < 4.0
