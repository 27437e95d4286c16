"""Many sparse vectors in one call on a CPU; see :mod:`compressa.kernels.multi_tensor_sparse`.

A table says where the arrays of each vector lie, and how its indices are packed; of payloads that
say themselves how many values they hold, each has one. Long vectors are chosen from by a call of
their own, which threads may share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from .._arrays import F32, I64, U8, array_at
from ..multi_tensor_sparse import SparseVector, SparseVectors, pack_top_k
from ..scratch import scratch
from ..sparse_parts import CountedParts, Parts, SparseParts, read_part
from ._candidates import Entries
from ._feedback import Factors, factors_of
from ._jit import jit
from ._listing import LEAST_PIECE, room_for
from ._payloads import addresses, at
from ._rows import BYTES, FLOATS, address_of
from ._selection import select_short
from ._sparse_rows import (
    AT,
    ELEMS,
    INDEX_BYTES,
    INDICES,
    KEPT,
    RESIDUAL,
    SAMPLE,
    VALUES,
    lay_out_rows,
    locate_rows,
    numbers_of,
    read,
    table,
    write,
)
from ._values import Values, bits_of, load, store
from ._view import view
from .topk import give_back_unsent

_CHECK, _WRITE, _ADD = range(3)


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
        n, k = row[ELEMS], row[KEPT]
        x, residual = at(x_like, row[AT], n), at(residual_like, row[RESIDUAL], n)
        out = view(chosen[0], 0, k), view(chosen[1], 0, k)
        room = view(entries[0], 0, n), view(entries[1], 0, n)
        tried = view(sample, 0, row[SAMPLE])
        if select_short(x, residual, factors, k, 0, tried, room, out) < 0:
            for i in range(k):
                out[0][i], out[1][i] = np.uint32(i), np.float32(0)
            out[1][0] = np.float32(np.nan)
        sent = at(sent_like, row[VALUES], k)
        for i in range(k):
            store(sent, i, out[1][i])
        write(out[0], row, at(bytes_like, row[INDICES], row[INDEX_BYTES]))
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
) -> bool:
    """Check payloads, and write or add up what they hold; return whether all are right.

    Their parts are where `rows[p, r]` says, or in the same place in each.
    """
    own = rows.shape[0] > 1
    for r in range(rows.shape[1]):
        out = at(out_like, rows[0, r, AT], rows[0, r, ELEMS])
        if how == _WRITE:
            out[:] = np.float32(0)
        for p in range(begins.size):
            row = rows[p if own else 0, r]
            k = row[KEPT]
            indices = view(room[0], 0, k)
            packed = at(bytes_like, begins[p] + row[INDICES], row[INDEX_BYTES])
            if not read(packed, row, view(room[1].view(np.uint32), 0, k), indices):
                return False
            if how != _CHECK:
                sent = at(sent_like, begins[p] + row[VALUES], k)
                for i in range(k):
                    out[indices[i]] += weight * load(sent, i)
    return True


class _Selection:
    """What chooses from a list of vectors."""

    def __init__(self, batch: SparseVectors) -> None:
        vectors, self._dtype = batch.vectors, batch.value_dtype
        kept = {vector.residual is None for vector in vectors}
        together = [len(kept) == 1 and 0 < v.x.size <= LEAST_PIECE for v in vectors]
        self._small = [i for i, whether in enumerate(together) if whether]
        self._large = [i for i, whether in enumerate(together) if not whether and vectors[i].x.size]
        self._alone = [vectors[i] for i in self._large]
        self._rows = self._table_of([vectors[i] for i in self._small])
        self._like = [(bits_of(v.x[:0]), v.residual) for v in (vectors[i] for i in self._small[:1])]

    def _table_of(self, vectors: Sequence[SparseVector]) -> I64:
        residuals = [address_of(v.residual) for v in vectors]
        rows = table([address_of(v.x) for v in vectors], [v.x.size for v in vectors], residuals)
        starts = addresses([v.payload for v in vectors])
        forms = numbers_of(v.indices for v in vectors)
        kept = np.array([v.kept for v in vectors], np.int64)
        lay_out_rows(rows, kept, starts, forms, self._dtype.itemsize)
        return rows

    def move(self, addresses: I64) -> None:
        """Have the values lie elsewhere."""
        self._rows[:, AT] = addresses[self._small]
        self._alone = [
            vector._replace(x=array_at(int(addresses[i]), vector.x))
            for i, vector in zip(self._large, self._alone, strict=True)
        ]

    def __call__(self, loss_scale: float) -> None:
        for vector in self._alone:
            pack_top_k(vector, self._dtype, loss_scale)
        for x, residual in self._like:
            most, kept, sampled = self._rows[:, [ELEMS, KEPT, SAMPLE]].max(axis=0).tolist()
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


class _Scattering(ABC):
    """What checks payloads, and adds up what they hold."""

    def __init__(self, batch: Parts, most: Sequence[int]) -> None:
        parts = batch.parts
        self._rows = table([address_of(part.out) for part in parts], [p.elems for p in parts])
        self._most = np.array(most, np.int64)
        self._forms = numbers_of(part.indices for part in parts)
        self._itemsize = batch.value_dtype.itemsize
        self._room = max(most, default=0)
        self._like = bits_of(np.empty(0, batch.value_dtype))

    def move(self, addresses: I64) -> None:
        """Add to vectors elsewhere."""
        self._rows[:, AT] = addresses

    @abstractmethod
    def _located(self, payloads: Sequence[U8]) -> I64 | None:
        """The rows, by payload; None if one is not as it says of itself."""

    def __call__(self, batch: Parts, payloads: Sequence[U8], weight: float, how: int) -> None:
        rows = self._located(payloads)
        if rows is not None:
            given = rows, addresses(payloads), FLOATS, self._like, BYTES, _room(self._room)
            if _scatter_rows(*given, np.float32(weight), how):
                return
        for payload in payloads:  # one of them is refused, and it is said why
            for part in batch.located(payload):
                read_part(part, batch.value_dtype, payload)
        raise ValueError("a payload is refused, and nothing is found that is wrong with it")


class _OfOneLayout(_Scattering):
    """The parts of all payloads are in one place."""

    def __init__(self, batch: SparseParts) -> None:
        kept = [part.kept for part in batch.parts]
        super().__init__(batch, kept)
        starts = np.array([part.start for part in batch.parts], np.int64)
        lay_out_rows(self._rows, self._most, starts, self._forms, self._itemsize)
        self._bytes = batch.payload_bytes

    def _located(self, payloads: Sequence[U8]) -> I64 | None:
        return self._rows[None] if all(p.size == self._bytes for p in payloads) else None


class _Counted(_Scattering):
    """Each payload says where its parts are."""

    def __init__(self, batch: CountedParts) -> None:
        super().__init__(batch, [part.most for part in batch.parts])
        self._first = batch.first

    def _located(self, payloads: Sequence[U8]) -> I64 | None:
        rows = np.repeat(self._rows[None], max(1, len(payloads)), axis=0)
        static = self._most, self._forms, self._first, self._itemsize
        right = all(locate_rows(payload, rows[p], *static) for p, payload in enumerate(payloads))
        return rows if right else None


def _scattering(batch: Parts) -> _Scattering:
    if batch.prepared is None:
        if isinstance(batch, CountedParts):
            batch.prepared = _Counted(batch)
        else:
            assert isinstance(batch, SparseParts)
            batch.prepared = _OfOneLayout(batch)
    prepared: _Scattering = batch.prepared
    return prepared


def _room(kept: int) -> Entries:
    """Room for indices and values of a vector."""
    indices = scratch("sparse.indices", kept, np.uint32)
    return indices, scratch("sparse.values", kept, np.float32)


def multi_tensor_top_k(batch: SparseVectors, *, loss_scale: float = 1.0) -> None:
    select = batch.prepared = batch.prepared or _Selection(batch)
    select(loss_scale)


def multi_tensor_scatter(
    batch: Parts, payloads: Sequence[U8], *, weight: float = 1.0, add: bool = False
) -> None:
    _scattering(batch)(batch, payloads, weight, _ADD if add else _WRITE)


def check_sparse(batch: Parts, payload: U8) -> None:
    _scattering(batch)(batch, [payload], 1.0, _CHECK)
