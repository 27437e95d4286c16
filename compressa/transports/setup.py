"""What every transport is opened with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from compressa.errors import CompressaError
from compressa.pacing import Pacer
from compressa.transports.checks import CHECKSUMS, Keys
from compressa.transports.rendezvous import AllGather
from compressa.transports.streams import StreamSettings


@dataclass(frozen=True, eq=False)
class Setup:
    """Who takes part, and what the configuration says of the way between them.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        epoch: Epoch of the transport.
        group: A process group that nobody else uses, of the backend that the entry names.
        all_gather: Brings bytes of every rank to every rank, within a deadline.
        part: Waits, at most so many seconds, until every rank is about to close its transport.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
        start_s: Longest wait for a rank that does not come to the start.
        deadline_s: Longest wait for a rank afterwards.
        heartbeat_s: An idle sender sends something this often.
        silence_s: A peer from which nothing comes for so long is lost.
        chunk_bytes: Most bytes of a message that go out in one piece.
        credit_bytes: Most bytes handed over for one peer that more urgent ones cannot overtake.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        kept_bytes: Most that the kernel keeps for one peer; None for as many as it likes.
        connections: To every peer.
        pacer: Holds back what is sent, to all peers together.
        keys: Of the checks of all frames; without a secret, unless ranks authenticate each other.
        poll_s: For how long to look for what is due before sleeping.
        stream: On which buffers are made and used, if they are a GPU's.
    """

    rank: int
    size: int
    epoch: int
    group: dist.ProcessGroup
    all_gather: AllGather
    part: Callable[[float], None]
    failed: Callable[[CompressaError], None]
    start_s: float
    deadline_s: float
    heartbeat_s: float
    silence_s: float
    chunk_bytes: int
    credit_bytes: int
    early_bytes: int
    kept_bytes: int | None = None
    connections: int = 1
    pacer: Pacer = field(default_factory=lambda: Pacer(None))
    keys: Keys = CHECKSUMS
    poll_s: float = 0.0
    stream: torch.cuda.Stream | None = None

    @property
    def authenticated(self) -> bool:
        """Whether ranks prove to each other who they are."""
        return self.keys.secret is not None

    @property
    def streams(self) -> StreamSettings:
        """The same for streams of frames, of which a window is under way."""
        window = max(2, self.credit_bytes // self.chunk_bytes)
        return StreamSettings(
            self.epoch,
            self.chunk_bytes,
            window,
            self.heartbeat_s,
            self.silence_s,
            self.pacer,
            self.keys,
        )
