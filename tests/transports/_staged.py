"""Two ranks in one process: an emulated GPU each, and TCP between them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from compressa.errors import CompressaError
from compressa.transports.settings import Settings
from compressa.transports.staged import Staged
from compressa.transports.tcp import TcpTransport

EARLY_BYTES = 1 << 20


def staged_transports(
    streams: Sequence[torch.cuda.Stream], failures: list[CompressaError], piece_bytes: int = 100
) -> list[Staged]:
    """Return the transports of two ranks."""
    reactors, lowered = socket.socketpair(), socket.socketpair()
    settings = Settings(epoch=1, chunk_bytes=1 << 12, credit_bytes=1 << 14, silence_s=10.0)
    made = []
    for rank, stream in enumerate(streams):
        peers = {1 - rank: [reactors[rank]]}, {1 - rank: [lowered[rank]]}
        sizes = settings, EARLY_BYTES, failures.append, None
        inner = TcpTransport(rank, peers[0], *sizes, peers[1])
        made.append(Staged(inner, stream, piece_bytes=piece_bytes))
    return made


@contextmanager
def closed_at_once(made: Iterable[Any], *arguments: float) -> Iterator[None]:
    """Close what has two ends when the block is over, each on a thread."""
    try:
        yield
    finally:
        closing = [threading.Thread(target=each.close, args=arguments) for each in made]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
