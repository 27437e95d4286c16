"""The wire: when messages leave that become ready one by one, the most urgent first.

A sender hands chunks over to the network and cannot take them back; it hands over the next as soon
as the window has room, of the message that is then the most urgent one. So a message that becomes
ready waits for what has been handed over, one window at most, and nothing else that is less urgent
passes it (credit-based preemption: ByteScheduler, Peng et al., 2019).

Time advances from one event to the next, a message that becomes ready or one that is through, and
never chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from compressa.schedulers.columns import Floats, Integers

_NEVER = math.inf


@dataclass(frozen=True, eq=False)
class Waits:
    """Messages that wait for others; one may wait for several, and several for one.

    Attributes:
        message: By wait: what waits.
        awaited: By wait: what for.
        lag_s: By wait: from the last byte of what it waits for until it can leave.
    """

    message: Integers
    awaited: Integers
    lag_s: Floats

    def followers(self, messages: int) -> list[list[tuple[int, float]]]:
        """By message, of so many: what waits for it, and the lags."""
        order = np.argsort(self.awaited, kind="stable")
        bounds = np.searchsorted(self.awaited[order], np.arange(messages + 1)).tolist()
        pairs = list(zip(self.message[order].tolist(), self.lag_s[order].tolist(), strict=True))
        return [pairs[begin:end] for begin, end in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class Messages:
    """What is to be sent, the most urgent message first; so a message's number is its priority.

    Attributes:
        ready_s: By message: when it can leave, as far as it waits for no other.
        chunks: By message: into how many equal chunks it is cut.
        chunk_s: By message: for how long a chunk holds the wire.
        waits: What waits for what; None: all can leave when they are ready.
    """

    ready_s: Floats
    chunks: Integers
    chunk_s: Floats
    waits: Waits | None = None


@dataclass(frozen=True, eq=False)
class Sent:
    """When messages left, in seconds.

    Attributes:
        could_s: By message: when it could leave.
        began_s: By message: when its first byte left.
        ended_s: By message: when its last byte had left.
    """

    could_s: Floats
    began_s: Floats
    ended_s: Floats


class _Coming:
    """Messages that will be ready, in the order of time.

    Attributes:
        could_s: By message: when it can leave, as far as is known.
        followers: By message: what waits for it, and the lags.
    """

    def __init__(self, ready_s: Floats, waits: Waits | None) -> None:
        messages = len(ready_s)
        self.could_s: list[float] = ready_s.tolist()
        self.followers: Sequence[Sequence[tuple[int, float]]] = [()] * messages
        alone = np.ones(messages, dtype=np.bool_)
        if waits is not None:
            self.followers = waits.followers(messages)
            self._waits: list[int] = np.bincount(waits.message, minlength=messages).tolist()
            alone[waits.message] = False
        # Sorted once, the first at the end; those that wait for others come in between.
        early = np.flatnonzero(alone)
        self._early: list[int] = early[np.argsort(-ready_s[early], kind="stable")].tolist()
        self._late: list[tuple[float, int]] = []

    def move(self, now_s: float, queue: list[int]) -> float:
        """Queue what is ready by now, and return when the next is."""
        early, late, could_s = self._early, self._late, self.could_s
        while early and could_s[early[-1]] <= now_s:
            heappush(queue, early.pop())
        next_s = could_s[early[-1]] if early else _NEVER
        while late and late[0][0] <= now_s:
            heappush(queue, heappop(late)[1])
        return late[0][0] if late and late[0][0] < next_s else next_s

    def release(self, message: int, ended_s: float, next_s: float) -> float:
        """Note that a message is through, and return when the next is ready after all."""
        for follower, lag_s in self.followers[message]:
            could_s = ended_s + lag_s
            if could_s > self.could_s[follower]:
                self.could_s[follower] = could_s
            self._waits[follower] -= 1
            if not self._waits[follower]:
                could_s = self.could_s[follower]
                heappush(self._late, (could_s, follower))
                if could_s < next_s:
                    next_s = could_s
        return next_s


def send(messages: Messages, ahead_s: float | None = None, return_s: float = 0.0) -> Sent:
    """Send messages by urgency.

    Args:
        messages: What is to be sent.
        ahead_s: Wire time of what may be left of what was handed over, when the next chunk is: the
            window without a chunk. None: each chunk is handed over when the wire is free.
        return_s: How long it takes to learn that a chunk has left. If the window does not pay for
            it, the wire is idle meanwhile.

    Returns:
        When each could leave, began to, and had left, in float64 seconds.

    Raises:
        ValueError: Messages wait for each other.
    """
    coming = _Coming(messages.ready_s, messages.waits)
    left, chunk_s, followers = messages.chunks.tolist(), messages.chunk_s.tolist(), coming.followers
    # From the wire's being free to the moment at which the window admits another chunk.
    slack_s = return_s - ahead_s if ahead_s is not None else 0.0
    began_s, ended_s = [_NEVER] * len(left), [_NEVER] * len(left)
    queue: list[int] = []
    given_s = free_s = 0.0  # the last chunk was handed over; all that the wire was given has left
    next_s = coming.move(given_s, queue)
    while queue or next_s < _NEVER:
        if given_s < free_s + slack_s:
            given_s = free_s + slack_s
        if not queue and given_s < next_s:
            given_s = next_s
        if next_s <= given_s:
            next_s = coming.move(given_s, queue)
        message = heappop(queue)
        takes_s, count = chunk_s[message], left[message]
        begin_s = given_s if given_s > free_s else free_s
        if began_s[message] == _NEVER:
            began_s[message] = begin_s
        free_s = begin_s + takes_s
        if count > 1:
            sent, given_s, free_s = _run(count, given_s, free_s, takes_s, slack_s, next_s)
            if sent < count:
                left[message] -= sent
                heappush(queue, message)
                continue
        ended_s[message] = free_s
        if followers[message]:
            next_s = coming.release(message, free_s, next_s)
    if _NEVER in ended_s:
        raise ValueError("messages wait for each other")
    return Sent(np.array(coming.could_s), np.array(began_s), np.array(ended_s))


def _run(
    left: int, given_s: float, free_s: float, takes_s: float, slack_s: float, until_s: float
) -> tuple[int, float, float]:
    """Hand chunks of a message over until another becomes ready.

    Args:
        left: Chunks that are left.
        given_s: When the first is handed over.
        free_s: When it has left.
        takes_s: For how long each holds the wire.
        slack_s: See `send`.
        until_s: Chunks that are handed over by then are not.

    Returns:
        How many are handed over, when the last is, and when it has left.
    """
    each_s = takes_s + max(slack_s, 0.0)
    # The k-th, from the second on, is handed over at free_s + (k - 2) each_s + slack_s.
    more = left - 1
    if until_s < _NEVER:
        more = min(more, max(0, math.ceil((until_s - slack_s - free_s) / each_s)))
    if not more:
        return 1, given_s, free_s
    last_s = free_s + (more - 1) * each_s + slack_s
    return 1 + more, max(given_s, last_s), free_s + more * each_s
