"""A small message, idle and beside a thread that keeps the interpreter.

That thread runs Python and never blocks, as eager forward passes and data loaders do. What needs
the interpreter then waits for it, up to a switch interval (`sys.getswitchinterval()`, 5 ms) each
time. A blocking call has to take it back at its end in any case, ours and Gloo's alike: such calls
are shown, and not judged. Judged is an answer. The other rank has handed its part of a sum over
already, and a thread there is busy; no thread is on the rank that measures. It sends its part, the
other adds it up and answers: two messages, for which nobody there has to hold the interpreter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
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

CALL = "all-reduce, a blocking call"
GLOO_CALL = "Gloo's all_reduce, a blocking call"
ANSWER = "all-reduce, the other rank's answer"
OPERATIONS = (CALL, GLOO_CALL, ANSWER)

_ELEMS = SIZE_BYTES // 4
_CALLS, _ANSWERS = 40, 20
# Until what was handed over has been sent; beside a thread, after some switch intervals.
_SETTLED_S = {False: 3e-3, True: 3e-2}
_TCP = {"exchange": {"transport": "tcp"}}
# Of two messages one after the other, whatever is chosen elsewhere.
_TWO_HOPS = {
    "compressor": "none",
    "exchange": {"transport": "tcp", "algorithm": "round_robin"},
}

_ASKS = 0


class Messages:
    """What a rank can be asked for."""

    def __init__(self, wire: Wire) -> None:
        group = dist.group.WORLD
        assert group is not None
        self._session = open_session(load_config(_TCP), group, _ELEMS)
        self._values = {"p": torch.zeros(_ELEMS)}
        self._engine = compressa.open_engine(_TWO_HOPS, self._values)
        self._timed: Mapping[str, Callable[[bool], float]] = {
            CALL: partial(_calls_s, summed("auto", SIZE_BYTES, self._session).call),
            GLOO_CALL: partial(_calls_s, partial(dist.all_reduce, torch.zeros(_ELEMS))),
            ANSWER: self._answers_s,
        }

    def timed(self, what: str, beside: bool) -> dict[str, float]:
        """Tell what one takes.

        Args:
            what: One of `OPERATIONS`.
            beside: Whether a thread keeps the interpreter meanwhile.
        """
        return {"seconds": self._timed[what](beside)}

    def close(self) -> None:
        """End all threads."""
        self._engine.close()
        self._session.close()

    def _answers_s(self, beside: bool) -> float:
        """Return what an answer takes on the rank that asks; nothing on the other."""
        if dist.get_rank() != _ASKS:
            with busy_thread() if beside else nullcontext():
                for _ in range(_ANSWERS):
                    ticket = self._engine.submit(self._values)
                    time.sleep(_SETTLED_S[beside])
                    dist.barrier()
                    self._engine.wait([ticket])
            return 0.0
        return sum(self._answer_s() for _ in range(_ANSWERS)) / _ANSWERS

    def _answer_s(self) -> float:
        dist.barrier()
        begin_s = time.perf_counter()
        self._engine.wait([self._engine.submit(self._values)])
        return time.perf_counter() - begin_s


def _calls_s(call: Callable[[], object], beside: bool) -> float:
    call()
    dist.barrier()
    with busy_thread() if beside else nullcontext():
        begin_s = time.perf_counter()
        for _ in range(_CALLS):
            call()
        return (time.perf_counter() - begin_s) / _CALLS


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
