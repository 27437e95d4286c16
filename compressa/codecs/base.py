"""The contract of a codec: vectors to bytes and back, and facts that let nobody guess.

A codec works on one scope (a segment of a parameter): a contiguous vector. It keeps no state and
never talks to a network. Its core is abstract, what follows from the core is final, and a codec
that can do several things in one pass over memory says so in `fused`. Error feedback is a wrapper.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from compressa.arrays import scratch_tensor, surely_finite
from compressa.bias import Bias, Biased, Contraction, Range, Unbiased
from compressa.codecs.draw import Draw
from compressa.codecs.fused import NOTHING_FUSED, Fused
from compressa.compressor import Compressor, Granularity, Wrapper
from compressa.errors import PayloadError

_CORE = ("encode", "decode_add")


@dataclass(frozen=True)
class Fixed:
    """The payload of n elements always has `wire_bytes(n)` bytes."""


@dataclass(frozen=True)
class Bounded:
    """The payload of n elements has at most `wire_bytes(n)` bytes; its header says how many."""


@dataclass(frozen=True)
class Reduction:
    """A plain all-reduce may sum the payloads.

    Attributes:
        dtype: The payload is a packed array of this dtype.
        max_ranks: Most ranks whose sum cannot overflow the dtype (None: any number, since
            every payload is divided by the number of ranks before the sum).
    """

    dtype: torch.dtype
    max_ranks: int | None = None


@dataclass(frozen=True, kw_only=True)
class Codec(Compressor):
    """One vector to bytes and back.

    Tensors: `x`, `out` and `residual` are 1-D, contiguous, float32 and of one length n; `x` may
    also be float16 or bfloat16 if the codec `takes_half`. `payload` is 1-D, contiguous, uint8, of
    `wire_bytes(n)` bytes. All are on one device, and the work is enqueued on that device's current
    stream.

    A scope that holds a NaN or an infinity yields a payload that decodes to non-finite
    values wherever the affected block reaches, so that a loss scaler sees it on every rank.

    Raises:
        TypeError: A class replaces what is final; or it replaces a part of the core, and would
            inherit `fused` ways that know nothing of that.
    """

    wire_id: ClassVar[int]

    check_content: ClassVar[Callable[[Any, torch.Tensor, int], None] | None] = None
    """A method (payload, elems) that raises PayloadError for a payload of the right length that
    can not be decoded; None if all of that length can. For indices, counts and flags."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in vars(cls):
            if any(getattr(vars(b).get(name), "__final__", False) for b in cls.__mro__[1:]):
                raise TypeError(
                    f"{cls.__name__}.{name}: every codec's {name} follows from its core; a faster "
                    "way to the same goes into `fused`, a check of the content into `check_content`"
                )
        owner = next(base for base in cls.__mro__ if "fused" in vars(base))
        changed = [name for name in _CORE if name in vars(cls)]
        if changed and owner not in (cls, Codec):
            raise TypeError(
                f"{cls.__name__} has its own {' and '.join(changed)}, and would inherit what "
                f"{owner.__name__}.fused does; define `fused` too, or wrap the codec"
            )

    @property
    def size(self) -> Fixed | Bounded:
        """Whether `wire_bytes` is exact or a bound."""
        return Fixed()

    @abstractmethod
    def wire_bytes(self, elems: int) -> int:
        """Bytes of the payload of `elems` elements: exact if Fixed, else the most."""

    @abstractmethod
    def bias(self, elems: int) -> Bias:
        """Return the error bound that holds for every vector of `elems` elements in its range."""

    @property
    def reduce(self) -> Reduction | None:
        """How a plain all-reduce may sum payloads; None if it may not."""
        return None

    @property
    def error_feedback(self) -> bool:
        """Whether error feedback is switched on unless the configuration says otherwise."""
        return True

    @property
    def takes_half(self) -> bool:
        """Whether it encodes float16 and bfloat16 too, as if they had been widened first."""
        return False

    def sections(self, elems: int) -> tuple[int, ...]:
        """Bytes of the arrays, in order, that a payload of `elems` elements consists of.

        Empty unless every part of the vector between multiples of `block_elems` has a part of each
        array to itself, and these decode as a payload of their own, whatever the draw.
        """
        return ()

    @abstractmethod
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Write the payload of `x`.

        Args:
            x: The vector.
            payload: Its front is overwritten; all of it if `size` is Fixed.
            draw: Counter of the random bits.

        Returns:
            The payload's length in bytes: `wire_bytes(n)` if Fixed, else at most that.
        """

    @abstractmethod
    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add `weight` times the decoded vector to `out`.

        Args:
            payload: What `encode` has written, as long as it said; or whatever has come instead.
            out: The vector that is added to.
            weight: Factor on the decoded vector.
            draw: That of `encode`.

        Raises:
            PayloadError: As `check` does. `out` is untouched then.
        """

    @property
    def fused(self) -> Fused:
        """What it does faster than its core."""
        return NOTHING_FUSED

    @final
    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float = 1.0,
    ) -> int:
        """Encode p = x + loss_scale * residual, and keep in the residual what that loses.

        It becomes (p - decode(payload)) / loss_scale.

        Where the error is not finite, the residual is left as it was; but if `p` is finite, so
        that only the payload's dtype was too small for it, `p` is kept whole.

        Args:
            x: The gradient, multiplied by the loss scale.
            residual: What was not sent so far, unscaled; updated in place.
            payload: Receives the payload.
            draw: Counter of the random bits.
            loss_scale: The loss scale.

        Returns:
            The payload's length in bytes.
        """
        if self.fused.encode_feedback is not None:
            return self.fused.encode_feedback(x, residual, payload, draw, loss_scale)
        room = scratch_tensor("codec.feedback", 2 * x.numel(), torch.float32, x.device)
        corrected, decoded = room.view(2, x.numel())
        torch.add(x, residual, alpha=loss_scale, out=corrected)
        length = self.encode(corrected, payload, draw)
        self.decode(payload[:length], decoded, draw)
        error = torch.sub(corrected, decoded, out=decoded).mul_(1.0 / loss_scale)
        if surely_finite(error):
            residual.copy_(error)
        else:
            kept = torch.where(corrected.isfinite().all(), corrected.div_(loss_scale), residual)
            torch.where(error.isfinite(), error, kept, out=residual)
        return length

    @final
    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Write the decoded vector to `out`, whatever it held.

        Args:
            payload: As in `decode_add`.
            out: Overwritten.
            draw: That of `encode`.

        Raises:
            PayloadError: As `check` does. `out` is untouched then.
        """
        if self.fused.decode is not None:
            self.fused.decode(payload, out, draw)
            return
        self.check(payload, out.numel())
        out.zero_()
        self.decode_add(payload, out, 1.0, draw)

    @final
    def decode_sum(
        self, payloads: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
    ) -> None:
        """Write `weight` times the sum of the decoded vectors to `out`.

        A sum begins with 0 and takes the payloads in order, as `decode_add` adds one.

        Args:
            payloads: Each with the counter of its random bits.
            out: As in `decode`; or of 16 bits if there is a fused sum.
            weight: Factor on every decoded vector.

        Raises:
            PayloadError: As in `decode`, for any of the payloads. `out` is untouched then.
        """
        if self.fused.decode_sum is not None:
            self.fused.decode_sum(payloads, out, weight)
            return
        for payload, _ in payloads:
            self.check(payload, out.numel())
        out.zero_()
        for payload, draw in payloads:
            self.decode_add(payload, out, weight, draw)

    @final
    def cut(self, payload: torch.Tensor, elems: int, start: int, stop: int) -> torch.Tensor:
        """Return what decodes to some elements of a payload, of a codec that has `sections`.

        It lies in memory that the thread keeps, until the next call; unless it is all of `payload`,
        which is returned itself then.

        Args:
            payload: Of `elems` elements.
            elems: How many it decodes to.
            start: The first element; a multiple of `block_elems`.
            stop: One past the last; a multiple of `block_elems`, or `elems`.
        """
        if stop - start == elems:
            return payload
        edges = zip(self.sections(start), self.sections(stop), strict=True)
        arrays = torch.split(payload, list(self.sections(elems)))
        parts = [array[low:high] for array, (low, high) in zip(arrays, edges, strict=True)]
        size = sum(part.numel() for part in parts)
        room = scratch_tensor("codec.cut", size, torch.uint8, payload.device)
        return torch.cat(parts, out=room)

    @final
    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The shape does not matter to a codec."""
        return self.wire_bytes(math.prod(shape))

    @final
    def check(self, payload: torch.Tensor, elems: int) -> None:
        """Refuse what can not be decoded; its length is looked at first, then `check_content`.

        Args:
            payload: As it came.
            elems: How many elements it is to decode to.

        Raises:
            PayloadError: It can not.
        """
        self.check_length(payload, elems)
        if self.check_content is not None:
            self.check_content(payload, elems)

    @final
    def check_length(self, payload: torch.Tensor, elems: int) -> None:
        """Refuse a payload of a length that can not be decoded.

        It is what `check` does first; for a kernel that checks the content itself.

        Args:
            payload: As it came.
            elems: How many elements it is to decode to.

        Raises:
            PayloadError: It is longer than `wire_bytes(elems)`; or shorter, if `size` is Fixed.
        """
        expected, actual = self.wire_bytes(elems), payload.numel()
        if actual == expected:
            return
        exact = isinstance(self.size, Fixed)
        if exact or actual > expected:
            raise PayloadError(
                f"{self.name}: a payload of {actual} bytes arrived for {elems} elements, which "
                f"take {'exactly' if exact else 'at most'} {expected} bytes"
            )


def codec_of(compressor: Compressor) -> Codec | None:
    """Return the codec that a compressor is, or is around; None if it exchanges in another way."""
    while isinstance(compressor, Wrapper) and not isinstance(compressor, Codec):
        compressor = compressor.inner
    return compressor if isinstance(compressor, Codec) else None


__all__ = [
    "Bias",
    "Biased",
    "Bounded",
    "Codec",
    "Contraction",
    "Draw",
    "Fixed",
    "Granularity",
    "Range",
    "Reduction",
    "Unbiased",
    "codec_of",
]
