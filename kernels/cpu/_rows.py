"""Many vectors in one compiled call: a table says where the arrays of each lie.

To begin a kernel takes Python longer than a small vector takes the kernel. A row of the table is
one vector; its arrays are given by their addresses, or by where they begin in a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .._arrays import F32, I64, U8, U32
from ..blockwise import Form
from ..multi_tensor import BlockForm, BlockwisePart, BlockwiseVector
from ._feedback import Values
from ._grid import Shape
from ._jit import inlined, lean
from ._mean import average
from ._noise import Key
from ._onebit_mean import average_signs
from ._payloads import at
from ._planes import bytes_of
from ._prefetch import LINE_BYTES
from ._stream import LEAST_ELEMS
from ._view import view
from .blockwise import _dequantize, _quantize, _sum
from .onebit import _dequantize as _dequantize_signs
from .onebit import _quantize as _quantize_signs
from .onebit import _sum as _sum_signs


class Row(NamedTuple):
    """A vector; 0 for an array that it does not have.

    Attributes:
        x: Address of its values.
        elems: How many they are.
        codes: Address of codes or signs, or the byte of a payload at which they begin.
        scales: The same of scales.
        offsets: The same of offsets.
        residual: Address of its residual.
        kept: Address of what is kept of an owner's.
        parameter: Of its random numbers.
        start: The same.
    """

    x: int
    elems: int
    codes: int
    scales: int
    offsets: int = 0
    residual: int = 0
    kept: int = 0
    parameter: int = 0
    start: int = 0


_X, _ELEMS, _CODES, _SCALES, _OFFSETS, _RESIDUAL, _KEPT, _PARAMETER, _START = range(9)


def table(rows: Iterable[Row]) -> I64:
    """Return rows as int64[rows, 9]."""
    return np.array(list(rows), np.int64).reshape(-1, len(Row._fields))


def move(rows: I64, addresses: I64) -> None:
    """Have the values of a table's rows lie elsewhere."""
    rows[:, _X] = addresses


_T = TypeVar("_T", BlockwiseVector, BlockwisePart)
BYTES, FLOATS = np.empty(0, np.uint8), np.empty(0, np.float32)
"""Of the types of a row's codes, and of its scales."""


def divided(vectors: Sequence[_T], together: Callable[[_T], bool]) -> tuple[list[int], list[int]]:
    """Numbers of the vectors that go by one call, and of those that go alone."""
    small = [i for i, vector in enumerate(vectors) if together(vector)]
    return small, sorted(set(range(len(vectors))) - set(small))


def is_small(values: npt.NDArray[Any]) -> bool:
    """Threads would not share it, nor would it be streamed."""
    return values.size < LEAST_ELEMS


def address_of(array: npt.NDArray[Any] | None) -> int:
    """Where an array begins; 0 for None."""
    return 0 if array is None else int(array.__array_interface__["data"][0])


def row_of(vector: BlockwiseVector, kept: F32 | None = None) -> Row:
    """The row of a vector that is quantised."""
    x, codes, scales, offsets, residual, parameter, start = vector
    head = address_of(x), x.size, address_of(codes), address_of(scales), address_of(offsets)
    return Row(*head, address_of(residual), address_of(kept), parameter, start)


def part_row(part: BlockwisePart) -> Row:
    """The row of one that payloads decode to; of its arrays it says where in these they begin."""
    return Row(address_of(part.out), part.out.size, part.codes, part.scales, part.offsets or 0)


def offsets_like(form: BlockForm) -> F32 | None:
    """Of the type of a row's offsets; None if it has none."""
    return FLOATS if isinstance(form, Form) and form.statistic == "range" else None


def room_for(begins: I64, like: F32 | None) -> tuple[I64, I64, I64 | None]:
    """Where addresses of codes, scales and offsets go."""
    codes, scales, offsets = np.empty((3, begins.size), np.int64)
    return codes, scales, None if like is None else offsets


@inlined
def _seek(key: Key | None, row: I64) -> None:
    """Have a vector's own random numbers be drawn next."""
    if key is not None:
        key[1], key[4] = np.uint64(row[_PARAMETER] & 0xFFFFFFFF), np.uint64(row[_START])
        key[5], key[6] = np.uint64(0), np.uint64(0)


@inlined
def _begin(begins: I64, first: int, into: I64 | None) -> None:
    """Write where an array begins in each payload, if there is one."""
    if into is not None:
        for i in range(begins.size):
            into[i] = begins[i] + first


@lean
def quantize_rows(
    rows: I64,
    x: Values,
    residual: F32 | None,
    factors: tuple[np.float32, np.float32],
    codes: U8,
    scales: F32,
    offsets: F32 | None,
    key: Key | None,
    drawn: U32 | None,
    room: F32,
    bytes_: U8,
    shape: Shape,
) -> None:
    """Quantise; ``x`` to ``offsets`` are arrays of the types that the rows' have."""
    for r in range(rows.shape[0]):
        row = rows[r]
        n = row[_ELEMS]
        blocks = (n + shape.block - 1) // shape.block
        _seek(key, row)
        _quantize(
            at(x, row[_X], n),
            at(residual, row[_RESIDUAL], n),
            factors[0],
            factors[1],
            at(codes, row[_CODES], bytes_of(n, shape.bits)),
            at(scales, row[_SCALES], blocks),
            at(offsets, row[_OFFSETS], blocks),
            key,
            drawn,
            room,
            bytes_,
            shape,
        )


@lean
def dequantize_rows(
    rows: I64,
    begin: int,
    codes: U8,
    out: F32,
    offsets: F32 | None,
    weight: np.float32,
    add: bool,
    bytes_: U8,
    room: F32,
    shape: Shape,
) -> None:
    """Decode the payload that begins at an address; ``codes`` to ``offsets`` as above.

    Blocks are made in ``room``, if there is any, where they can be streamed.
    """
    for r in range(rows.shape[0]):
        row = rows[r]
        n = row[_ELEMS]
        in_lines = row[_X] % LINE_BYTES == 0
        blocks = (n + shape.block - 1) // shape.block
        _dequantize(
            at(codes, begin + row[_CODES], bytes_of(n, shape.bits)),
            at(out, begin + row[_SCALES], blocks),
            at(offsets, begin + row[_OFFSETS], blocks),
            at(out, row[_X], n),
            weight,
            add,
            bytes_,
            view(room, 0, room.size if in_lines else 0),
            shape,
        )


@lean
def sum_rows(
    rows: I64,
    begins: I64,
    codes: I64,
    scales: I64,
    offsets: I64 | None,
    out: F32,
    weight: np.float32,
    bytes_: U8,
    shape: Shape,
) -> None:
    """Sum payloads; ``codes`` to ``offsets`` have room for one address of each."""
    for r in range(rows.shape[0]):
        row = rows[r]
        _begin(begins, row[_CODES], codes)
        _begin(begins, row[_SCALES], scales)
        _begin(begins, row[_OFFSETS], offsets)
        n = row[_ELEMS]
        sums = at(out, row[_X], n)
        _sum(codes, scales, offsets, (0, n), sums, None, weight, bytes_, shape)


@lean
def average_rows(
    rows: I64,
    sent: I64,
    begins: I64,
    theirs: tuple[I64, I64, I64 | None],
    x: F32,
    codes: U8,
    offsets: F32 | None,
    residual: F32 | None,
    factors: tuple[np.float32, np.float32, np.float32],
    key: Key | None,
    drawn: U32 | None,
    room: F32,
    bytes_: U8,
    shape: Shape,
) -> None:
    """Average; ``sent`` has the rows of what others sent, ``theirs`` room as in `sum_rows`."""
    for r in range(rows.shape[0]):
        row, part = rows[r], sent[r]
        _begin(begins, part[_CODES], theirs[0])
        _begin(begins, part[_SCALES], theirs[1])
        _begin(begins, part[_OFFSETS], theirs[2])
        n = row[_ELEMS]
        blocks = (n + shape.block - 1) // shape.block
        _seek(key, row)
        average(
            at(x, row[_X], n),
            theirs,
            0,
            at(codes, row[_CODES], bytes_of(n, shape.bits)),
            at(x, row[_SCALES], blocks),
            at(offsets, row[_OFFSETS], blocks),
            at(residual, row[_RESIDUAL], n),
            at(residual, row[_KEPT], n),
            factors,
            key,
            drawn,
            room,
            bytes_,
            shape,
        )


@lean
def quantize_sign_rows(
    rows: I64,
    x: Values,
    residual: F32 | None,
    factors: tuple[np.float32, np.float32],
    bits: U8,
    scales: F32,
    room: F32,
    block: int,
) -> None:
    """Quantise to signs; ``x`` to ``scales`` as in `quantize_rows`."""
    for r in range(rows.shape[0]):
        row = rows[r]
        n = row[_ELEMS]
        _quantize_signs(
            at(x, row[_X], n),
            at(residual, row[_RESIDUAL], n),
            factors[0],
            factors[1],
            at(bits, row[_CODES], (n + 7) // 8),
            at(scales, row[_SCALES], (n + block - 1) // block),
            block,
            room,
        )


@lean
def dequantize_sign_rows(
    rows: I64, begin: int, bits: U8, out: F32, weight: np.float32, add: bool, block: int
) -> None:
    """Decode the signs of the payload that begins at an address."""
    for r in range(rows.shape[0]):
        row = rows[r]
        n = row[_ELEMS]
        _dequantize_signs(
            at(bits, begin + row[_CODES], (n + 7) // 8),
            at(out, begin + row[_SCALES], (n + block - 1) // block),
            at(out, row[_X], n),
            block,
            weight,
            add,
        )


@lean
def average_sign_rows(
    rows: I64,
    sent: I64,
    begins: I64,
    theirs: tuple[I64, I64],
    x: F32,
    bits: U8,
    residual: F32 | None,
    factors: tuple[np.float32, np.float32, np.float32],
    room: F32,
    block: int,
) -> None:
    """As `average_rows`, of signs."""
    for r in range(rows.shape[0]):
        row, part = rows[r], sent[r]
        _begin(begins, part[_CODES], theirs[0])
        _begin(begins, part[_SCALES], theirs[1])
        n = row[_ELEMS]
        average_signs(
            at(x, row[_X], n),
            theirs[0],
            theirs[1],
            at(bits, row[_CODES], (n + 7) // 8),
            at(x, row[_SCALES], (n + block - 1) // block),
            at(residual, row[_RESIDUAL], n),
            at(residual, row[_KEPT], n),
            factors,
            block,
            room,
        )


@lean
def sum_sign_rows(
    rows: I64,
    begins: I64,
    bits: I64,
    scales: I64,
    out: F32,
    weight: np.float32,
    like: U8,
    block: int,
) -> None:
    """Sum payloads of signs; ``bits`` and ``scales`` have room for one address of each."""
    for r in range(rows.shape[0]):
        row = rows[r]
        _begin(begins, row[_CODES], bits)
        _begin(begins, row[_SCALES], scales)
        n = row[_ELEMS]
        _sum_signs(bits, scales, (0, n), at(out, row[_X], n), None, block, weight, like)
