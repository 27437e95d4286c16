"""What sparse codecs share: how chosen values and their indices are laid out in a payload.

    values    k little-endian numbers of `value_dtype`, in the order of their indices
    indices   k increasing numbers below n, in one of three formats, each of a size that follows
              from n and k (`compressa.kernels.bitpack`, `compressa.kernels.elias_fano`):
      bits        ceil(log2 n) bits each, one little-endian bit stream
      bitmap      n bits: bit e % 8 of byte e // 8
      elias_fano  about 2 + log2(n / k) bits each

`auto` is the smallest of the three; of equal ones, the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from compressa.errors import ConfigError, PayloadError
from compressa.kernels import bitpack, elias_fano
from compressa.kernels.scratch import scratch

ValueDtype = Literal["float32", "float16", "bfloat16"]
IndexFormat = Literal["auto", "bits", "bitmap", "elias_fano"]

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

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
        return 0.0 if self.lossless else torch.finfo(_DTYPES[self.value_dtype]).eps / 2

    def index_format(self, k: int, n: int) -> str:
        """Return the format that k indices below n are written in."""
        if self.indices != "auto":
            return self.indices
        return min(_INDEX_BYTES, key=lambda name: _INDEX_BYTES[name](k, n))

    def bytes(self, k: int, n: int) -> int:
        """Return what k values and their indices below n take."""
        return self._value_bytes(k) + _INDEX_BYTES[self.index_format(k, n)](k, n)

    def values(self, payload: torch.Tensor, k: int) -> F32:
        """Return room for k values to be chosen into: the payload's own if they fit as they are."""
        if self.lossless:
            return payload[: 4 * k].numpy().view(np.float32)
        return scratch("sparse.values", k, np.float32)

    def write(self, payload: torch.Tensor, n: int, indices: U32, values: F32) -> F32:
        """Write a payload of exactly `bytes(k, n)` bytes.

        Args:
            payload: Where to.
            n: Number of elements chosen from.
            indices: The indices, increasing.
            values: The values, in what `values` returned.

        Returns:
            The values as they will be decoded.
        """
        split = self._value_bytes(values.size)
        packed = payload[split:].numpy()
        kind = self.index_format(indices.size, n)
        if kind == "bits":
            bitpack.pack_bits(indices, bitpack.index_width(n), packed)
        elif kind == "bitmap":
            bitpack.pack_bitmap(indices, n, packed)
        else:
            elias_fano.pack_increasing(indices, n, packed)
        if self.lossless:
            return values
        payload[:split].view(_DTYPES[self.value_dtype]).copy_(torch.from_numpy(values))
        return self._widened(payload[:split])

    def read(self, payload: torch.Tensor, n: int, k: int) -> tuple[U32, F32]:
        """Read a payload; both results are valid until the next call on this thread.

        Raises:
            PayloadError: It has another length, or its indices are not increasing numbers below n.
        """
        due = self.bytes(k, n)
        if payload.numel() != due:
            raise PayloadError(
                f"{self.codec}: {k} values of {n} elements take {due} bytes, {payload.numel()} came"
            )
        split = self._value_bytes(k)
        indices = scratch("sparse.indices", k, np.uint32)
        try:
            self._read_indices(payload[split:].numpy(), n, indices)
        except ValueError as error:
            raise PayloadError(f"{self.codec}: {error}") from error
        if self.lossless:
            return indices, payload[:split].numpy().view(np.float32)
        return indices, self._widened(payload[:split])

    def _read_indices(self, packed: npt.NDArray[Any], n: int, indices: U32) -> None:
        kind = self.index_format(indices.size, n)
        if kind == "bits":
            bitpack.unpack_bits(packed, bitpack.index_width(n), indices)
            bitpack.check_increasing(indices, n)
        elif kind == "bitmap":
            count = bitpack.unpack_bitmap(packed, n, indices)
            if count != indices.size:
                raise ValueError(f"the bitmap has {count} bits set, not {indices.size}")
        else:
            elias_fano.unpack_increasing(packed, n, indices)

    def _widened(self, narrow: torch.Tensor) -> F32:
        typed = narrow.view(_DTYPES[self.value_dtype])
        wide: F32 = scratch("sparse.wide", typed.numel(), np.float32)
        torch.from_numpy(wide).copy_(typed)
        return wide

    def _value_bytes(self, k: int) -> int:
        return k * _DTYPES[self.value_dtype].itemsize
