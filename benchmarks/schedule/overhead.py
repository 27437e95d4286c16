"""What scheduling costs for each chunk: to plan it, and to choose and cut it when it goes out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import torch
from compressa.schedulers import POLICIES, Conditions, Link, Transfer

from compressa.transports.base import Key
from compressa.transports.outbox import Outbox

CHUNKS = 10_000
_CHUNK_BYTES = 1 << 10
_MESSAGES = 200
_LINK = Link(bytes_per_s=25e6, latency_s=1e-4, overhead_s=1e-4)


def chunk_costs(repeats: int = 5) -> Iterator[tuple[str, float]]:
    """Yield, for each thing that is done for a chunk, its name and the median of its seconds."""
    transfers = [
        Transfer(
            unit,
            stage,
            _CHUNK_BYTES * (1 + unit % 97),
            ready_s=1e-4 * unit,
            need_s=1.0 + 1e-4 * (CHUNKS // 2 - unit),
        )
        for unit in range(CHUNKS // 2)
        for stage in range(2)
    ]
    for name, policy in POLICIES.items():
        times_s = []
        for _ in range(repeats):
            begin_s = time.perf_counter()
            policy(transfers, Conditions(_LINK, 2.0))
            times_s.append(time.perf_counter() - begin_s)
        yield f"plan by {name}", median(times_s) / CHUNKS
    yield "choose, cut and hand over", median(_handed_s() for _ in range(repeats)) / CHUNKS


def _handed_s() -> float:
    """Queue messages of many chunks, the most urgent last, and take all chunks out again."""
    outbox = Outbox(0, _CHUNK_BYTES)
    payload = torch.zeros(CHUNKS // _MESSAGES * _CHUNK_BYTES, dtype=torch.uint8)
    begin_s = time.perf_counter()
    for unit in range(_MESSAGES):
        outbox.push(Key(0, unit, 0), payload, (0, _MESSAGES - unit), _nothing)
    while outbox:
        item = outbox.next_frame()
        item.frame.pack()
        item.sent()
    return time.perf_counter() - begin_s


def _nothing() -> None:
    pass
