"""Sparse parts: where in payloads the values and indices of several vectors are.

Values are float32 or of 16 bits, in the order of their indices; the indices follow
(:mod:`.index_formats`). Where each payload says how many they are, so much precedes them:

    length    u32, bytes from the count to the last index
    0         u32
    count     u32

and the next vector's length follows at a multiple of 8 bytes from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import F32, I64, U8, array_at, check_array
from ._backends import backend
from .casts import widen
from .index_formats import INDEX_FORMATS, index_bytes, smallest_format, unpack_indices

LENGTH_BYTES, COUNT_BYTES = 8, 4


class SparsePart(NamedTuple):
    """One vector that payloads hold some elements of, and where in each of them these are.

    Attributes:
        elems: Elements of the vector.
        kept: How many of them a payload holds.
        indices: The format of their indices.
        start: Byte of the payload at which their values begin; a multiple of 4.
        out: float32[elems], what they are added to; None if payloads are only checked.
    """

    elems: int
    kept: int
    indices: str
    start: int
    out: F32 | None = None


class CountedPart(NamedTuple):
    """One vector that each payload holds so many elements of as it says.

    Attributes:
        elems: Elements of the vector.
        most: How many of them a payload may hold.
        indices: The format of their indices; "auto" for the smallest.
        out: As of `SparsePart`.
    """

    elems: int
    most: int
    indices: str
    out: F32 | None = None


class Parts(ABC):
    """Vectors that payloads hold elements of, checked once.

    Attributes:
        parts: As given, until they move.
        value_dtype: Of the values in a payload; as of `SparseVectors`.
        kernel: As of `SparseVectors`.
        prepared: The same.
    """

    __slots__ = ("kernel", "parts", "prepared", "value_dtype")
    parts: tuple[Any, ...]

    def __init__(self, parts: Sequence[Any], value_dtype: npt.DTypeLike) -> None:
        self.parts = tuple(parts)
        self.value_dtype = np.dtype(value_dtype)
        for part in parts:
            if part.out is not None:
                check_array("out", part.out, np.float32, (part.elems,), writable=True)
        self.kernel = backend("multi_tensor_sparse", *(part.out for part in parts))
        self.prepared: Any = None

    def move(self, addresses: I64) -> None:
        """Add to vectors elsewhere from now on; see `SparseVectors.move`."""
        if self.prepared is not None:
            self.prepared.move(addresses)
            return
        moved = [
            part._replace(out=array_at(at, part.out))
            for part, at in zip(self.parts, addresses.tolist(), strict=True)
            if part.out is not None
        ]
        self.parts = tuple(moved)

    @abstractmethod
    def located(self, payload: U8) -> Sequence[SparsePart]:
        """Return where in a payload each vector's values and indices are.

        Raises:
            ValueError: It has another length than what it says of itself, or than is due.
        """


class SparseParts(Parts):
    """Vectors that payloads of one layout hold elements of.

    Args:
        parts: They do not overlap.
        value_dtype: As of `SparseVectors`.
        payload_bytes: Bytes of a payload.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or a payload has no room for a part.
        KernelUnavailable: There is no kernel for the device.

    Attributes:
        payload_bytes: As given.
    """

    __slots__ = ("payload_bytes",)
    parts: tuple[SparsePart, ...]

    def __init__(
        self, parts: Sequence[SparsePart], *, value_dtype: npt.DTypeLike, payload_bytes: int
    ) -> None:
        super().__init__(parts, value_dtype)
        self.payload_bytes = payload_bytes
        for part in parts:
            if part.start % 4:
                raise ValueError(f"values begin at a multiple of 4 bytes, not at {part.start}")
            size = part_bytes(part.elems, part.kept, part.indices, self.value_dtype)
            if not 0 <= part.start <= payload_bytes - size:
                where = f"{size} bytes from {part.start} on"
                raise ValueError(f"{where} do not lie in {payload_bytes}")

    def located(self, payload: U8) -> Sequence[SparsePart]:
        """See `Parts.located`: in the same place in each."""
        if payload.size != self.payload_bytes:
            raise ValueError(f"a payload has {payload.size} bytes, not {self.payload_bytes}")
        return self.parts


class CountedParts(Parts):
    """Vectors that each payload holds so many elements of as it says.

    Args:
        parts: In the order in which they are in a payload.
        value_dtype: As of `SparseVectors`.
        first: Byte of a payload at which the first one's length is; a multiple of 4.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or `most`.
        KernelUnavailable: There is no kernel for the device.

    Attributes:
        first: As given.
    """

    __slots__ = ("first",)
    parts: tuple[CountedPart, ...]

    def __init__(
        self, parts: Sequence[CountedPart], *, value_dtype: npt.DTypeLike, first: int
    ) -> None:
        super().__init__(parts, value_dtype)
        self.first = first
        if first % 4 or first < 0:
            raise ValueError(f"lengths begin at a multiple of 4 bytes, not at {first}")
        for elems, most, form, _ in parts:
            if form not in ("auto", *INDEX_FORMATS):
                raise ValueError(f"there is no format {form!r} of indices")
            part_bytes(elems, most, "bits", self.value_dtype)  # checks `most`

    def located(self, payload: U8) -> Sequence[SparsePart]:
        """See `Parts.located`: one after the other, as its lengths and counts say."""
        start, end, found = self.first, payload.size, []
        for elems, most, indices, out in self.parts:
            if start + LENGTH_BYTES > end:
                raise ValueError("a payload ends before its last scope begins")
            room = end - start - LENGTH_BYTES
            length = int(payload[start : start + 4].view(np.uint32)[0])
            if not COUNT_BYTES <= length <= room:
                raise ValueError(
                    f"a scope says it has {length} bytes, where {COUNT_BYTES} to {room} can be"
                )
            count = int(payload[start + LENGTH_BYTES :][:COUNT_BYTES].view(np.uint32)[0])
            if count > most:
                raise ValueError(
                    f"a payload says it has {count} values, of {elems} elements {most} can be sent"
                )
            form = smallest_format(count, elems) if indices == "auto" else indices
            due = COUNT_BYTES + count * self.value_dtype.itemsize + index_bytes(form, count, elems)
            if length != due:
                raise ValueError(
                    f"{count} values of {elems} elements take {due} bytes with their count, "
                    f"{length} came"
                )
            found.append(SparsePart(elems, count, form, start + LENGTH_BYTES + COUNT_BYTES, out))
            start += LENGTH_BYTES + -(-length // 8) * 8
        if start != end:
            raise ValueError(f"a payload's scopes end at byte {start} of {end}")
        return found


def read_part(
    part: SparsePart, value_dtype: np.dtype[Any], payload: U8
) -> tuple[npt.NDArray[np.uint32], F32]:
    """Return the indices and values of a vector in a payload; ValueError if these are not right."""
    split = part.start + part.kept * value_dtype.itemsize
    end = split + index_bytes(part.indices, part.kept, part.elems)
    indices = np.empty(part.kept, np.uint32)
    unpack_indices(payload[split:end], part.elems, part.indices, indices)
    sent = payload[part.start : split].view(value_dtype)
    if value_dtype == np.float32:
        return indices, sent
    values = np.empty(part.kept, np.float32)
    widen(sent, values)
    return indices, values


def part_bytes(n: int, k: int, form: str, value_dtype: np.dtype[Any]) -> int:
    """Return how many bytes k values of n elements and their indices take.

    Raises:
        ValueError: There can not be so many.
    """
    if not min(n, 1) <= k <= n <= 2**32 - k:
        raise ValueError(f"of {n} elements, {min(n, 1)} to {n} can be kept, not {k}")
    return k * value_dtype.itemsize + index_bytes(form, k, n)
