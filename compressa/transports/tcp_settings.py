"""What TCP connections share: sizes and times, and how the kernel is told of them."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, field

from compressa.pacing import Pacer
from compressa.transports.checks import CHECKSUMS, Keys

_LEAST_FRAME_BYTES, _LEAST_UNSENT_BYTES = 1 << 15, 1 << 12
_NOTSENT_LOWAT = 25  # Linux's TCP_NOTSENT_LOWAT, which Python 3.11 does not name


@dataclass(frozen=True)
class TcpSettings:
    """What all connections of a transport share.

    Attributes:
        epoch: Epoch of the transport.
        chunk_bytes: Most bytes of data in a frame.
        unsent_bytes: Most that the kernel holds of one connection and has not sent.
        kept_bytes: Most that it holds, sent or not; None for as many as it likes.
        silence_s: Sent bytes that nobody confirms for so long end the connection.
        pacer: Holds back what is sent, to all peers together.
        poll_s: For how long to look for what is due before sleeping.
        keys: Of the checks of all streams.
    """

    epoch: int
    chunk_bytes: int
    unsent_bytes: int
    silence_s: float
    kept_bytes: int | None = None
    pacer: Pacer = field(default_factory=lambda: Pacer(None))
    poll_s: float = 0.0
    keys: Keys = CHECKSUMS


def frame_sizes(chunk_bytes: int, credit_bytes: int, connections: int) -> tuple[int, int]:
    """Share out what may be handed over for one peer and not be overtaken.

    Args:
        chunk_bytes: Most bytes of a frame, if there is one connection.
        credit_bytes: Most bytes that are in the kernel, unsent, or in a frame under way.
        connections: How many share them.

    Returns:
        `TcpSettings.chunk_bytes` and `unsent_bytes`; not so small that calls cost more than bytes.

    Example:
        >>> frame_sizes(256 << 10, 512 << 10, 4)
        (65536, 65536)
    """
    chunk = max(chunk_bytes // connections, min(chunk_bytes, _LEAST_FRAME_BYTES))
    return chunk, max(credit_bytes // connections - chunk, _LEAST_UNSENT_BYTES)


def tune(link: socket.socket, settings: TcpSettings) -> None:
    """Have the kernel treat a connection as the settings say; it does not block from now on."""
    link.setblocking(False)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if settings.kept_bytes is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.kept_bytes)
    if sys.platform == "linux":
        patience_ms = round(settings.silence_s * 1000)
        link.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, settings.unsent_bytes)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
