"""What a scheduler knows of the network: one rank's way out."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """One wire that a rank sends on, and how its transport uses it.

    A message is sent in chunks; one of b bytes in m chunks holds the wire for
    m overhead_s + b / bytes_per_s. Its last byte is there latency_s later, while the wire already
    carries others.

    Attributes:
        bytes_per_s: Rate of the wire.
        latency_s: From a byte's leaving to its arrival; it takes as long to learn that a chunk has
            left, so that a window pays for it, too.
        overhead_s: What each chunk costs besides its bytes: the startup time of MG-WFBP, theta of
            ByteScheduler.
        chunk_bytes: Most bytes of a chunk that the transport makes, whatever a plan says; None if
            it cuts nothing by itself.
        credit_bytes: Bytes under way that nothing overtakes, where a plan does not say; None for
            one chunk.

    Raises:
        ValueError: A rate or a size is not finite and more than 0, or a time not at least 0.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    overhead_s: float = 0.0
    chunk_bytes: int | None = None
    credit_bytes: int | None = None

    def __post_init__(self) -> None:
        positive("bytes_per_s", self.bytes_per_s)
        not_negative("latency_s", self.latency_s)
        not_negative("overhead_s", self.overhead_s)
        positive("chunk_bytes", self.chunk_bytes)
        positive("credit_bytes", self.credit_bytes)

    def wire_s(self, size_bytes: float, chunks: int = 1) -> float:
        """Return for how many seconds a message holds the wire.

        Args:
            size_bytes: Of the whole message.
            chunks: In how many chunks it is sent.
        """
        return chunks * self.overhead_s + size_bytes / self.bytes_per_s

    def chunk_within(self, chunk_bytes: int | None) -> int | None:
        """Return the chunk that comes of a plan's: never larger than the transport's."""
        sizes = [size for size in (chunk_bytes, self.chunk_bytes) if size is not None]
        return min(sizes, default=None)


def not_negative(name: str, value: float) -> None:
    """Raise ValueError unless a value is finite and at least 0."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and at least 0, not {value}")


def positive(name: str, value: float | None) -> None:
    """Raise ValueError unless a value is finite and more than 0, or None."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and more than 0, not {value}")
