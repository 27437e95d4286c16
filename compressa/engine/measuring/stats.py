"""What the engine measured, as plain numbers."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class CompressorStats:
    """Sums over all steps so far, for the units of one compressor.

    Attributes:
        dense_bytes: Size of the gradients, in their own dtype.
        payload_bytes: What this rank contributed after compression, each byte counted once
            however often it travels.
        encode_s: Time of computing until a unit's first exchange.
        decode_s: Time of computing after that.
        wire_s: Time from launch to completion of exchanges; several overlap.
    """

    dense_bytes: int = 0
    payload_bytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    wire_s: float = 0.0

    @property
    def ratio(self) -> float:
        """Dense bytes over compressed bytes; larger is better. 1 if nothing was compressed yet."""
        return self.dense_bytes / self.payload_bytes if self.payload_bytes else 1.0


@dataclass(frozen=True)
class Stats:
    """A snapshot of what happened since registration, on this rank.

    Attributes:
        steps: Optimizer steps whose gradients were combined.
        dense_bytes: Size of the gradients.
        payload_bytes: Size after compression.
        sent_bytes: What this rank handed to the network: payloads as often as they travel,
            with all headers of ours.
        messages: How many messages that was.
        codec_s: Time in encode and decode, in seconds, of all threads together.
        exposed_s: Time for which backward waited for communication and codecs, in seconds.
        compressors: The same by compressor name.
    """

    steps: int
    dense_bytes: int
    payload_bytes: int
    sent_bytes: int
    messages: int
    codec_s: float
    exposed_s: float
    compressors: dict[str, CompressorStats] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Dense bytes over compressed bytes; larger is better. 1 if nothing was compressed yet."""
        return self.dense_bytes / self.payload_bytes if self.payload_bytes else 1.0


class Ledger:
    """Adds up measurements; `add_unit`, `add_time` and `snapshot` are for any thread.

    Attributes:
        steps: How many have begun; for one thread.
        exposed_s: For how many seconds training has waited; for one thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: defaultdict[str, CompressorStats] = defaultdict(CompressorStats)
        self.steps = 0
        self.exposed_s = 0.0

    def add_unit(self, compressor: str, dense_bytes: int, payload_bytes: int) -> None:
        """Count one unit of one step, by the name of its compressor."""
        with self._lock:
            row = self._rows[compressor]
            row.dense_bytes += dense_bytes
            row.payload_bytes += payload_bytes

    def add_time(self, compressor: str, stage: str, seconds: float) -> None:
        """Count seconds of a compressor's units in a stage: "encode", "decode" or "wire"."""
        with self._lock:
            row = self._rows[compressor]
            setattr(row, f"{stage}_s", getattr(row, f"{stage}_s") + seconds)

    def snapshot(self, sent_bytes: int, messages: int) -> Stats:
        """Return the sums so far, with what the transport says that it has sent."""
        with self._lock:
            rows = {name: CompressorStats(**vars(row)) for name, row in self._rows.items()}
        return Stats(
            steps=self.steps,
            dense_bytes=sum(row.dense_bytes for row in rows.values()),
            payload_bytes=sum(row.payload_bytes for row in rows.values()),
            sent_bytes=sent_bytes,
            messages=messages,
            codec_s=sum(row.encode_s + row.decode_s for row in rows.values()),
            exposed_s=self.exposed_s,
            compressors=rows,
        )
