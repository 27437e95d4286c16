"""Settings: sizes and times of what carries frames, and how the kernel is told of them."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, field, replace

import torch

from compressa.pacing import Pacer
from compressa.transports.checks import CHECKSUMS, Keys
from compressa.transports.frames import FRAME_HEADER_BYTES

_LEAST_FRAME_BYTES, _LEAST_UNSENT_BYTES = 1 << 15, 1 << 12
_LEAST_WINDOW = 2
_NOTSENT_LOWAT = 25  # Linux's TCP_NOTSENT_LOWAT, which Python 3.11 does not name


@dataclass(frozen=True)
class Settings:
    """What all streams of a transport share.

    Attributes:
        epoch: Epoch of the transport.
        chunk_bytes: Most bytes of data in a frame.
        credit_bytes: Most bytes handed over for one peer that more urgent ones cannot overtake.
        silence_s: A peer is lost from which nothing comes for so long, or, where streams are not
            `alive`, that confirms nothing.
        heartbeat_s: How often a stream carries a sign of life.
        alive: Whether TCP streams carry signs of life, and end with a goodbye, without which they
            were cut. Where another channel tells who is there, they need not.
        kept_bytes: Most that the kernel keeps for one peer; None for as many as it likes.
        pacer: Holds back what is sent, to all peers together.
        keys: Of the checks of all frames; without a secret, unless ranks authenticate each other.
        poll_s: For how long to look for what is due before sleeping.
    """

    epoch: int
    chunk_bytes: int
    credit_bytes: int
    silence_s: float
    heartbeat_s: float = 1.0
    alive: bool = False
    kept_bytes: int | None = None
    pacer: Pacer = field(default_factory=lambda: Pacer(None))
    keys: Keys = CHECKSUMS
    poll_s: float = 0.0

    @property
    def authenticated(self) -> bool:
        """Whether ranks prove to each other who they are."""
        return self.keys.secret is not None

    @property
    def unsent_bytes(self) -> int:
        """Most that the kernel holds of one connection and has not sent, beside a frame."""
        return max(self.credit_bytes - self.chunk_bytes, _LEAST_UNSENT_BYTES)

    @property
    def window(self) -> int:
        """Frames in flight for one peer, where it is they that are counted; 2 at least."""
        return max(_LEAST_WINDOW, self.credit_bytes // self.chunk_bytes)

    def shared(self, connections: int) -> Settings:
        """Return what each of several connections to a peer gets.

        Chunks, credit and what the kernel keeps are shared out; frames do not become so small that
        calls cost more than bytes (32 KiB).

        Example:
            >>> each = Settings(1, 256 << 10, 512 << 10, 60.0).shared(4)
            >>> each.chunk_bytes, each.unsent_bytes
            (65536, 65536)
        """
        chunk_bytes = max(
            self.chunk_bytes // connections, min(self.chunk_bytes, _LEAST_FRAME_BYTES)
        )
        kept_bytes = None if self.kept_bytes is None else self.kept_bytes // connections
        return replace(
            self,
            chunk_bytes=chunk_bytes,
            credit_bytes=self.credit_bytes // connections,
            kept_bytes=kept_bytes,
        )

    def staging(self) -> torch.Tensor:
        """Allocate memory for one frame: uint8 of a header and a chunk, on the CPU."""
        return torch.zeros(FRAME_HEADER_BYTES + self.chunk_bytes, dtype=torch.uint8)


def tune(link: socket.socket, settings: Settings) -> None:
    """Have the kernel treat a connection as the settings say; it does not block from now on.

    Args:
        link: A connected stream socket; what only TCP has is left out of a Unix-domain one.
        settings: Those of one connection; see `Settings.shared`.

    Raises:
        OSError: The connection has gone.
    """
    link.setblocking(False)
    if settings.kept_bytes is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.kept_bytes)
    if link.family == socket.AF_UNIX:
        return
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        link.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, settings.unsent_bytes)
    if sys.platform == "linux" and not settings.alive:
        patience_ms = round(settings.silence_s * 1000)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
