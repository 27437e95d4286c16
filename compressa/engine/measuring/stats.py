"""What the engine measured, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args


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


Way = Literal["deferred", "at once", "together"]
WAYS: Final[tuple[Way, ...]] = get_args(Way)


@dataclass(frozen=True)
class Overlap:
    """How a step's updates and exchanges are done, and what was measured of that.

    Attributes:
        way: "deferred" to the next forward pass; "at once", when all gradients have been
            exchanged, each as soon as can be; or at once and all "together", in few messages.
        measuring: Whether that is being tried.
        deferred_s: Seconds of a step that defers updates, as last measured; None if never.
        at_once_s: Seconds of a step that does them at once; None likewise.
        together_s: Seconds of a step whose gradients go together; None likewise.
    """

    way: Way = "at once"
    measuring: bool = False
    deferred_s: float | None = None
    at_once_s: float | None = None
    together_s: float | None = None

    @property
    def deferring(self) -> bool:
        """Whether updates wait for the next forward pass."""
        return self.way == "deferred"

    @property
    def steps_s(self) -> tuple[float | None, float | None, float | None]:
        """What a step takes, in the order of `WAYS`."""
        return self.deferred_s, self.at_once_s, self.together_s

    def __str__(self) -> str:
        """Say it, for a trace."""
        steps = zip(WAYS, self.steps_s, strict=True)
        known = (f"{name} {seconds * 1e3:.3g} ms" for name, seconds in steps if seconds is not None)
        told = ", ".join(known) or "nothing measured"
        return f"updates {self.way}{', to measure it' if self.measuring else ''}; a step: {told}"


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
        overlap: How steps are done; only `OverlappedDataParallel` can defer updates.
    """

    steps: int
    dense_bytes: int
    payload_bytes: int
    sent_bytes: int
    messages: int
    codec_s: float
    exposed_s: float
    compressors: dict[str, CompressorStats] = field(default_factory=dict)
    overlap: Overlap = Overlap()

    @property
    def ratio(self) -> float:
        """Dense bytes over compressed bytes; larger is better. 1 if nothing was compressed yet."""
        return self.dense_bytes / self.payload_bytes if self.payload_bytes else 1.0

    def __str__(self) -> str:
        """Say it in a line, and in one for each compressor."""
        lines = [
            f"{self.steps} steps: {_megabytes(self.dense_bytes)} MB of gradients made "
            f"{self.ratio:.1f} times smaller; {_megabytes(self.sent_bytes)} MB sent in "
            f"{self.messages} messages; {self.codec_s:.3g} s of encoding and decoding, and "
            f"backward waited for {self.exposed_s:.3g} s"
        ]
        for name, own in self.compressors.items():
            lines.append(
                f"  {name}: {_megabytes(own.dense_bytes)} MB made {own.ratio:.1f} times smaller; "
                f"encoding {own.encode_s:.3g} s, decoding {own.decode_s:.3g} s, on the wire "
                f"{own.wire_s:.3g} s"
            )
        return "\n".join(lines)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f}"
