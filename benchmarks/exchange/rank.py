"""One rank of ours and of Gloo's, which `harness.rank` runs."""

from __future__ import annotations

import gc
from typing import Any

import torch.distributed as dist

from benchmarks.exchange.plan import BY_NAME
from benchmarks.exchange.sums import AUTO
from compressa.config import load_config
from compressa.engine.opening import open_session
from compressa.engine.session import Session
from compressa.engine.start.link_file import Figures
from compressa.link import operations
from compressa.link.chain import Ask
from compressa.link.operations import Operation, summed
from harness.wire import Wire

_SILENCE_S = 60.0  # many ranks may share few processors

Exchange = tuple[tuple[str, int], ...]


class Exchanges:
    """What such a rank can be asked for."""

    def __init__(self, wire: Wire) -> None:
        self._sessions: dict[Exchange, Session] = {}

    def open(self, most_bytes: int, deadline_s: float) -> None:
        """Say how long messages are at most, and how long a wait may be."""
        self._most_bytes, self._deadline_s = most_bytes, deadline_s

    def timed(
        self, figures: dict[str, Any] | None = None, *, what: str, **given: Any
    ) -> dict[str, Any]:
        """Time a method, or what is timed for the cost model.

        Args:
            figures: What `auto` chooses by (`compressa.engine.start.link_file.Figures`).
            what: Name of a method, or of an operation of `compressa.link`.
            given: All else of an `Ask`.
        """
        gc.collect()  # what the last row used is gone before this one begins
        gc.freeze()  # what is left stays, and need not be looked at before the next one
        ask = Ask(what, **given)
        session = self._session(BY_NAME[what].exchange if what in BY_NAME else ())
        return prepare(ask, session, figures).timed(ask, session)._asdict()

    def _session(self, exchange: Exchange) -> Session:
        """Open a session, unless there is one with these settings already."""
        if exchange not in self._sessions:
            world = dist.group.WORLD
            assert world is not None
            waits = {"deadline_s": self._deadline_s, "silence_s": _SILENCE_S}
            config = load_config({"exchange": {"transport": "tcp", **waits, **dict(exchange)}})
            self._sessions[exchange] = open_session(config, world, self._most_bytes // 4 + 1)
        return self._sessions[exchange]


def prepare(ask: Ask, session: Session, figures: dict[str, Any] | None) -> Operation:
    """Return what is asked for."""
    if ask.what == AUTO:
        costs = None if figures is None else Figures.model_validate(figures).costs
        return summed(ask.what, ask.size_bytes, session, costs)
    if ask.what in BY_NAME:
        return BY_NAME[ask.what].operation(ask.size_bytes, session)
    return operations.prepare(ask.what, ask.size_bytes, session)
