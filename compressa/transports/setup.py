"""What every transport is opened with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from compressa.errors import CompressaError
from compressa.transports.rendezvous import AllGather
from compressa.transports.settings import Settings


@dataclass(frozen=True, eq=False)
class Setup:
    """Who takes part, and how.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        group: A process group of the backend that the entry names; nobody else uses it, unless it
            is shared.
        settings: Sizes and times of what carries frames.
        all_gather: Brings bytes of every rank to every rank, within a deadline.
        part: Waits, at most so many seconds, until every rank is about to close its transport.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
        start_s: Longest wait for a rank that does not come to the start.
        deadline_s: Longest wait for a rank afterwards.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        connections: To every peer.
        stream: On which buffers are made and used, if they are a GPU's.
        shared: Whether the group is the model's, and others call it, too: in one order with these
            calls on every rank, and on the thread that makes them.
    """

    rank: int
    size: int
    group: dist.ProcessGroup
    settings: Settings
    all_gather: AllGather
    part: Callable[[float], None]
    failed: Callable[[CompressaError], None]
    start_s: float
    deadline_s: float
    early_bytes: int
    connections: int = 1
    stream: torch.cuda.Stream | None = None
    shared: bool = False
