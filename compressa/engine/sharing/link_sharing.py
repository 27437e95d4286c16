"""Link sharing: a step's exchanges wait until other jobs on the same link have sent theirs.

Rank 0 alone stands in the line (`compressa.engine.sharing.queueing`); it tells the others over the
control channel when the job's turn has come. Until then each rank holds its exchanges back, and
computes meanwhile. All of this is for the communication thread, but for what the line calls back.

Every wait ends: rank 0 waits for as long as `compressa.schedulers.link_sharing.Rhythm` says, the
others for a bounded time, and then exchanges begin and have their own deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from compressa.config import Config
from compressa.config.sections import LinkSharing
from compressa.engine.control.control import Control
from compressa.engine.sharing.gate import Gate
from compressa.engine.sharing.queueing import Queueing
from compressa.engine.sharing.shared_cell import open_cell
from compressa.schedulers.link_sharing import Rhythm

_CLOSE_S = 3.0
_LEADER = 0
_DEADLINES = 2  # turns must come in a part of the deadline

Callback = Callable[[], None]


class Clockwork(Protocol):
    """The communication thread."""

    def post(self, event: Callback) -> None:
        """Have a function called on it; from any thread."""

    def call_at(self, time_s: float, event: Callback) -> None:
        """Have a function called on it at a time; see `Communication.call_at`."""


class Leader:
    """Rank 0: stands in the line, and tells the others.

    Args:
        control: The control channel.
        clockwork: The communication thread.
        share: Says where the line is, and how long a wait may be.
        deadline_s: The others' patience ends within it.
    """

    def __init__(
        self, control: Control, clockwork: Clockwork, share: LinkSharing, deadline_s: float
    ) -> None:
        self._control, self._clockwork = control, clockwork
        self._longest_s = min(share.longest_wait_s, deadline_s / _DEADLINES)
        self._rhythm = Rhythm()
        self._asked_s, self._came_s, self._send_s = -math.inf, 0.0, 0.0
        self._waiting: int | None = None
        self._come: Callback = lambda: None
        self._queueing = Queueing(lambda: open_cell(share.at, share.name), self._is_first)

    def ask(self, turn: int, come: Callback) -> None:
        """Join the line; wait no longer than the rhythm of the steps says; see `Arbiter.ask`."""
        now_s = time.monotonic()
        if self._asked_s > 0:
            waited_s = self._came_s - self._asked_s
            self._rhythm = self._rhythm.stepped(now_s - self._asked_s - waited_s, self._send_s)
        self._asked_s, self._waiting, self._come = now_s, turn, come
        self._queueing.join(turn, self._rhythm.send_s)
        patience_s = min(self._rhythm.patience_s, self._longest_s)
        self._clockwork.call_at(now_s + patience_s, partial(self._go, turn, in_time=False))

    def over(self) -> None:
        """Leave the line until the next `ask`; what the turn took counts for the rhythm."""
        self._send_s = time.monotonic() - self._came_s
        self._queueing.leave()

    def close(self) -> None:
        """Leave the line for good, and end its thread, for which this waits 3 s at most."""
        self._waiting = None
        self._queueing.close(_CLOSE_S)

    def _is_first(self, turn: int) -> None:
        self._clockwork.post(partial(self._go, turn, in_time=True))

    def _go(self, turn: int, *, in_time: bool) -> None:
        if turn != self._waiting:
            return
        self._waiting, self._came_s = None, time.monotonic()
        self._rhythm = self._rhythm.waited(in_time=in_time)
        if not in_time:
            self._queueing.leave()
        self._control.signal(turn)
        self._come()


class Follower:
    """Any other rank: does as rank 0 says.

    Args:
        control: The control channel.
        clockwork: The communication thread.
        deadline_s: Within it the wait ends.
    """

    def __init__(self, control: Control, clockwork: Clockwork, deadline_s: float) -> None:
        self._control, self._clockwork = control, clockwork
        self._longest_s = deadline_s / _DEADLINES

    def ask(self, turn: int, come: Callback) -> None:
        """Wait for rank 0's word, or for half of the deadline; see `Arbiter.ask`."""
        self._control.await_signal(_LEADER, turn, partial(self._clockwork.post, come))
        self._clockwork.call_at(time.monotonic() + self._longest_s, come)

    def over(self) -> None:
        """Do nothing: rank 0 leaves the line."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def gate_for(config: Config, control: Control | None, clockwork: Clockwork) -> Gate | None:
    """Return what holds exchanges back on this rank; None if the job has its link for itself.

    Args:
        config: `schedule.share` says whether it shares one, and where the line is.
        control: None in a world of one, which shares nothing.
        clockwork: The communication thread.
    """
    share, deadline_s = config.schedule.share, config.exchange.deadline_s
    if share is None or control is None:
        return None
    if control.rank == _LEADER:
        return Gate(Leader(control, clockwork, share, deadline_s))
    return Gate(Follower(control, clockwork, deadline_s))
