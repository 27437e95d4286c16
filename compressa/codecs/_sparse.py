"""What sparse codecs share: how chosen values and their indices are laid out in a payload.

A payload of fixed size has no more than this; one whose number of values depends on the data
begins with that number:

    count     u32, k; only in payloads of bounded size

    values    k little-endian numbers of `value_dtype`, in the order of their indices
    indices   k increasing numbers below n, in one of the three formats of
              `compressa.kernels.index_formats`, each of a size that follows from n and k

`auto` is the smallest of the three; of equal ones, the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from compressa.bias import EVERY
from compressa.codecs._cast import range_of, rounding_of
from compressa.codecs.base import Range
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import bitpack, casts, cuda, device_of, topk
from compressa.kernels.index_formats import (
    index_bytes,
    pack_indices,
    smallest_format,
    unpack_indices,
)
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
_KERNEL_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}


@lru_cache(maxsize=1 << 12)
def share(density: float, elems: int) -> int:
    """Return how many of `elems` elements a density means: one at least, if there is any.

    Args:
        density: Share of elements that is sent, from 0 to 1; rounded to a whole number of them.
        elems: Number of elements.
    """
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
    def dtype(self) -> np.dtype[Any]:
        """Of the values on the wire, as kernels take them: NumPy has no bfloat16, so its bits."""
        return _KERNEL_DTYPES[self.value_dtype]

    @property
    def rounding(self) -> float:
        """Largest relative error of a value on the wire."""
        return 0.0 if self.lossless else rounding_of(_DTYPES[self.value_dtype])

    @property
    def range(self) -> Range:
        """Magnitudes for which `rounding` holds."""
        return EVERY if self.lossless else range_of(_DTYPES[self.value_dtype])

    def index_format(self, k: int, n: int) -> str:
        """Return the format that indices are written in: "bits", "bitmap" or "elias_fano".

        Args:
            k: How many indices; at most n.
            n: They are below it.
        """
        return smallest_format(k, n) if self.indices == "auto" else self.indices

    def bytes(self, k: int, n: int) -> int:
        """Return how many bytes k values and their indices below n take; see `index_format`."""
        return self._value_bytes(k) + index_bytes(self.index_format(k, n), k, n)

    def values(self, payload: U8, k: int) -> F32:
        """Return room for values to be chosen into: the payload's own if they fit as they are.

        Args:
            payload: uint8, at least 4 k long where values are float32; on the same device.
            k: How many values.

        Returns:
            float32[k]; memory of this thread, until its next call, where values are of 16 bits.
        """
        if self.lossless:
            values: F32 = payload[: 4 * k].view(np.float32)
            return values
        return scratch("sparse.values", k, np.float32, beside=payload)

    def write(self, payload: U8, n: int, indices: U32, values: F32, *, placed: bool = True) -> F32:
        """Write a payload of exactly `bytes(k, n)` bytes.

        Args:
            payload: uint8, where to.
            n: Number of elements chosen from.
            indices: uint32[k], as a selection has found them: increasing, and below n.
            values: float32[k], in the order of their indices.
            placed: Whether these are in what `values` returned.

        Returns:
            float32[k], the values as they will be decoded.
        """
        split = self._value_bytes(values.size)
        packed = payload[split:]
        if self.lossless and not placed:
            bitpack.pack_bits(values.view(np.uint32), 32, payload[:split])
        pack_indices(indices, n, self.index_format(indices.size, n), packed)
        if self.lossless:
            return values
        casts.narrow(values, self._halves(payload[:split]))
        return self._widened(payload[:split])

    def read(self, payload: U8, n: int, k: int) -> tuple[U32, F32]:
        """Read a payload; both results are valid until the next call on this thread.

        Args:
            payload: uint8, as it came.
            n: Number of elements chosen from.
            k: Number of values.

        Returns:
            uint32[k], the indices, increasing and below n; and float32[k], their values.

        Raises:
            PayloadError: It has another length, or its indices are not increasing numbers below n.
        """
        self._check_length(payload, n, k)
        split = self._value_bytes(k)
        indices = scratch("sparse.indices", k, np.uint32, beside=payload)
        try:
            unpack_indices(payload[split:], n, self.index_format(k, n), indices)
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

    @staticmethod
    def put(held: tuple[U32, F32], out: F32, weight: float, add: bool) -> None:
        """Write what was read to a vector on a GPU, or add it.

        Args:
            held: What `read` returned.
            out: float32[n].
            weight: Factor on the values.
            add: Whether to add them; else all other elements become 0.
        """
        if not add:
            cuda.clear(out.view(np.uint8))
        topk.scatter_add(*held, out, weight=weight, check=False)

    def _check_length(self, payload: U8, n: int, k: int) -> None:
        due = self.bytes(k, n)
        if payload.size != due:
            raise PayloadError(
                f"{self.codec}: {k} values of {n} elements take {due} bytes, {payload.size} came"
            )

    def _halves(self, values: U8) -> casts.Half:
        """Values of 16 bits, as kernels take them."""
        return values.view(self.dtype)

    def _widened(self, values: U8) -> F32:
        halves = self._halves(values)
        wide: F32 = scratch("sparse.wide", halves.size, np.float32, beside=values)
        casts.widen(halves, wide)
        return wide

    def _value_bytes(self, k: int) -> int:
        return k * self.dtype.itemsize
