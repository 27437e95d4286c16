"""A small message, idle and beside a thread that keeps the interpreter.

That thread runs Python and never blocks, as eager forward passes and data loaders do. What needs
the interpreter then waits for it, up to a switch interval (`sys.getswitchinterval()`, 5 ms) each
time. A call has to take it back at its end in any case, ours and Gloo's alike. Of a step of many
units only the hand-over needs it, so that a unit shows what messages cost themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist

import compressa
from compressa.config import load_config
from compressa.engine.opening import open_session
from compressa.link.operations import summed
from harness.wire import Wire

SIZE_BYTES = 64
UNITS = 64

CALL = "all-reduce, a blocking call"
GLOO_CALL = "Gloo's all_reduce, a blocking call"
UNIT = f"all-reduce, one of {UNITS} units of a step"
OPERATIONS = (CALL, GLOO_CALL, UNIT)

_CALLS, _STEPS = 40, 4
_TCP = {"exchange": {"transport": "tcp"}}


class Messages:
    """What a rank can be asked for."""

    def __init__(self, wire: Wire) -> None:
        group = dist.group.WORLD
        assert group is not None
        session = open_session(load_config(_TCP), group, SIZE_BYTES)
        elems = SIZE_BYTES // 4
        self._units = Units(elems)
        self._close = session.close
        self._operations: dict[str, tuple[Callable[[], object], int, int]] = {
            CALL: (summed("auto", SIZE_BYTES, session).call, _CALLS, 1),
            GLOO_CALL: (partial(dist.all_reduce, torch.zeros(elems)), _CALLS, 1),
            UNIT: (self._units.step, _STEPS, UNITS),
        }

    def timed(self, what: str, beside: bool) -> dict[str, float]:
        """Tell what one takes.

        Args:
            what: One of `OPERATIONS`.
            beside: Whether a thread keeps the interpreter meanwhile.
        """
        call, calls, each = self._operations[what]
        call()
        dist.barrier()
        with busy_thread() if beside else nullcontext():
            begin_s = time.perf_counter()
            for _ in range(calls):
                call()
            return {"seconds": (time.perf_counter() - begin_s) / calls / each}

    def close(self) -> None:
        """End all threads."""
        self._units.close()
        self._close()


class Units:
    """Steps of an engine whose every tensor is a unit of its own, all handed over together.

    Args:
        elems: Of a unit.
    """

    def __init__(self, elems: int) -> None:
        size_bytes = 4 * elems
        exchange = {
            "transport": "tcp",
            "unit_bytes": size_bytes,
            "unit_payload_bytes": 1,
            "unit_dense_bytes": size_bytes,
        }
        self._gradients = {f"p{unit}": torch.zeros(elems) for unit in range(UNITS)}
        config = {"compressor": "none", "exchange": exchange}
        self._engine = compressa.open_engine(config, self._gradients)

    def step(self) -> None:
        """Average all of them."""
        self._engine.wait([self._engine.submit(self._gradients)])

    def close(self) -> None:
        """End all threads."""
        self._engine.close()


@contextmanager
def busy_thread() -> Iterator[None]:
    """Have a thread run Python meanwhile, without a call that would let others go on."""
    going = True

    def run() -> None:
        while going:
            pass

    thread = threading.Thread(target=run, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        going = False
        thread.join()
