"""Entropy: another codec's payload, made shorter without loss by an entropy coder.

Codes of a quantiser are not equally likely: a block's largest element has the largest code, and
most elements are far smaller. Zstandard (RFC 8878) finds most of what that is worth, by Huffman
codes for the bytes. It takes time on every payload, so it pays where the network is slow;
docs/guides/configuration.md has what was measured.

It works in the memory of the host: a payload of a GPU is waited for, and copied there and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le

from compressa.arrays import as_array, scratch_tensor
from compressa.codecs._zstandard import code, decoded, missing_library
from compressa.codecs.base import Bias, Bounded, Codec, Draw
from compressa.codecs.fused import Fused
from compressa.codecs.none import NoCompression
from compressa.compressor import Wrapper
from compressa.errors import ConfigError, PayloadError
from compressa.kernels.scratch import scratch

MOST_LEVEL = 9
"""Beyond it, speed falls to 10 MB a second: the few percent more pay below 10 Mbit/s, if at all."""

_RAW, _CODED = 0, 1


@dataclass(frozen=True, kw_only=True)
class Entropy(Codec, Wrapper):
    """The payload of `codec` as a Zstandard frame where that is shorter, and as it is elsewhere.

    Wire format: the frame, or the codec's payload; then one byte, 1 for a frame, 0 for the payload.
    It is the last one, so that the payload's floats lie where the codec expects them. A frame says
    how many bytes it holds, has no dictionary and no checksum, and ends before the last byte.

    Bias: the codec's.

    What arrives is refused before memory is written to if it is anything else: a frame that says
    or turns out to hold more than the codec's longest payload, or no less than its own length; a
    second one; bytes after it; one that asks a decoder to remember more than a megabyte. The bytes
    of a frame depend on the library's version, what they decode to does not.

    Args:
        codec: What encodes. Its payloads can not be summed any more on their way.
        level: Zstandard's level, 1 to 9. Compared with 1, the others take up to ten times as long
            for a few percent.

    Raises:
        ConfigError: The level is out of range, the codec is an `Entropy` itself, or the library
            `zstandard` is not installed.

    Example:
        >>> from compressa.codecs import Int8
        >>> Entropy(codec=Int8(block=256)).wire_bytes(1000)
        1017
    """

    name: ClassVar[str] = "entropy"
    wire_id: ClassVar[int] = 25
    wraps: ClassVar[str] = "codec"

    codec: Codec
    level: Annotated[int, Ge(1), Le(MOST_LEVEL)] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.level <= MOST_LEVEL:
            raise ConfigError(f"entropy: level must be in 1 to {MOST_LEVEL}, got {self.level}")
        if isinstance(self.codec, Entropy):
            raise ConfigError("entropy: a payload is not made shorter twice")
        missing = missing_library()
        if missing:
            raise ConfigError(f"entropy: {missing}")

    @property
    def size(self) -> Bounded:
        """The data decide."""
        return Bounded()

    @property
    def error_feedback(self) -> bool:
        """The codec's."""
        return self.codec.error_feedback

    @property
    def takes_half(self) -> bool:
        """The codec's."""
        return self.codec.takes_half

    def wire_bytes(self, elems: int) -> int:
        """The codec's payload, and one byte."""
        return self.codec.wire_bytes(elems) + 1

    def bias(self, elems: int) -> Bias:
        """The codec's."""
        return self.codec.bias(elems)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Encode, and shorten."""
        return self._shorten(payload, self.codec.encode(x, payload[:-1], draw))

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Restore the codec's payload, decode it and accumulate."""
        self.codec.decode_add(self._restored(payload, out.numel()), out, weight, draw)

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        """See `Codec.check_content`: the frame, and what it holds."""
        self.codec.check(self._restored(payload, elems), elems)

    @cached_property
    def fused(self) -> Fused:
        """What the codec does in one pass."""
        return Fused(
            encode_feedback=self._encode_feedback,
            splits_feedback=self.codec.fused.splits_feedback,
            decode=self._decode,
        )

    def _encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float,
    ) -> int:
        """Encode with the residual, and shorten."""
        length = self.codec.encode_feedback(x, residual, payload[:-1], draw, loss_scale)
        return self._shorten(payload, length)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Restore the codec's payload, and decode it."""
        self.codec.decode(self._restored(payload, out.numel()), out, draw)

    def _shorten(self, payload: torch.Tensor, length: int) -> int:
        """Code the front of a payload if that makes it shorter; return its length."""
        raw = as_array(payload[:length].cpu())
        # As long as a payload can be, so that it never has to grow.
        frame = scratch("entropy.frame", payload.numel(), np.uint8)[:length]
        coded = code(raw, frame, self.level)
        if coded < length:
            payload[:coded].copy_(torch.from_numpy(frame[:coded]))
            payload[coded] = _CODED
            return coded + 1
        payload[length] = _RAW
        return length + 1

    def _restored(self, payload: torch.Tensor, elems: int) -> torch.Tensor:
        """Return the codec's payload; it is valid until this thread restores the next one."""
        self.check_length(payload, elems)
        if payload.numel() == 0:
            raise PayloadError("entropy: a payload without a byte arrived")
        host = payload.cpu()  # of a GPU: waits until it has come
        flag = int(host[-1])
        if flag == _RAW:
            return payload[:-1]
        if flag != _CODED:
            raise PayloadError(f"entropy: a payload ends with {flag}, which is neither 0 nor 1")
        most = self.codec.wire_bytes(elems)
        whole = torch.from_numpy(decoded(as_array(host[:-1]), most))
        if not payload.is_cuda:
            return whole
        room = scratch_tensor("entropy.whole", whole.numel(), torch.uint8, payload.device)
        return room.copy_(whole)


def can_shorten(codec: Codec, exchange: str) -> bool:
    """Whether an exchange moves the codec's payloads as they are.

    Not so where they are summed on their way. A gradient that is not compressed is
    summed in every exchange.

    Args:
        codec: What encodes.
        exchange: The `kind` of a configuration.
    """
    exact = codec.reduce is not None and codec.reduce.dtype.itemsize == 4
    summed = exchange in ("all_reduce", "per_hop") or (exchange == "auto" and exact)
    return not summed and not isinstance(codec, NoCompression)
