"""Queueing: a job's position in the line of those that share a link, kept by a thread of its own.

The line is in a cell (`compressa.engine.sharing.shared_cell`), as JSON. It comes from outside: what
is not a line is replaced by an empty one. Where the cell cannot be reached, the job sends when it
likes, and tries again later.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from compressa.engine.sharing.shared_cell import SharedCell
from compressa.errors import TransportError
from compressa.schedulers.link_sharing import MOST_CLAIMS, Claim, Line, Watch

MOST_SEND_S = 30.0
_VERSION = 1
_MOST_NAME = 64
_RETRY_S = 10.0
_LEAST_LOOK_S, _MOST_LOOK_S = 0.0005, 0.01
_SHARE = 4  # looks in the time until something is expected
_log = logging.getLogger(__name__)


def encode_line(line: Line) -> bytes:
    """Return a line as a cell keeps it: ASCII JSON, or nothing if nobody is in it."""
    claims = [astuple(claim) for claim in line.claims]
    return json.dumps([_VERSION, claims]).encode() if claims else b""


def decode_line(data: bytes) -> Line:
    """Read what `encode_line` wrote; an empty line if it is none.

    Args:
        data: From outside: whoever may change the cell has written it.
    """
    try:
        version, claims = json.loads(data)
        line = Line(tuple(_claim(*claim) for claim in claims))
    except (ValueError, TypeError, RecursionError):
        return Line()
    names = {claim.job for claim in line.claims}
    fits = version == _VERSION and len(names) == len(line.claims) <= MOST_CLAIMS
    return line if fits else Line()


def _claim(job: Any, number: Any, send_s: Any) -> Claim:
    fits = isinstance(job, str) and 0 < len(job) <= _MOST_NAME and type(number) is int
    if not fits or type(send_s) not in (int, float) or not 0 <= send_s <= MOST_SEND_S:
        raise ValueError("no claim")
    return Claim(job, number, float(send_s))


class Queueing:
    """Joins the line, and says when the job is first. Its methods are for one thread.

    None of them waits but `close`; where the cell can not be reached, the job is first at once.

    Args:
        open_cell: Opens the cell, on this object's thread; may raise what `open_cell` raises.
        first: Called there with the number of the turn that has come.
    """

    def __init__(self, open_cell: Callable[[], SharedCell], first: Callable[[int], None]) -> None:
        self._open_cell = open_cell
        self._first = first
        self._job = secrets.token_hex(8)
        self._cell: SharedCell | None = None
        self._retry_s = -math.inf
        self._watch = Watch()
        self._wanted: Claim | None = None
        self._asked: int | None = None  # by the one who joins and leaves: its turn
        self._told: queue.SimpleQueue[Callable[[], bool]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compressa-line", daemon=True)
        self._thread.start()

    def join(self, turn: int, send_s: float) -> None:
        """Join the line.

        Args:
            turn: What `first` will be called with, once, unless `leave` comes before.
            send_s: How many seconds the job is likely to send.
        """
        claim = Claim(self._job, turn, min(send_s, MOST_SEND_S))
        self._asked = turn
        self._told.put(lambda: self._want(claim))

    def leave(self) -> None:
        """Leave the line: the turn is over, or the job does not wait for it any more."""
        self._asked = None
        self._told.put(self._leave)

    def close(self, timeout_s: float) -> None:
        """Leave, and end the thread; without it, if that takes longer than `timeout_s` seconds."""
        self._told.put(self._end)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                act = self._told.get(timeout=None if self._wanted is None else self._pause_s())
            except queue.Empty:
                act = self._look
            if not act():
                return

    def _want(self, claim: Claim) -> bool:
        if claim.number != self._asked:  # it has left meanwhile
            return True
        self._wanted = claim
        return self._look()

    def _look(self) -> bool:
        """Look who is first; return that the thread goes on."""
        claim = self._wanted
        assert claim is not None, "the line is looked at by who wants to be first"
        seen = Line()

        def change(data: bytes) -> bytes:
            nonlocal seen
            seen = self._watch.moved(decode_line(data), time.monotonic()).joined(claim)
            return encode_line(seen)

        reached = self._change(change)
        self._watch = self._watch.saw(seen, time.monotonic())
        first = seen.first
        if not reached or first is None or first.job == claim.job or not seen.has(claim.job):
            self._wanted = None
            if claim.number == self._asked:
                self._first(claim.number)
        return True

    def _leave(self) -> bool:
        self._wanted = None
        self._change(lambda data: encode_line(decode_line(data).left(self._job)))
        return True

    def _end(self) -> bool:
        if self._cell is not None:
            self._leave()
        if self._cell is not None:
            self._cell.close()
        return False

    def _change(self, change: Callable[[bytes], bytes]) -> bool:
        """Change the line; return whether that was possible."""
        if self._cell is None and time.monotonic() < self._retry_s:
            return False
        try:
            if self._cell is None:
                self._cell = self._open_cell()
            self._cell.change(change)
        except (OSError, RuntimeError, TransportError) as error:
            self._cell, self._retry_s = None, time.monotonic() + _RETRY_S
            _log.warning(
                "the jobs that share a link do not know of each other now (%s); trying again in "
                "%g s",
                str(error).partition("\n")[0],
                _RETRY_S,
            )
            return False
        return True

    def _pause_s(self) -> float:
        """Look the more often the sooner something is expected, and never without a pause."""
        first = self._watch.first
        send_s = 0.0 if first is None else first.send_s
        off_s = abs(self._watch.since_s + send_s - time.monotonic())
        return min(max(off_s / _SHARE, _LEAST_LOOK_S), _MOST_LOOK_S)
