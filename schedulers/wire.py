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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

Follower = tuple[int, float]
"""A message that waits for another, and seconds from the other's last byte until it can leave."""

_NEVER = math.inf


@dataclass(frozen=True)
class Messages:
    """What is to be sent, the most urgent message first; so a message's number is its place.

    Attributes:
        ready_s: By message: when it can leave, as far as it waits for no other.
        chunks: By message: into how many equal chunks it is cut.
        chunk_s: By message: for how long a chunk holds the wire.
        followers: By message: what waits for it.
        waits: By message: for how many others it waits; empty: none does.
    """

    ready_s: Sequence[float]
    chunks: Sequence[int]
    chunk_s: Sequence[float]
    followers: Mapping[int, Sequence[Follower]] = field(default_factory=dict)
    waits: Sequence[int] = ()


@dataclass(frozen=True)
class Sent:
    """When messages left, in seconds.

    Attributes:
        could_s: By message: when it could leave.
        began_s: By message: when its first byte left.
        ended_s: By message: when its last byte had left.
    """

    could_s: list[float]
    began_s: list[float]
    ended_s: list[float]


class _Coming:
    """Messages that will be ready, in the order of time."""

    def __init__(self, messages: Messages) -> None:
        self.could_s = list(messages.ready_s)
        self._followers = messages.followers
        self._waits = list(messages.waits)
        everyone = range(len(self.could_s))
        alone = [m for m in everyone if not self._waits[m]] if self._waits else everyone
        # Sorted once, the first at the end; those that wait for others come in between.
        self._early = sorted(alone, key=self.could_s.__getitem__, reverse=True)
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

    def release(self, message: int, ended_s: float) -> None:
        """Note that a message is through: what waits for no other any more will be ready."""
        for follower, lag_s in self._followers.get(message, ()):
            self.could_s[follower] = max(self.could_s[follower], ended_s + lag_s)
            self._waits[follower] -= 1
            if not self._waits[follower]:
                heappush(self._late, (self.could_s[follower], follower))


def send(messages: Messages, ahead_s: float | None = None, return_s: float = 0.0) -> Sent:
    """Send messages by urgency.

    Args:
        messages: What is to be sent.
        ahead_s: Wire time of what may be left of what was handed over, when the next chunk is: the
            window without a chunk. None: each chunk is handed over when the wire is free.
        return_s: How long it takes to learn that a chunk has left. If the window does not pay for
            it, the wire is idle meanwhile.

    Raises:
        ValueError: Messages wait for each other.
    """
    coming = _Coming(messages)
    chunk_s, left, chained = messages.chunk_s, list(messages.chunks), bool(messages.followers)
    # From the wire's being free to the moment at which the window admits another chunk.
    slack_s = return_s - ahead_s if ahead_s is not None else 0.0
    began_s, ended_s = [_NEVER] * len(left), [_NEVER] * len(left)
    queue: list[int] = []
    now_s = free_s = 0.0  # of the sender; of the wire, when all that it was given has left
    next_s = coming.move(now_s, queue)
    while queue or next_s < _NEVER:
        if not queue:
            now_s = next_s
            next_s = coming.move(now_s, queue)
        message = queue[0]
        takes_s = chunk_s[message]
        given_s = free_s + slack_s
        if given_s < now_s:
            given_s = now_s
        if next_s <= given_s:
            now_s = next_s
            next_s = coming.move(now_s, queue)
            continue
        begin_s = given_s if given_s > free_s else free_s
        if began_s[message] == _NEVER:
            began_s[message] = begin_s
        count, now_s, free_s = left[message], given_s, begin_s + takes_s
        if count > 1:
            count, now_s, free_s = _run(count, given_s, free_s, takes_s, slack_s, next_s)
            left[message] -= count
            if left[message]:
                continue
        heappop(queue)
        ended_s[message] = free_s
        if chained:
            coming.release(message, free_s)
            next_s = coming.move(now_s, queue)
    if _NEVER in ended_s:
        raise ValueError("messages wait for each other")
    return Sent(coming.could_s, began_s, ended_s)


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
