"""Compile lowered sums now: `python -m compressa.transports.lowered.compile`.

Without it the first transport that is opened does it, one process of a host while the others wait.
"""

from __future__ import annotations

import hashlib
import socket
import time
from contextlib import closing
from functools import cache
from pathlib import Path

from compressa.kernels.compiled import compile_once
from compressa.transports.lowered._drive import begin, call, drive, forget, let_go, take_over
from compressa.transports.lowered._memory import address_of, words
from compressa.transports.lowered._words import (
    CALL_WORDS,
    LOOP_WORDS,
    OTHER_FD,
    POLLFDS,
    PROGRAM_WORDS,
    PROGRAMS,
    WAKE_FD,
)
from compressa.transports.lowered.fence import Fence, signal_function


@cache
def prepare() -> None:
    """Compile or load what a loop runs, before anything waits for it."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    compile_once(f"lowered sums {digest}", _call_all, lock="lowered sums")


def _call_all() -> None:
    """Call everything once: a loop without links, and a program of nothing."""
    loop, program = words(LOOP_WORDS), words(PROGRAM_WORDS)
    near, far = socket.socketpair()
    with closing(near), closing(far):
        pollfds, programs, arguments = words(2), words(1), words(CALL_WORDS)
        loop[POLLFDS], loop[PROGRAMS] = address_of(pollfds), address_of(programs)
        loop[WAKE_FD], loop[OTHER_FD] = near.fileno(), far.fileno()
        address = address_of(loop)
        take_over(address)
        begin(address, address_of(program), 0, 1, 0, 0, 0, 0, 0, 0, 0)
        drive(address, 0, time.monotonic_ns())
        let_go(address)
        arguments[:] = address, address_of(program), 0, 1, 0, 0, 0, 0
        call(address_of(arguments))
        forget(address)
    Fence(-1).drop()
    signal_function()


if __name__ == "__main__":
    prepare()
    print("compressa: lowered sums are compiled")
