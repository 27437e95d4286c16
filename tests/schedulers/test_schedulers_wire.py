"""The wire: from event to event, messages leave as if one looked before every chunk."""

from __future__ import annotations

import numpy as np
import pytest
from compressa.schedulers.wire import Messages, Waits, send
from hypothesis import given, settings
from hypothesis import strategies as st

# Whole numbers, so that sums are exact and nothing has to be approximate.
SECONDS = st.integers(0, 20).map(float)
Wait = tuple[int, int, float]


@st.composite
def messages(draw: st.DrawFn) -> Messages:
    """Several that are ready at any times, and wait for others in no circle."""
    count = draw(st.integers(0, 8))
    ready_s = [draw(SECONDS) for _ in range(count)]
    chunks = [draw(st.integers(1, 6)) for _ in range(count)]
    chunk_s = [float(draw(st.integers(1 if n > 1 else 0, 5))) for n in chunks]
    turn = draw(st.permutations(range(count)))
    pairs = [(turn[i], turn[j]) for i in range(count) for j in range(i)]
    waiting = draw(st.lists(st.sampled_from(pairs), max_size=8, unique=True)) if pairs else []
    return made(ready_s, chunks, chunk_s, [(*pair, draw(SECONDS)) for pair in waiting])


def made(
    ready_s: list[float], chunks: list[int], chunk_s: list[float], waits: list[Wait]
) -> Messages:
    message, awaited, lag_s = zip(*waits, strict=True) if waits else ((), (), ())
    numbers = np.array(message, dtype=np.int64), np.array(awaited, dtype=np.int64)
    links = Waits(*numbers, np.array(lag_s)) if waits else None
    return Messages(np.array(ready_s), np.array(chunks, dtype=np.int64), np.array(chunk_s), links)


def chunk_by_chunk(messages: Messages, slack_s: float) -> list[list[float]]:
    """The same, in the plainest way: when messages could leave, began to and had left."""
    left, could_s = messages.chunks.tolist(), messages.ready_s.tolist()
    waits: list[Wait] = []
    if messages.waits is not None:
        links = messages.waits
        pairs = links.message.tolist(), links.awaited.tolist()
        waits = list(zip(*pairs, links.lag_s.tolist(), strict=True))
    began_s: dict[int, float] = {}
    ended_s = [0.0] * len(left)
    given_s = free_s = 0.0
    while any(left):
        held = {one for one, other, _ in waits if left[other]}
        free = [m for m in range(len(left)) if left[m] and m not in held]
        given_s = max(given_s, free_s + slack_s, min(could_s[m] for m in free))
        urgent = min(m for m in free if could_s[m] <= given_s)
        begin_s = max(given_s, free_s)
        began_s.setdefault(urgent, begin_s)
        ended_s[urgent] = free_s = begin_s + float(messages.chunk_s[urgent])
        left[urgent] -= 1
        for one, other, lag_s in waits:
            if other == urgent and not left[other]:
                could_s[one] = max(could_s[one], free_s + lag_s)
    return [could_s, [began_s[m] for m in range(len(left))], ended_s]


@settings(max_examples=300)
@given(messages(), st.none() | SECONDS, st.integers(0, 5).map(float))
def test_messages_leave_as_if_one_looked_before_every_chunk(
    messages: Messages, ahead_s: float | None, return_s: float
) -> None:
    sent = send(messages, ahead_s, return_s)
    slack_s = 0.0 if ahead_s is None else return_s - ahead_s
    found = [sent.could_s.tolist(), sent.began_s.tolist(), sent.ended_s.tolist()]
    assert found == chunk_by_chunk(messages, slack_s)


def test_messages_that_wait_for_each_other_are_refused() -> None:
    circle = made([0.0, 0.0], [1, 1], [1.0, 1.0], [(0, 1, 0.0), (1, 0, 0.0)])
    with pytest.raises(ValueError, match="wait for each other"):
        send(circle)
