"""Entropy: another codec's payload, made shorter without loss by an entropy coder.

Codes of a quantiser are not equally likely: those of int8 carry six or seven bits, those of int4
about three. A general coder (Zstandard, RFC 8878: Huffman codes and tANS after matching) finds
most of that, at some hundred megabytes a second and core. So it pays where the network is slow.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Le

from compressa.codecs.base import Bias, Bounded, Codec, Draw, Granularity
from compressa.compressor import Compressor
from compressa.errors import BackendUnavailable, ConfigError, PayloadError
from compressa.kernels.scratch import scratch
from compressa.parameters import ParameterInfo

Bytes = npt.NDArray[np.uint8]

_RAW, _CODED = 0, 1
_WINDOW_LOG = 20  # what a decoder has to remember, whatever the bytes say: a megabyte
_PIECE_BYTES = 1 << 15

_kept = threading.local()


@dataclass(frozen=True, kw_only=True)
class Entropy(Codec):
    """The payload of `codec` as a Zstandard frame where that is shorter, and as it is elsewhere.

    Wire format: the frame or the codec's payload; then one byte, 1 for a frame, 0 for the payload.
    Bias: the codec's. A frame that unpacks to more than the codec's longest payload is refused.

    Args:
        codec: What encodes. Payloads can not be summed any more on their way.
        level: Zstandard's level, 1 to 19: 1 is the fastest.

    Raises:
        BackendUnavailable: The library `zstandard` is not installed.
        ConfigError: The level is out of range, or the codec is an `Entropy` itself.

    Example:
        >>> from compressa.codecs import Int8
        >>> Entropy(codec=Int8(block=256)).wire_bytes(1000)
        1017
    """

    name: ClassVar[str] = "entropy"
    wire_id: ClassVar[int] = 25

    codec: Codec
    level: Annotated[int, Ge(1), Le(19)] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 19:
            raise ConfigError(f"entropy: level must be in 1 to 19, got {self.level}")
        if isinstance(self.codec, Entropy):
            raise ConfigError("entropy: a payload is not made shorter twice")
        _zstandard()

    @property
    def size(self) -> Bounded:
        """The data decide."""
        return Bounded()

    @property
    def granularity(self) -> Granularity:
        """The codec's."""
        return self.codec.granularity

    @property
    def block_elems(self) -> int:
        """The codec's."""
        return self.codec.block_elems

    @property
    def shared_stream(self) -> bool:
        """The codec's."""
        return self.codec.shared_stream

    @property
    def error_feedback(self) -> bool:
        """The codec's."""
        return self.codec.error_feedback

    @property
    def splits_feedback(self) -> bool:
        """The codec's."""
        return self.codec.splits_feedback

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Have the codec look at the parameter."""
        codec = self.codec.for_parameter(parameter)
        assert isinstance(codec, Codec)  # only wrappers choose something else
        return replace(self, codec=codec)

    def wire_bytes(self, elems: int) -> int:
        """The codec's payload, and one byte."""
        return self.codec.wire_bytes(elems) + 1

    def bias(self, elems: int) -> Bias:
        """The codec's."""
        return self.codec.bias(elems)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Encode, and pack."""
        return self._pack(payload, self.codec.encode(x, payload[:-1], draw))

    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        """Encode with the residual, and pack."""
        length = self.codec.encode_feedback(x, residual, payload[:-1], draw, scale)
        return self._pack(payload, length)

    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Unpack, and decode."""
        self.codec.decode(self._unpack(payload, out.numel()), out, draw)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, decode and accumulate."""
        self.codec.decode_add(self._unpack(payload, out.numel()), out, weight, draw)

    def check(self, payload: torch.Tensor, elems: int) -> None:
        """Check the frame, and what it unpacks to."""
        self.codec.check(self._unpack(payload, elems), elems)

    def _pack(self, payload: torch.Tensor, length: int) -> int:
        """Make the front of a payload shorter if that is possible; return its length."""
        raw = payload.numpy()
        packed = _compressed(raw[:length], self.level)
        if packed is None:
            raw[length] = _RAW
            return length + 1
        raw[: packed.size] = packed
        raw[packed.size] = _CODED
        return packed.size + 1

    def _unpack(self, payload: torch.Tensor, elems: int) -> torch.Tensor:
        """Return the codec's payload; it is valid until the next one is unpacked."""
        if payload.numel() == 0:
            raise PayloadError("entropy: an empty payload arrived")
        flag = int(payload[-1])
        if flag == _RAW:
            return payload[:-1]
        if flag != _CODED:
            raise PayloadError(f"entropy: a payload ends with {flag}, which is neither 0 nor 1")
        most = self.codec.wire_bytes(elems)
        return torch.from_numpy(_decompressed(payload[:-1].numpy(), most))


class _Sink:
    """Takes the pieces of a frame as long as there is room."""

    def __init__(self, room: Bytes) -> None:
        self._room = room
        self.length = 0
        self.full = False

    def write(self, piece: bytes) -> int:
        """Take a piece, or drop it if it does not fit."""
        end = self.length + len(piece)
        self.full |= end > self._room.size
        if not self.full:
            self._room[self.length : end] = np.frombuffer(piece, np.uint8)
            self.length = end
        return len(piece)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise BackendUnavailable(
            "the entropy stage needs the library zstandard: pip install compressa[entropy]"
        ) from error
    return zstandard


def _compressed(raw: Bytes, level: int) -> Bytes | None:
    """Return a frame in memory that the thread keeps; None unless it is shorter."""
    if not raw.size:
        return None
    room: Bytes = scratch("entropy.frame", raw.size - 1, np.uint8)
    sink = _Sink(room)
    writer = _compressor(level).stream_writer(
        sink, size=raw.size, write_size=_PIECE_BYTES, closefd=False
    )
    with writer:
        writer.write(raw.data)
    return None if sink.full else room[: sink.length]


def _decompressed(frame: Bytes, most: int) -> Bytes:
    """Return what a frame unpacks to, in memory that the thread keeps.

    Raises:
        PayloadError: It is no frame, is not whole, is followed by something, or is a bomb.
    """
    room: Bytes = scratch("entropy.payload", most + 1, np.uint8)
    zstandard, length = _zstandard(), 0
    try:
        declared = zstandard.frame_content_size(frame.data)
        with _decompressor().stream_reader(frame.data, closefd=False) as reader:
            while length <= most and (count := reader.readinto(room[length:].data)):
                length += count
    except zstandard.ZstdError as error:
        raise PayloadError(f"entropy: {error}") from error
    if length > most or length != declared:
        raise PayloadError(
            f"entropy: a frame that says {declared} unpacks to {length} bytes or more, and "
            f"{most} are the most that can be"
        )
    return room[:length]


def _compressor(level: int) -> Any:
    """Return this thread's coder for a level; it has a context that is worth keeping."""
    coders: dict[int, Any] = _kept.__dict__.setdefault("coders", {})
    if level not in coders:
        zstandard = _zstandard()
        parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=_WINDOW_LOG)
        coders[level] = zstandard.ZstdCompressor(compression_params=parameters)
    return coders[level]


def _decompressor() -> Any:
    """Return this thread's decoder; it refuses to remember more than a coder asks it to."""
    if not hasattr(_kept, "decoder"):
        _kept.decoder = _zstandard().ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    return _kept.decoder
