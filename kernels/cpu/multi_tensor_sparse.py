"""Many sparse vectors in one call on a CPU; see :mod:`compressa.kernels.multi_tensor_sparse`.

A table says where the arrays of each vector lie, and how its indices are packed. Long vectors are
chosen from by a call of their own, which threads may share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .._arrays import F32, I64, U8, U32, array_at
from ..bitpack import index_width
from ..elias_fano import layout_of
from ..index_formats import INDEX_FORMATS, index_bytes
from ..multi_tensor_sparse import (
    SparsePart,
    SparseParts,
    SparseVector,
    SparseVectors,
    pack_top_k,
    read_part,
)
from ..scratch import scratch
from ._candidates import Entries
from ._feedback import Factors, factors_of
from ._jit import jit, nested
from ._listing import LEAST_PIECE, room_for
from ._payloads import addresses, at
from ._rank import sample_size
from ._rows import BYTES, FLOATS, address_of
from ._selection import select_short
from ._values import Values, bits_of, load, store
from ._view import view
from .bitpack import below, list_bitmap, pack_stream, set_bits, unpack_stream
from .elias_fano import join_parts, write_highs
from .topk import give_back_unsent

_BITS, _BITMAP, _ELIAS_FANO = map(INDEX_FORMATS.index, ("bits", "bitmap", "elias_fano"))
_CHECK, _WRITE, _ADD = range(3)


class _Row(NamedTuple):
    """A vector.

    Attributes:
        at: Address of its values; 0 if they are not there.
        elems: How many these are.
        kept: How many a payload holds.
        values: Where they are: the address, or the byte of a payload.
        indices: The same of their indices.
        index_bytes: Bytes of these.
        form: Number of their format.
        width: Bits of each in a stream; by Elias-Fano, the low ones.
        low_bytes: Bytes of all low bits.
        high_bits: Bits of the bitmap of high ones.
        residual: Address of the residual; 0 for none.
        sample: Elements that a guess looks at.
    """

    at: int
    elems: int
    kept: int
    values: int
    indices: int
    index_bytes: int
    form: int
    width: int
    low_bytes: int
    high_bits: int
    residual: int
    sample: int


(
    _AT,
    _ELEMS,
    _KEPT,
    _VALUES,
    _INDICES,
    _INDEX_BYTES,
    _FORM,
    _WIDTH,
    _LOW_BYTES,
    _HIGH_BITS,
    _RESIDUAL,
    _SAMPLE,
) = range(12)


def _row(
    address: int, elems: int, kept: int, form: str, start: int, itemsize: int, residual: int = 0
) -> _Row:
    """The row of a vector whose payload, or part of one, begins at `start`."""
    low_bits, low_bytes, high_bits, _ = layout_of(kept, elems)
    width = low_bits if form == "elias_fano" else index_width(elems)
    first, size = start + kept * itemsize, index_bytes(form, kept, elems)
    packed = first, size, INDEX_FORMATS.index(form), width, low_bytes, high_bits
    return _Row(address, elems, kept, start, *packed, residual, sample_size(elems))


def _table(rows: Iterable[_Row]) -> I64:
    return np.array(list(rows), np.int64).reshape(-1, len(_Row._fields))


@nested
def _write(indices: U32, row: I64, packed: U8) -> None:
    """Pack increasing indices."""
    if row[_FORM] == _BITMAP:
        set_bits(indices, packed)
    elif row[_FORM] == _BITS:
        pack_stream(indices, np.uint64(row[_WIDTH]), packed)
    else:
        if row[_WIDTH]:
            pack_stream(indices, np.uint64(row[_WIDTH]), view(packed, 0, row[_LOW_BYTES]))
        high = view(packed, row[_LOW_BYTES], packed.size)
        write_highs(indices, np.uint32(row[_WIDTH]), high)


@nested
def _read(packed: U8, row: I64, lows: U32, indices: U32) -> bool:
    """Unpack indices; return whether they are increasing and below the vector's end."""
    if row[_FORM] == _BITMAP:
        return bool(list_bitmap(packed, row[_ELEMS], indices))
    if row[_FORM] == _BITS:
        unpack_stream(packed, np.uint64(row[_WIDTH]), indices)
        return bool(below(indices, row[_ELEMS]))
    split = row[_LOW_BYTES]
    if not list_bitmap(view(packed, split, packed.size), row[_HIGH_BITS], indices):
        return False
    if row[_WIDTH]:
        unpack_stream(view(packed, 0, split), np.uint64(row[_WIDTH]), lows)
    join_parts(indices, lows, np.uint32(row[_WIDTH]))
    return bool(below(indices, row[_ELEMS]))


@jit
def _select_rows(
    rows: I64,
    x_like: Values,
    residual_like: F32 | None,
    sent_like: Values,
    bytes_like: U8,
    factors: Factors,
    sample: F32,
    entries: Entries,
    chosen: Entries,
) -> None:
    """Choose from vectors of one piece each, and pack what is chosen."""
    for r in range(rows.shape[0]):
        row = rows[r]
        n, k = row[_ELEMS], row[_KEPT]
        x, residual = at(x_like, row[_AT], n), at(residual_like, row[_RESIDUAL], n)
        out = view(chosen[0], 0, k), view(chosen[1], 0, k)
        room = view(entries[0], 0, n), view(entries[1], 0, n)
        tried = view(sample, 0, row[_SAMPLE])
        if select_short(x, residual, factors, k, 0, tried, room, out) < 0:
            for i in range(k):
                out[0][i], out[1][i] = np.uint32(i), np.float32(0)
            out[1][0] = np.float32(np.nan)
        sent = at(sent_like, row[_VALUES], k)
        for i in range(k):
            store(sent, i, out[1][i])
        _write(out[0], row, at(bytes_like, row[_INDICES], row[_INDEX_BYTES]))
        give_back_unsent(residual, out[0], out[1], sent, factors[1])


@jit
def _scatter_rows(
    rows: I64,
    begins: I64,
    out_like: F32,
    sent_like: Values,
    bytes_like: U8,
    room: Entries,
    weight: np.float32,
    how: int,
) -> int:
    """Check payloads, and write or add up what they hold; return the row of a wrong one, or -1."""
    for r in range(rows.shape[0]):
        row = rows[r]
        k = row[_KEPT]
        indices, out = view(room[0], 0, k), at(out_like, row[_AT], row[_ELEMS])
        if how == _WRITE:
            out[:] = np.float32(0)
        for p in range(begins.size):
            packed = at(bytes_like, begins[p] + row[_INDICES], row[_INDEX_BYTES])
            if not _read(packed, row, view(room[1].view(np.uint32), 0, k), indices):
                return r
            if how != _CHECK:
                sent = at(sent_like, begins[p] + row[_VALUES], k)
                for i in range(k):
                    out[indices[i]] += weight * load(sent, i)
    return -1


class _Selection:
    """What chooses from a list of vectors."""

    def __init__(self, batch: SparseVectors) -> None:
        vectors, self._dtype = batch.vectors, batch.value_dtype
        kept = {vector.residual is None for vector in vectors}
        together = [len(kept) == 1 and 0 < v.x.size <= LEAST_PIECE for v in vectors]
        self._small = [i for i, whether in enumerate(together) if whether]
        self._large = [i for i, whether in enumerate(together) if not whether and vectors[i].x.size]
        self._alone = [vectors[i] for i in self._large]
        self._rows = _table(self._row(vectors[i]) for i in self._small)
        self._like = [(bits_of(v.x[:0]), v.residual) for v in (vectors[i] for i in self._small[:1])]

    def _row(self, vector: SparseVector) -> _Row:
        x, kept, form, payload, residual = vector
        begin = address_of(payload)
        head = address_of(x), x.size, kept, form, begin, self._dtype.itemsize
        return _row(*head, address_of(residual))

    def move(self, addresses: I64) -> None:
        """Have the values lie elsewhere."""
        self._rows[:, _AT] = addresses[self._small]
        self._alone = [
            vector._replace(x=array_at(int(addresses[i]), vector.x))
            for i, vector in zip(self._large, self._alone, strict=True)
        ]

    def __call__(self, loss_scale: float) -> None:
        for vector in self._alone:
            pack_top_k(vector, self._dtype, loss_scale)
        for x, residual in self._like:
            most, kept, sampled = self._rows[:, [_ELEMS, _KEPT, _SAMPLE]].max(axis=0).tolist()
            like = None if residual is None else FLOATS
            _select_rows(
                self._rows,
                x,
                like,
                bits_of(np.empty(0, self._dtype)),
                BYTES,
                factors_of(loss_scale),
                scratch("listing.sample", sampled, np.float32),
                room_for(most),
                _room(kept),
            )


class _Scattering:
    """What checks payloads of one layout, and adds up what they hold."""

    def __init__(self, batch: SparseParts) -> None:
        self._dtype = batch.value_dtype
        self._filled = [i for i, part in enumerate(batch.parts) if part.elems]
        self._parts = [batch.parts[i] for i in self._filled]
        self._rows = _table(self._row(part, self._dtype.itemsize) for part in self._parts)
        self._most = max((part.kept for part in self._parts), default=0)
        self._like = bits_of(np.empty(0, batch.value_dtype))

    @staticmethod
    def _row(part: SparsePart, itemsize: int) -> _Row:
        elems, kept, form, start, out = part
        return _row(address_of(out), elems, kept, form, start, itemsize)

    def move(self, addresses: I64) -> None:
        """Add to vectors elsewhere."""
        self._rows[:, _AT] = addresses[self._filled]

    def __call__(self, payloads: Sequence[U8], weight: float, how: int) -> None:
        given = self._rows, addresses(payloads), FLOATS, self._like, BYTES, _room(self._most)
        wrong = _scatter_rows(*given, np.float32(weight), how)
        if wrong >= 0:
            part = self._parts[wrong]
            for payload in payloads:  # one of them is refused, and it is said why
                read_part(part, self._dtype, payload)
            raise ValueError(f"a payload of {part.elems} elements has not the indices that are due")


def _room(kept: int) -> Entries:
    """Room for indices and values of a vector."""
    indices = scratch("sparse.indices", kept, np.uint32)
    return indices, scratch("sparse.values", kept, np.float32)


def multi_tensor_top_k(batch: SparseVectors, *, loss_scale: float = 1.0) -> None:
    select = batch.prepared = batch.prepared or _Selection(batch)
    select(loss_scale)


def multi_tensor_scatter(
    batch: SparseParts, payloads: Sequence[U8], *, weight: float = 1.0, add: bool = False
) -> None:
    scatter = batch.prepared = batch.prepared or _Scattering(batch)
    scatter(payloads, weight, _ADD if add else _WRITE)


def check_sparse(batch: SparseParts, payload: U8) -> None:
    check = batch.prepared = batch.prepared or _Scattering(batch)
    check([payload], 1.0, _CHECK)
