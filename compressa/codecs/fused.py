"""Fused: the faster ways of a codec, which do in one pass what its core does in several.

A codec's core is `encode` and `decode_add`; everything else follows from these. Where a kernel
does more at once, the codec says so in `Codec.fused`: each way is there, or None. A way gives what
the core gives, which `compressa.testing.check_codec` holds it to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from compressa.codecs.draw import Draw

Array = npt.NDArray[Any]
Checker = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class Item:
    """One scope of several that are worked on in one call.

    Attributes:
        values: What is encoded, or overwritten; float32, float16 or bfloat16.
        start: Byte at which the scope's bytes begin in a payload, or the most that this can be; a
            multiple of 8.
        parameter: Of its `Draw`.
        first: The `Draw`'s `start`.
        residual: As in `Codec.encode_feedback`; None for no feedback.
        undo: Of a mean: float32, as long; receives what its residual is to be if the step fails.
    """

    values: torch.Tensor
    start: int
    parameter: int
    first: int
    residual: torch.Tensor | None = None
    undo: torch.Tensor | None = None


class Movable(ABC):
    """What takes several scopes in one call, and can be told that their values lie elsewhere.

    Gradients that an optimizer lets go of are made anew in each step. An encoder, decoder or
    averager that is not movable is made anew with them.
    """

    @abstractmethod
    def move(self, addresses: npt.NDArray[np.int64]) -> None:
        """Work on other memory from now on: as many values, of the same dtypes.

        Args:
            addresses: By scope.
        """


class Encoder(ABC):
    """Encodes scopes of one payload in one call, where they were when it was made.

    It keeps the addresses of their values, not the memory: that is the caller's to keep.
    """

    @abstractmethod
    def encode(self, draw: Draw, loss_scale: float) -> int | None:
        """Write every scope's payload, as `Codec.encode` and `encode_feedback` do.

        Args:
            draw: Of any of the scopes.
            loss_scale: The loss scale.

        Returns:
            Bytes of the body; None where a codec's `size` is Fixed.
        """


class Decoder(ABC):
    """Decodes payloads of several scopes in one call, to where these were when it was made.

    It keeps the addresses of their values, not the memory: that is the caller's to keep. Payloads
    are of the length that it was made for, unless that varies.
    """

    @abstractmethod
    def decode(self, payload: torch.Tensor) -> None:
        """Write the values, as `Codec.decode` does; round what is not float32 once.

        Args:
            payload: uint8, the whole, of all scopes.
        """

    @abstractmethod
    def decode_add(self, payload: torch.Tensor, weight: float) -> None:
        """Add to the values, which are float32 then, as `Codec.decode_add` does.

        Args:
            payload: As of `decode`.
            weight: Factor on what is decoded.
        """

    @abstractmethod
    def decode_sum(self, payloads: Sequence[torch.Tensor], weight: float) -> None:
        """Write the sum to the values, as `Codec.decode_sum` does.

        Args:
            payloads: Each as of `decode`; added in this order.
            weight: Factor on each that is decoded.
        """


class Averager(ABC):
    """Makes the means of several scopes in one call, where they were when it was made.

    It keeps the addresses of all memory, which is the caller's to keep.
    """

    @abstractmethod
    def average(
        self,
        sent: Sequence[torch.Tensor],
        draw: Draw,
        weight: float,
        loss_scale: float,
        mean_loss_scale: float,
    ) -> None:
        """Decode, average, encode the means and decode them to the own values.

        Args:
            sent: The others' payloads, checked, in the order in which they are added.
            draw: Of any of the scopes' means.
            weight: Factor on the own values and on each payload's.
            loss_scale: What the values carry, and residuals do not.
            mean_loss_scale: What the mean carries, and its error as it is kept does not.
        """


@dataclass(frozen=True, kw_only=True)
class Ways:
    """A codec's core on arrays of a GPU. Each launches kernels, and does nothing else there.

    Attributes:
        encode: (x, payload, residual or None, draw, loss_scale).
        read: (payload, elems, draw) -> what a payload holds. The draw is None where decoding takes
            none.
        put: (what a payload holds, out, weight, add): write it to float32 values, or add it.
        total: (what payloads hold, out, weight): write their sum, also to 16 bits; None if that is
            to add them one by one.
    """

    encode: Callable[[Array, Array, Array | None, Draw, float], object]
    read: Callable[[Array, int, Draw | None], Any]
    put: Callable[[Any, Array, float, bool], object]
    total: Callable[[Sequence[Any], Array, float], object] | None = None


@dataclass(frozen=True, kw_only=True)
class Fused:
    """What a codec does in one pass; None where it takes the ways of its core.

    Attributes:
        encode_feedback: (x, residual, payload, draw, loss_scale) -> bytes, as
            `Codec.encode_feedback`.
        splits_feedback: Whether `encode_feedback` chooses by gradient, residual and loss scale
            apart. Its payload is then not what `encode` makes of their sum.
        decode: (payload, out, draw), as `Codec.decode`; it checks the payload itself.
        decode_sum: (payloads, out, weight), as `Codec.decode_sum`; it checks the payloads itself,
            and also writes float16 and bfloat16, each sum rounded once.
        averager: (items, payload) -> what makes the means of these scopes, float32 on a CPU, and
            encodes them to this payload, in one call; None if each goes by itself. For a codec that
            has `encoder` and `decoder`.
        encoder: (items, payload) -> what encodes these scopes to this payload in one call; None if
            each goes by itself. To find out where all arrays of a small scope lie takes Python
            longer than their kernel, and to start that takes a GPU longer.
        decoder: (items, payload_bytes) -> what decodes payloads of so many bytes to these scopes in
            one call; None if each goes by itself. Only for a codec whose decoding takes no draw.
        checker: (elems and first byte of each scope, payload_bytes) -> what checks the content of a
            payload of so many bytes, on a CPU, in one call; None if each scope goes by itself.
        ways: Its core on arrays of a GPU; None if it does anything else there than launch kernels.
        multi_tensor_only_on_gpus: Whether `encoder` and `decoder` are for scopes on a GPU alone.
    """

    encode_feedback: (
        Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Draw, float], int] | None
    ) = None
    splits_feedback: bool = False
    decode: Callable[[torch.Tensor, torch.Tensor, Draw], None] | None = None
    decode_sum: (
        Callable[[Sequence[tuple[torch.Tensor, Draw]], torch.Tensor, float], None] | None
    ) = None
    averager: Callable[[Sequence[Item], torch.Tensor], Averager | None] | None = None
    encoder: Callable[[Sequence[Item], torch.Tensor], Encoder | None] | None = None
    decoder: Callable[[Sequence[Item], int], Decoder | None] | None = None
    checker: Callable[[Sequence[tuple[int, int]], int], Checker] | None = None
    ways: Ways | None = None
    multi_tensor_only_on_gpus: bool = False


NOTHING_FUSED = Fused()
"""For a codec that is its core."""
