"""The contract of a codec: vectors to bytes and back, and facts that let nobody guess.

A codec works on one scope (a segment of a parameter): a contiguous vector. It keeps
no state and never talks to a network. Error feedback is a wrapper, but a codec may override
`encode_feedback` where one fused pass over memory does the work of four.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from compressa.arrays import scratch_tensor, surely_finite
from compressa.codecs.bias import Bias, Biased, Contraction, Range, Unbiased
from compressa.compressor import Compressor, Granularity
from compressa.errors import PayloadError
from compressa.kernels.philox import Noise

if TYPE_CHECKING:
    from compressa.aggregators.base import Aggregator, World
    from compressa.codecs.averaging import Averaging
    from compressa.parameters import Layout


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


@dataclass(frozen=True)
class Draw:
    """Where in the run an encode happens: the counter of counter-based random bits.

    Attributes:
        seed: The run's seed; the same on every rank.
        step: Optimizer step.
        parameter: Index of the parameter.
        start: First element of the scope within its parameter.
        rank: The encoding rank, for private streams; shared streams ignore it.
        owner: Whether the owner of a shard encodes the mean (a stream of its own too).
    """

    seed: int
    step: int
    parameter: int
    start: int
    rank: int
    owner: bool = False

    def private_noise(self, stream: int) -> Noise:
        """Return random numbers that no other rank, stage or codec draws.

        Args:
            stream: The codec's wire id.
        """
        whose = stream << 24 | int(self.owner) << 23 | self.rank
        return Noise(self.seed, whose, self.step, self.parameter, self.start)


@dataclass(frozen=True)
class Item:
    """One scope of several that are worked on at once.

    Attributes:
        values: What is encoded, or overwritten; as `x` or `out` of `Codec.decode_sum`.
        start: Byte at which the scope's bytes begin in a payload; a multiple of 8.
        parameter: Of its `Draw`.
        first: The `Draw`'s `start`.
        residual: As in `Codec.encode_feedback`; None for no feedback.
    """

    values: torch.Tensor
    start: int
    parameter: int
    first: int
    residual: torch.Tensor | None = None


class Encoder(ABC):
    """Encodes scopes of one payload at once, where they were when it was made.

    It keeps the addresses of their values, not the memory: that is the caller's to keep.
    """

    @abstractmethod
    def encode(self, draw: Draw, scale: float) -> None:
        """Write every scope's payload, as `Codec.encode` and `encode_feedback` do.

        Args:
            draw: Of any of the scopes.
            scale: The loss scale.
        """


class Decoder(ABC):
    """Decodes payloads of several scopes at once, to where these were when it was made.

    It keeps the addresses of their values, not the memory: that is the caller's to keep. Payloads
    are of the length that it was made for.
    """

    @abstractmethod
    def decode(self, payload: torch.Tensor) -> None:
        """Decode, as `Codec.decode` does, and round what is not float32 once."""

    @abstractmethod
    def decode_add(self, payload: torch.Tensor, weight: float) -> None:
        """Add to the values, which are float32 then, as `Codec.decode_add` does."""

    @abstractmethod
    def decode_sum(self, payloads: Sequence[torch.Tensor], weight: float) -> None:
        """Write the sum, as `Codec.decode_sum` does."""


@dataclass(frozen=True, kw_only=True)
class Codec(Compressor):
    """One vector to bytes and back.

    Tensors: `x`, `out` and `residual` are 1-D, contiguous, float32 and of one length n; `x` may
    also be float16 or bfloat16 if the codec `takes_half`. `payload` is 1-D, contiguous, uint8, of
    `wire_bytes(n)` bytes. All are on one device, and the work is enqueued on that device's current
    stream.

    A scope that holds a NaN or an infinity yields a payload that decodes to non-finite
    values wherever the affected block reaches, so that a loss scaler sees it on every rank.
    """

    wire_id: ClassVar[int]

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
    def splits_feedback(self) -> bool:
        """Whether `encode_feedback` chooses by gradient, residual and loss scale apart.

        Its payload is then not what `encode` makes of their sum.
        """
        return False

    @property
    def takes_half(self) -> bool:
        """Whether it encodes float16 and bfloat16 too, as if they had been widened first."""
        return False

    @property
    def sums_to_half(self) -> bool:
        """Whether `decode_sum` writes float16 and bfloat16 too, each sum rounded once."""
        return False

    def sections(self, elems: int) -> tuple[int, ...]:
        """Bytes of the arrays, in order, that a payload of `elems` elements consists of.

        Empty unless every part of the vector between multiples of `block_elems` has a part of each
        array to itself, and these decode as a payload of their own, whatever the draw.
        """
        return ()

    @abstractmethod
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Write the payload of `x`; return its length in bytes."""

    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        """Encode p = x + scale * residual, and set residual = (p - decode(payload)) / scale.

        Where the error is not finite, the residual is left as it was; but if `p` is finite, so
        that only the payload's dtype was too small for it, `p` is kept whole.

        Args:
            x: The gradient, multiplied by the loss scale.
            residual: What was not sent so far, unscaled; updated in place.
            payload: Receives the payload.
            draw: Counter of the random bits.
            scale: The loss scale.

        Returns:
            The payload's length in bytes.
        """
        room = scratch_tensor("codec.feedback", 2 * x.numel(), torch.float32, x.device)
        corrected, decoded = room.view(2, x.numel())
        torch.add(x, residual, alpha=scale, out=corrected)
        length = self.encode(corrected, payload, draw)
        self.decode(payload[:length], decoded, draw)
        error = torch.sub(corrected, decoded, out=decoded).mul_(1.0 / scale)
        if surely_finite(error):
            residual.copy_(error)
        else:
            kept = torch.where(corrected.isfinite().all(), corrected.div_(scale), residual)
            torch.where(error.isfinite(), error, kept, out=residual)
        return length

    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Write the decoded vector to `out`.

        Raises:
            PayloadError: The payload is not one of this codec for `out`'s length. `out` is
                untouched then.
        """
        self.check(payload, out.numel())
        out.zero_()
        self.decode_add(payload, out, 1.0, draw)

    @abstractmethod
    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add `weight` times the decoded vector to `out`; errors as for `decode`."""

    def decode_sum(
        self, payloads: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
    ) -> None:
        """Write `weight` times the sum of the decoded vectors to `out`.

        A sum begins with 0 and takes the payloads in order, as `decode_add` adds one: whoever
        overrides one of the two and inherits the other has to see to that.

        Args:
            payloads: Each with the counter of its random bits.
            out: As in `decode`; or of 16 bits if the codec `sums_to_half`.
            weight: Factor on every decoded vector.

        Raises:
            PayloadError: As in `decode`, for any of the payloads. `out` is untouched then.
        """
        for payload, _ in payloads:
            self.check(payload, out.numel())
        out.zero_()
        for payload, draw in payloads:
            self.decode_add(payload, out, weight, draw)

    def average(self, share: Averaging) -> int | None:
        """Decode, average, encode the mean and decode it in one pass over memory, if that can be.

        Returns:
            The length of the mean's payload; None if there is no such pass, and nothing is done.
        """
        return None

    def encoder(self, items: Sequence[Item], payload: torch.Tensor) -> Encoder | None:
        """Return what encodes scopes at once; None if each goes by itself.

        To find out where all arrays of a small scope lie takes Python longer than their kernel,
        and to start that takes a GPU longer.

        Args:
            items: The scopes, with all arrays that a payload needs.
            payload: What they are encoded to; kept.
        """
        return None

    def decoder(self, items: Sequence[Item], payload_bytes: int) -> Decoder | None:
        """Return what decodes scopes at once; None if each goes by itself.

        Only a codec whose `size` is Fixed, and whose decoding takes no draw, may have one.

        Args:
            items: The scopes.
            payload_bytes: Bytes of the payloads that hold them.
        """
        return None

    def cut(self, payload: torch.Tensor, elems: int, start: int, stop: int) -> torch.Tensor:
        """Return what decodes to elements `start` to `stop` of a payload of `elems` elements.

        It lies in memory that the thread keeps, until the next call; `sections` says where cuts
        may fall.
        """
        if stop - start == elems:
            return payload
        edges = zip(self.sections(start), self.sections(stop), strict=True)
        arrays = torch.split(payload, list(self.sections(elems)))
        parts = [array[low:high] for array, (low, high) in zip(arrays, edges, strict=True)]
        size = sum(part.numel() for part in parts)
        room = scratch_tensor("codec.cut", size, torch.uint8, payload.device)
        return torch.cat(parts, out=room)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The shape does not matter to a codec."""
        return self.wire_bytes(math.prod(shape))

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Adapt this codec, without feedback, to the engine."""
        from compressa.aggregators.single import single

        return single(self, layout, world)

    def check(self, payload: torch.Tensor, elems: int) -> None:
        """Raise PayloadError unless the payload can be decoded to `elems` elements.

        Codecs whose payload holds indices or lengths extend this with checks of those.
        """
        expected = self.wire_bytes(elems)
        actual = payload.numel()
        exact = isinstance(self.size, Fixed)
        if actual != expected if exact else actual > expected:
            raise PayloadError(
                f"{self.name}: a payload of {actual} bytes arrived for {elems} elements, which "
                f"take {'exactly' if exact else 'at most'} {expected} bytes"
            )


__all__ = [
    "Bias",
    "Biased",
    "Bounded",
    "Codec",
    "Contraction",
    "Decoder",
    "Draw",
    "Encoder",
    "Fixed",
    "Granularity",
    "Item",
    "Range",
    "Reduction",
    "Unbiased",
]
