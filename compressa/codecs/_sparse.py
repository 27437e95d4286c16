"""What sparse codecs share: how chosen values and their indices are laid out in a payload.

A payload of fixed size has no more than this; one whose number of values depends on the data
begins with that number:

    count     u32, k; only in payloads of bounded size

    values    k little-endian numbers of `value_dtype`, in the order of their indices
    indices   k increasing numbers below n, in one of three formats, each of a size that follows
              from n and k (`compressa.kernels.bitpack`, `compressa.kernels.elias_fano`):
      bits        ceil(log2 n) bits each, one little-endian bit stream
      bitmap      n bits: bit e % 8 of byte e // 8
      elias_fano  about 2 + log2(n / k) bits each

`auto` is the smallest of the three; of equal ones, the first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from compressa.arrays import as_array
from compressa.bias import EVERY
from compressa.codecs._cast import range_of, rounding_of
from compressa.codecs.base import Bounded, Codec, Draw, Granularity, Range
from compressa.codecs.fused import Fused
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import bitpack, casts, cuda, device_of, elias_fano, topk
from compressa.kernels.scratch import scratch

ValueDtype = Literal["float32", "float16", "bfloat16"]
IndexFormat = Literal["auto", "bits", "bitmap", "elias_fano"]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
Gradient = npt.NDArray[Any]

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def _bits_bytes(k: int, n: int) -> int:
    return bitpack.packed_bytes(k, bitpack.index_width(n))


def _bitmap_bytes(k: int, n: int) -> int:
    return bitpack.packed_bytes(n, 1)


_INDEX_BYTES: dict[str, Callable[[int, int], int]] = {
    "bits": _bits_bytes,
    "bitmap": _bitmap_bytes,
    "elias_fano": elias_fano.elias_fano_bytes,
}


@lru_cache(maxsize=1 << 12)  # a few layers' sizes, and the numbers that a threshold finds
def _index_format(wanted: str, k: int, n: int) -> str:
    if wanted != "auto":
        return wanted
    return min(_INDEX_BYTES, key=lambda name: _INDEX_BYTES[name](k, n))


@lru_cache(maxsize=1 << 12)
def share(density: float, elems: int) -> int:
    """Return how many of `elems` elements a density means: one at least, if there is any."""
    return min(elems, max(1, round(density * elems)))


@dataclass(frozen=True)
class SparseForm:
    """The layout of k values and indices.

    Attributes:
        codec: Name of the codec, for messages.
        value_dtype: Dtype of the values on the wire.
        indices: Format of the indices.

    Raises:
        ConfigError: There is no such dtype or format.
    """

    codec: str
    value_dtype: ValueDtype = "float32"
    indices: IndexFormat = "auto"

    def __post_init__(self) -> None:
        for name, known in (("value_dtype", ValueDtype), ("indices", IndexFormat)):
            if getattr(self, name) not in get_args(known):
                raise ConfigError(
                    f"{self.codec}: {name} must be one of {', '.join(get_args(known))}, "
                    f"got {getattr(self, name)!r}"
                )

    @property
    def lossless(self) -> bool:
        """Whether values arrive as they are."""
        return self.value_dtype == "float32"

    @property
    def rounding(self) -> float:
        """Largest relative error of a value on the wire."""
        return 0.0 if self.lossless else rounding_of(_DTYPES[self.value_dtype])

    @property
    def range(self) -> Range:
        """Magnitudes for which `rounding` holds."""
        return EVERY if self.lossless else range_of(_DTYPES[self.value_dtype])

    def index_format(self, k: int, n: int) -> str:
        """Return the format that k indices below n are written in."""
        return _index_format(self.indices, k, n)

    def bytes(self, k: int, n: int) -> int:
        """Return how many bytes k values and their indices below n take."""
        return self._value_bytes(k) + _INDEX_BYTES[self.index_format(k, n)](k, n)

    def values(self, payload: U8, k: int) -> F32:
        """Return room for k values to be chosen into: the payload's own if they fit as they are."""
        if self.lossless:
            values: F32 = payload[: 4 * k].view(np.float32)
            return values
        return scratch("sparse.values", k, np.float32, beside=payload)

    def write(self, payload: U8, n: int, indices: U32, values: F32) -> F32:
        """Write a payload of exactly `bytes(k, n)` bytes.

        Args:
            payload: Where to.
            n: Number of elements chosen from.
            indices: The indices, as a selection has found them: increasing, and below n.
            values: The values, in what `values` returned.

        Returns:
            The values as they will be decoded.
        """
        split = self._value_bytes(values.size)
        packed = payload[split:]
        kind = self.index_format(indices.size, n)
        if kind == "bits":
            bitpack.pack_bits(indices, bitpack.index_width(n), packed)
        elif kind == "bitmap":
            bitpack.pack_bitmap(indices, n, packed, check=False)
        else:
            elias_fano.pack_increasing(indices, n, packed, check=False)
        if self.lossless:
            return values
        casts.narrow(values, self._halves(payload[:split]))
        return self._widened(payload[:split])

    def read(self, payload: U8, n: int, k: int) -> tuple[U32, F32]:
        """Read a payload; both results are valid until the next call on this thread.

        Raises:
            PayloadError: It has another length, or its indices are not increasing numbers below n.
        """
        self._check_length(payload, n, k)
        split = self._value_bytes(k)
        indices = scratch("sparse.indices", k, np.uint32, beside=payload)
        try:
            self._read_indices(payload[split:], n, indices)
        except ValueError as error:
            raise PayloadError(f"{self.codec}: {error}") from error
        if self.lossless:
            return indices, payload[:split].view(np.float32)
        return indices, self._widened(payload[:split])

    def check(self, payload: U8, n: int, k: int) -> None:
        """Check what `read` checks, of a payload that will be read; errors as for `read`.

        Where a GPU's answers come later anyway, its indices are not looked at twice: that is left
        to `read`, whose answer is the same one.
        """
        self._check_length(payload, n, k)
        if device_of(payload) == "cpu" or not cuda.answers_come_later():
            self.read(payload, n, k)

    def _check_length(self, payload: U8, n: int, k: int) -> None:
        due = self.bytes(k, n)
        if payload.size != due:
            raise PayloadError(
                f"{self.codec}: {k} values of {n} elements take {due} bytes, {payload.size} came"
            )

    def _read_indices(self, packed: U8, n: int, indices: U32) -> None:
        kind = self.index_format(indices.size, n)
        if kind == "bits":
            bitpack.unpack_bits(packed, bitpack.index_width(n), indices)
            bitpack.check_increasing(indices, n)
        elif kind == "bitmap":
            bitpack.unpack_bitmap(packed, n, indices)
        else:
            elias_fano.unpack_increasing(packed, n, indices)

    def _halves(self, values: U8) -> casts.Half:
        """Values of 16 bits, as kernels take them."""
        return values.view(np.float16 if self.value_dtype == "float16" else np.uint16)

    def _widened(self, values: U8) -> F32:
        halves = self._halves(values)
        wide: F32 = scratch("sparse.wide", halves.size, np.float32, beside=values)
        casts.widen(halves, wide)
        return wide

    def _value_bytes(self, k: int) -> int:
        return k * _DTYPES[self.value_dtype].itemsize


_COUNT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class BoundedSparse(Codec):
    """Values and indices of as many elements as a rule finds, up to a limit.

    Subclasses say how many elements they send at most, and choose them.
    """

    value_dtype: ValueDtype = "float32"
    indices: IndexFormat = "auto"

    def __post_init__(self) -> None:
        self.form  # noqa: B018 - it checks itself

    @cached_property
    def form(self) -> SparseForm:
        """How values and indices are laid out."""
        return SparseForm(self.name, self.value_dtype, self.indices)

    @abstractmethod
    def most(self, elems: int) -> int:
        """Return how many of `elems` elements are sent at most."""

    @abstractmethod
    def select(
        self, x: Gradient, indices: U32, values: F32, residual: F32 | None, loss_scale: float
    ) -> int:
        """Choose some of x + loss_scale * residual, and leave the others in the residual.

        What is on a GPU is waited for: how many are chosen decides the layout.

        Args:
            x: The gradient, of at least one element; as kernels take it, so perhaps of 16 bits.
            indices: Receives increasing indices; has room for `most` of them.
            values: Receives the values.
            residual: Receives what is not chosen, unscaled; or None.
            loss_scale: The loss scale.

        Returns:
            How many were chosen. A NaN must be among them if anything is not finite.
        """

    @property
    def size(self) -> Bounded:
        """The data decide how many are sent."""
        return Bounded()

    @property
    def splits_feedback(self) -> bool:
        """Whether the rule looks at gradient, residual and loss scale apart."""
        return False

    @property
    def takes_half(self) -> bool:
        """The kernels widen."""
        return True

    @property
    def granularity(self) -> Granularity:
        """The rule looks at the whole parameter."""
        return Granularity.PARAMETER

    def wire_bytes(self, elems: int) -> int:
        """The count, and as many values and indices as there can be."""
        return _COUNT_BYTES + self.form.bytes(self.most(elems), elems)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Choose and pack."""
        return self._encode(x, None, payload, draw, 1.0)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, check every index, and scatter."""
        body, count = self._counted(payload, out.numel())
        indices, values = self.form.read(body, out.numel(), count)
        topk.scatter_add(indices, values, as_array(out), weight=weight, check=False)

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        """Check the count, the length that follows from it, and every index."""
        body, count = self._counted(payload, elems)
        self.form.check(body, elems, count)

    @cached_property
    def fused(self) -> Fused:
        """Add the residual, choose, and leave in the residual what was not sent."""
        return Fused(encode_feedback=self._encode, splits_feedback=self.splits_feedback)

    def _encode(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float,
    ) -> int:
        elems, kept = x.numel(), None if residual is None else as_array(residual)
        whole = as_array(payload)
        most, count, body = self.most(elems), 0, whole[_COUNT_BYTES:]
        indices = scratch("sparse.indices", most, np.uint32, beside=whole)
        values = self.form.values(body, most)
        if elems:
            count = self.select(as_array(x), indices, values, kept, loss_scale)
        indices, values, length = indices[:count], values[:count], self.form.bytes(count, elems)
        sent = self.form.write(body[:length], elems, indices, values)
        if kept is not None and not self.form.lossless:
            topk.return_unsent(kept, indices, values, sent, loss_scale=loss_scale)
        _count_of(payload).fill_(count)
        return _COUNT_BYTES + length

    def _counted(self, payload: torch.Tensor, elems: int) -> tuple[U8, int]:
        """Return what follows on the count, and the count."""
        if payload.numel() < _COUNT_BYTES:
            raise PayloadError(
                f"{self.name}: a payload of {payload.numel()} bytes arrived, shorter than its count"
            )
        # The layout follows from the count, so a GPU is waited for.
        count = int(_count_of(payload).item()) & 0xFFFFFFFF
        if count > self.most(elems):
            raise PayloadError(
                f"{self.name}: a payload says it has {count} values, of {elems} elements "
                f"{self.most(elems)} can be sent"
            )
        return as_array(payload)[_COUNT_BYTES:], count


def _count_of(payload: torch.Tensor) -> torch.Tensor:
    """The front of a payload as a number; fewer than 2**31 values fit in one."""
    return payload[:_COUNT_BYTES].view(torch.int32)
